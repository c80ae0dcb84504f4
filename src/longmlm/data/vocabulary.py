"""Tokenizers of pretrained models: their special tokens and fingerprints, and the ids that masking may use."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.pre_tokenizers import ByteLevel

from longmlm.data.pretrained import load_pretrained
from longmlm.data.row import Maskable, SpecialTokens
from longmlm.data.tokenizer_parts import canonical
from longmlm.errors import DataError, ModelError, ModelNotFoundError, UserError, explained
from longmlm.escaping import read_user_text
from longmlm.hubs.models import is_folder, snapshot_of
from longmlm.settings.masking import MaskingUnit

# Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
INVENTED_SPACE = re.compile("(?<={0}) (?={0})".format(f"[{UNSPACED}\u3000-\u303f\uff00-\uffef]"))
UNMATCHED = "\uffff"  # a noncharacter: no text contains a piece that starts with it
CONTINUATION_BYTES = range(0x80, 0xC0)  # with which no UTF-8 character begins; U+0080 to U+00BF end with one of them
CONTINUATION_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in CONTINUATION_BYTES)
ROLES = {
    "cls": ("cls_token", "bos_token", "[CLS]", "<s>"),
    "sep": ("sep_token", "eos_token", "[SEP]", "</s>"),
    "mask": ("mask_token", "[MASK]", "<mask>"),
    "pad": ("pad_token", "[PAD]", "<pad>"),
    "unk": ("unk_token", "[UNK]", "<unk>"),
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer with what packing and masking need to know about it; `size` is the highest id plus one.

    `fingerprint` is the same for tokenizers that give every text the same row: a hash of normalizer, pre-tokenizer,
    model, vocabulary and special tokens. `notes` are what a user should know about the loading.
    """

    name: str
    tokenizer: Tokenizer
    special: SpecialTokens
    size: int
    fingerprint: str
    notes: tuple[str, ...] = ()

    @property
    def maskable(self) -> Maskable:
        """All ids in use but those of special tokens."""
        is_maskable = np.zeros(self.size, dtype=bool)
        is_maskable[list(self.tokenizer.get_vocab(with_added_tokens=True).values())] = True  # ids may have gaps
        is_maskable[list(self.special.all)] = False
        return Maskable(is_maskable, np.flatnonzero(is_maskable), self.special.mask)

    def maskable_in(self, unit: MaskingUnit) -> Maskable:
        """Returns what is maskable and, for words and spans, where words start.

        Raises DataError if the tokens do not show where a word starts.
        """
        if unit == "token":
            return self.maskable
        from longmlm.data.words import maskable_by_words  # masking of single tokens needs none of it

        return maskable_by_words(self)

    @property
    def is_within_character(self) -> Bool[np.ndarray, " vocabulary"] | None:
        """For each id, whether its token begins within a UTF-8 character; None for a tokenizer without bytes."""
        return _is_within_character(self)


@lru_cache(maxsize=4)
def _is_within_character(vocabulary: Vocabulary) -> Bool[np.ndarray, " vocabulary"] | None:
    """Byte-level BPE writes tokens in 256 letters, one for each byte; byte fallback has tokens such as <0xE4>."""
    described = json.loads(vocabulary.tokenizer.to_str())
    is_byte_level = '"ByteLevel"' in json.dumps([described["pre_tokenizer"], described["decoder"]])
    if not is_byte_level and not described["model"].get("byte_fallback"):
        return None
    [(letters, _)] = ByteLevel(False, use_regex=False).pre_tokenize_str("".join(map(chr, CONTINUATION_BYTES)))
    within, added = frozenset(letters[1::2]), vocabulary.tokenizer.get_added_tokens_decoder()
    is_within = np.zeros(vocabulary.size, dtype=bool)
    for token, token_id in vocabulary.tokenizer.get_vocab(with_added_tokens=False).items():
        if token_id not in added:
            is_within[token_id] = token[:1] in within if is_byte_level else token in CONTINUATION_TOKENS
    return is_within


