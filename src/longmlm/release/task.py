"""Release of a fine-tuned model: a stock folder with a card, verified by reloading."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.constants import REPOCARD_NAME
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import sha256_of_json
from longmlm.artifacts.fine_tuned import MODEL, FineTuned
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.errors import ReleaseError, counted
from longmlm.hubs.licences import licence_of
from longmlm.hubs.model_files import weights_sha256
from longmlm.model.architecture import position_offset
from longmlm.model.families import longformer_problem
from longmlm.model.loading import LoadedModel, load_encoder
from longmlm.model.window import stock_global_tokens
from longmlm.release.build import ReleaseSettings, new_release
from longmlm.release.export import export, longformer_window
from longmlm.release.proof import padded, reference, reload_in_process, rounded
from longmlm.reports.card_code import LoadingCode
from longmlm.reports.model_card import PIPELINE_TASKS, task_card
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
    facts = asdict(replace(tuned, longmlm="", commit=None))
    contents = {"model": weights_sha256(model), "trial": sha256_of_json(facts)}
    with new_release(settings, contents, read_provenance(model)) as partial:
        return _build(model, tuned, settings, partial) if partial else []


def _build(source: Path, tuned: FineTuned, settings: ReleaseSettings, folder: Path) -> list[str]:
    recipe, auto_class = settings.recipe, getattr(transformers, tuned.auto_class)
    loaded = load_encoder(str(source), auto_class)
    _check_longformer(loaded, auto_class)
    export(loaded, recipe.weights, folder, recipe.max_shard_size, auto_class)
    language = next(iter(settings.card.languages), "en")
    code = LoadingCode("load_task.md", PIPELINE_TASKS[tuned.auto_class], tuned.stride, language)
    licence = licence_of(settings.card.license, loaded.provenance)
    card = task_card(settings.card, tuned, loaded.provenance, licence, code, settings.address)
    (folder / REPOCARD_NAME).write_text(card, encoding="utf-8")
    model = rounded(loaded, recipe.weights)
    proof = reload_in_process(folder, _reference(model, loaded.tokenizer), [code], tuned.auto_class)
    proof.check(model, tuned.num_tokens, tuned.truncation_side)
    artifact.write(folder / Provenance.FILE, loaded.provenance.published())
    return [f"reloaded with plain transformers as {tuned.auto_class}: {proof.outputs}"]


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


def _reference(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Returns random tokens and their logits: a few, and a padded batch as long as the encoder has positions."""
    positions = getattr(model.config, "max_position_embeddings", None)
    encoder: Any = model.base_model
    longest = positions - position_offset(encoder) if positions else tokenizer.model_max_length
    ordinary = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    drawn = torch.randint(len(ordinary), (1, longest), generator=torch.Generator().manual_seed(SEED))
    row = torch.tensor(ordinary)[drawn]
    short = row[:, :SHORT]
    inputs = {"short": (short, torch.ones_like(short)), "padded": padded(row, tokenizer.pad_token_id or 0)}
    return reference(model, inputs)
