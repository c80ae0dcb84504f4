"""How large a corpus is, and about how many tokens and rows it gives, before anything is encoded."""

from collections.abc import Sequence
from dataclasses import dataclass

from longmlm.artifacts.rows import RowsManifest
from longmlm.data.files import COMPRESSED, files_of, readable
from longmlm.data.sentences import bytes_per_token, check_language
from longmlm.hubs.datasets import is_local, source_files
from longmlm.settings.prepare import PrepareRecipe, Source

COMPRESSION = 3  # bytes of text per byte of a .gz or .zst file
UNUSED_TOKENS = 22  # at the end of a row: of English novels' rows, 81 to 85 % of 128 tokens are filled, 98 % of 1536
LEAST_FILL = 0.8  # of rows so short that sentences are cut


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """Files, their bytes on disk, and about how many tokens they give; hub datasets are not counted but named."""

    num_files: int
    num_bytes: int
    num_tokens: int
    not_counted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSize:
    """Content tokens and rows of both splits, and the share of a training row that is filled."""

    num_tokens: int
    train_rows: int
    held_out_rows: int
    mean_fill: float
    is_exact: bool


def token_bytes(vocabulary_size: int) -> int:
    """Returns the bytes of a token in packed rows."""
    return 2 if vocabulary_size <= 1 << 16 else 4


def corpus_size(sources: Sequence[Source]) -> CorpusSize:
    """Returns the size of the sources; raises DataError for one that prepare would refuse."""
    num_files = num_bytes = num_tokens = 0
    not_counted = []
    for source in sources:
        check_language(source.language)
        if source.dataset and not is_local(source):
            not_counted.append(source.dataset)
            continue
        for path in source_files(source) if source.dataset else files_of(source.files):
            with readable(path):
                size = path.stat().st_size
            num_files, num_bytes = num_files + 1, num_bytes + size
            text_bytes = size * COMPRESSION if path.suffix in COMPRESSED else size
            num_tokens += text_bytes // bytes_per_token(source.language)
    return CorpusSize(num_files, num_bytes, num_tokens, tuple(not_counted))


def estimated_rows(num_tokens: int, recipe: PrepareRecipe) -> RowsSize:
    """Returns about how many rows so many tokens give: what is left at the end of a row is half a long sentence."""
    fill = max(LEAST_FILL, 1 - UNUSED_TOKENS / recipe.row_length)
    num_rows = num_tokens / max(1.0, fill * recipe.row_length - 2)
    held_out = round(num_rows * recipe.held_out_fraction)
    return RowsSize(
        num_tokens=num_tokens,
        train_rows=max(1, round(num_rows) - held_out),
        held_out_rows=max(1, held_out),
        mean_fill=fill,
        is_exact=False,
    )


def rows_size(manifest: RowsManifest) -> RowsSize:
    """Returns the size of rows that exist."""
    train, held_out = manifest.report.train, manifest.report.held_out
    return RowsSize(
        num_tokens=train.tokens + held_out.tokens,
        train_rows=train.rows,
        held_out_rows=held_out.rows,
        mean_fill=train.fill_rate,
        is_exact=True,
    )
