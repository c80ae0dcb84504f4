"""The functions work in a program of the user's: they leave it as it was, and a Trainer trains with them."""

import csv
import logging
import math
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers.utils.logging as transformers_logging
from accelerate.state import AcceleratorState
from huggingface_hub.utils import _http
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import progress_bar_states
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

import longmlm
from longmlm.data.row import Row
from tests.support.tiny import LONG_POSITIONS, World, demo_texts, with_fresh_process_state


def test_the_process_stays_as_it_was(
    world: World, rows: list[Row], base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    with_fresh_process_state()  # tests before this one may have made an Accelerator
    base.train()
    base.base_model.embeddings.eval()
    process, modes, config, tokens = _process_state(), _modes(base), base.config.to_dict(), tokenizer.init_kwargs.copy()
    long = longmlm.extend(str(world.base), LONG_POSITIONS)
    longmlm.extend(base, LONG_POSITIONS)
    longmlm.pack(demo_texts()[:2], tokenizer, LONG_POSITIONS)
    longmlm.mask(rows, [0, 1], tokenizer)
    longmlm.evaluate(base, rows[:4], tokenizer, view="cut")
    longmlm.export(base, tokenizer, tmp_path / "base")
    longmlm.export(long, tokenizer, tmp_path / "long")
    assert _process_state() == process
    assert (_modes(base), base.config.to_dict(), tokenizer.init_kwargs) == (modes, config, tokens)
    assert AcceleratorState._shared_state == {}  # a Trainer may choose its precision afterwards


def test_a_pipeline_leaves_the_process_as_it_was(tmp_path: Path, world: World) -> None:
    corpus = tmp_path / "corpus.csv"
    corpus.write_text("text\n" + "".join(f'"The {number}th lake, was calm."\n' for number in range(99)))
    settings = {"model": str(world.base), "corpus": [str(corpus)], "length": LONG_POSITIONS, "output": str(tmp_path)}
    process = _process_state()
    result = longmlm.run(settings, until="prepare")
    assert len(longmlm.read_rows(result.rows)) > 0
    assert _process_state() == process


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def _process_state() -> dict[str, object]:
    return {
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, logging.root.manager.disable),
        "transformers": (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()),
        "hub": (hub_logging.get_verbosity(), dict(progress_bar_states), _http._GLOBAL_CLIENT_FACTORY),
        "torch": (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()),
        "compiler": torch._dynamo.config.recompile_limit,
        "csv": csv.field_size_limit(),
        "folder": (Path.cwd(), list(sys.path)),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "random": (torch.get_rng_state().tolist(), str(np.random.get_state())),
    }


def test_a_trainer_trains_on_masked_rows(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """The epochs' masks differ, and the accuracy on the same rows rises."""
    rows = longmlm.pack(demo_texts()[:4], tokenizer, LONG_POSITIONS)
    long = longmlm.extend(base, LONG_POSITIONS, initialisation="hierarchical")
    before, seen = longmlm.evaluate(long, rows, tokenizer), []

    def masked(row_ids: list[int]) -> dict[str, torch.Tensor]:
        epoch = int(trainer.state.epoch or 0)
        seen.extend((epoch, row_id) for row_id in row_ids)
        return longmlm.mask(rows, row_ids, tokenizer, epoch=epoch)

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "trainer"),
        num_train_epochs=8,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=long, args=arguments, train_dataset=range(len(rows)), data_collator=masked)
    trainer.train()
    after = longmlm.evaluate(long, rows, tokenizer)
    error = math.hypot(after.whole.standard_error, before.whole.standard_error)
    assert after.whole.accuracy > before.whole.accuracy + 3 * error and after.whole.loss < before.whole.loss - 2
    assert {epoch for epoch, _ in seen} == set(range(8)) and len(set(seen)) == 8 * len(rows)
