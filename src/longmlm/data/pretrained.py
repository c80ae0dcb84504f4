"""Loads a pretrained tokenizer as its files describe it, and saves it so that every library reads the same.

transformers rebuilds a tokenizer from its class: a BertTokenizer gets BERT's normalizer and pre-tokenizer, whatever its
tokenizer.json says. So its parts are compared with that file, and the file is used where they differ.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from longmlm.data.tokenizer_parts import (
    check_options,
    contradicted_option,
    differing_parts,
    use_parts,
    with_space_before_mask,
)
from longmlm.errors import DataError
from longmlm.folders import parse_json
from longmlm.hubs.model_files import CONFIG
from longmlm.hubs.models import read_architecture
from longmlm.progress import quiet_libraries

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
SPECIAL_FILE, ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
UNSAVED = (  # with what transformers reads from truncation and padding in tokenizer.json, and older names of the length
    *("auto_map", "fast_tokenizer_files"),  # code, and other versions of tokenizer.json
    *("max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "truncation", "padding"),
    *("max_len", "max_len_single_sentence", "max_len_sentences_pair"),
)
GENERIC_CLASS = "PreTrainedTokenizerFast"  # transformers 5 writes TokenizersBackend, which version 4 does not know


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A tokenizer of transformers, and notes for the user about how its files were read."""

    tokenizer: Any
    notes: tuple[str, ...] = ()


def load_pretrained(name: str, folder: Path) -> Pretrained:
    """Returns the tokenizer in a folder as its files describe it, with truncation and padding off.

    Raises DataError if its files contradict each other or do not state an option that its vocabulary was made with, and
    the libraries' own errors.
    """
    path, config = folder / TOKENIZER_FILE, folder / CONFIG
    if not path.is_file() and config.is_file():
        read_architecture(str(config))  # transformers would search the folder's name for a family
    if not path.is_file() and find_spec("sentencepiece") is None and (models := sorted(folder.glob("*.model"))):
        raise DataError(
            f"{name} has {models[0].name} but no {TOKENIZER_FILE}: install sentencepiece, which reads the former, or "
            "put the latter next to it"
        )
    with quiet_libraries():
        pretrained = _rebuilt(folder)
        if not _is_described(pretrained):
            return Pretrained(pretrained)
        if path.is_file():
            return _as_in_file(name, folder, pretrained, Tokenizer.from_file(str(path)))
        stated = _json(folder / CONFIG_FILE)
        check_options(name, pretrained, stated)
        mask = with_space_before_mask(pretrained, stated)
        return Pretrained(_rebuilt(folder, **mask) if mask else pretrained)


def forget_lengths(pretrained: Any) -> None:
    """Turns truncation and padding off; of the lengths, only model_max_length is saved."""
    _without_lengths(pretrained.backend_tokenizer)
    for key in UNSAVED:
        pretrained.init_kwargs.pop(key, None)
    if pretrained.init_kwargs.get("truncation_side") == "right":  # the default, taken from the truncation
        del pretrained.init_kwargs["truncation_side"]


def save_pretrained(pretrained: Any, folder: Path, inputs: Collection[str]) -> None:
    """Writes the tokenizer of a model with these inputs, without truncation and padding, also for transformers 4.

    That version passes all that a tokenizer returns to the model, for example the token_type_ids of a BertTokenizer,
    which transformers 5 makes for DistilBERT.
    """
    forget_lengths(pretrained)
    if unknown := set(pretrained.model_input_names) - set(inputs):
        names = [name for name in pretrained.model_input_names if name not in unknown]
        pretrained.model_input_names = pretrained.init_kwargs["model_input_names"] = names
    pretrained.save_pretrained(folder)
    path = folder / CONFIG_FILE
    content = _json(path)
    if content["tokenizer_class"] == "TokenizersBackend":
        content["tokenizer_class"] = GENERIC_CLASS
        pre_tokenizer = pretrained.backend_tokenizer.pre_tokenizer
        if pre_tokenizer and parse_json(pre_tokenizer.__getstate__()).get("add_prefix_space"):
            content["add_prefix_space"] = True  # which transformers 4 sets in the pre-tokenizer
    if isinstance(content.get("extra_special_tokens"), list):
        content["additional_special_tokens"] = content.pop("extra_special_tokens")
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _without_lengths(tokenizer: Tokenizer) -> None:
    tokenizer.no_truncation()
    tokenizer.no_padding()


