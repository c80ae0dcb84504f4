"""Release of a model that the downstream command has fine-tuned: a stock folder with a card, verified by reloading."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub.constants import REPOCARD_NAME
from safetensors.torch import save_file

from longmlm.artifacts import artifact
from longmlm.artifacts.downstream import DownstreamComparison, DownstreamTrial
from longmlm.artifacts.provenance import Provenance
from longmlm.errors import ReleaseError, counted, naming
from longmlm.hubs.licences import licence_of
from longmlm.hubs.models import weights_sha256
from longmlm.model.architecture import position_offset
from longmlm.model.carried import Carried, save_model
from longmlm.model.classification import MULTI_LABEL
from longmlm.model.loading import LoadedModel
from longmlm.model.similarity import load_embedder
from longmlm.model.task_loading import load_for_task, stock_global_tokens
from longmlm.release import reload
from longmlm.release.build import CARD_CODE, ReleaseSettings, about_release, new_release
from longmlm.release.export import TYPES
from longmlm.release.longformer import as_longformer, longformer_problem, longformer_window
from longmlm.release.proof import TOLERANCE, check_faithful, reload_in_process
from longmlm.reports.card_code import Address, CardCode, LoadingCode
from longmlm.reports.downstream import arms_table
from longmlm.reports.task_card import TaskFacts, task_card
from longmlm.settings.downstream import Arm, DownstreamTrialConfig, TaskKind
from longmlm.settings.release import ReleaseRecipe

AUTO_CLASSES: Mapping[TaskKind, str] = {
    "classification": "AutoModelForSequenceClassification",
    "labelling": "AutoModelForTokenClassification",
    "similarity": "AutoModel",
}
SEED, SHORT = 0, 8


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A fine-tuned model: its folder, the trial that made it, and the comparison that the trial is part of, if any."""

    model: Path
    config: DownstreamTrialConfig
    trial: DownstreamTrial
    comparison: DownstreamComparison | None


def check_task_recipe(recipe: ReleaseRecipe) -> None:
    """Raises ReleaseError for a setting that is for masked language models only."""
    allowed = ReleaseRecipe(weights=recipe.weights, max_shard_size=recipe.max_shard_size)
    changed = [name for name, value in asdict(recipe).items() if value != asdict(allowed)[name]]
    if changed:
        raise ReleaseError(
            f"recipe.{changed[0]} is for masked language models: remove it to release a fine-tuned model"
        )


def write_task_release(source: TaskSource, settings: ReleaseSettings) -> list[str]:
    """Writes the output folder and returns what was verified; nothing if the folder already holds this very release.

    A release of the same model with other settings or results is replaced. Raises ReleaseError for a model that
    transformers cannot load without code, or whose export differs, and FolderError if the folder holds something else.
    """
    _check_releasable(source)
    model_sha256, compared = weights_sha256(source.model), source.comparison
    results = json.dumps([asdict(arms_table(compared)), compared.task.baseline]) if compared else ""
    made_from = {
        "recipe": asdict(settings.recipe),
        "card": json.loads(json.dumps(asdict(settings.card))),
        "model_sha256": model_sha256,
        "trial_sha256": source.trial.settings_sha256,
        "comparison_sha256": hashlib.sha256(results.encode()).hexdigest(),
    }
    about = about_release(settings.output, model_sha256, made_from)
    if about is None:
        return []
    with new_release(settings.output, about) as partial:
        return _build(source, settings, partial, about)


def _check_releasable(source: TaskSource) -> None:
    arm = source.config.arm
    if arm.model is None:
        raise ReleaseError("this trial is of TF-IDF, which is no model of transformers: release another arm")
    if not arm.is_trained(source.config.task.kind):
        raise ReleaseError(f"this arm trains nothing: its model is {arm.model}, as it is")
    if not source.model.is_dir():
        raise ReleaseError(
            f"{source.model.parent} has no model: release the trial of its arm that keeps one, or set keep_weights"
        )
    if source.config.task.kind != "labelling" and arm.reads == "chunks":
        raise ReleaseError("no class of transformers pools the vectors of chunks: release an arm that reads one input")


