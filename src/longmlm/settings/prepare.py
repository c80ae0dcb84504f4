"""Settings of the prepare stage: the corpus, and how it is packed into rows."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval

from longmlm.settings.masking import Share
from longmlm.settings.publishing import Publishing
from longmlm.settings.tables import Unused

PackingMode = Literal["full-sentences", "doc-sentences", "sentence-pair"]
Encoder = Literal["auto", "tokenizers"]
ExecutorName = Literal["local", "ray"]
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")  # endings that may follow that of the format
Duplicates = Literal["keep", "exact", "near"]
Quoting = Literal["double", "none"]
Segmentation = Literal["rjieba"]
SEGMENTED = ("zh", "ja")  # the languages whose words a segmenter finds


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What the rows of a source depend on, beside its files."""

    name: str | None = None
    """Name of the source in weights, metrics and pages; by default source-1, source-2 and so on, in order."""
    dataset: str | None = None
    """Instead of files: a dataset on the Hugging Face Hub, OWNER/NAME, or the folder of one."""
    subset: str | None = None
    """Subset (configuration) of the dataset, if it has several."""
    split: str | None = None
    """Split of the dataset to read, such as train."""
    revision: str | None = None
    """Branch, tag or commit of the dataset, main by default; resolved to a commit on the first run."""
    text_field: str = "text"
    """Field or column that holds the text; "article.body" is the field body inside the field article."""
    text_fields: tuple[str, ...] = ()
    """Several fields instead, such as ["title", "body"]: their texts are joined by a blank line; missing or empty ones
    are skipped."""
    delimiter: str | None = None
    """Character between the fields of .csv and .tsv files; by default a comma in .csv, a tab in .tsv files."""
    quoting: Quoting | None = None
    """How .csv and .tsv files use quotes: double (fields may be in double quotes; a quote inside is doubled) or none
    (quotes are text). By default double if the delimiter is a comma or semicolon, else detected in each file."""
    language: str = "en"
    """ISO 639-1 code of the language, for sentence splitting."""
    held_out: bool = False
    """Hold out the whole source from training."""
    split_field: str | None = None
    """Field or column, such as book or patient: the documents with the same value are all held out, or none is. By
    default, the text decides, so exact copies stay together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(SourceSettings):
    """A part of the corpus in one language: files, or a split of a dataset."""

    files: tuple[str, ...] = ()
    """Paths, URLs such as s3://BUCKET/NAME, or globs: .txt or .md (one document per file), .jsonl, .ndjson, .json,
    .csv, .tsv or .parquet (one per record); all but .parquet may be compressed (.gz, .bz2, .xz, .zst)."""

    def __post_init__(self) -> None:
        if self.name is not None and not (self.name.isprintable() and any(map(str.isalpha, self.name))):
            raise ValueError(f"name must be printable and have a letter, not {self.name!r}")
        if bool(self.files) == bool(self.dataset):
            raise ValueError("a source needs either at least one path in `files` or a `dataset`")
        if self.dataset and not self.split:
            raise ValueError("a `dataset` needs the `split` to read, such as train")
        if not self.dataset and (self.subset or self.split or self.revision):
            raise ValueError("subset, split and revision need a `dataset`, but the source has `files`")
        check_delimiter(self.delimiter)
        if self.dataset and (self.delimiter or self.quoting):
            raise ValueError("delimiter and quoting need `files`, but the source has a `dataset`")
        if self.held_out and self.split_field is not None:
            raise ValueError("split_field has no effect with held_out = true, which holds out all of it: remove one")
        if self.text_fields and self.text_field != "text":
            raise ValueError("text_field and text_fields both name the text: set one of them")
        if len(set(self.text_fields)) < len(self.text_fields):
            raise ValueError("text_fields names a field twice")

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that hold the text."""
        return self.text_fields or (self.text_field,)

    @property
    def read_fields(self) -> tuple[str, ...]:
        """The fields to read: those that hold the text and, if it is set, split_field."""
        return self.fields if self.split_field is None else (*self.fields, self.split_field)

    def setting_of(self, field: str) -> str:
        """Returns the name of the setting that names a field."""
        return "split_field" if field not in self.fields else "text_fields" if self.text_fields else "text_field"

    def name_of(self, path: str) -> str:
        """Returns the name of a source's file in messages: its path, or the split that it is a copy or a part of."""
        parts = (self.dataset, self.subset, self.split)
        is_part = self.dataset and (not path or path.endswith(".arrow"))
        return ", ".join(part for part in parts if part) if is_part else path


def source_names(sources: Sequence[Any]) -> list[str]:
    """Returns the names of sources or of their records: their own, or else source-1, source-2 and so on by position."""
    return [source.name or f"source-{number}" for number, source in enumerate(sources, 1)]


def is_segmented(language: str) -> bool:
    """Returns whether the words of texts in this language are those that a segmenter finds, if one is used."""
    return language.partition("-")[0] in SEGMENTED


