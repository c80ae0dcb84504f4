"""The parts and options of a tokenizer, compared with those in its tokenizer.json."""

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from longmlm.errors import DataError, counted

PARTS = {"normalizer": "normalizer", "pre_tokenizer": "pre-tokenizer", "model": "model", "decoder": "decoder"}
OPTIONS = {  # of tokenizer_config.json, and what they set in tokenizer.json
    "do_lower_case": ("normalizer", "lowercase"),
    "strip_accents": ("normalizer", "strip_accents"),
    "tokenize_chinese_chars": ("normalizer", "handle_chinese_chars"),
    "add_prefix_space": ("pre_tokenizer", "add_prefix_space"),
}


def canonical(value: Any) -> Any:
    """Returns a part of a tokenizer's description in a form that is the same for equal tokenizers.

    Unset options may be null or an empty string, scores lose their last digit in JSON, and trimming offsets changes no
    token.
    """
    if isinstance(value, dict):
        kept = (name for name, item in value.items() if item not in (None, "") and name != "trim_offsets")
        return {name: canonical(value[name]) for name in kept}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def differing_parts(tokenizer: Tokenizer, given: Tokenizer, declared: Mapping[str, int | None]) -> list[str]:
    """Returns the parts, in words, in which a tokenizer differs from the given one.

    It may have more added tokens: special ones of the given vocabulary, and those that other files declare, with the
    ids in `declared`, if any.
    """
    mine, expected = json.loads(tokenizer.to_str()), json.loads(given.to_str())
    parts = [name for part, name in PARTS.items() if canonical(mine[part]) != canonical(expected[part])]
    if not parts and _framed(tokenizer) != _framed(given):
        parts.append("post-processor")
    if not _has_added_tokens(tokenizer, given, declared):
        parts.append("added tokens")
    return parts


def use_parts(given: Tokenizer, tokenizer: Any) -> None:
    """Gives a tokenizer the parts of another one except for its model."""
    tokenizer.normalizer, tokenizer.pre_tokenizer = given.normalizer, given.pre_tokenizer
    tokenizer.post_processor, tokenizer.decoder = given.post_processor, given.decoder
    for token in given.get_added_tokens_decoder().values():  # tokens that it has get the flags of these
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])


def contradicted_option(config: Mapping[str, Any], rebuilt: Tokenizer, given: Tokenizer) -> str | None:
    """Returns the option of tokenizer_config.json that the rebuilt tokenizer follows and the given one contradicts."""
    followed, stated = (_option_states(tokenizer) for tokenizer in (rebuilt, given))
    options = (option for option in OPTIONS if isinstance(config.get(option), bool))
    return next((one for one in options if config[one] == followed[one] and stated[one] == (not config[one])), None)


def _option_states(tokenizer: Tokenizer) -> dict[str, bool | None]:
    """Returns the options as the parts of a tokenizer state them; None where they do not."""
    described = json.loads(tokenizer.to_str())
    states = {option: (described[part] or {}).get(key) for option, (part, key) in OPTIONS.items()}
    if states["strip_accents"] is None:  # then accents are stripped in lower case
        states["strip_accents"] = states["do_lower_case"]
    return states