def _build(source: TaskSource, settings: ReleaseSettings, folder: Path, about: dict[str, object]) -> list[str]:
    recipe, kind = settings.recipe, source.config.task.kind
    loaded, auto_class = _loaded(source), getattr(transformers, AUTO_CLASSES[kind])
    _check_longformer(loaded, auto_class)
    licence = licence_of(settings.card.license, loaded.provenance)
    num_special = loaded.tokenizer.num_special_tokens_to_add()
    num_tokens = (source.trial.length or 0) + num_special
    loaded.tokenizer.model_max_length = num_tokens
    loaded.tokenizer.truncation_side = "left" if source.config.arm.reads == "last" else "right"
    loaded.tokenizer.init_kwargs["truncation_side"] = loaded.tokenizer.truncation_side  # which is what is saved
    carried = Carried()
    if kind == "similarity":
        carried = carried.with_pooling("mean", loaded.model.config.hidden_size, num_tokens)
    model: Any = loaded.model
    model.to(TYPES[recipe.weights])
    if window := longformer_window(loaded):
        model = cast(Any, as_longformer(loaded.model, window, auto_class))
        model.to(TYPES[recipe.weights])
    model.config.dtype = TYPES[recipe.weights]
    save_model(model, loaded.tokenizer, carried, folder, max_shard_size=recipe.max_shard_size)
    facts = TaskFacts(
        name=settings.output.name,
        provenance=loaded.provenance,
        config=source.config,
        trial=source.trial,
        comparison=source.comparison,
        licence=licence,
        num_tokens=num_tokens,
        labels=_labels(model.config.id2label or {}, kind),
        is_multilabel=model.config.problem_type == MULTI_LABEL,
        language=next(iter(settings.card.languages), "en"),
    )
    (folder / REPOCARD_NAME).write_text(task_card(settings.card, facts), encoding="utf-8")
    difference = _prove(loaded, kind, folder, facts.code)
    about[CARD_CODE] = asdict(CardCode(Address(facts.name), (facts.code,)))
    artifact.write(folder / Provenance.FILE, loaded.provenance.published())
    result = f"differ by at most {difference:.1e}" if difference else "are identical"
    return [f"reloaded with plain transformers as {AUTO_CLASSES[kind]}: outputs {result}"]


def _check_longformer(loaded: LoadedModel, auto_class: Any) -> None:
    """Raises ReleaseError for a model with a window that this class of Longformer does not compute by itself."""
    window, stock = longformer_window(loaded), stock_global_tokens(auto_class)
    problem = longformer_problem(loaded.model.config, has_mlm_head=False)
    if window and not problem and window.num_global != stock:
        raise ReleaseError(
            f"the model has {counted(window.num_global, 'global token')}, but pipelines of transformers give a "
            f"Longformer for this task {stock or 'none'}: extend the base model with num_global_tokens = {stock} and "
            "fine-tune that"
        )


def _labels(names: Mapping[int, str], kind: TaskKind) -> tuple[str, ...]:
    """Returns the labels of a task; those of spans without the prefixes of their BIO classes."""
    match kind:
        case "classification":
            return tuple(map(str, names.values()))
        case "labelling":
            return tuple(dict.fromkeys(name.partition("-")[2] for name in names.values() if name != "O"))
        case "similarity":
            return ()


def _loaded(source: TaskSource) -> LoadedModel:
    if source.config.task.kind == "similarity":
        return load_embedder(Arm(model=str(source.model)))
    auto_class = getattr(transformers, AUTO_CLASSES[source.config.task.kind])
    return load_for_task(auto_class, str(source.model), keeps_head=True)


def _prove(loaded: LoadedModel, kind: TaskKind, folder: Path, code: LoadingCode) -> float:
    """Returns by how much the outputs of the folder, loaded in a process without longmlm, differ from the model's.

    Inputs are random tokens: a few, as many as the encoder has positions, and a padded batch. The code that
    the card shows is run too. Raises ReleaseError when anything differs, is missing or cannot be read.
    """
    with tempfile.TemporaryDirectory() as scratch:
        reference = Path(scratch) / "reference.safetensors"
        with naming(reference):
            save_file(_reference(loaded), reference)
        report = reload_in_process(folder, reference, None, [code], AUTO_CLASSES[kind])
    difference, side = report["largest_difference"], report["truncation_side"]
    problems = [] if difference <= TOLERANCE else [f"outputs differ by {difference:.2e}"]
    if side != loaded.tokenizer.truncation_side:
        problems.append(f"texts are truncated on the {side}")
    check_faithful(report, problems)
    return difference


@torch.no_grad()
def _reference(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    model: Any = loaded.model
    model.to(torch.float32).eval()  # rounded to the stored type before
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = positions - position_offset(model.base_model) if positions else loaded.tokenizer.model_max_length
    generator = torch.Generator().manual_seed(SEED)
    ordinary = [token for token in range(len(loaded.tokenizer)) if token not in loaded.tokenizer.all_special_ids]
    input_ids = torch.tensor(ordinary)[torch.randint(len(ordinary), (2, longest), generator=generator)]
    mask = torch.ones_like(input_ids)
    input_ids[1, longest // 2 :], mask[1, longest // 2 :] = loaded.tokenizer.pad_token_id or 0, 0
    num_short = min(SHORT, longest)
    inputs = {"short": (input_ids[:1, :num_short], mask[:1, :num_short]), "padded": (input_ids, mask)}
    tensors = {}
    for name, (ids, attention_mask) in inputs.items():
        output = reload.task_output(model, ids, attention_mask)
        parts = {"input_ids": ids, "attention_mask": attention_mask, "output": output}
        tensors |= {f"{name}.{part}": value.contiguous().clone() for part, value in parts.items()}
    return tensors
