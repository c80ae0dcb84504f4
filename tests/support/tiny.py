"""Tiny models, tokenizers and packed rows from the demo text."""

import io
import json
import shutil
import subprocess
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import AutoModelForMaskedLM

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Extension, ModelSource, Provenance, TrainingRecord, read_provenance
from longmlm.artifacts.run import TrainState
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary, vocabulary_of_pretrained
from longmlm.evaluation.frozen import FrozenRows, whole
from longmlm.evaluation.measure import measure
from longmlm.folders import MANIFEST
from longmlm.model.extension import write_extension
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.release import proof as export
from longmlm.release import reload
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.masking import HeldOut
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.stages.evaluate import evaluate
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import take_snapshot, write_checkpoint
from longmlm.training.run import RunRecord
from tests.support.families import NUM_POSITIONS, demo_texts, tiny_model, tiny_tokenizer
from tests.support.once import once
from tests.support.worlds import World

LONG_POSITIONS = 40


def tiny_folder(
    folder: Path, family: str = "roberta", pad: int = 1, num_positions: int = NUM_POSITIONS, seed: int = 0
) -> Path:
    """Writes a tiny model with its tokenizer, like a pretrained one on disk, and returns the folder."""
    tiny_model(family, pad, num_positions, seed).save_pretrained(folder)
    tiny_tokenizer(family, pad, num_positions).save_pretrained(folder)
    return folder


PIPELINE = """
model = "base"
corpus = ["text.jsonl"]
length = 40
output = "out"
[prepare.recipe]
held_out_fraction = 0.25
[extend.recipe]
initialisation = "fitted"
[pretrain.recipe]
num_steps = 2
batch_tokens = 320
precision = "no"
held_out.max_rows = 16
[pretrain.runtime]
num_threads = 1
"""
ENDLESS_PIPELINE = f"""{PIPELINE.replace("num_steps = 2", "num_steps = 100000")}
log_every_steps = 1
save_every_steps = 100000
evaluate_every_steps = 100000
"""


def tiny_project(folder: Path) -> Path:
    """Writes a base model, a corpus and mine.toml, a pipeline whose training does not end, and returns the folder."""
    tiny_folder(folder / "base")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in demo_texts())
    (folder / "text.jsonl").write_text(lines, encoding="utf-8")
    (folder / "mine.toml").write_text(ENDLESS_PIPELINE, encoding="utf-8")
    return folder


