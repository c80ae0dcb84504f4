"""Text to rows of 512 tokens: the prepare stage compared with datasets.map as in run_mlm.py, one worker each.

run_mlm.py encodes every document, joins all ids and cuts them into equal blocks, across sentences.
The full run takes about 30 s of processor time, so --quick measures the same text, in fewer rounds.

    python benchmarks/packing.py [--quick]
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import disable_progress_bars, load_dataset
from paired import Comparison, Way, run
from transformers import AutoTokenizer

from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.prepare import PrepareRecipe, Source

MODEL, TEXT, LENGTH = "src/longmlm/bundled/roberta-mini", "src/longmlm/bundled/text/demo.jsonl", 512


def ours(sources: tuple[Source, ...]) -> Callable[[], int]:
    """Returns a function that prepares rows, from the files to the sealed folder."""
    folder = tempfile.mkdtemp()
    recipe = PrepareRecipe(tokenizer=MODEL, sources=sources, row_length=LENGTH, held_out_fraction=0.1)
    vocabulary = load_vocabulary(MODEL)

    def work() -> int:
        report = prepare_rows(recipe, vocabulary, Path(folder) / "rows").report
        return report.train.tokens + report.held_out.tokens

    return work


def theirs(files: Sequence[str]) -> Callable[[], int]:
    """Returns a function that loads, tokenizes, groups and saves with datasets."""
    disable_progress_bars()
    folder = tempfile.mkdtemp()
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)

    def tokenized(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": tokenizer(batch["text"], return_attention_mask=False, verbose=False)["input_ids"]}

    def grouped(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = list(chain.from_iterable(batch["input_ids"]))
        end = len(joined) // LENGTH * LENGTH
        return {"input_ids": [joined[begin : begin + LENGTH] for begin in range(0, end, LENGTH)]}

    def work() -> int:
        text = load_dataset("json", data_files=list(files), split="train", cache_dir=folder)
        rows = text.map(tokenized, batched=True, remove_columns=text.column_names).map(grouped, batched=True)
        rows.save_to_disk(str(Path(folder) / "rows"))
        return len(rows) * LENGTH

    return work


def comparison(shape: str, sources: tuple[Source, ...], memory_aim: float | None = None) -> Comparison:
    """Returns the comparison on these files of JSON lines."""
    files = [file for source in sources for file in source.files]
    own, peer = Way("longmlm prepare", partial(ours, sources)), Way("datasets.map", partial(theirs, files))
    return Comparison(shape, own, peer, aim=1, memory_aim=memory_aim)


if __name__ == "__main__":
    demo = comparison("the demo's text, 3 MB", (Source(files=(TEXT,)),))
    run("packing", __doc__ or "", [demo], [demo])
