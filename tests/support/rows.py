"""Manifests of packed rows, and shards."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import (
    RECIPE_VERSION,
    SPLITS,
    PackingReport,
    RowsManifest,
    RowsPlan,
    SourceFile,
    SourceRecord,
    SplitReport,
    read_rows_manifest,
)
from longmlm.data.row import Row
from longmlm.data.rows import open_rows, open_shard, shard_schema
from longmlm.data.slices import Counts
from longmlm.folders import entry_of

SPLIT = {
    "documents": 10,
    "sentences": 2_000,
    "tokens": 64_000,
    "rows": 130,
    "separators": 9,
    "cut_sentences": 3,
    "fill_rate": 0.75,
    "copies": 4,
    "tokens_per_source": (48_000, 16_000),
    "unknown_per_source": (0, 480),
    "document_lengths": (0, 0, 0, 0, 1, 2, 3, 4),
    "fills": (*[0] * 15, 1, 4, 10, 15, 100),
}
FILES = {f"{split}/00000.arrow": {"bytes": 1, "sha256": "0"} for split in SPLITS}  # what a manifest lists


def rows_manifest(row_length: int = 512, **of_each_split: object) -> RowsManifest:
    """Returns a manifest of two sources, with these entries in the reports of both splits."""
    files = tuple(SourceFile(path=f"/somewhere/deep/novels-{number}.jsonl", sha256="") for number in range(5))
    laws = SourceRecord(dataset="owner/laws", split="train", language="zh", commit="c" * 40)
    plan = RowsPlan(
        tokenizer="tiny",
        row_length=row_length,
        packing="full-sentences",
        held_out_fraction=0.3,
        slice_bytes=1_000_000,
        sources=(SourceRecord(files=files), laws),
        tokenizer_fingerprint="f",
        recipe_version=RECIPE_VERSION,
    )
    split = SplitReport(**{**SPLIT, **of_each_split})
    report = PackingReport(train=split, held_out=split, set_aside={}, elapsed_seconds=2.0, tokens_per_second=1000.0)
    return RowsManifest(plan=plan, report=report, files={})


def of_sources(manifest: RowsManifest, *sources: SourceRecord) -> RowsManifest:
    """Returns the manifest with other sources, all of which count nothing."""
    none = dict.fromkeys(("tokens_per_source", "unknown_per_source", "rows_per_source"), (0,) * len(sources))
    report = replace(manifest.report, **{name: replace(manifest.report.of(name), **none) for name in SPLITS})
    return replace(manifest, plan=replace(manifest.plan, sources=sources), report=report)


def manifest_of(row_length: int, **rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the manifest as what folders.seal adds the list of files to: that of the rows, given by their split."""
    manifest = rows_manifest(row_length)
    reports = {split: counts_of(own, row_length, len(manifest.plan.sources)) for split, own in rows.items()}
    return artifact.dump(replace(manifest, report=replace(manifest.report, **reports)))


def counts_of(rows: Iterable[Row], row_length: int, num_sources: int) -> SplitReport:
    """Returns what the manifest counts in rows, each as if its text were one document."""
    counts = Counts(row_length, num_sources)
    for row in counts.count_rows(rows):
        num_tokens = len(row) - 1 - len(row.document_starts)
        counts.totals.update(documents=len(row.document_starts), sentences=len(row.document_starts), tokens=num_tokens)
        counts.histograms["tokens_per_source"][int(row.document_sources[0])] += num_tokens
        counts.histograms["document_lengths"][num_tokens.bit_length() - 1] += 1
    return counts.report()


def write_shard(path: Path, rows: Iterable[Row], vocabulary_size: int) -> None:
    with open_shard(path, shard_schema(vocabulary_size)) as shard:
        shard.write(rows)


def with_sources(manifest: RowsManifest, *shares: float) -> RowsManifest:
    """Returns a manifest in which the rows are of novels, laws and so on, with these shares of the rows of a split."""
    names = ("novels", "laws", "letters")[: len(shares)]
    plan = replace(manifest.plan, sources=tuple(replace(manifest.plan.sources[0], name=name) for name in names))
    report = manifest.report
    for split in SPLITS:
        own = report.of(split)
        counts = tuple(round(own.rows * share) for share in shares[:-1])
        counts = (*counts, own.rows - sum(counts))
        per_source = {"rows_per_source": counts, "tokens_per_source": tuple(own.tokens * n // own.rows for n in counts)}
        unknown = {"unknown_per_source": (0,) * len(shares)}
        report = replace(report, **{split: replace(own, **per_source, **unknown)})
    return replace(manifest, plan=plan, report=report)


def mixed_rows(rows: Path, folder: Path, *shares: float) -> Path:
    """Writes rows into `folder` as those of several sources, and returns it."""
    manifest = with_sources(read_rows_manifest(rows), *shares)
    for split in SPLITS:
        opened, report = open_rows(rows, split), manifest.report.of(split)
        assert report.rows_per_source
        numbers = np.repeat(np.arange(len(shares), dtype=np.uint16), report.rows_per_source)
        mixed = [
            replace(opened[row], document_sources=np.full(len(opened[row].document_starts), number, dtype=np.uint16))
            for row, number in enumerate(numbers)
        ]
        counted = counts_of(mixed, manifest.plan.row_length, len(shares)).tokens_per_source
        report = replace(report, tokens_per_source=counted)
        manifest = replace(manifest, report=replace(manifest.report, **{split: report}))
        (folder / split).mkdir(parents=True)
        with open_shard(folder / split / "slice-00000.arrow", opened.table.data.schema) as shard:
            shard.write(mixed)
    files = {f"{split}/slice-00000.arrow": entry_of(folder / split / "slice-00000.arrow") for split in SPLITS}
    artifact.write(folder / RowsManifest.FILE, replace(manifest, files=files))
    return folder