def tiny_rows(folder: Path, tokenizer: Path, row_length: int = LONG_POSITIONS, **recipe_changes: object) -> Path:
    """Packs the demo texts into rows of both splits and returns their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in demo_texts()), encoding="utf-8")
    sources = (Source(files=(str(text),)),)
    settings = {"tokenizer": str(tokenizer), "row_length": row_length, "sources": sources, "held_out_fraction": 0.25}
    recipe = PrepareRecipe(**settings, **recipe_changes)
    rows = folder / f"rows-{row_length}"
    prepare_rows(recipe, load_vocabulary(str(tokenizer)), rows)
    return rows


def tiny_long(folder: Path, base: Path, num_positions: int = LONG_POSITIONS) -> Path:
    """Extends the base model into `folder` as the stage does, and returns the folder."""
    write_extension(load_model(str(base)), tiny_extension(base, num_positions), folder)
    return folder


def tiny_extension(base: Path | str, num_positions: int = LONG_POSITIONS, **more: object) -> Extension:
    """Returns how the base model is extended, with the default settings unless others are given."""
    source, sizes = ModelSource(name=str(base)), {"base_positions": NUM_POSITIONS, "num_positions": num_positions}
    return Extension(**{"base": source, **sizes, "initialisation": "hierarchical", "alpha": 0.4, "seed": 0, **more})


def mark_trained(folder: Path, num_steps: int = 3) -> Path:
    """Notes in longmlm.json that the long model was trained at its length, and returns the folder."""
    about = read_provenance(folder)
    length = about.extension.num_positions
    trained = TrainingRecord(row_length=length, steps=num_steps, tokens=1_000, accuracy=12.5)
    artifact.write(folder / Provenance.FILE, replace(about, trained=trained))
    (folder / MANIFEST).unlink(missing_ok=True)
    return folder


def measured_on(rows: Path) -> dict[str, Any]:
    """Returns what longmlm.json says about the evaluation on these rows in a run."""
    return {"held_out": HeldOut(), "precision": "no", "rows_sha256": held_out(rows).sha256}


def accuracy_of(folder: Path, rows: Path) -> float:
    """Returns the held-out masked-token accuracy of the model in the folder, in percent."""
    loaded = load_model(str(folder))
    vocabulary = vocabulary_of_pretrained(loaded.tokenizer, str(folder))
    frozen = FrozenRows(held_out(rows), HeldOut(), vocabulary.maskable, vocabulary.special)
    return measure(MlmObjective(loaded.model), frozen, whole, LONG_POSITIONS, Accelerator(cpu=True)).whole.accuracy


def favour(folder: Path, token_id: int) -> Path:
    """Makes the model in the folder predict `token_id` everywhere, and returns the folder."""
    model = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        model.get_output_embeddings().bias[token_id] = 100.0
    model.save_pretrained(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    return folder


def commonest_token(rows: Path, vocabulary: Vocabulary) -> int:
    """Returns the token that is most frequent in the held-out rows, special tokens not counted."""
    opened = held_out(rows)
    tokens = [opened[row_id].input_ids for row_id in range(len(opened))]
    counts = np.bincount(np.concatenate(tokens), minlength=vocabulary.size)
    drawable = vocabulary.maskable.drawable
    return int(drawable[counts[drawable].argmax()])


def tiny_world(ground: Path, family: str, pad: int) -> World:
    """Returns folders below `ground`, which all tests read and none may change.

    The trained model predicts the most frequent token everywhere.
    """

    def make(folder: Path) -> None:
        base = tiny_folder(folder / "base", family, pad)
        rows = tiny_rows(folder, base)
        trained = Path(shutil.copytree(tiny_long(folder / "long", base), folder / "trained"))
        favour(trained, commonest_token(rows, load_vocabulary(str(base))))
        mark_trained(trained)

    folder = once(ground / f"world-{family}-{pad}", make)
    return World(folder / "base", folder / "long", folder / "trained", folder / f"rows-{LONG_POSITIONS}")


def tiny_evaluation(world: World) -> Path:
    """Returns the folder that the evaluate stage writes for the models of the world."""

    def make(folder: Path) -> None:
        models = {"base": str(world.base), "long_before": str(world.long), "long_after": str(world.trained)}
        with_fresh_process_state()
        evaluate(EvaluateConfig(rows=str(world.rows), output=str(folder), **models))
        with_fresh_process_state()

    return once(world.base.parent / "evaluation", make)


def tiny_run(world: World, folder: Path) -> Path:
    """Writes a run whose first checkpoint has the weights of the trained model, and whose second is worse."""
    with_fresh_process_state()
    accelerator = Accelerator(cpu=True)
    for step, (source, accuracy) in enumerate([(world.trained, 9.0), (world.long, 3.0)], start=1):
        loaded = load_model(str(source))
        state = TrainState(step=step, tokens=100 * step, accuracy=accuracy, evaluated_at_step=step)
        about = read_provenance(str(world.long))
        trained_on = TrainingRecord(row_length=LONG_POSITIONS, steps=0, tokens=0, **measured_on(world.rows))
        recipe = PretrainRecipe(num_steps=2, batch_tokens=100, learning_rate=1e-4)
        backend = PlainBackend.wrap(accelerator, MlmObjective(loaded.model), recipe)
        snapshot = take_snapshot(backend, accelerator)
        record = RunRecord(loaded.tokenizer, "", recipe, about, trained_on)
        write_checkpoint(folder, state, loaded.model, snapshot, record)
    with_fresh_process_state()
    return folder


def release_settings(world: World, evaluation: Path, output: Path) -> dict[str, object]:
    """Returns settings with which the trained model is released."""
    paths = {"model": world.trained, "rows": world.rows, "output": output, "evaluation": evaluation}
    card = {"title": "tiny", "license": "apache-2.0", "data": ["demo novels"]}
    return {name: str(path) for name, path in paths.items()} | {"card": card}


def prove_in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Makes the proof of a release load the folder in this process, which takes a tenth of the time."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        folder, reference, auto_class, text, codes = command[-5:]
        result = reload.compare(folder, Path(reference), auto_class, Path(text).read_text(encoding="utf-8"))
        with redirect_stdout(io.StringIO()):
            reload.run_codes(folder, json.loads(codes))
        return subprocess.CompletedProcess(command, 0, json.dumps({**result, "knows_longmlm": False}), "")

    patch.setattr(export, "subprocess", SimpleNamespace(run=run))


def held_out(rows: Path) -> Rows:
    """Returns the held-out rows, of which there are enough to measure on."""
    opened = open_rows(rows, "held_out")
    assert len(opened) >= 50
    return opened


def with_fresh_process_state() -> None:
    """Makes the next Accelerator choose its precision anew; it keeps one for the life of a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
