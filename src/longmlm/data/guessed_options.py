"""Options of a tokenizer that no file states: taken from its vocabulary, all of whose tokens should be able to occur.

transformers lowercases and strips accents unless tokenizer_config.json says otherwise. With the vocab.txt of
bert-base-cased alone, 8,366 of its 28,890 tokens would never occur, because they have capital letters.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

from tokenizers import AddedToken

from longmlm.errors import DataError, counted

CLEAR_SHARE = 0.05  # of all pieces or of single letters: a few words may have been added to a vocabulary by hand
WORD_START = re.compile("^(##|▁)")
SPECIAL = re.compile(r"\[.+\]|<.+>")
CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")


def guessed_options(name: str, pretrained: Any, stated: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns options with which the pieces of a vocabulary can occur in a text, and notes for the user.

    `stated` is tokenizer_config.json. Raises DataError for options in it that transformers ignores, and for a
    vocabulary of Chinese words, which only a program of its authors can find in a text.
    """
    if stated.get("do_basic_tokenize") is False or stated.get("never_split"):
        raise DataError(
            f"{name}: its tokenizer_config.json sets do_basic_tokenize or never_split, which transformers ignores: put "
            "a tokenizer.json next to it"
        )
    pieces = _pieces(pretrained)
    _check_chinese(name, pretrained, stated, pieces)
    options, notes = _with_space_before_mask(pretrained, stated), []
    for option, value, is_changed in (
        ("do_lower_case", False, _has_capitals),
        ("strip_accents", False, _has_accents),
        ("keep_accents", True, _has_accents),
    ):
        follows_case = option == "strip_accents" and "do_lower_case" in options
        if option not in pretrained.init_kwargs or stated.get(option) is not None or follows_case:
            continue
        normalizer = pretrained.backend_tokenizer.normalizer
        lost = [piece for piece in pieces if is_changed(piece) and normalizer.normalize_str(piece) != piece]
        what = (
            f"{len(lost):,} of {counted(len(pieces), 'token')} in its vocabulary, such as {lost[-1]}," if lost else ""
        )
        if lost and _is_clear(lost, pieces):
            options[option] = value
            notes.append(
                f"{name}: no file states {option}: it is {json.dumps(value)}, as {what} could not occur otherwise"
            )
        elif lost:
            notes.append(
                f"{name}: no file states {option}: {what} cannot occur; to keep them, state {option} = "
                f"{json.dumps(value)} in a tokenizer_config.json"
            )
    return options, tuple(notes)


def _pieces(pretrained: Any) -> list[str]:
    """Returns the pieces of words in a vocabulary, in the order of their ids."""
    ids = pretrained.get_vocab()
    ordinary = (piece for piece in sorted(ids, key=ids.get) if not SPECIAL.fullmatch(piece))
    return [WORD_START.sub("", piece) for piece in ordinary if piece not in pretrained.all_special_tokens]


def _has_capitals(piece: str) -> bool:
    return piece.lower() != piece


def _has_accents(piece: str) -> bool:
    """Returns whether a piece in lower case has marks that are not spacing, such as the dots of ä."""
    is_mark = (unicodedata.category(character) == "Mn" for character in unicodedata.normalize("NFD", piece))
    return piece.lower() == piece and any(is_mark)


def _is_clear(lost: Collection[str], pieces: Collection[str]) -> bool:
    """Returns whether so many pieces are lost that the vocabulary was not made with this option.

    A vocabulary that was has none of the lost letters by themselves.
    """
    letters = [piece for piece in pieces if len(piece) == 1 and piece.lower() != piece.upper()]
    single = [piece for piece in lost if len(piece) == 1]
    return len(lost) >= CLEAR_SHARE * len(pieces) or len(single) > CLEAR_SHARE * len(letters)


def _check_chinese(name: str, pretrained: Any, stated: Mapping[str, Any], pieces: Collection[str]) -> None:
    """Raises DataError if many pieces are Chinese words, which would be split into characters."""
    option = "tokenize_chinese_chars"
    words = [piece for piece in pieces if len(piece) > 1 and CHINESE.search(piece)]
    if option in pretrained.init_kwargs and stated.get(option) is None and len(words) >= CLEAR_SHARE * len(pieces) > 0:
        number = counted(len(words), "word")
        raise DataError(
            f"{name}: its vocabulary has {number} of several Chinese characters, such as {words[-1]}, and "
            f"no file says how texts are split into words: put its tokenizer.json next to it, or state {option} in its "
            "tokenizer_config.json"
        )


def _with_space_before_mask(pretrained: Any, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mask token of a tokenizer whose pieces hold the space before a word: so does the mask then.

    Only tokenizer.json says so; older versions of transformers made it so.
    """
    described = json.loads(pretrained.backend_tokenizer.to_str())["model"]["type"]
    mask = pretrained.mask_token
    if described not in ("BPE", "Unigram") or mask is None or isinstance(stated.get("mask_token"), dict):
        return {}
    return {"mask_token": AddedToken(mask, lstrip=True, normalized=False, special=True)}
