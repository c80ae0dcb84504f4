"""Checks the arguments of the Python API: each error names the argument and what it must be."""

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from longmlm.data import languages
from longmlm.data.row import Maskable, Row
from longmlm.data.vocabulary import Vocabulary, cached_vocabulary
from longmlm.errors import ConfigError, DataError, ModelError
from longmlm.model.checks import check_embedding
from longmlm.settings.effects import settings_without_effect
from longmlm.validation import validated

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRow(Row):
    """A row that `pack` made, with the fingerprint of its tokenizer."""

    tokenizer_fingerprint: str = field(kw_only=True)

    @classmethod
    def of(cls, row: Row, vocabulary: Vocabulary) -> Self:
        """Returns the row as one that was packed with this vocabulary."""
        columns = {item.name: getattr(row, item.name) for item in fields(row)}
        return cls(**columns, tokenizer_fingerprint=vocabulary.fingerprint)


def checked_settings(kind: type[Settings], **values: Any) -> Settings:
    """Returns settings of this kind; raises ValueError, with the name of the argument, for a wrong type or value."""
    try:
        return validated(kind, {name: _plain(value) for name, value in values.items()}, [], allows_unused=True)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def settings_or_default(kind: type[Settings], value: Any, name: str) -> Settings:
    """Returns the settings that an argument holds, or the default ones for None; raises ValueError for anything else.

    So does a setting of the wrong type, or without effect.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__module__}.{kind.__name__}, not {described(value)}")
    given: Any = value
    settings = checked_settings(kind, **asdict(given))
    for key, reason in settings_without_effect(settings):
        raise ValueError(f"{name}.{key}: {reason}")
    return settings


def checked_number(name: str, value: Any, least: int, bound: int = 2**63) -> int:
    """Returns a whole number from `least` to below `bound`; raises ValueError for anything else."""
    number = _plain(value)
    if type(number) is not int:
        raise ValueError(f"{name} must be a whole number, not {described(value)}")
    if not least <= number < bound:
        raise ValueError(f"{name} must be at least {least}{'' if number < least else f' and below {bound}'}: {number}")
    return number


def checked_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises ValueError for a value that is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {described(value)}")


def checked_path(name: str, value: Any) -> Path:
    """Returns a path; raises ValueError for what is none."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError(f"{name} must be a path, not {described(value)}")
    return Path(value)


def check_revision(revision: Any) -> None:
    """Raises ValueError for what cannot be a branch, a tag or a commit."""
    if revision is not None and (not isinstance(revision, str) or not revision):
        raise ValueError(f"revision must be a branch, a tag or a commit, not {described(revision)}")


def check_language(language: Any) -> None:
    """Raises DataError for what is no code of a language."""
    if not isinstance(language, str):
        raise DataError(f"language must be a code such as 'en', not {described(language)}")
    languages.check_language(language)


def checked_texts(texts: Any) -> Iterator[str]:
    """Yields the texts; raises DataError for what is no iterable of strings."""
    if isinstance(texts, str):
        raise DataError("texts is one string: pass a list of texts")
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise DataError(f"texts is {described(texts)}: pass a list of texts")
    return map(_checked_text, enumerate(texts))


def _checked_text(numbered: tuple[int, Any]) -> str:
    number, text = numbered
    if not isinstance(text, str):
        raise DataError(f"texts[{number}] is {described(text)}: pass strings")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise DataError(f"texts[{number}] holds half of a surrogate pair, which is no text: decode it again")
    return text


def checked_vocabulary(tokenizer: Any, model: PreTrainedModel | None = None) -> tuple[Vocabulary, Maskable]:
    """Returns the vocabulary of a tokenizer, and its maskable ids.

    Raises DataError for what is no tokenizer, and ModelError for one with ids beyond the model's word embedding.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise DataError(f"tokenizer is {described(tokenizer)}: pass one that AutoTokenizer has loaded")
    if model is not None:
        check_embedding(model_name(model), model, tokenizer)
    return cached_vocabulary(tokenizer)


def checked_rows(rows: Any, vocabulary: Vocabulary) -> tuple[Row, ...]:
    """Returns the rows; raises DataError for what are none, or rows of another tokenizer."""
    if not isinstance(rows, Iterable):
        raise DataError(f"rows is {described(rows)}: pass the list of rows that pack returns")
    held = tuple(rows)
    for number, row in enumerate(held):
        check_row(number, row, vocabulary)
    return held


def chosen_rows(rows: Any, row_ids: Any, vocabulary: Vocabulary) -> list[tuple[int, Row]]:
    """Returns the rows at these indices, with their indices.

    Raises IndexError for a row that does not exist, ValueError for other indices, DataError for rows of another
    tokenizer.
    """
    if not isinstance(rows, Sequence):
        raise DataError(f"rows is {described(rows)}: pass the list of rows that pack returns")
    if not isinstance(row_ids, Iterable) or isinstance(row_ids, str | bytes):
        raise ValueError(f"row_ids must be a list of indices of rows, not {described(row_ids)}")
    chosen = [_plain(row_id) for row_id in row_ids]
    if not chosen:
        raise ValueError("row_ids is empty: a batch needs at least one row")
    for row_id in chosen:
        if type(row_id) is not int:
            raise ValueError(f"row_ids must be whole numbers, not {described(row_id)}")
        if not 0 <= row_id < len(rows):
            raise IndexError(f"there is no row {row_id}: the rows are 0 to {len(rows) - 1}")
        check_row(row_id, rows[row_id], vocabulary)
    return [(row_id, rows[row_id]) for row_id in chosen]


def check_row(number: int, row: Any, vocabulary: Vocabulary) -> None:
    """Raises DataError for what is no row, or a row of another tokenizer."""
    if not isinstance(row, Row) or not isinstance(row.input_ids, np.ndarray) or len(row) < 2:  # noqa: PLR2004
        raise DataError(f"rows[{number}] is {described(row)}: pass rows that pack returns")
    special, ids = vocabulary.special, row.input_ids
    fits = (ids[0], ids[-1]) == (special.cls, special.sep) and ids.min() >= 0 and ids.max() < vocabulary.size
    if not fits or getattr(row, "tokenizer_fingerprint", vocabulary.fingerprint) != vocabulary.fingerprint:
        raise DataError(
            f"rows[{number}] was packed with another tokenizer than {vocabulary.name}: pack the texts with this one"
        )


def checked_model(model: Any) -> PreTrainedModel:
    """Returns the model; raises ModelError for what is no masked language model, or one without readable weights."""
    if not isinstance(model, PreTrainedModel):
        raise ModelError(f"model is {described(model)}: pass one that AutoModelForMaskedLM has loaded")
    name = model_name(model)
    if not {kind.__name__ for kind in type(model).__mro__} & set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()):
        raise ModelError(f"{name} is a {type(model).__name__}: load it with AutoModelForMaskedLM")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(f"{name} has no weights, since it is on the device meta: load it on a CPU or GPU")
    if getattr(model, "is_quantized", False):
        raise ModelError(f"{name} is quantized: load it without quantization")
    return model


def model_name(model: PreTrainedModel) -> str:
    """Returns the name that a model was loaded by, else that of its class."""
    return model.name_or_path or type(model).__name__


def described(value: Any) -> str:
    """Returns a value in a few words: itself if it is short, else its type."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:56]}... ({type(value).__name__})"  # noqa: PLR2004
    return f"a {type(value).__name__}"


def _plain(value: Any) -> Any:
    """Returns a number of numpy or torch as one of Python, and any other value as it is."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    try:
        return operator.index(value)
    except TypeError:
        return float(value) if isinstance(value, Real) else value
