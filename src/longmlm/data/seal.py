"""The end of a preparation: counts of all slices are merged, checked, and sealed with the rows."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, PackingReport, RowsManifest, RowsPlan, SliceReport, Split
from longmlm.data.counts import added
from longmlm.data.slices import CONTENT, SliceJob
from longmlm.errors import DataError
from longmlm.folders import seal


def seal_rows(job: SliceJob, plan: RowsPlan, output: Path, done: Sequence[int], elapsed_seconds: float) -> None:
    """Turns the finished slices into the folder `output`; its manifest is written last.

    `done` are the slices that took the last run its `elapsed_seconds`. Raises DataError when a split has no rows.
    """
    slices = [artifact.read(SliceReport, job.report_path(number)) for number in range(len(job.slices))]
    copies = _copies(job)
    train, held_out = (
        added([report.of(split) for report in slices], plan.row_length, copies[split]) for split in SPLITS
    )
    set_aside: Counter[str] = Counter()
    for report in slices:
        set_aside.update(report.set_aside)
    num_tokens = sum(slices[number].of(split).tokens for number in done for split in SPLITS)
    report = PackingReport(
        train=train,
        held_out=held_out,
        set_aside=dict(sorted(set_aside.items())),
        elapsed_seconds=elapsed_seconds,
        tokens_per_second=num_tokens / max(elapsed_seconds, 1e-9),
    )
    for split in SPLITS:
        if not report.of(split).rows:
            raise DataError(
                f"none of the {report.of(split).documents:,} documents of the {split} split gives a token with "
                f"{plan.tokenizer}: check that the tokenizer is of the text's language"
            )
    manifest = RowsManifest(plan=plan, report=report, files={})
    seal(job.folder / CONTENT, output, artifact.dump(manifest))


def _copies(job: SliceJob) -> dict[Split, int]:
    """Returns how many documents of each split have the text of an earlier document, by their hashes."""
    hashes = np.concatenate([np.load(job.hashes_path(number)) for number in range(len(job.slices))])
    unique, counts = np.unique(hashes, return_counts=True)
    splits = np.array([job.split_of(document_hash) for document_hash in unique[counts > 1].tolist()])
    return {split: int((counts[counts > 1][splits == split] - 1).sum()) for split in SPLITS}
