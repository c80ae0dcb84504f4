"""Building of a released folder: export, card and provenance, verified before the folder appears."""

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub.constants import REPOCARD_NAME

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import RELEASED_FROM, Input, MadeFrom, differences
from longmlm.artifacts.evaluation import PICTURES
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.artifacts.run import CheckpointState
from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.rows import Rows, open_named_rows, pin_rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import FolderError, ReleaseError
from longmlm.folders import new_folder, unlisted_note, verify
from longmlm.hubs.licences import check_licence, licence_of
from longmlm.hubs.model_files import weights_sha256
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import with_num_positions
from longmlm.model.loading import LoadedModel, load_trained
from longmlm.pipeline_needs import check_has_no_modules, check_is_release
from longmlm.release.export import carried_by, check_exportable, export, longformer_window
from longmlm.release.gate import evaluation_of, exported_accuracy
from longmlm.release.onnx_graph import write_graphs
from longmlm.release.proof import prove
from longmlm.reports.card_code import Address
from longmlm.reports.model_card import CardFacts, languages, model_card, training_of
from longmlm.settings.publishing import Target
from longmlm.settings.release import ReleaseCard, ReleaseRecipe, SentencePooling
from longmlm.temporary import leads_out
from longmlm.training.run_folder import read_state

BASE, ADDRESS = "base", "address"  # keys of the manifest


@dataclass(frozen=True, slots=True)
class ReleaseSettings:
    """What to export, what the card says, the folder to write, and where it will be published, if anywhere."""

    recipe: ReleaseRecipe
    card: ReleaseCard
    output: Path
    target: Target | None = None

    @property
    def address(self) -> Address:
        """What the card's code loads the model from: the repository on a hub, or the folder."""
        target = self.target
        return (
            Address(target.name, target.hub, target.revision) if target and target.is_hub else Address(self.output.name)
        )


def write_release(model: Path, rows_name: str, evaluation_folder: str | None, settings: ReleaseSettings) -> list[str]:
    """Writes the output folder and returns what was verified; nothing if the folder already holds this very release.

    A release is identified by the content of model, rows and evaluation, by its settings and, if it will be published,
    by the address on its card. One of the same model, or of its run before steps were added, in which any of these
    differ is replaced. Raises FolderError when the folder holds something else, and ReleaseError for a model that
    longmlm did not train, or that fails a check: the folder is then removed, and an earlier one kept.
    """
    recipe, card, provenance = settings.recipe, settings.card, read_provenance(model)
    sha256 = weights_sha256(model)
    if provenance.trained is None:
        raise ReleaseError(f"{model} was not trained by longmlm: release a run folder or one of its checkpoints")
    rows = open_named_rows(pin_rows(rows_name), "held_out")
    evaluation = evaluation_of(evaluation_folder, provenance, sha256, rows.sha256, recipe)
    contents = {"model": sha256, "rows": rows.sha256, **({"evaluation": evaluation.sha256} if evaluation else {})}
    with new_release(settings, contents, provenance, has_added_steps(model)) as folder:
        if folder is None:
            return []
        pictures = pictures_in(Path(evaluation_folder)) if evaluation_folder else []
        licence = licence_of(card.license, provenance)
        trained, notes = write_model(model, rows, recipe, folder)
        accuracy = exported_accuracy(folder, rows, evaluation, trained.provenance, recipe)
        provenance = trained.provenance if accuracy is None else trained.provenance.exported(accuracy)
        carried, window = carried_by(trained), longformer_window(trained)
        facts = CardFacts(
            address=settings.address,
            provenance=provenance,
            evaluation=evaluation,
            rows=rows.manifest,
            training=training_of(model),
            licence=licence,
            num_positions=architecture_of(trained.model).num_positions,
            has_onnx=recipe.onnx,
            carried=carried.parts,
            modules=carried.modules,
            num_global_tokens=window.num_global if window else 0,
            language=next(iter(languages(card, rows.manifest)), "en"),
        )
        (folder / REPOCARD_NAME).write_text(model_card(card, facts), encoding="utf-8")
        base_positions = provenance.extension.base_positions if provenance.extension else None
        proof = prove(trained, recipe.weights, rows, folder, base_positions, facts.codes)
        artifact.write(folder / Provenance.FILE, provenance.published())
        for picture in pictures:
            shutil.copy(picture, folder)
    return [*carried.lines, *notes, *proof.summary]


