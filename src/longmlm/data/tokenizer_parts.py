"""The parts of a tokenizer, compared with those in its tokenizer.json."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

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
    for option, value in ((option, config.get(option)) for option in OPTIONS):
        if isinstance(value, bool) and followed[option] == value and stated[option] == (not value):
            return option
    return None


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