def _rebuilt(folder: Path, **options: Any) -> Any:
    """Returns the tokenizer that transformers makes of the files."""
    from transformers import AutoTokenizer

    pretrained: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)
    if _is_described(pretrained):
        forget_lengths(pretrained)
    return pretrained


def _is_described(pretrained: Any) -> bool:
    """Returns whether the tokenizer is one of the tokenizers library, without Python code in its parts."""
    with suppress(Exception):  # tokenizers raises nothing narrower
        return bool(pretrained.backend_tokenizer.to_str())
    return False


def _as_in_file(name: str, folder: Path, rebuilt: Any, given: Tokenizer) -> Pretrained:
    """Returns the tokenizer with all parts of tokenizer.json, and a note if transformers rebuilds it with others."""
    _without_lengths(given)
    config, declared = _json(folder / CONFIG_FILE), _declared_tokens(folder)
    differing = differing_parts(rebuilt.backend_tokenizer, given, declared)
    if not differing:
        use_parts(given, rebuilt.backend_tokenizer)
        return Pretrained(rebuilt)
    if option := contradicted_option(config, rebuilt.backend_tokenizer, given):
        raise DataError(
            f"{name}: {TOKENIZER_FILE} contradicts {option} = {json.dumps(config[option])} in {CONFIG_FILE}: make the "
            "two files agree"
        )
    pretrained = _generic(folder, rebuilt, given, declared)
    forget_lengths(pretrained)
    use_parts(given, pretrained.backend_tokenizer)
    if contradicting := differing_parts(pretrained.backend_tokenizer, given, declared):
        raise DataError(
            f"{name}: {TOKENIZER_FILE} and the other files of its tokenizer differ in {' and '.join(contradicting)}: "
            "make them agree"
        )
    note = f"{name}: {TOKENIZER_FILE} is used as it is; transformers rebuilds {type(rebuilt).__name__} with another "
    return Pretrained(pretrained, (note + " and ".join(differing),))


def _generic(folder: Path, rebuilt: Any, given: Tokenizer, declared: Mapping[str, int | None]) -> Any:
    """Returns a tokenizer of no class of its own, which transformers reads from tokenizer.json.

    It has the special tokens of the rebuilt one that the file has or that another file declares.
    """
    from transformers import PreTrainedTokenizerFast

    roles: dict[str, Any] = {
        role: token
        for role, token in rebuilt.special_tokens_map.items()
        if token in declared or given.token_to_id(token) is not None
    }
    return PreTrainedTokenizerFast.from_pretrained(
        folder, tokenizer_file=str(folder / TOKENIZER_FILE), model_input_names=rebuilt.model_input_names, **roles
    )


def _declared_tokens(folder: Path) -> dict[str, int | None]:
    """Returns the tokens that files other than tokenizer.json name, each with its id where that is stated."""
    config, declared = _json(folder / CONFIG_FILE), dict[str, int | None]()
    for content in (config, _json(folder / SPECIAL_FILE)):
        tokens = [value for key, value in content.items() if key.endswith("_token")]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            more = content.get(key) or []
            tokens += more.values() if isinstance(more, dict) else more
        declared |= {_content(token): None for token in tokens if token}
    stated = {_content(token): int(number) for number, token in config.get("added_tokens_decoder", {}).items()}
    return declared | _json(folder / ADDED_FILE) | stated


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _json(path: Path) -> dict[str, Any]:
    return parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