def check_delimiter(delimiter: str | None) -> None:
    """Raises ValueError for what cannot separate the fields of a .csv file."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(f"delimiter must be one character, such as ';' or a tab, not {delimiter!r}")


SPECIAL_TOKENS, PAIR_SPECIAL_TOKENS = 2, 3  # of a row, [CLS] A [SEP]; of a pair, [CLS] A [SEP] B [SEP]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSettings:
    """What rows depend on, beside their sources."""

    tokenizer: str
    """Tokenizer of the model to train: a folder, a run folder or a hub name ([ms:]OWNER/NAME[@REVISION])."""
    row_length: Annotated[int, Ge(3)]  # two special tokens and one token of text
    """Tokens per row, including both special tokens."""
    packing: PackingMode = "full-sentences"
    """full-sentences: a row may span documents; doc-sentences: it never does; sentence-pair: it does not, and holds at
    most two sentences."""
    pairs: bool = False
    """Make rows from which training can draw pairs, for next-sentence or sentence-order prediction: a row records its
    sentences and its document, and leaves room for a second separator. Needs doc-sentences or sentence-pair."""
    short_row_share: Share = 0.0
    """With pairs: the share of the rows that are closed early, at a length drawn between 2 and row_length - 3 tokens of
    text; BERT's short_seq_prob is 0.1."""
    held_out_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.01
    """Fraction of the documents to hold out from training, chosen by a hash of their text, or of their split_field."""
    slice_bytes: Annotated[int, Ge(1)] = 32_000_000
    """Bytes of text in a slice, the unit of work; no row spans two slices."""
    duplicates: Duplicates = "keep"
    """Which copies of an earlier document to set aside: keep, none; exact, exact copies; near, also those in which up
    to a few percent of the words differ. Exact and near need a pass over the text before packing."""
    prevent_leaks: bool = False
    """Look for near copies even if they are kept, and hold out all copies of a document or none."""
    words: Segmentation | None = None
    """Segmenter that finds the words of sources with language zh or ja, for masking by words or spans; rjieba needs
    the extra longmlm[words]. By default, words follow from the tokens, and each Chinese character is a word."""
    terms: str | None = None
    """File of terms that rjieba should keep whole, one per line, in the format of jieba's user dictionaries: a term,
    and if needed its frequency and part of speech."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRecipe(RowsSettings):
    """What the rows contain; changing it makes different rows."""

    sources: tuple[Source, ...] = ()
    """The corpus: one [[recipe.sources]] table for each part of it."""

    @property
    def sought(self) -> Duplicates:
        """Which copies are looked for before packing."""
        return "near" if self.prevent_leaks else self.duplicates

    @property
    def row_capacity(self) -> int:
        """How many tokens of text and separators between documents fit into a row."""
        return self.row_length - (PAIR_SPECIAL_TOKENS if self.pairs else SPECIAL_TOKENS)

    def __post_init__(self) -> None:
        if self.pairs and self.packing == "full-sentences":
            raise ValueError('pairs needs rows of one document each: set packing = "doc-sentences" or "sentence-pair"')
        if self.packing == "sentence-pair" and not self.pairs:
            raise ValueError('packing = "sentence-pair" is for pairs: set pairs = true, or packing = "doc-sentences"')
        if self.pairs and self.row_capacity < 2:
            raise ValueError("row_length must be at least 5 with pairs: three special tokens and two tokens of text")
        if not self.sources:
            raise ValueError("no text: set corpus in a pipeline file, or [[recipe.sources]]")
        name, count = Counter(source_names(self.sources)).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{count} sources are called {name!r}: give each a name of its own")
        if all(source.held_out for source in self.sources):
            raise ValueError("every source is held out, so none is left to train on: remove held_out from one of them")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if not self.pairs:
            yield ("short_row_share",), "without pairs: remove it, or set pairs = true"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRuntime:
    """Speed and memory; the rows do not depend on them."""

    executor: ExecutorName = "local"
    """What packs the slices: local, processes on this machine; ray, the Ray cluster at RAY_ADDRESS or, if that is not
    set, the one running on this machine."""
    num_workers: Annotated[int, Ge(1)] | None = None
    """Slices to pack in parallel; by default 1, or with Ray one for each CPU of the cluster."""
    encoder: Encoder = "auto"
    """What encodes text: auto, a fast encoder from longmlm[fast] if it is installed and gives the same tokens, else
    tokenizers."""


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
            yield ("recipe.prevent_leaks",), 'with duplicates = "near", which leaves no near copies: remove it'
        if self.recipe.words is None:
            yield ("recipe.terms",), 'without words: remove it, or set words = "rjieba"'
        elif not any(is_segmented(source.language) for source in self.recipe.sources):
            languages = " or ".join(SEGMENTED)
            yield ("recipe.words", "recipe.terms"), f"without a source of language {languages}: remove it"
        if self.publish is None:
            yield ("card.title", "card.license", "card.data"), "without publish: remove it, or set publish"
