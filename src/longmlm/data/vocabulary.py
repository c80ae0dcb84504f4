"""Text to tokens: a pretrained tokenizer, its special tokens, and texts encoded whole."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Int64, UInt32
from tokenizers import Tokenizer

from longmlm.data.texts import Text
from longmlm.errors import DataError
from longmlm.hubs.models import snapshot_of

Tokens = UInt32[np.ndarray, " tokens"]

PIECE_CHARACTERS = 200_000
CONTEXT_CHARACTERS = 1_000
WORD_END = re.compile(r"(?<=\S)[ \t\n\r]")
SENTENCE_END = re.compile(r"(?<=[。！？])(?=\w)")
UNSPELT = "\uffff"  # no character: a piece that begins with it is found in no text
ROLES = {
    "cls": ("cls_token", "bos_token", "[CLS]", "<s>"),
    "sep": ("sep_token", "eos_token", "[SEP]", "</s>"),
    "mask": ("mask_token", "[MASK]", "<mask>"),
    "pad": ("pad_token", "[PAD]", "<pad>"),
    "unk": ("unk_token", "[UNK]", "<unk>"),
}


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of the tokens that frame and mask a row; `all` holds every special id of the tokenizer."""

    cls: int
    sep: int
    mask: int
    pad: int
    unk: int | None
    all: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Maskable:
    """Which ids may be selected, the same ids as a list to draw from, and the id of the mask token."""

    is_maskable: Bool[np.ndarray, " vocabulary"]
    drawable: Int64[np.ndarray, " maskable"]
    mask: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer with what packing and masking must know of it; `size` is the highest id plus one.

    `fingerprint` is the same for tokenizers that give every text the same row: a hash of normalizer, pre-tokenizer,
    model, vocabulary and special tokens. `vocabulary_sha256` covers the vocabulary and the ids of the special tokens
    alone; it is what rows of format 1 recorded.
    """

    name: str
    tokenizer: Tokenizer
    special: SpecialTokens
    size: int
    fingerprint: str
    vocabulary_sha256: str

    @property
    def maskable(self) -> Maskable:
        """What may be selected and drawn: all but the special tokens."""
        is_maskable = np.zeros(self.size, dtype=bool)
        is_maskable[list(self.tokenizer.get_vocab(with_added_tokens=True).values())] = True  # ids may have gaps
        is_maskable[list(self.special.all)] = False
        return Maskable(is_maskable, np.flatnonzero(is_maskable), self.special.mask)


def load_vocabulary(name: str, revision: str | None = None) -> Vocabulary:
    """Returns the fast tokenizer in a folder, or on the hub under `name`, with truncation and padding off.

    Raises DataError when there is none, or when it lacks a special token that rows need.
    """
    from transformers import AutoTokenizer

    try:
        folder = snapshot_of(name, revision, with_weights=False).folder
        pretrained: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the libraries below raise types of their own
        kind = "folder" if Path(name).exists() else "folder, nor a reachable hub repository,"
        raise DataError(f"{name}: no {kind} with a tokenizer ({(str(error).splitlines() or ['?'])[0]})") from error
    if len(pretrained) <= len(pretrained.all_special_ids):  # what transformers makes up where there are no files
        raise DataError(f"{name} has no tokenizer: name a folder with tokenizer.json or vocabulary files")
    return vocabulary_of_pretrained(pretrained, name)


def vocabulary_of_pretrained(pretrained: Any, name: str) -> Vocabulary:
    """Returns the vocabulary of a transformers tokenizer, its special tokens by the roles that it gives them."""
    tokenizer = getattr(pretrained, "backend_tokenizer", None)
    if tokenizer is None:
        raise DataError(f"{name}: only a slow tokenizer; save it once with a fast one (tokenizer.json)")
    named = {role: getattr(pretrained, role, None) for roles in ROLES.values() for role in roles[:2]}
    return vocabulary_of(tokenizer, name, {role: token for role, token in named.items() if token})


def vocabulary_of(tokenizer: Tokenizer, name: str, named: dict[str, str] | None = None) -> Vocabulary:
    """Returns the vocabulary of a tokenizer; `named` maps roles such as cls_token to tokens, usual names serve else.

    Special tokens that a text spells out are encoded as the plain text that they are.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found: dict[str, int | None] = {}
    for role, names in ROLES.items():
        ids = (tokenizer.token_to_id((named or {}).get(token, token)) for token in names)
        found[role] = next((token_id for token_id in ids if token_id is not None), None)
    missing = [role for role in ("cls", "sep", "mask", "pad") if found[role] is None]
    if missing:
        raise DataError(f"{name}: the tokenizer has no {missing[0]} token; masked language models need one")
    added = [token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    every = tuple(sorted({*added, *(token_id for token_id in found.values() if token_id is not None)}))
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    described = json.dumps([sorted(vocab.items()), every]).encode()
    special = SpecialTokens(**cast(dict[str, Any], found), all=every)
    vocabulary_sha256 = hashlib.sha256(described).hexdigest()
    fingerprint = _fingerprint(tokenizer, special, vocabulary_sha256)
    return Vocabulary(
        name, _unspelt(tokenizer, every), special, max(vocab.values()) + 1, fingerprint, vocabulary_sha256
    )


def _fingerprint(tokenizer: Tokenizer, special: SpecialTokens, vocabulary_sha256: str) -> str:
    """Returns the hash of all that decides which tokens a text gets, in a form that saving and loading keeps.

    Special tokens count by their ids alone, because texts are searched for none.
    """
    described = json.loads(tokenizer.to_str())
    deciding = {name: described[name] for name in ("normalizer", "pre_tokenizer", "model")}
    added = [token for token in described["added_tokens"] if not token["special"]]
    whole = {**deciding, "added": added, "special": asdict(special), "vocabulary": vocabulary_sha256}
    return hashlib.sha256(json.dumps(_canonical(whole), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Returns a part of a tokenizer's description in the one form that all descriptions of equal tokenizers share.

    Some write null or an empty text for what is unset. Scores lose their last digit in JSON. Offsets are trimmed or
    not to the same tokens.
    """
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if item not in (None, "") and name != "trim_offsets"}
        return {name: _canonical(item) for name, item in kept.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def _unspelt(tokenizer: Tokenizer, special: Sequence[int]) -> Tokenizer:
    """Returns the tokenizer without pieces that spell a special token, which Unigram would find in a text."""
    described = json.loads(tokenizer.to_str())
    if described["model"]["type"] != "Unigram":
        return tokenizer
    pieces = described["model"]["vocab"]
    inside = {token_id for token_id in special if token_id < len(pieces)}
    for token_id in inside:
        pieces[token_id][0] = UNSPELT + pieces[token_id][0]
    described["added_tokens"] = [token for token in described["added_tokens"] if token["id"] not in inside]
    return Tokenizer.from_str(json.dumps(described))


def encode(tokenizer: Tokenizer, text: Text, starts: Int64[np.ndarray, " sentences"]) -> Iterator[Tokens]:
    """Yields the tokens of each sentence that has any: those of the text encoded whole, cut at the offsets `starts`."""
    tokenizer.encode_special_tokens = True  # said here, because a copy or a pickle of a tokenizer forgets it
    first, parts = 1, []
    for ids, offsets, cut in _encode_piecewise(tokenizer, text):
        following = int(np.searchsorted(starts, cut, side="right"))
        *ended, opened = np.split(ids, np.searchsorted(offsets, starts[first:following]))
        for part in ended:
            if len(sentence := np.concatenate([*parts, part])):
                yield sentence
            parts = []
        parts.append(opened)
        first = max(first, following)
    if len(sentence := np.concatenate(parts)):
        yield sentence


def _encode_piecewise(tokenizer: Tokenizer, text: Text) -> Iterator[tuple[Tokens, Int64[np.ndarray, " n"], int]]:
    """Yields ids, character offsets and end of pieces, together those of one encoding, which a huge text would not fit.

    Neighbouring pieces are encoded with context on both sides; a cut holds where both encodings agree on the tokens
    around it, and pieces that do not agree are joined.
    """
    cuts = _cuts(text)
    begin, cut = 0, next(cuts)
    ids, offsets = _encode_span(tokenizer, text, begin, cut)
    for end in cuts:
        next_ids, next_offsets = _encode_span(tokenizer, text, cut, end)
        if _agree((ids, offsets), (next_ids, next_offsets), cut):
            here = (begin <= offsets) & (offsets < cut)
            yield ids[here], offsets[here], cut
            begin, ids, offsets = cut, next_ids, next_offsets
        else:
            ids, offsets = _encode_span(tokenizer, text, begin, end)
        cut = end
    here = begin <= offsets
    yield ids[here], offsets[here], cut


def _cuts(text: Text) -> Iterator[int]:
    """Yields where pieces end, the last at the end of the text.

    At white space if there is some, at the end of a sentence otherwise, never inside a word: there, two encodings may
    agree around a cut and both differ from that of the whole, because Unigram weighs a word from end to end.
    """
    cut, last = 0, len(text) - PIECE_CHARACTERS // 2
    while border := _border(text, cut + PIECE_CHARACTERS, last):
        cut = border
        yield cut
    yield len(text)


def _border(text: Text, at: int, last: int) -> int | None:
    """Returns the first place from `at` on where a piece may end: one that is near, else one before `last`."""
    for end in (min(at + PIECE_CHARACTERS, last), last):
        window = text[at - 1 : max(at, end)]
        for pattern in (WORD_END, SENTENCE_END):
            if found := pattern.search(window, 1):
                return at - 1 + found.start()
    return None


def _encode_span(tokenizer: Tokenizer, text: Text, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    first = max(0, begin - CONTEXT_CHARACTERS)
    encoding = tokenizer.encode(text[first : end + CONTEXT_CHARACTERS], add_special_tokens=False)
    offsets = np.fromiter((start for start, _ in encoding.offsets), dtype=np.int64, count=len(encoding.ids))
    return np.array(encoding.ids, dtype=np.uint32), np.maximum.accumulate(offsets) + first


def _agree(left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray], cut: int) -> bool:
    margin = CONTEXT_CHARACTERS // 2
    near = [(cut - margin <= offsets) & (offsets < cut + margin) for _, offsets in (left, right)]
    ids, offsets = left[0][near[0]], left[1][near[0]]
    both_sides = bool(len(offsets) and offsets[0] < cut <= offsets[-1])
    return both_sides and np.array_equal(ids, right[0][near[1]]) and np.array_equal(offsets, right[1][near[1]])
