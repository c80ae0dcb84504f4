"""The manifest of a folder of packed rows, with the plan that rows depend on, and what they are made of."""

import hashlib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from longmlm.artifacts.artifact import Artifact, Input, MadeFrom, differences, read, sha256_of_json
from longmlm.errors import DataError, FolderError, counted
from longmlm.folders import FileEntry, read_manifest
from longmlm.settings.masking import PairKind, pair_kind
from longmlm.settings.prepare import (
    COMPRESSED,
    RowsSettings,
    SourceSettings,
    source_names,
)
from longmlm.settings.pretrain import PretrainRecipe

RECIPE_VERSION = 4
NUM_FILLS = 20
Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that rows were made of. Content with the same version, or size and time, need not be hashed again.

    `version` is what remote storage calls it, such as an ETag; a local file has its size and the time of its change.
    """

    path: str
    sha256: str
    version: str | None = None
    bytes: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord(SourceSettings):
    """A source of rows: its files with their hashes, or a dataset of the hub at a commit."""

    commit: str | None = None
    files: tuple[SourceFile, ...] = ()

    def without_paths(self) -> Self:
        """Returns the source with the last parts of local paths only."""
        dataset = self.dataset if self.commit or not self.dataset else Path(self.dataset).name
        files = tuple(replace(file, path=Path(file.path).name, mtime_ns=None) for file in self.files)
        return replace(self, dataset=dataset, files=files)

    @property
    def settings(self) -> dict[str, object]:
        """The settings of the source, without the path of a local dataset."""
        own = {item.name: getattr(self, item.name) for item in fields(SourceSettings)}
        return own | {"dataset": self.dataset if self.commit else None}

    @property
    def contents(self) -> list[tuple[str, str]]:
        """The hash of each file, with what decides how it is read in place of its path: the suffixes."""
        return [(_suffixes(file.path), file.sha256) for file in self.files]


def _suffixes(path: str) -> str:
    name = Path(path)
    return "".join(name.suffixes[-2:]) if name.suffix in COMPRESSED else name.suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPlan(RowsSettings):
    """All that rows depend on; equal plans give equal rows, whatever the number of workers.

    `recipe_version` is that of the rules by which text becomes rows, such as the ends of sentences: since 3, no row
    mixes sources; since 4, short rows are drawn from a stream of random bits of their own.

    `tokenizer_fingerprint` covers the whole tokenizer backend, `tokenizer_sha256` is the hash of its files, if they are
    in a folder. `segmenter` is the library that found words, with its version.
    """

    sources: tuple[SourceRecord, ...]
    tokenizer_fingerprint: str
    tokenizer_sha256: str | None = None
    recipe_version: int
    segmenter: str | None = None
    terms_sha256: str | None = None

    def without_paths(self) -> Self:
        """Returns the plan with the last parts of local paths only."""
        sources = tuple(source.without_paths() for source in self.sources)
        terms = self.terms and Path(self.terms).name
        return replace(self, tokenizer=Path(self.tokenizer).name, sources=sources, terms=terms)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files of all sources."""
        return tuple(file for source in self.sources for file in source.files)

    @property
    def made_from(self) -> MadeFrom:
        """The recipe, and its inputs by content: an upgrade of the segmenter is no difference."""
        text = [(source.commit, source.contents) for source in self.sources]
        recipe = {item.name: getattr(self, item.name) for item in fields(RowsSettings)}
        recipe["sources"] = tuple(source.settings for source in self.sources)
        return MadeFrom.of(
            {"recipe": recipe},
            {
                "recipe.tokenizer": Input(self.tokenizer, self.tokenizer_sha256 or ""),
                "recipe.terms": Input(self.terms, self.terms_sha256 or "") if self.terms else None,
                "recipe.sources": Input("the corpus", sha256_of_json(text)),
            },
        )

    def is_same(self, other: "RowsPlan") -> bool:
        """Returns whether both plans give the same rows: their texts and tokenizers may lie under different names."""
        mine, theirs = ((plan.tokenizer_fingerprint, plan.segmenter, plan.recipe_version) for plan in (self, other))
        made_from = (plan.made_from.without("recipe.tokenizer") for plan in (self, other))
        return mine == theirs and not differences(*made_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """What one split is made of.

    `copies` counts documents with the text of an earlier one; in the report of a slice, it is 0. `tokens_per_source`,
    `unknown_per_source` (the [UNK] among them) and `rows_per_source` have an entry for each source; the last is empty
    for rows made before recipe version 3, which may mix sources. `document_lengths[k]` counts documents of 2^k to
    2^(k+1) - 1 tokens; `fills[k]` counts rows of which a share above k/20, up to (k+1)/20, is filled.
    """

    documents: int
    sentences: int
    tokens: int
    rows: int
    separators: int
    cut_sentences: int
    fill_rate: float
    copies: int
    tokens_per_source: tuple[int, ...]
    unknown_per_source: tuple[int, ...]
    document_lengths: tuple[int, ...]
    fills: tuple[int, ...]
    rows_per_source: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What rows are made of, and how many records were set aside for which reason."""

    train: SplitReport
    held_out: SplitReport
    set_aside: dict[str, int]

    @property
    def unknown_shares(self) -> tuple[float, ...]:
        """The share of unknown tokens in each source."""
        one, other = self.train, self.held_out
        unknown = map(sum, zip(one.unknown_per_source, other.unknown_per_source, strict=True))
        tokens = map(sum, zip(one.tokens_per_source, other.tokens_per_source, strict=True))
        return tuple(found / max(1, total) for found, total in zip(unknown, tokens, strict=True))

    def of(self, split: Split) -> SplitReport:
        """Returns the report of one split."""
        return self.train if split == "train" else self.held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A document and its copies: their number, and the first words and the origin of the first of them."""

    size: int
    words: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """How many families of copies were found, and the largest.

    `leaks` counts the documents that would have landed in the other split if their copies were not considered.
    """

    count: int
    leaks: int
    largest: tuple[Family, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingReport(Contents):
    """What a folder of rows is made of, and the speed of the last run."""

    elapsed_seconds: float
    tokens_per_second: float
    duplicates: Families | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsManifest(Artifact):
    """manifest.json of a folder of rows, written last: without it the folder is incomplete."""

    FILE: ClassVar[str] = "manifest.json"
    REMEDY: ClassVar[str] = "remove the folder and prepare the rows again"

    format: int = 2
    kind: Literal["rows"] = "rows"
    plan: RowsPlan
    report: PackingReport
    files: dict[str, FileEntry]

    def __post_init__(self) -> None:
        number = len(self.plan.sources)
        for report in (self.report.train, self.report.held_out):
            lengths = {
                *map(
                    len, (report.tokens_per_source, report.unknown_per_source, report.rows_per_source or range(number))
                )
            }
            if lengths != {number}:
                raise ValueError(f"the report does not have one count for each of {number} sources")

    @property
    def sha256(self) -> str:
        """SHA-256 over the SHA-256 of every shard of both splits: the same for the same rows."""
        shards = sorted((name, entry.sha256) for name, entry in self.files.items() if Path(name).parts[0] in SPLITS)
        return hashlib.sha256(repr(shards).encode()).hexdigest()

    def sources(self, split: Split) -> dict[str, tuple[int, int]]:
        """Returns, by name, the numbers of rows and tokens of each source that has rows in a split.

        The rows of the sources follow each other in this order. Empty if rows may mix sources.
        """
        report = self.report.of(split)
        sizes = zip(report.rows_per_source, report.tokens_per_source, strict=False)
        return {name: size for name, size in zip(source_names(self.plan.sources), sizes, strict=False) if size[0]}


def read_rows_manifest(folder: Path) -> RowsManifest:
    """Returns the manifest of a folder of rows.

    Raises FolderError for an incomplete folder, DataError for one that holds something else, ArtifactError for a
    manifest that is damaged or of another format.
    """
    if folder.is_dir() and not (folder / RowsManifest.FILE).exists():
        raise FolderError(
            f"{folder} has no {RowsManifest.FILE}, so it holds no complete rows: name a folder that longmlm prepare "
            "wrote, or remove this one and run longmlm prepare"
        )
    if not folder.exists():
        raise FolderError(f"{folder}: no such folder: run longmlm prepare first, or check the path of rows")
    if read_manifest(folder).get("kind") != "rows":
        raise DataError(f"{folder} holds no packed rows: make them with longmlm prepare")
    return read(RowsManifest, folder / RowsManifest.FILE)


def shards_of(manifest: RowsManifest, split: Split, folder: Path) -> list[Path]:
    """Returns the shards of one split of the rows in a folder; raises DataError if there are none."""
    names = [name for name in manifest.files if name.startswith(f"{split}/") and name.endswith(".arrow")]
    shards = [folder / name for name in sorted(names, key=lambda name: (len(name), name))]  # slice-100000 comes last
    if not shards:
        raise DataError(f"{folder} holds no {split} rows")
    return shards


def check_rows_fit_positions(row_length: int, num_positions: int, name: str) -> None:
    """Raises DataError if rows are longer than the `num_positions` that the model or tokenizer `name` reads."""
    if row_length > num_positions:
        raise DataError(
            f"the rows have {row_length} tokens and {name} reads {num_positions}: extend it first, or prepare shorter "
            f"rows (in a pipeline, set length to {num_positions} or less)"
        )


def check_rows_fit_recipe(manifest: RowsManifest, recipe: PretrainRecipe, name: str) -> None:
    """Raises DataError if a recipe isolates documents but no row has several, or needs pairs but rows give none."""
    plan = manifest.plan
    if recipe.isolate_documents and plan.packing != "full-sentences":
        raise DataError(
            f"recipe.isolate_documents has no effect, since every row of {name} has one document (packing = "
            f"{plan.packing}): remove it"
        )
    if recipe.pairs and not plan.pairs:
        raise DataError(
            "[recipe.pairs] needs rows that record sentences, and these do not: prepare rows with pairs = true and "
            'packing = "doc-sentences" in another folder, or remove [recipe.pairs]'
        )
    for split in SPLITS if recipe.pairs else ():
        report = manifest.report.of(split)
        with_tokens = sum(report.document_lengths)
        num_documents = with_tokens if report.sentences > with_tokens else 0
        check_has_pairs(num_documents, pair_kind(recipe.pairs), split)


def check_has_pairs(num_documents: int, kind: PairKind | None, split: Split) -> None:
    """Raises DataError if rows give no pairs, or one label only: `num_documents` have several sentences in a row."""
    if kind and num_documents < (needed := 2 if kind == "nsp" else 1):
        raise DataError(
            f"[recipe.pairs] needs {counted(needed, 'document')} with several sentences in a {split} row, but "
            f"there {'is' if num_documents == 1 else 'are'} only {num_documents}: check held_out_fraction and the "
            "language of the sources, which decides where sentences end; or remove [recipe.pairs]"
        )