def write_model(model: Path, rows: Rows, recipe: ReleaseRecipe, folder: Path) -> tuple[LoadedModel, list[str]]:
    """Writes the stock model and its ONNX files; returns the model in memory and notes on the ONNX files."""
    trained = load_trained(str(model))
    check_exportable(trained, recipe)
    vocabulary = vocabulary_of_pretrained(trained.tokenizer, str(model))
    check_rows_fit_model(rows, vocabulary, architecture_of(trained.model).num_positions)
    if recipe.num_positions is not None:
        trained = with_num_positions(trained, recipe.num_positions)
    if recipe.sentence_transformer is not None:
        trained = with_sentence_modules(trained, recipe.sentence_transformer)
    export(trained, recipe.weights, folder, recipe.max_shard_size)
    return trained, write_graphs(folder) if recipe.onnx else []


@contextmanager
def new_release(
    settings: ReleaseSettings, contents: Mapping[str, str], provenance: Provenance, is_continued: bool = False
) -> Iterator[Path | None]:
    """Yields an empty folder to write a release into; None if the output is already the release made from this.

    `contents` has the hash of each input, such as the model and the rows. The folder takes the place of an earlier
    release if the block succeeds. Raises FolderError unless the output is absent, or an intact release of the same
    model and nothing else, and ReleaseError for a hub without a licence. If steps were added to the run,
    `is_continued`, the earlier one may have other weights, but the same rows and base.
    """
    if settings.target and settings.target.is_hub:
        check_licence(settings.card, provenance)
    tables = {"recipe": asdict(settings.recipe), "card": asdict(settings.card)}
    made_from = MadeFrom.of(tables, {name: Input(content=sha256) for name, sha256 in contents.items()})
    output, address, earlier = settings.output, asdict(settings.address), verified_release(settings.output)
    before, source = MadeFrom.read(earlier.get(RELEASED_FROM)), provenance.source
    if not differences(before, made_from) and (settings.target is None or earlier.get(ADDRESS) == address):
        yield None
        return
    base, replaceable = source and asdict(source.published()), {contents["model"]}
    if is_continued and earlier.get(BASE) == base and before.inputs.get("rows") == made_from.inputs["rows"]:
        replaceable.add(before.inputs["model"].content)
    check_replaceable_release(output, earlier, replaceable)
    about = {RELEASED_FROM: asdict(made_from), BASE: base, ADDRESS: address}
    with new_folder(output, about, replaces_earlier=True) as partial:
        yield partial
        earlier = verified_release(output)  # something may have been added while this one was made
        check_replaceable_release(output, earlier, replaceable)
    if earlier:
        print(f"replaced the earlier release in {output}")


def has_added_steps(checkpoint: Path) -> bool:
    """Returns whether a model is a checkpoint of a run to which steps were added."""
    return (checkpoint / CheckpointState.FILE).is_file() and bool(read_state(checkpoint).continuations)


def check_replaceable_release(output: Path, manifest: Mapping[str, Any], models_sha256: Collection[str]) -> None:
    """Raises FolderError unless the folder is absent or a release of one of these models and nothing else."""
    model = MadeFrom.read(manifest.get(RELEASED_FROM)).inputs.get("model", Input())
    if manifest and model.content not in models_sha256:
        reason = "holds no release of this model" if model.content else "was released by another version of longmlm"
        raise FolderError(f"{output} {reason}: remove it or name another folder")
    if manifest and (note := unlisted_note(output, manifest["files"])):
        raise FolderError(f"{output} would be replaced, and what was added to it lost ({note}): move that elsewhere")


def verified_release(output: Path) -> dict[str, Any]:  # as read_manifest
    """Returns the manifest of a release, empty if there is none.

    Raises FolderError if the folder is something else, or if a file was changed later.
    """
    if output.is_dir():
        check_is_release(output)
    try:
        return verify(output) if output.exists() else {}
    except FolderError as error:
        raise FolderError(
            f"{error}: move the folder away to release anew; what the card should say belongs in [release.card]"
        ) from None


def pictures_in(evaluation_folder: Path) -> list[Path]:
    """Returns the pictures of an evaluation; raises ReleaseError for a link to a file outside its folder."""
    pictures = [evaluation_folder / name for name in PICTURES]
    for picture in pictures:
        if leads_out(picture, evaluation_folder):
            raise ReleaseError(f"{picture} is a link that leaves its folder: run the evaluate stage again")
    return [picture for picture in pictures if picture.is_file()]


def with_sentence_modules(trained: LoadedModel, pooling: SentencePooling) -> LoadedModel:
    """Returns the model as a sentence-transformers model; raises ReleaseError if it already is one."""
    check_has_no_modules(trained.carried.modules)
    width, num_positions = trained.model.config.hidden_size, architecture_of(trained.model).num_positions
    return replace(trained, carried=trained.carried.with_pooling(pooling, width, num_positions))
