"""Compares inference in stock transformers: full attention, and Longformers with a window in some layers or in all.

    python docs/experiments/scripts/longformer_cost.py --model MODEL --num-positions 1536 --window 256 --layers 3

Each kind runs in a process of its own, so that the peak of memory is its own. It prints the median seconds of 5 forward
passes of one row, in fp32 on one thread, for rows of the model's full length and of a third of it.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch
from runs import extended

from longmlm.model.loading import load_model
from longmlm.model.window import Window
from longmlm.release.export import as_longformer

TIMES = 5


@torch.inference_mode()
def measure(options: argparse.Namespace) -> None:
    """Prints the seconds at both lengths, and the peak of memory in GB beyond that of the loaded model."""
    model = extended(load_model(options.model), options.num_positions, "tile").model.eval()
    if options.kind != "full attention":
        layers = options.layers if options.kind == "local layers" else None
        model = as_longformer(model, Window(options.window, 0, layers))
    torch.set_num_threads(1)
    before, medians = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for length in (options.num_positions, options.num_positions // 3):
        row, seconds = torch.randint(1000, 2000, (1, length)), []
        for _ in range(TIMES):
            started = time.perf_counter()
            model.base_model(row)
            seconds.append(time.perf_counter() - started)
        medians.append(statistics.median(seconds))
    gigabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    print(f"{options.kind:20}{medians[0]:8.2f} s{medians[1]:8.2f} s{gigabytes:8.2f} GB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--num-positions", type=int, required=True)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--kind")
    given = parser.parse_args()
    if given.kind:
        measure(given)
    else:
        for kind in ("full attention", "local layers", "window everywhere"):
            subprocess.run([sys.executable, *sys.argv, "--kind", kind], check=True)
