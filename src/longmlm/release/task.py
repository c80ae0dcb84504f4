"""Release of a fine-tuned model: a stock folder with a card, verified by reloading."""

import hashlib
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub.constants import REPOCARD_NAME
from safetensors.torch import save_file

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import MODEL, FineTuned
from longmlm.artifacts.provenance import Provenance
from longmlm.errors import ReleaseError, counted, naming
from longmlm.hubs.licences import licence_of
from longmlm.hubs.models import weights_sha256
from longmlm.model.architecture import position_offset
from longmlm.model.carried import Carried, save_model
from longmlm.model.loading import LoadedModel, load_model, stock_global_tokens
from longmlm.release import reload
from longmlm.release.build import ReleaseSettings, about_release, new_release
from longmlm.release.export import TYPES
from longmlm.release.longformer import as_longformer, longformer_problem, longformer_window
from longmlm.release.proof import TOLERANCE, check_faithful, reload_in_process
from longmlm.reports.card_code import LoadingCode
from longmlm.reports.task_card import PIPELINE_TASKS, task_card
from longmlm.settings.release import ReleaseRecipe

SEED, SHORT = 0, 8


def check_task_recipe(recipe: ReleaseRecipe) -> None:
    """Raises ReleaseError for a setting that is for masked language models only."""
    allowed = ReleaseRecipe(weights=recipe.weights, max_shard_size=recipe.max_shard_size)
    changed = [name for name, value in asdict(recipe).items() if value != asdict(allowed)[name]]
    if changed:
        raise ReleaseError(
            f"recipe.{changed[0]} is for masked language models: remove it to release a fine-tuned model"
        )


def write_task_release(folder: Path, settings: ReleaseSettings) -> list[str]:
    """Writes the release of the model beside a FineTuned and returns what was verified; nothing if it is already there.

    A release of the same model with other settings or results is replaced. Raises ReleaseError for a model that
    transformers cannot load without code, or whose export differs, and FolderError if the folder holds something else.
    """
    tuned, model = artifact.read(FineTuned, folder / FineTuned.FILE), folder / MODEL
    if tuned.problem:
        raise ReleaseError(tuned.problem)
    if not model.is_dir():
        raise ReleaseError(f"{folder} has no model: release the trial of its arm that keeps one, or set keep_weights")
    facts = json.dumps(asdict(replace(tuned, longmlm="", commit=None)), sort_keys=True)
    made_from = {
        "recipe": asdict(settings.recipe),
        "card": json.loads(json.dumps(asdict(settings.card))),
        "model_sha256": weights_sha256(model),
        "trial_sha256": hashlib.sha256(facts.encode()).hexdigest(),
    }
    about = about_release(settings, made_from["model_sha256"], made_from)
    if about is None:
        return []
    with new_release(settings.output, about) as partial:
        return _build(model, tuned, settings, partial)


def _build(source: Path, tuned: FineTuned, settings: ReleaseSettings, folder: Path) -> list[str]:
    recipe, auto_class = settings.recipe, getattr(transformers, tuned.auto_class)
    loaded = load_model(str(source), auto_class=auto_class)
    _check_longformer(loaded, auto_class)
    model: Any = loaded.model
    model.to(TYPES[recipe.weights])
    if window := longformer_window(loaded):
        model = cast(Any, as_longformer(loaded.model, window, auto_class))
        model.to(TYPES[recipe.weights])
    model.config.dtype = TYPES[recipe.weights]
    save_model(model, loaded.tokenizer, Carried(), folder, max_shard_size=recipe.max_shard_size)
    language = next(iter(settings.card.languages), "en")
    code = LoadingCode("load_task.md", PIPELINE_TASKS[tuned.auto_class], tuned.stride, language)
    licence = licence_of(settings.card.license, loaded.provenance)
    card = task_card(settings.card, tuned, loaded.provenance, licence, code.on_card(settings.address))
    (folder / REPOCARD_NAME).write_text(card, encoding="utf-8")
    difference = _prove(loaded, tuned, folder, code)
    artifact.write(folder / Provenance.FILE, loaded.provenance.published())
    result = f"differ by at most {difference:.1e}" if difference else "are identical"
    return [f"reloaded with plain transformers as {tuned.auto_class}: outputs {result}"]


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


def _prove(loaded: LoadedModel, tuned: FineTuned, folder: Path, code: LoadingCode) -> float:
    """Returns by how much the outputs of the folder, loaded in a process without longmlm, differ from the model's.

    Inputs are random tokens: a few, as many as the encoder has positions, and a padded batch. The code that
    the card shows is run too. Raises ReleaseError when anything differs, is missing or cannot be read.
    """
    with tempfile.TemporaryDirectory() as scratch:
        reference = Path(scratch) / "reference.safetensors"
        with naming(reference):
            save_file(_reference(loaded), reference)
        report = reload_in_process(folder, reference, None, [code], tuned.auto_class)
    difference, side, num_tokens = (report[name] for name in ("largest_difference", "truncation_side", "num_tokens"))
    problems = [] if difference <= TOLERANCE else [f"outputs differ by {difference:.2e}"]
    if side != tuned.truncation_side or num_tokens != tuned.num_tokens:
        problems.append(f"texts are truncated on the {side}, after {num_tokens:,} tokens")
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
