"""Settings of the prepare stage: the corpus, and how it is packed into rows."""

from dataclasses import dataclass, field
from typing import Literal

from longmlm.settings.publishing import Publishing

PackingMode = Literal["full-sentences", "doc-sentences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A part of the corpus in one language: files, or a split of a data set."""

    __pydantic_config__ = {"extra": "forbid"}

    files: tuple[str, ...] = ()
    """Paths or globs of .txt (one document), .jsonl, .csv (all also .gz, .zst) or .parquet (one per record)."""
    dataset: str | None = None
    """Instead of files: a data set of the Hugging Face Hub, OWNER/NAME, or the folder of a data set."""
    subset: str | None = None
    """Subset (configuration) of the data set, if it has several."""
    split: str | None = None
    """Split of the data set to read, such as train."""
    revision: str | None = None
    """Branch, tag or commit of the data set, resolved to a commit on the first run; absent for main."""
    text_field: str = "text"
    """Field or column that holds the text."""
    delimiter: str | None = None
    """Character between the fields of .csv files; absent for a comma."""
    language: str = "en"
    """ISO 639-1 code that selects the rules of sentence splitting."""

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.dataset):
            raise ValueError("a source needs either at least one path in `files` or a `dataset`")
        if self.dataset and not self.split:
            raise ValueError("a `dataset` needs the `split` to read, such as train")
        if not self.dataset and (self.subset or self.split or self.revision):
            raise ValueError("subset, split and revision need a `dataset`, but the source has `files`")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ValueError(f"delimiter must be one character, such as ';' or a tab, not {self.delimiter!r}")
        if self.delimiter is not None and self.dataset:
            raise ValueError("delimiter needs `files`, but the source has a `dataset`")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRecipe:
    """What the rows are made of. A change gives other rows."""

    __pydantic_config__ = {"extra": "forbid"}

    tokenizer: str
    """Folder or hub name of the tokenizer, that of the model to train."""
    row_length: int
    """Tokens per row, both special tokens included."""
    sources: tuple[Source, ...] = ()
    """The corpus: one [[recipe.sources]] table for each part of it."""
    packing: PackingMode = "full-sentences"
    """full-sentences: a row may contain several documents; doc-sentences: it never does."""
    held_out_fraction: float = 0.01
    """Fraction of the documents that is held out from training, chosen by a hash of their text."""
    slice_bytes: int = 32_000_000
    """Bytes of text in a slice, the unit of work. A row never crosses slices."""

    def __post_init__(self) -> None:
        if self.row_length < 3:
            raise ValueError("row_length must be at least 3: two special tokens and one token of text")
        if not 0 < self.held_out_fraction < 1:
            raise ValueError("held_out_fraction must lie between 0 and 1, both excluded")
        if not self.sources:
            raise ValueError("at least one [[recipe.sources]] is needed")
        if self.slice_bytes < 1:
            raise ValueError("slice_bytes must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRuntime:
    """How fast the rows are made. The rows do not depend on it."""

    __pydantic_config__ = {"extra": "forbid"}

    num_workers: int = 1
    """Processes that pack slices in parallel."""

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError("num_workers must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCard:
    """The card of published rows."""

    __pydantic_config__ = {"extra": "forbid"}

    title: str | None = None
    """Title of the card; absent for the name of the output folder."""
    license: str | None = None
    """Licence of the rows: an identifier known to hubs, such as cc0-1.0."""
    data: tuple[str, ...] = ()
    """One line per corpus, with its licence; absent for the names of the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig(Publishing):
    """Packs text into rows of tokenized whole sentences, with a training and a held-out split."""

    __pydantic_config__ = {"extra": "forbid"}

    output: str
    """Folder of rows to write."""
    recipe: PrepareRecipe
    """What the rows are made of."""
    runtime: PrepareRuntime = field(default_factory=PrepareRuntime)
    """How fast the rows are made."""
    card: RowsCard = field(default_factory=RowsCard)
    """The card of published rows."""

    def __post_init__(self) -> None:
        Publishing.__post_init__(self)
        if self.hub_scheme == "ms":
            raise ValueError("rows are published to hf:OWNER/NAME, folder:PATH or a URL, not to ModelScope")
        if self.publish is not None and self.card.license is None:
            raise ValueError("publish needs the licence of the text: set card.license, such as cc0-1.0, or other")