def load_vocabulary(name: str) -> Vocabulary:
    """Returns the fast tokenizer in a folder, or on the hub (OWNER/NAME[@REVISION]), with truncation and padding off.

    Raises DataError when there is none, or when a special token that rows need is missing.
    """
    folder = tokenizer_folder(name)
    with _explained(name):
        loaded = load_pretrained(name, folder)
    pretrained = loaded.tokenizer
    # from a folder without tokenizer files, transformers makes a tokenizer that has only special tokens
    if set(pretrained.get_vocab()) <= set(pretrained.all_special_tokens):
        raise DataError(f"{name} has no tokenizer: name a folder with tokenizer.json or vocabulary files")
    return replace(vocabulary_of_pretrained(pretrained, name), notes=loaded.notes)


def tokenizer_folder(name: str) -> Path:
    """Returns the folder of a tokenizer's files, downloaded if it is a repository; raises DataError if that fails.

    The folder may still hold no tokenizer.
    """
    try:
        repository, _, revision = (name, "", "") if is_folder(name) else name.partition("@")
    except ModelNotFoundError as error:
        raise DataError(str(error)) from None
    with _explained(name):
        return snapshot_of(repository, revision or None, with_weights=False).folder


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turns any exception of the libraries, which raise types of their own, into a DataError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if line := explained(error):
            raise DataError(f"{name}: its tokenizer cannot be read: {line}") from error
        reason = (str(error).splitlines() or ["?"])[0]
        if isinstance(error, ImportError):
            raise DataError(f"{name}: its tokenizer cannot be loaded: {reason}") from error
        if Path(name).exists():
            raise DataError(
                f"{name} has no tokenizer that transformers recognizes: name a folder with tokenizer.json, or with "
                "vocabulary files and the model's config.json"
            ) from error
        raise DataError(f"{name}: no folder, nor a reachable hub repository, with a tokenizer ({reason})") from error


def vocabulary_of_pretrained(pretrained: Any, name: str) -> Vocabulary:
    """Returns the vocabulary of a transformers tokenizer, with the special tokens that it declares."""
    tokenizer = getattr(pretrained, "backend_tokenizer", None)
    if tokenizer is None:
        raise DataError(f"{name} has only a slow tokenizer: save it once as a fast one (tokenizer.json)")
    try:
        tokenizer.to_str()
    except Exception as error:  # tokenizers raises nothing narrower
        raise DataError(
            f"{name}: its tokenizer ({type(pretrained).__name__}) splits words with Python code, which has no "
            "fingerprint: take a model with a different tokenizer, such as a character-level RoFormer"
        ) from error
    named = {role: getattr(pretrained, role, None) for roles in ROLES.values() for role in roles[:2]}
    return vocabulary_of(tokenizer, name, {role: token for role, token in named.items() if token})


def cached_vocabulary(pretrained: Any) -> tuple[Vocabulary, Maskable]:
    """Returns what vocabulary_of_pretrained does, and what is maskable; computing it takes longer than a batch."""
    return _cached_vocabulary(pretrained, (len(pretrained), *pretrained.all_special_ids))


@lru_cache(maxsize=4)
def _cached_vocabulary(pretrained: Any, _state: tuple[int, ...]) -> tuple[Vocabulary, Maskable]:  # of a tokenizer
    vocabulary = vocabulary_of_pretrained(pretrained, pretrained.name_or_path or type(pretrained).__name__)
    return vocabulary, vocabulary.maskable


