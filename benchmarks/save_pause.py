"""How long training waits for a checkpoint of RoBERTa-base size: a copy in memory, against a save that is waited for.

python benchmarks/save_pause.py [FOLDER ON THE DISK TO MEASURE]
"""

import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.run import TrainState
from longmlm.settings.held_out import HeldOut
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training import checkpoint
from longmlm.training.optimizer import new_optimizer
from longmlm.training.snapshot import Trained, take

NUM_ROUNDS = 5


def trained() -> Trained:
    """Returns a model of 125 M parameters with AdamW's moments, as after a step."""
    model = RobertaForMaskedLM(RobertaConfig(vocab_size=50265, max_position_embeddings=1538, type_vocab_size=1))
    optimizer = new_optimizer(model, PretrainRecipe(num_steps=1, batch_tokens=1, learning_rate=1e-9))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return Trained(model, optimizer, tuple(model.parameters()), Accelerator(cpu=True))


def main() -> None:
    """Prints the median seconds of the copy, of writing it, and their ratio."""
    subject = trained()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file("assets/roberta-mini/tokenizer.json"))
    rows = {"settings": {"row_length": 1536}, "sources": [], "sha256": ""}
    depends_on = {"rows": rows, "recipe": {}, "held_out": asdict(HeldOut())}
    record = checkpoint.RunRecord(tokenizer, "", depends_on, Provenance(), "bf16")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as folder:
        waits, writes = [], []
        for step in range(1, NUM_ROUNDS + 1):
            started = time.perf_counter()
            snapshot = take(subject)
            waits.append(time.perf_counter() - started)
            assert snapshot is not None
            saved = checkpoint.write(Path(folder), TrainState(step=step), subject.model, snapshot, record)
            writes.append(time.perf_counter() - started - waits[-1])
            size = sum(path.stat().st_size for path in saved.iterdir())
            checkpoint.prune(Path(folder), saved, 2)
    wait, write = statistics.median(waits), statistics.median(writes)
    print(f"{size / 1e9:.2f} GB: training waits {wait:.2f} s, the disk takes {write:.2f} s beside it")
    print(f"waiting for the whole save would take {(wait + write) / wait:.1f} times as long")


if __name__ == "__main__":
    main()
