"""Packed rows as a public dataset: their shards, a manifest without local paths, and a card."""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import DatasetCardData
from huggingface_hub.constants import REPOCARD_NAME
from markupsafe import Markup

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, RowsManifest
from longmlm.data.rows import open_rows
from longmlm.escaping import quoted
from longmlm.folders import entry_of, verify
from longmlm.reports.model_card import author_lines, corpora, datasets
from longmlm.reports.packing import FILL, PACKING, SENTENCES, packing_table, set_aside_text, sources_table
from longmlm.reports.pages import front_matter, render
from longmlm.reports.tables import markdown_table
from longmlm.settings.prepare import RowsCard

SHARDS = tuple(f"{split}/slice-*.arrow" for split in SPLITS)
DATA_FILES = [{"split": split, "path": f"{split}/*.arrow"} for split in SPLITS]
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "n>1B")


@dataclass(frozen=True, slots=True)
class Publication:
    """What a card says beyond the manifest; `repository` is OWNER/NAME on the hub, at the branch `revision`."""

    tokenizer: str
    card: RowsCard
    repository: str | None = None
    revision: str | None = None


def write_dataset(rows: Path, publication: Publication, folder: Path) -> None:
    """Writes what is published of the rows into the empty `folder`: no local paths, no rejected records.

    Shards are hard links where the file system has them. Raises FolderError for incomplete or damaged rows, DataError
    for others than the manifest describes.
    """
    verify(rows)
    manifest, _ = (open_rows(rows, split).manifest for split in SPLITS)
    files = {name: entry for name, entry in manifest.files.items() if Path(name).parts[0] in SPLITS}
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(rows / name, folder / name)
    public = replace(manifest, plan=manifest.plan.without_paths())
    card = folder / REPOCARD_NAME
    card.write_text(dataset_card(public, publication, rows.name), encoding="utf-8")
    files[REPOCARD_NAME] = entry_of(card)
    artifact.write(folder / RowsManifest.FILE, replace(public, files=files))


def dataset_card(manifest: RowsManifest, publication: Publication, name: str) -> str:
    """Returns README.md: metadata, how to load the rows, their format and their sources; `name` is a default title."""
    report, card, title = manifest.report, publication.card, publication.card.title or name
    metadata = front_matter(
        DatasetCardData,
        language=list(dict.fromkeys(source.language for source in manifest.plan.sources)),
        license=card.license,
        pretty_name=title,
        size_categories=[size_category(report.train.rows + report.held_out.rows)],
        source_datasets=datasets(manifest) or None,
        task_categories=["fill-mask"],
        tags=["masked-lm", "packed-rows"],
        configs=[{"config_name": "default", "data_files": DATA_FILES}],
    )
    repository, revision, tokenizer = publication.repository, publication.revision, publication.tokenizer
    rows = f"hf:{repository}" + (f"@{revision}" if revision else "") if repository else name
    text = render(
        "dataset_card.md",
        manifest=manifest,
        plan=manifest.plan,
        metadata=metadata,
        title=title,
        name=quoted(repository or name),
        revision=Markup(", revision={}").format(quoted(revision)) if revision else "",
        rows=quoted(rows),
        packing=f"{SENTENCES} {PACKING[manifest.plan.packing]} {FILL}",
        packing_table=markdown_table(packing_table(report)),
        tokenizer=Path(tokenizer).name if Path(tokenizer).is_dir() else tokenizer,
        fingerprint=manifest.plan.tokenizer_fingerprint,
        corpora=author_lines(card) or corpora(manifest),
        sources_table=markdown_table(sources_table(manifest)),
        set_aside=set_aside_text(report.set_aside),
        card=card,
    )
    return str(text)


def size_category(num_rows: int) -> str:
    """Returns the hub's name for a dataset of this size."""
    return SIZES[sum(num_rows >= 10**power for power in range(3, 3 + len(SIZES) - 1))]


def link_or_copy(source: Path, target: Path) -> None:
    """Makes `target` a file with the content of `source`: a hard link where the file system has them."""
    try:
        os.link(source.resolve(), target)  # of a link the content, whose SHA-256 was verified
    except OSError:  # a different file system, or one without hard links
        shutil.copyfile(source, target)
