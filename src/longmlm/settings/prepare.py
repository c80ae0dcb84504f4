"""Settings of the prepare stage: the corpus, and how it is packed into rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from longmlm.settings.publishing import Publishing
from longmlm.settings.tables import Unused

PackingMode = Literal["full-sentences", "doc-sentences"]
Encoder = Literal["auto", "tokenizers"]
Duplicates = Literal["keep", "exact", "near"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A part of the corpus in one language: files, or a split of a dataset."""

    files: tuple[str, ...] = ()
    """Paths or globs: .txt (one document per file), .jsonl, .csv or .parquet (one per record); all but .parquet may be
    compressed (.gz, .zst)."""
    dataset: str | None = None
    """Instead of files: a dataset on the Hugging Face Hub, OWNER/NAME, or the folder of one."""
    subset: str | None = None
    """Subset (configuration) of the dataset, if it has several."""
    split: str | None = None
    """Split of the dataset to read, such as train."""
    revision: str | None = None
    """Branch, tag or commit of the dataset, main by default; resolved to a commit on the first run."""
    text_field: str = "text"
    """Field or column that holds the text."""
    delimiter: str | None = None
    """Character between the fields of .csv files; by default a comma."""
    language: str = "en"
    """ISO 639-1 code of the language, for sentence splitting."""

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.dataset):
            raise ValueError("a source needs either at least one path in `files` or a `dataset`")
        if self.dataset and not self.split:
            raise ValueError("a `dataset` needs the `split` to read, such as train")
        if not self.dataset and (self.subset or self.split or self.revision):
            raise ValueError("subset, split and revision need a `dataset`, but the source has `files`")
        check_delimiter(self.delimiter)
        if self.delimiter is not None and self.dataset:
            raise ValueError("delimiter needs `files`, but the source has a `dataset`")

    def name_of(self, path: Path) -> str:
        """Returns what messages call a file of the source: its path, or for the cache of a dataset the split."""
        parts = (self.dataset, self.subset, self.split)
        return ", ".join(part for part in parts if part) if self.dataset else str(path)


def check_delimiter(delimiter: str | None) -> None:
    """Raises ValueError for what cannot separate the fields of a .csv file."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(f"delimiter must be one character, such as ';' or a tab, not {delimiter!r}")


def check_row_length(row_length: int) -> None:
    """Raises ValueError for rows that have no room for text."""
    if row_length < 3:
        raise ValueError("row_length must be at least 3: two special tokens and one token of text")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRecipe:
    """What the rows contain; changing it makes different rows."""

    tokenizer: str
    """Tokenizer of the model to train: a folder, a run folder or a hub name (OWNER/NAME[@REVISION])."""
    row_length: int
    """Tokens per row, including both special tokens."""
    sources: tuple[Source, ...] = ()
    """The corpus: one [[recipe.sources]] table for each part of it."""
    packing: PackingMode = "full-sentences"
    """full-sentences: a row may span documents; doc-sentences: it never does."""
    held_out_fraction: float = 0.01
    """Fraction of the documents to hold out from training, chosen by a hash of their text."""
    slice_bytes: int = 32_000_000
    """Bytes of text in a slice, the unit of work; no row spans two slices."""
    duplicates: Duplicates = "keep"
    """Which copies of an earlier document are set aside: none, exact ones, or near ones too, in which a few percent of
    the words differ. Exact and near take a pass over the text before packing."""
    prevent_leaks: bool = False
    """Where near copies are kept, look for them all the same, and hold out all copies of a document or none."""

    @property
    def sought(self) -> Duplicates:
        """Which copies are looked for before packing."""
        return "near" if self.prevent_leaks else self.duplicates

    def __post_init__(self) -> None:
        check_row_length(self.row_length)
        if not 0 < self.held_out_fraction < 1:
            raise ValueError("held_out_fraction must be above 0 and below 1")
        if not self.sources:
            raise ValueError("no text: set corpus in a pipeline file, or [[recipe.sources]]")
        if self.slice_bytes < 1:
            raise ValueError("slice_bytes must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRuntime:
    """Speed and memory; the rows do not depend on them."""

    num_workers: int = 1
    """Processes that pack slices in parallel."""
    encoder: Encoder = "auto"
    """What encodes text: with auto, a fast encoder of longmlm[fast] where it is installed and gives the same tokens."""

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError("num_workers must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCard:
    """The dataset card of published rows."""

    title: str | None = None
    """Title of the card; by default the name of the output folder."""
    license: str | None = None
    """Licence of the rows, as an identifier known to hubs, such as cc0-1.0."""
    data: tuple[str, ...] = ()
    """One line per corpus, with its licence; by default the names of the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig(Publishing):
    """Packs text into rows of whole tokenized sentences, split into training and held-out rows."""

    output: str
    """Folder for the rows."""
    recipe: PrepareRecipe
    runtime: PrepareRuntime = field(default_factory=PrepareRuntime)
    card: RowsCard = field(default_factory=RowsCard)

    def __post_init__(self) -> None:
        Publishing.__post_init__(self)
        if self.hub_scheme == "ms":
            raise ValueError("rows are published to hf:OWNER/NAME, folder:PATH or a URL, not to ModelScope")
        if self.publish is not None and self.card.license is None:
            raise ValueError("publish needs the licence of the text: set card.license, such as cc0-1.0, or other")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        yield from Publishing.without_effect(self)
        if self.recipe.duplicates == "near":
            yield ("recipe.prevent_leaks",), 'with duplicates = "near", which leaves no near copy: remove it'
        if self.publish is None:
            yield ("card.title", "card.license", "card.data"), "without publish: remove it, or set publish"
