"""How long training waits for a checkpoint of RoBERTa-base size: a copy in memory, compared with the whole save.

python benchmarks/save_pause.py [FOLDER ON THE DISK TO MEASURE]
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

from longmlm.artifacts.provenance import Provenance, TrainingRecord
from longmlm.artifacts.run import TrainState
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import take_snapshot, write_checkpoint
from longmlm.training.run import RunRecord
from longmlm.training.run_folder import prune

NUM_ROUNDS = 5
TOKENIZER = "src/longmlm/bundled/roberta-mini/tokenizer.json"
RECIPE = PretrainRecipe(num_steps=1, batch_tokens=1, learning_rate=1e-9)


class Holder(nn.Module):
    """An objective that only holds a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model


def after_a_step() -> PlainBackend:
    """Returns a model of 125 M parameters with AdamW's moments, as after a step."""
    model = RobertaForMaskedLM(RobertaConfig(vocab_size=50265, max_position_embeddings=1538, type_vocab_size=1))
    backend = PlainBackend.wrap(Accelerator(cpu=True), Holder(model), RECIPE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    backend.step(RECIPE.learning_rate)
    return backend


def main() -> None:
    """Prints the median seconds of the copy, of writing it, and their ratio."""
    backend = after_a_step()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(TOKENIZER))
    trained_on = TrainingRecord(row_length=1536, steps=0, tokens=0, precision="bf16", rows_sha256="")
    record = RunRecord(tokenizer, "", RECIPE, Provenance(), trained_on)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as folder:
        waits, writes = [], []
        for step in range(1, NUM_ROUNDS + 1):
            started = time.perf_counter()
            snapshot = take_snapshot(backend, backend.accelerator)
            waits.append(time.perf_counter() - started)
            assert snapshot is not None
            saved = write_checkpoint(Path(folder), TrainState(step=step), backend.objective.model, snapshot, record)
            writes.append(time.perf_counter() - started - waits[-1])
            size = sum(path.stat().st_size for path in saved.iterdir())
            prune(Path(folder), saved, 2)
    wait, write = statistics.median(waits), statistics.median(writes)
    print(f"{size / 1e9:.2f} GB: training waits {wait:.2f} s, the disk takes {write:.2f} s in the background")
    print(f"waiting for the whole save would take {(wait + write) / wait:.1f} times as long")


if __name__ == "__main__":
    main()
