"""Building of a released folder: export, card and provenance, verified before the folder appears."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub.constants import REPOCARD_NAME

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import PICTURES, Evaluation
from longmlm.artifacts.provenance import RELEASED_FROM, ModelSource, Provenance, ReleasedFrom, read_provenance
from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.rows import Rows, open_named_rows, pin_rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import FolderError, ReleaseError
from longmlm.folders import new_folder, unlisted_note, verify
from longmlm.hubs.licences import licence_of
from longmlm.hubs.models import weights_sha256
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import with_num_positions
from longmlm.model.loading import LoadedModel, load_model
from longmlm.release.export import export
from longmlm.release.gate import Identity, evaluation_of, exported_accuracy
from longmlm.release.longformer import carried_by, check_exportable, longformer_window
from longmlm.release.onnx_graph import write_graphs
from longmlm.release.proof import Proof, prove
from longmlm.reports.card_code import Address
from longmlm.reports.model_card import CardFacts, languages, model_card, training_of
from longmlm.settings.publishing import Target
from longmlm.settings.release import ReleaseCard, ReleaseRecipe, SentencePooling
from longmlm.temporary import leads_out

MODEL_SHA256, ADDRESS = "model_sha256", "address"  # keys of the manifest


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


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """A trained model with its held-out rows and, if it was extended, its evaluation."""

    model: Path
    provenance: Provenance
    rows: Rows
    identity: Identity
    evaluation: Evaluation | None = None
    evaluation_folder: Path | None = None


def open_source(model: Path, rows: str, evaluation_folder: str | None, recipe: ReleaseRecipe) -> ReleaseSource:
    """Returns the model with its rows and its evaluation.

    Raises ReleaseError for a model that longmlm did not train, or whose evaluation does not permit a release.
    """
    sha256 = weights_sha256(model)
    provenance = read_provenance(model)
    if provenance.trained is None:
        raise ReleaseError(f"{model} was not trained by longmlm: release a run folder or one of its checkpoints")
    opened, extension = open_named_rows(pin_rows(rows), "held_out"), provenance.extension
    base = provenance.source or ModelSource(name="")
    identity = Identity(sha256, opened.sha256, base.name, base.revision, base.sha256)
    evaluation = evaluation_of(evaluation_folder, identity, extension is not None, recipe)
    folder = Path(evaluation_folder) if evaluation_folder else None
    return ReleaseSource(model, provenance, opened, identity, evaluation, folder)


def write_release(source: ReleaseSource, settings: ReleaseSettings) -> Proof | None:
    """Writes the output folder and returns what was verified; None if the folder already holds this very release.

    A release is identified by the content of model, rows and evaluation, by its settings and, if it will be published,
    by the address on its card. One of the same model in which any of these differ is replaced. Raises FolderError when
    the folder holds something else. A folder that fails a check is removed, and an earlier one kept.
    """
    base = source.provenance.source
    made_from = ReleasedFrom(
        recipe=settings.recipe,
        card=settings.card,
        model_sha256=weights_sha256(source.model),
        rows_sha256=source.rows.sha256,
        base=base and base.published(),
        evaluation_sha256=source.evaluation.sha256 if source.evaluation else None,
    )
    about = about_release(settings, made_from.model_sha256, made_from.content)
    if about is None:
        return None
    with new_release(settings.output, about) as partial:
        return build(source, settings, partial)


def about_release(
    settings: ReleaseSettings, model_sha256: str, made_from: Mapping[str, object]
) -> dict[str, object] | None:
    """Returns what the manifest says of a release made from this; None if the folder already holds that release.

    Raises FolderError as `check_replaceable_release` does.
    """
    output, address = settings.output, asdict(settings.address)
    about: dict[str, object] = {RELEASED_FROM: made_from, MODEL_SHA256: model_sha256, ADDRESS: address}
    if output.exists():
        earlier = verified_release(output)
        is_addressed = settings.target is None or earlier.get(ADDRESS) == address
        if earlier.get(RELEASED_FROM) == made_from and is_addressed:
            return None
    check_replaceable_release(output, about)
    return about


@contextmanager
def new_release(output: Path, about: Mapping[str, object]) -> Iterator[Path]:
    """Yields an empty folder to write a release into, which takes the place of an earlier one if the block succeeds."""
    with new_folder(output, about, replaces_earlier=True) as partial:
        yield partial
        check_replaceable_release(output, about)  # something may have been added while this one was made
        is_replaced = output.exists()
    if is_replaced:
        print(f"replaced the earlier release in {output}")


def check_replaceable_release(output: Path, about: Mapping[str, object]) -> None:
    """Raises FolderError unless the folder is absent or an intact release of the same model and nothing else."""
    if not output.exists():
        return
    manifest = verified_release(output)
    if MODEL_SHA256 not in manifest:
        raise FolderError(f"{output} is not a release of this version: remove it or name another folder")
    if manifest[MODEL_SHA256] != about[MODEL_SHA256]:
        raise FolderError(f"{output} holds a release of a different model: remove it or name another folder")
    if note := unlisted_note(output, manifest["files"]):
        raise FolderError(f"{output} would be replaced, and what was added to it lost ({note}): move that elsewhere")


def verified_release(output: Path) -> dict[str, Any]:  # as read_manifest
    """Returns the manifest of a release; raises FolderError if a file has changed since it was made."""
    try:
        return verify(output)
    except FolderError as error:
        raise FolderError(
            f"{error}: move the folder away to release anew; what the card should say belongs in [release.card]"
        ) from None


def build(source: ReleaseSource, settings: ReleaseSettings, folder: Path) -> Proof:
    """Writes a stock model with its card into `folder`, and returns what was exported and verified.

    Raises ReleaseError or FolderError if a check fails.
    """
    recipe, rows, pictures = settings.recipe, source.rows, pictures_in(source.evaluation_folder)
    licence = licence_of(settings.card.license, source.provenance)
    trained = load_model(str(source.model))
    check_exportable(trained, recipe)
    vocabulary = vocabulary_of_pretrained(trained.tokenizer, str(source.model))
    check_rows_fit_model(rows, vocabulary, architecture_of(trained.model).num_positions)
    if recipe.num_positions is not None:
        trained = with_num_positions(trained, recipe.num_positions)
    if recipe.sentence_transformer is not None:
        trained = with_sentence_modules(trained, recipe.sentence_transformer)
    provenance, carried, window = trained.provenance, carried_by(trained), longformer_window(trained)
    export(trained, recipe.weights, folder, recipe.max_shard_size)
    notes = [*carried.lines, *(write_graphs(folder) if recipe.onnx else ())]
    accuracy = exported_accuracy(folder, rows, source.evaluation, provenance, recipe)
    if accuracy is not None:
        provenance = provenance.exported(accuracy)
    facts = CardFacts(
        address=settings.address,
        provenance=provenance,
        evaluation=source.evaluation,
        rows=rows.manifest,
        training=training_of(source.model),
        licence=licence,
        num_positions=architecture_of(trained.model).num_positions,
        has_onnx=recipe.onnx,
        carried=carried.parts,
        modules=carried.modules,
        num_global_tokens=window.num_global if window else 0,
        language=next(iter(languages(settings.card, rows.manifest)), "en"),
    )
    (folder / REPOCARD_NAME).write_text(model_card(settings.card, facts), encoding="utf-8")
    base_positions = provenance.extension.base_positions if provenance.extension else None
    proof = prove(trained, recipe.weights, rows, folder, base_positions, facts.codes)
    artifact.write(folder / Provenance.FILE, provenance.published())
    for picture in pictures:
        shutil.copy(picture, folder)
    return replace(proof, notes=tuple(notes))


def pictures_in(evaluation_folder: Path | None) -> list[Path]:
    """Returns the pictures of an evaluation; raises ReleaseError for a link to a file outside its folder."""
    pictures = [evaluation_folder / name for name in PICTURES] if evaluation_folder else []
    for picture in pictures:
        if leads_out(picture, picture.parent):
            raise ReleaseError(f"{picture} is a link that leaves its folder: run the evaluate stage again")
    return [picture for picture in pictures if picture.is_file()]


def with_sentence_modules(trained: LoadedModel, pooling: SentencePooling) -> LoadedModel:
    """Returns the model as a sentence-transformers model; raises ReleaseError if it already is one."""
    if trained.carried.modules:
        raise ReleaseError(
            f"the model already has sentence-transformers modules ({', '.join(trained.carried.modules)}): remove "
            "recipe.sentence_transformer"
        )
    width, num_positions = trained.model.config.hidden_size, architecture_of(trained.model).num_positions
    return replace(trained, carried=trained.carried.with_pooling(pooling, width, num_positions))
