"""The survey that finds near copies, from the files to the hashes on disk: MB of text per second of processor time.

python benchmarks/duplicates.py [--quick] [--corpus FILE.jsonl ...]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from paired import Comparison, Way, options, print_results
from prepare import MODEL, TEXT, cpu_rate

from longmlm.data.corpus import plan_slices, slice_bytes
from longmlm.data.duplicates import survey_slice
from longmlm.data.slices import SURVEYS, SliceJob
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.prepare import PrepareRecipe, Source


def ours(files: tuple[str, ...]) -> Callable[[], float]:
    """Returns a function that surveys the files and returns their MB."""
    folder = Path(tempfile.mkdtemp())
    (folder / SURVEYS).mkdir()
    recipe = PrepareRecipe(tokenizer=MODEL, sources=(Source(files=files),), row_length=512, duplicates="near")
    slices = plan_slices(recipe.sources, recipe.slice_bytes)
    job = SliceJob(recipe, load_vocabulary(MODEL), dict(enumerate(slices)), folder)
    job.unfinished_folder.mkdir()

    def survey() -> float:
        for number in job.slices:
            survey_slice(job, number)
        return sum(map(slice_bytes, slices)) / 1e6

    return survey


def main() -> None:
    """Measures the survey of a corpus."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--corpus", nargs="+", default=[TEXT])
    given, sys.argv[1:] = parser.parse_known_args()
    _, num_rounds = options(__doc__ or "")
    files = tuple(given.corpus)
    survey = Way("survey", partial(ours, files), cpu_rate)
    shape = ", ".join(Path(file).name for file in files)
    print_results("duplicates", [Comparison(shape, survey, None, unit="MB/s").measure(num_rounds)])


if __name__ == "__main__":
    main()