def vocabulary_of(tokenizer: Tokenizer, name: str, named: dict[str, str] | None = None) -> Vocabulary:
    """Returns the vocabulary of a tokenizer; `named` maps roles such as cls_token to tokens, by default the usual ones.

    A special token that is spelled out in a text is encoded as plain text.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids: dict[str, Any] = {}  # Any: an id, or None for a token that is missing, which only unk may be
    for role, names in ROLES.items():
        candidates = (tokenizer.token_to_id((named or {}).get(token, token)) for token in names)
        ids[role] = next((token_id for token_id in candidates if token_id is not None), None)
    if missing := [role for role in ("cls", "sep", "mask", "pad") if ids[role] is None]:
        raise DataError(f"{name}: the tokenizer has no {missing[0]} token; masked language models need one")
    added = [token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    special = SpecialTokens(**ids, all=tuple(sorted({*added, *ids.values()} - {None})))
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    vocabulary_sha256 = hashlib.sha256(json.dumps([sorted(vocab.items()), special.all]).encode()).hexdigest()
    fingerprint = _fingerprint(tokenizer, special, vocabulary_sha256)
    without_special = _without_special_pieces(tokenizer, special)
    return Vocabulary(name, without_special, special, max(vocab.values()) + 1, fingerprint)


def _fingerprint(tokenizer: Tokenizer, special: SpecialTokens, vocabulary_sha256: str) -> str:
    """Returns the hash of all that decides which tokens a text gets; saving and loading does not change it.

    Special tokens count by their ids only, because none is matched in texts.
    """
    described = json.loads(tokenizer.to_str())
    deciding = {name: described[name] for name in ("normalizer", "pre_tokenizer", "model")}
    added = [token for token in described["added_tokens"] if not token["special"]]
    deciding |= {"added": added, "special": asdict(special), "vocabulary": vocabulary_sha256}
    return hashlib.sha256(json.dumps(canonical(deciding), sort_keys=True).encode()).hexdigest()


def _without_special_pieces(tokenizer: Tokenizer, special: SpecialTokens) -> Tokenizer:
    """Returns the tokenizer without pieces that spell a special token and that it would match in a text.

    Unigram may match any. In other vocabularies, the unknown token stays: a text that spells it may become that token.
    """
    described = json.loads(tokenizer.to_str())
    model, pieces = described["model"], described["model"]["vocab"]
    if model["type"] == "Unigram":
        inside = {number: pieces[number][0] for number in special.all if number < len(pieces)}
        for number, piece in inside.items():
            pieces[number][0] = UNMATCHED + piece
    else:
        tokenizer.encode_special_tokens = True
        spelt = {number: str(tokenizer.id_to_token(number)) for number in special.all if number != special.unk}
        inside = {number: text for number, text in spelt.items() if _matches(tokenizer, text, number)}
        model["vocab"] = {UNMATCHED * (number in inside) + piece: number for piece, number in pieces.items()}
        if merges := model.get("merges"):
            model["merges"] = [pair for pair in merges if not {"".join(pair), *pair} & {*inside.values()}]
    if not inside:
        return tokenizer
    described["added_tokens"] = [token for token in described["added_tokens"] if token["id"] not in inside]
    return Tokenizer.from_str(json.dumps(described))


def _matches(tokenizer: Tokenizer, text: str, token_id: int) -> bool:
    with suppress(Exception):  # a text cannot be encoded without an unknown token; tokenizers raises nothing narrower
        return token_id in tokenizer.encode(text, add_special_tokens=False).ids
    return False


def decode(vocabulary: Vocabulary, input_ids: Integer[np.ndarray, " tokens"]) -> str:
    """Returns the text of tokens, special ones included."""
    text = vocabulary.tokenizer.decode(input_ids.tolist(), skip_special_tokens=False).replace(UNMATCHED, "")
    return as_written(vocabulary.tokenizer, text)


def as_written(tokenizer: Tokenizer, decoded: str) -> str:
    """Returns a decoded text without the spaces that a WordPiece decoder puts between the characters of some scripts.

    天 下 becomes 天下. The spaces of other decoders, and those beside letters, stand for spaces of the text.
    """
    return INVENTED_SPACE.sub("", decoded) if isinstance(tokenizer.decoder, WordPieceDecoder) else decoded


def continuation(decoded: Callable[[list[int]], str], earlier: list[int], token_ids: list[int]) -> str:
    """Returns the text that tokens add to the earlier ones; `decoded` returns the text of tokens."""
    text, longer, alone = map(decoded, (earlier, [*earlier, *token_ids], token_ids))
    return longer.removeprefix(text) if longer.startswith(text) else alone


def term_lines(path: str, setting: str = "add_tokens") -> list[str]:
    """Returns the lines of a file of terms that a setting names; raises ModelError if it cannot be read."""
    try:
        return read_user_text(path, "utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
        raise ModelError(f"{setting}: {path} {reason}: name a text file with one term per line") from error
