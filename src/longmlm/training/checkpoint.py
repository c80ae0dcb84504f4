"""Checkpoints: a copy of all that training changes, taken in memory, written to a folder, and restored from it."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance, TrainingRecord
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.errors import CheckpointError
from longmlm.folders import partial_of, seal
from longmlm.model.generated import stock_state
from longmlm.model.loading import quiet_transformers
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import Backend, OptimizerState
from longmlm.training.run_folder import OPTIMIZER, SETTINGS, checkpoint_folder

WRITERS_WITHOUT_ERRNO = ("inline_container", "PytorchStreamWriter")  # in messages of torch.save on a full disk


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is written next to the weights: tokenizer, settings as TOML, recipe, the model's history.

    `trained_on` is the entry for longmlm.json, without the progress made.
    """

    tokenizer: PreTrainedTokenizerBase
    settings: str
    recipe: PretrainRecipe
    provenance: Provenance
    trained_on: TrainingRecord

    def at(self, state: TrainState) -> CheckpointState:
        """Returns the content of state.json for this progress."""
        return CheckpointState(
            state=state,
            recipe=self.recipe,
            rows_sha256=str(self.trained_on.rows_sha256),
            rows=self.trained_on.rows,
            precision=self.trained_on.precision,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Stock weights, AdamW's state dict and every rank's generator states, on the CPU and shared with nobody."""

    weights: dict[str, Tensor]
    optimizer: OptimizerState
    generators: list[dict[str, Tensor]]


def take_snapshot(backend: Backend, accelerator: Accelerator) -> Snapshot | None:
    """Returns the snapshot in the main process, None in the others; every rank must call it."""
    generators = gather_object([_generator_states()])
    weights, optimizer = backend.gather_weights(), backend.gather_optimizer()
    if not accelerator.is_main_process:
        return None
    return Snapshot(stock_state(backend.objective.model, weights), optimizer, generators)


def write_checkpoint(
    run: Path, state: TrainState, model: PreTrainedModel, snapshot: Snapshot, record: RunRecord
) -> Path:
    """Writes the checkpoint of this step, in the main process, and returns its folder; of `model` the config is used.

    A checkpoint of the same step is replaced. Raises CheckpointError, and leaves nothing, when it cannot be written.
    """
    folder = checkpoint_folder(run, state.step)
    partial = partial_of(folder)
    trained = replace(record.trained_on, steps=state.step, tokens=state.tokens, accuracy=state.accuracy_here)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with quiet_transformers():
            model.save_pretrained(partial, state_dict=snapshot.weights)
        torch.save(snapshot.optimizer, partial / OPTIMIZER)
        for rank, states in enumerate(snapshot.generators):
            torch.save(states, partial / _generator_file(rank))
        record.tokenizer.save_pretrained(partial)
        artifact.write(partial / CheckpointState.FILE, record.at(state))
        artifact.write(partial / Provenance.FILE, replace(record.provenance, trained=trained))
        (partial / SETTINGS).write_text(record.settings, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        seal(partial, folder)
    except Exception as error:  # safetensors and torch raise types of their own when the disk is full
        shutil.rmtree(partial, ignore_errors=True)
        is_full = any(name in str(error) for name in WRITERS_WITHOUT_ERRNO)
        raise CheckpointError(
            f"the checkpoint of step {state.step} could not be written ({'the disk is full' if is_full else error}); "
            "the one before it is kept: free some space and run the same command again"
        ) from error
    return folder


def restore(folder: Path, backend: Backend, rank: int) -> None:
    """Restores optimizer and generators from a verified checkpoint; the weights were loaded with the model.

    On another number of processes a rank may have no generator state: it keeps its seed, which only dropout depends on.
    """
    backend.restore_optimizer(torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True))
    own = folder / _generator_file(rank)
    if own.is_file():
        states = torch.load(own, weights_only=True)
        torch.set_rng_state(states["cpu"])
        if torch.cuda.is_available() and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])


def _generator_file(rank: int) -> str:
    return f"rng-{rank:05d}.pt"


def _generator_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else states
