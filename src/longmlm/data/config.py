"""What a corpus is and how it becomes rows: the settings of the prepare stage and of masking."""

import re
from dataclasses import dataclass
from typing import Literal

TARGET = re.compile(r"hf:[\w.-]+/[\w.-]+|folder:.+|[a-z][a-z0-9+]*://.+")
PUBLISHING = ("publish", "public", "revision", "tag", "title", "license", "data")
PackingMode = Literal["full-sentences", "doc-sentences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files, read in the order of their names, or a split of a data set."""

    __pydantic_config__ = {"extra": "forbid"}

    files: tuple[str, ...] = ()
    """Paths or globs of .txt (one document a file), .jsonl and .csv (also .gz, .zst) and .parquet (one a record)."""
    dataset: str | None = None
    """Instead of files: a data set of the Hugging Face hub, owner/name, or the folder of one."""
    subset: str | None = None
    """Configuration of the data set, where it has several."""
    split: str | None = None
    """Split of the data set to read, such as train."""
    revision: str | None = None
    """Commit, tag or branch of the data set; the commit that it means at the first run is kept. Absent: main."""
    text_field: str = "text"
    """Field or column that holds the text."""
    language: str = "en"
    """ISO 639-1 code, which chooses the rules of sentence splitting."""

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.dataset):
            raise ValueError("a source needs either at least one path in `files` or a `dataset`")
        if self.dataset and not self.split:
            raise ValueError("a `dataset` needs the `split` to read, such as train")
        if not self.dataset and (self.subset or self.split or self.revision):
            raise ValueError("subset, split and revision belong to a `dataset`; these are files")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """Text to packed rows: sentences, tokens, FULL-SENTENCES rows, training and held-out documents apart."""

    __pydantic_config__ = {"extra": "forbid"}

    output: str
    """Folder of rows to write."""
    tokenizer: str
    """Folder or hub name of the tokenizer (of the model that is going to read the rows)."""
    row_length: int
    """Tokens a row, both special tokens included."""
    sources: tuple[Source, ...] = ()
    """The corpus, one [[sources]] table after the other."""
    packing: PackingMode = "full-sentences"
    """full-sentences: rows may cross documents; doc-sentences: they never do."""
    held_out_fraction: float = 0.01
    """Share of the documents, chosen by a hash of their text, that is kept from training."""
    slice_bytes: int = 32_000_000
    """Text a unit of work holds; rows never cross a slice."""
    num_workers: int = 1
    """Processes that work at the same time; the rows do not depend on it."""
    publish: str | None = None
    """Where to publish the rows: hf:OWNER/NAME, folder:PATH, or a URL that fsspec writes to, such as s3://bucket/name."""
    public: bool = False
    """Whether anybody may see a repository that is made for it; without, one that is public already is refused."""
    revision: str | None = None
    """Branch of the repository, made where it lacks; absent for its default one."""
    tag: str | None = None
    """Tag to set on what was published."""
    title: str | None = None
    """Title of the card of published rows; absent for the name of their folder."""
    license: str | None = None
    """Licence of published rows, an identifier as hubs use it, such as cc0-1.0."""
    data: tuple[str, ...] = ()
    """A line of the card for each corpus, with its licence; absent for the names of the sources."""

    def __post_init__(self) -> None:
        if self.row_length < 3:
            raise ValueError("row_length must be at least 3: two special tokens and one of text")
        if not 0 < self.held_out_fraction < 1:
            raise ValueError("held_out_fraction must lie between 0 and 1, both excluded")
        if not self.sources:
            raise ValueError("at least one [[sources]] is needed")
        if self.slice_bytes < 1 or self.num_workers < 1:
            raise ValueError("slice_bytes and num_workers must be at least 1")
        if self.publish is not None and not TARGET.fullmatch(self.publish):
            raise ValueError(f"publish is no hf:OWNER/NAME, folder:PATH or URL: {self.publish!r}")
        if self.publish is not None and self.license is None:
            raise ValueError("publish needs the licence of the text: set license, such as cc0-1.0, or other")
        if self.hub is None and (self.revision or self.tag):
            raise ValueError("revision and tag need publish on a hub")

    @property
    def hub(self) -> str | None:
        """OWNER/NAME where publish names the hub."""
        scheme, _, name = (self.publish or "").partition(":")
        return name if scheme == "hf" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """Which tokens a model has to tell, and what it sees in their place."""

    __pydantic_config__ = {"extra": "forbid"}

    selected_fraction: float = 0.15
    """Share of the maskable tokens of a row that is selected."""
    masked_share: float = 0.8
    """Share of the selected tokens that are shown as the mask token."""
    random_share: float = 0.1
    """Share of the selected tokens that are shown as a random token; the rest is shown as it is."""
    mask_patterns: int | None = None
    """Masks a row goes through before they repeat: absent for dynamic, 1 for static masking."""

    def __post_init__(self) -> None:
        if not 0 < self.selected_fraction < 1:
            raise ValueError("selected_fraction must lie between 0 and 1, both excluded")
        if min(self.masked_share, self.random_share) < 0 or self.masked_share + self.random_share > 1:
            raise ValueError("masked_share and random_share must not be negative nor exceed 1 together")
        if self.mask_patterns is not None and self.mask_patterns < 1:
            raise ValueError("mask_patterns must be at least 1")
