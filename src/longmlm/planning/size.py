"""The size of a corpus and of a pipeline's results, and an estimate of tokens and rows before anything is encoded."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Self

from longmlm.artifacts.rows import SPLITS, RowsManifest
from longmlm.data.corpus import Slice, sample
from longmlm.data.counts import Counts, fill_rate
from longmlm.data.disk import Sizes
from longmlm.data.files import files_of, readable
from longmlm.data.languages import bytes_per_token, check_language
from longmlm.data.records import text_bytes
from longmlm.data.slices import SliceJob, rows_of_documents
from longmlm.data.vocabulary import Vocabulary
from longmlm.hubs.datasets import shards_of
from longmlm.hubs.model_files import CONFIG
from longmlm.hubs.models import config_of_model, read_architecture
from longmlm.hubs.storage import located
from longmlm.model.families import num_parameters
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.prepare import SPECIAL_TOKENS, PrepareRecipe, Source, source_names
from longmlm.settings.results import result_of
from longmlm.training.run_folder import list_checkpoints

UNUSED_TOKENS = 19  # empty at the end of a row: rows of English text are 85 to 88 % full at 128 tokens, 99 % at 1536
SENTENCE_TOKENS = 23  # of English novels
MIN_FILL = 0.8  # of rows so short that sentences are cut
SAMPLED_BYTES = 4_000_000  # of text, which tokenizers encodes in a second or two


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """Number of files, their bytes, and estimates of the bytes of their text and of the tokens of each source.

    `not_counted` names datasets whose files only `datasets` can read.
    """

    num_files: int
    num_bytes: int
    text_bytes: int
    tokens_per_source: tuple[int, ...]
    not_counted: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """The tokens of all sources."""
        return sum(self.tokens_per_source)

    def in_slices(self, slices: Sequence[Slice], sources: Sequence[Source]) -> Self:
        """Returns the size with the bytes of text in the slices: uncompressed, and without what is not text."""
        sizes = Counter[int]()
        for span in chain.from_iterable(slices):
            sizes[span.source] += span.size
        tokens = (sizes[number] // bytes_per_token(source.language) for number, source in enumerate(sources))
        return replace(self, text_bytes=sizes.total(), tokens_per_source=tuple(tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSize:
    """Content tokens and rows of both splits, and the mean fill of a training row.

    `sources` has the numbers of training rows and tokens by the name of each source; it is empty if rows mix sources.
    `document_lengths` are those of a SplitReport; empty until they are known.
    """

    num_tokens: int
    train_rows: int
    held_out_rows: int
    mean_fill: float
    is_exact: bool
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    document_lengths: tuple[int, ...] = ()


def corpus_size(sources: Sequence[Source]) -> CorpusSize:
    """Returns the size of the sources; raises DataError for one that prepare would refuse."""
    num_files = num_bytes = num_text_bytes = 0
    not_counted, tokens_per_source = [], []
    for source in sources:
        check_language(source.language)
        shards = shards_of(source, may_convert=False) if source.dataset else ()
        paths = [*map(located, shards)] if source.dataset else files_of(source.files)
        not_counted += [] if paths else [str(source.dataset)]
        own_bytes = 0
        for path in paths:
            with readable(path):
                num_bytes, own_bytes = num_bytes + path.stat().st_size, own_bytes + text_bytes(path)
        num_files, num_text_bytes = num_files + len(paths), num_text_bytes + own_bytes
        tokens_per_source.append(own_bytes // bytes_per_token(source.language))
    return CorpusSize(num_files, num_bytes, num_text_bytes, tuple(tokens_per_source), tuple(not_counted))


def estimated_rows(tokens_per_source: Sequence[int], recipe: PrepareRecipe) -> RowsSize:
    """Returns an estimate of the rows: about half a long sentence stays empty at the end of each."""
    fill = max(MIN_FILL, 1 - UNUSED_TOKENS / recipe.row_length)
    if recipe.packing == "sentence-pair":
        fill = min(fill, (2 * SENTENCE_TOKENS + SPECIAL_TOKENS) / recipe.row_length)
    row_tokens, num_tokens = max(1.0, fill * recipe.row_length - SPECIAL_TOKENS), sum(tokens_per_source)
    trained = {
        name: (1 - recipe.held_out_fraction) * tokens
        for name, source, tokens in zip(source_names(recipe.sources), recipe.sources, tokens_per_source, strict=True)
        if not source.held_out
    }
    train_rows = round(sum(trained.values()) / row_tokens)
    sizes = {name: (max(1, round(tokens / row_tokens)), round(tokens)) for name, tokens in trained.items()}
    return RowsSize(
        num_tokens=num_tokens,
        train_rows=max(1, train_rows),
        held_out_rows=max(1, round(num_tokens / row_tokens) - train_rows),
        mean_fill=fill,
        is_exact=False,
        sources=sizes if all(tokens_per_source) else {},  # those of some datasets on a hub are not known
    )


def sampled_rows(recipe: PrepareRecipe, slices: Sequence[Slice], vocabulary: Vocabulary) -> RowsSize:
    """Returns an estimate of the rows from those that a sample of each source gives, a small one as a whole.

    Copies of documents count even where prepare drops them. Of a large source, the share that is held out counts as
    the one that is expected.
    """
    job = SliceJob(recipe=recipe, vocabulary=vocabulary, slices={}, folder=Path())
    sizes, totals, lengths = {}, Counter[str](), Counter[int]()
    for name, (number, source) in zip(source_names(recipe.sources), enumerate(recipe.sources), strict=True):
        own = [tuple(span for span in spans if span.source == number) for spans in slices]
        parts, factor = sample(own, recipe.sources, SAMPLED_BYTES // len(recipe.sources))
        counts = {split: Counts(recipe.row_length, len(recipe.sources)) for split in SPLITS}
        for documents in parts:
            for _, _, rows in rows_of_documents(job, documents, counts):
                deque(rows, maxlen=0)
        train, both = counts["train"].totals, counts["train"].totals + counts["held_out"].totals
        if factor > 1:
            trained = 0 if source.held_out else factor * (1 - recipe.held_out_fraction)
            train = Counter({key: round(trained * both[key]) for key in both})
            both = Counter({key: round(factor * both[key]) for key in both})
        totals.update({**both, "train_rows": train["rows"]})
        lengths.update(counts["train"].histograms["document_lengths"])
        if train["rows"]:
            sizes[name] = train["rows"], train["tokens"]
    return RowsSize(
        num_tokens=totals["tokens"],
        train_rows=max(1, totals["train_rows"]),
        held_out_rows=max(1, totals["rows"] - totals["train_rows"]),
        mean_fill=fill_rate(totals, recipe.row_length),
        is_exact=False,
        sources=sizes,
        document_lengths=tuple(lengths[length] for length in range(max(lengths, default=-1) + 1)),
    )


def rows_size(manifest: RowsManifest) -> RowsSize:
    """Returns the exact size of packed rows."""
    train, held_out = manifest.report.train, manifest.report.held_out
    return RowsSize(
        num_tokens=train.tokens + held_out.tokens,
        train_rows=train.rows,
        held_out_rows=held_out.rows,
        mean_fill=train.fill_rate,
        is_exact=True,
        sources=manifest.sources("train"),
        document_lengths=train.document_lengths,
    )


def planned_sizes(config: ResolvedPipeline) -> Sizes:
    """Returns what the sizes of the results follow from, as far as known without loading the model or all text."""
    num_tokens = 0 if result_of(config.prepare).exists() else corpus_size(config.prepare.recipe.sources).num_tokens
    model = _planned_config(config) or SimpleNamespace(model_type="")
    return Sizes(num_parameters(model, config.length) or 0, getattr(model, "vocab_size", 0), num_tokens)


def _planned_config(config: ResolvedPipeline) -> SimpleNamespace | None:
    """Returns the config of the model that is trained: of its newest checkpoint, else of the long or the base model."""
    start, extend = config.pretrain.start, config.extend
    made = [*reversed(list_checkpoints(result_of(config.pretrain))), *([result_of(extend)] if extend else [])]
    if folder := next((folder for folder in made if (folder / CONFIG).is_file()), None):
        return config_of_model(str(folder))
    if extend:
        return config_of_model(extend.base, extend.revision)
    if start.checkpoint is None:
        return SimpleNamespace(**read_architecture(str(start.architecture)))
    folder = next(reversed(list_checkpoints(Path(start.checkpoint))), None)  # of another run
    return config_of_model(str(folder or start.checkpoint), start.revision)
