"""Measures how oneDNN's kernel cache and glibc's allocator affect the memory and speed of training steps on a CPU.

    PYTHONPATH=benchmarks python docs/experiments/scripts/kept_memory.py

RoBERTa-base's width and vocabulary with one layer, in bf16 with dropout 0.1. Each micro-batch packs one to three rows
whose lengths differ, as those of FULL-SENTENCES do. For each setting, a fresh process prints the resident memory after
every 40 steps, the tokens/s and the page faults per step.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import torch
from accelerate import Accelerator
from steps import BASE, RATE, random_batch

from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import PlainBackend

NUM_STEPS, REPORT_EVERY_STEPS = 160, 40
MAX_TOKENS, SELECTED_FRACTION = 2048, 0.15
CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**60), "MALLOC_TOP_PAD_": str(2**26)}
SETTINGS = {
    "kernels for 1,024 shapes, oneDNN's default": {CAPACITY: "1024"},
    "kernels for 128 shapes, longmlm's default": {CAPACITY: "128"},
    "kernels for 32 shapes": {CAPACITY: "32"},
    "kernels for 128 shapes, freed memory is kept": {CAPACITY: "128", **KEEP_FREED_MEMORY},
}


def train() -> None:
    """Trains for NUM_STEPS steps, and prints memory, speed and page faults."""
    model = replace(BASE, num_layers=1).roberta()
    use_packed_attention(model)
    objective = MlmObjective(model, "bf16").train()
    recipe = PretrainRecipe(num_steps=1, batch_tokens=MAX_TOKENS, learning_rate=RATE, precision="bf16")
    backend, generator = PlainBackend.wrap(Accelerator(), objective, recipe), np.random.default_rng(0)
    speeds, faults, sizes = [], [], []
    for step in range(1, NUM_STEPS + 1):
        num_rows = 1 + step % 3
        lengths = tuple(generator.integers(300, min(BASE.row_length, MAX_TOKENS // num_rows), num_rows).tolist())
        num_tokens = sum(lengths)
        batch = random_batch(objective, 1, num_tokens, int(SELECTED_FRACTION * num_tokens))
        batch = replace(batch, row_lengths=lengths)
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        output = backend.forward(batch)
        backend.backward(output["mlm"][0] / len(batch.labels))
        backend.step(RATE)
        speeds.append(num_tokens / (time.perf_counter() - started))
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        if step % REPORT_EVERY_STEPS == 0:
            sizes.append(psutil.Process().memory_info().rss / 2**30)
    later = slice(REPORT_EVERY_STEPS, None)
    resident = ", ".join(f"{size:.2f}" for size in sizes)
    speed, fault = statistics.median(speeds[later]), statistics.median(faults[later])
    print(f"  {resident} GiB; {speed:,.0f} tokens/s; {fault:,.0f} page faults per step", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        torch.manual_seed(0)
        train()
    else:
        for name, variables in SETTINGS.items():
            print(name, flush=True)
            subprocess.run([sys.executable, __file__, "train"], env={**os.environ, **variables}, check=True)