def _framed(tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Returns a text and a pair of texts with their special tokens, as ids and type ids."""
    return [(encoding.ids, encoding.type_ids) for encoding in (tokenizer.encode("a"), tokenizer.encode("a", "a"))]


def _has_added_tokens(tokenizer: Tokenizer, given: Tokenizer, declared: Mapping[str, int | None]) -> bool:
    known, added = given.get_vocab(with_added_tokens=True), tokenizer.get_added_tokens_decoder()
    flags = {number: _flags(token) for number, token in added.items()}
    expected = {number: _flags(token) for number, token in given.get_added_tokens_decoder().items()}
    more = [token for number, token in added.items() if number not in expected]
    return (
        expected.items() <= flags.items()
        and all(token.content in declared or (token.special and token.content in known) for token in more)
        and all(number in (None, tokenizer.token_to_id(token)) for token, number in declared.items())
    )


def _flags(token: AddedToken) -> tuple[object, ...]:
    """Returns how an added token is matched: for a special one, normalization makes no difference."""
    is_normalized = token.normalized and not token.special
    return token.content, token.special, token.lstrip, token.rstrip, token.single_word, is_normalized


CLEAR_SHARE = 0.05  # of all pieces or of single letters: a few words may have been added to a vocabulary by hand
WORD_START = re.compile("^(##|▁)")
SPECIAL = re.compile(r"\[.+\]|<.+>")
CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]{2}")
KEEPING: dict[str, tuple[bool, Callable[[str], bool]]] = {  # the value with which such pieces occur in texts
    "do_lower_case": (False, lambda piece: piece.lower() != piece),
    "strip_accents": (False, lambda piece: unicodedata.normalize("NFD", piece) != piece),
    "keep_accents": (True, lambda piece: unicodedata.normalize("NFD", piece) != piece),
    "tokenize_chinese_chars": (False, lambda piece: CHINESE.search(piece) is not None),
}


def check_options(name: str, pretrained: Any, stated: Mapping[str, Any]) -> None:
    """Raises DataError if tokenizer_config.json (`stated`) lacks an option that the vocabulary was made with.

    That is so if many of its pieces occur in no text with the default of transformers. It is raised too for options
    that transformers ignores.
    """
    if stated.get("do_basic_tokenize") is False or stated.get("never_split"):
        raise DataError(
            f"{name}: its tokenizer_config.json sets do_basic_tokenize or never_split, which transformers ignores: put "
            "a tokenizer.json next to it"
        )
    pieces, normalizer = _pieces(pretrained), pretrained.backend_tokenizer.normalizer
    for option, (value, is_kept) in KEEPING.items():
        if option not in pretrained.init_kwargs or stated.get(option) is not None or not normalizer:
            continue
        lost = [piece for piece in pieces if is_kept(piece) and normalizer.normalize_str(piece).strip() != piece]
        if _is_clear(lost, pieces):
            missing = json.dumps({option: value})
            raise DataError(
                f"{name}: no file states {option}, and by default no text gets {len(lost):,} of "
                f"{counted(len(pieces), 'token')} in its vocabulary, such as {lost[-1]}: write {missing} to its "
                "tokenizer_config.json, or put its tokenizer.json next to it"
            )


def _pieces(pretrained: Any) -> list[str]:
    """Returns the pieces of words in a vocabulary, in the order of their ids."""
    ids = pretrained.get_vocab()
    ordinary = (piece for piece in sorted(ids, key=ids.get) if not SPECIAL.fullmatch(piece))
    return [WORD_START.sub("", piece) for piece in ordinary if piece not in pretrained.all_special_tokens]


def _is_clear(lost: Collection[str], pieces: Collection[str]) -> bool:
    """Returns whether so many pieces are lost that the vocabulary was not made with this option.

    A vocabulary that was has none of the lost letters by themselves.
    """
    letters = [piece for piece in pieces if len(piece) == 1 and piece.lower() != piece.upper()]
    single = [piece for piece in lost if len(piece) == 1]
    return len(lost) >= CLEAR_SHARE * len(pieces) or len(single) > CLEAR_SHARE * len(letters)


def with_space_before_mask(pretrained: Any, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mask token of a tokenizer whose pieces hold the space before a word: so does the mask then.

    Only tokenizer.json says so; older versions of transformers made it so.
    """
    described = json.loads(pretrained.backend_tokenizer.to_str())["model"]["type"]
    mask = pretrained.mask_token
    if described not in ("BPE", "Unigram") or mask is None or isinstance(stated.get("mask_token"), dict):
        return {}
    return {"mask_token": AddedToken(mask, lstrip=True, normalized=False, special=True)}
