"""Packed rows to a data set that others load: shards, a manifest without places, a card."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCardData

from longmlm.data.plan import without_paths
from longmlm.data.rows import SPLITS
from longmlm.folders import MANIFEST, sha256_of, verify, write_json
from longmlm.reports.facts import corpora, datasets
from longmlm.reports.packing import FILL, PACKING, SENTENCES, packing_table, sources_table
from longmlm.reports.tables import Table, markdown_table
from longmlm.settings.prepare import PrepareConfig

CARD = "README.md"
SHARDS = tuple(f"{split}/slice-*.arrow" for split in SPLITS)
DATA_FILES = [{"split": split, "path": f"{split}/*.arrow"} for split in SPLITS]
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "n>1B")
COLUMNS = Table(
    ["column", "what it holds"],
    [
        ["input_ids", "the tokens of a row, special ones included; rows are not padded"],
        ["document_starts", "where in the row a document, or the rest of one, begins"],
        ["document_sources", "for each of these the number of its source, in the order of the list below"],
    ],
)


def write_dataset(rows: Path, config: PrepareConfig, folder: Path) -> None:
    """Writes into the empty `folder` what is published of the rows: neither places of this machine nor rejected text.

    Shards are links to those of the rows where the disk has them. Raises FolderError where there are no whole rows.
    """
    manifest = verify(rows)
    files = {name: about for name, about in manifest["files"].items() if Path(name).parts[0] in SPLITS}
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _link(rows / name, folder / name)
    card, public = folder / CARD, {**manifest, "plan": without_paths(manifest["plan"])}
    card.write_text(dataset_card(config, public), encoding="utf-8")
    files[CARD] = {"bytes": card.stat().st_size, "sha256": sha256_of(card)}
    write_json(folder / MANIFEST, {**public, "files": files})


def dataset_card(config: PrepareConfig, manifest: Mapping[str, Any]) -> str:
    """Returns README.md: metadata, how to load, what the rows are and what they were made of."""
    report, title = manifest["report"], config.card.title or Path(config.output).name
    num_rows = {split: report[split]["rows"] for split in SPLITS}
    data = DatasetCardData(
        language=list(dict.fromkeys(source.language for source in config.recipe.sources)),
        license=config.card.license,
        pretty_name=title,
        size_categories=[size_category(sum(num_rows.values()))],
        source_datasets=datasets(manifest) or None,
        task_categories=["fill-mask"],
        tags=["masked-lm", "packed-rows"],
        configs=[{"config_name": "default", "data_files": DATA_FILES}],
    )
    lead = (
        f"Tokens in rows of {manifest['row_length']:,} for the pretraining of masked language models, packed by "
        f"longmlm: {num_rows['train']:,} training rows and {num_rows['held_out']:,} held-out rows, of different "
        "documents."
    )
    parts = [f"# {title}", lead, _usage(config), _rows(manifest), _tokenizer(config, manifest), _data(config, manifest)]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join([*parts, f"## Licence\n\n{config.card.license}"]) + "\n"


def size_category(num_rows: int) -> str:
    """Returns the name by which hubs call so many rows."""
    return SIZES[sum(num_rows >= 10**power for power in range(3, 3 + len(SIZES) - 1))]


def _usage(config: PrepareConfig) -> str:
    name = config.hub_repository or Path(config.output).name
    revision = f', revision="{config.revision}"' if config.revision else ""
    pinned = (
        f"hf:{config.hub_repository}" + (f"@{config.revision}" if config.revision else "")
        if config.hub_repository
        else name
    )
    return (
        "## Use\n\n```python\nfrom datasets import load_dataset\n\n"
        f'rows = load_dataset("{name}", split="train"{revision})\nprint(len(rows), rows[0]["input_ids"][:8])\n```\n\n'
        f'In the settings of longmlm:\n\n```toml\nrows = "{pinned}"\n```'
    )


def _rows(manifest: Mapping[str, Any]) -> str:
    packing = PACKING[manifest["plan"]["settings"]["packing"]]
    tables = "\n\n".join(markdown_table(table) for table in (packing_table(manifest["report"]), COLUMNS))
    return f"## Rows\n\n{SENTENCES} {packing} {FILL}\n\n{tables}"


def _tokenizer(config: PrepareConfig, manifest: Mapping[str, Any]) -> str:
    name = Path(config.recipe.tokenizer).name if Path(config.recipe.tokenizer).is_dir() else config.recipe.tokenizer
    fingerprint = manifest["plan"]["tokenizer_fingerprint"]
    return f"## Tokenizer\n\n`{name}`, with the fingerprint `{fingerprint}`. longmlm refuses models of another one."


def _data(config: PrepareConfig, manifest: Mapping[str, Any]) -> str:
    report = manifest["report"]
    parts = ["## Data", "\n".join(f"- {line}" for line in config.card.data or corpora(manifest))]
    if "tokens_per_source" in report["train"]:
        parts.append(markdown_table(sources_table(manifest)))
    if report["set_aside"]:
        counted = ", ".join(f"{count:,} x {reason}" for reason, count in report["set_aside"].items())
        parts.append(f"Records that were set aside, and are not part of this: {counted}.")
    return "\n\n".join(parts)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
