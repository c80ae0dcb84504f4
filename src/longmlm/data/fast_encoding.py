"""Fast encoders of whole documents: gigatoken for byte-level BPE, nanotoken for WordPiece; `tokenizers` defines both.

Neither says where in the text a token lies, which is needed to cut a document into sentences:

- The tokens of byte-level BPE are the bytes of the text, so each token starts where the one before it ends. In "Où? Là"
  (8 bytes) the tokens O, ù, ?, " L" and à start at bytes 0, 1, 3, 4 and 6; a sentence that starts at character 3, the
  space, starts at byte 4.
- WordPiece changes the text (case, accents, spaces). A document is encoded whole and by sentence; where both give the
  same tokens, those of each sentence are known.

A document for which this fails is left to `tokenizers`, and so is a very long one, which is then encoded in pieces.

A comparison of an encoder with `tokenizers` takes seconds, however short the corpus. One that found no difference is
recorded in the user's cache, as XDG_CACHE_HOME/longmlm/encoders/SHA256, the hash of all that decides its result.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt32
from tokenizers import Tokenizer

from longmlm.data.definitions import BYTE_LEVEL_BPE, WORD_PIECE, has_every_byte, is_among
from longmlm.data.row import TokenizedSentence
from longmlm.errors import EncoderError, FolderError
from longmlm.temporary import replaced_file

Starts = Int64[np.ndarray, "_"]
Sentences = list[TokenizedSentence]
MAX_CHARACTERS = 8_000_000  # of a document
SCRIPTS = 0x3000  # the first code point after the alphabets, marks and symbols
SURROGATES = range(0xD800, 0xE000)
LEAD_BITS, CONTINUATION = 0xC0, 0x80  # of a byte of UTF-8 that continues a character


class ByteLevelEncoder:
    """gigatoken's encoder of byte-level BPE; its cache of words grows without bound, so each slice gets a new one."""

    library = "gigatoken"

    def __init__(self, definition: str) -> None:
        from gigatoken import Tokenizer as Gigatoken

        self._tokenizer = Gigatoken.from_json(definition)
        vocabulary = self._tokenizer.vocab
        self._num_bytes = np.zeros(max(vocabulary) + 1, dtype=np.int64)
        for token, content in vocabulary.items():
            self._num_bytes[token] = len(content)

    def sentences(self, texts: Sequence[str], starts: Sequence[Starts]) -> list[Sentences | None]:
        """Returns, for each text, the tokens of each sentence that has any; None if it is left to `tokenizers`."""
        return [self._sentences(text, start) for text, start in zip(texts, starts, strict=True)]

    def _sentences(self, text: str, starts: Starts) -> Sentences | None:
        content = text.encode()
        ids = self._tokenizer.encode(content)
        ends = np.cumsum(self._num_bytes[ids])
        if len(content) != (ends[-1] if len(ends) else 0):
            return None
        if len(content) != len(text):
            first_bytes = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) & LEAD_BITS != CONTINUATION)
            starts = first_bytes[starts]
        cuts = np.searchsorted(ends - self._num_bytes[ids], starts[1:])
        return _cut(ids, [0, *cuts.tolist(), len(ids)])


class WordPieceEncoder:
    """nanotoken's encoder of WordPiece."""

    library = "nanotoken"

    def __init__(self, definition: str) -> None:
        from nanotoken.nanotoken_rs import WordPieceTokenizer

        self._tokenizer = WordPieceTokenizer.from_json(definition)

    def sentences(self, texts: Sequence[str], starts: Sequence[Starts]) -> list[Sentences | None]:
        """Returns what the other encoder does."""
        ends = [[*start[1:].tolist(), len(text)] for text, start in zip(texts, starts, strict=True)]
        parts = [text[begin:end] for text, cuts in zip(texts, ends, strict=True) for begin, end in pairwise([0, *cuts])]
        whole, borders = self._encode(texts)
        ids, cuts = self._encode(parts)
        documents: list[Sentences | None] = []
        first = 0
        for (begin, end), own_ends in zip(pairwise(borders), ends, strict=True):
            last = first + len(own_ends)
            is_same = np.array_equal(ids[cuts[first] : cuts[last]], whole[begin:end])
            documents.append(_cut(ids, cuts[first : last + 1]) if is_same else None)
            first = last
        return documents

    def _encode(self, texts: Sequence[str]) -> tuple[UInt32[np.ndarray, " tokens"], list[int]]:
        """Returns the tokens of all texts, and the borders between the texts, with 0 and the number of tokens."""
        ids, borders = self._tokenizer.encode_batch(texts, add_special_tokens=False, parallel=False)
        return ids, borders.tolist()


def _cut(ids: UInt32[np.ndarray, " tokens"], cuts: Sequence[int]) -> Sentences:
    return [TokenizedSentence(ids[begin:end]) for begin, end in pairwise(cuts) if begin < end]


MakeEncoder = Callable[[], ByteLevelEncoder | WordPieceEncoder]


def fast_encoder(tokenizer: Tokenizer) -> MakeEncoder | None:
    """Returns what makes a fast encoder of the tokenizer; None if there is none for its definition."""
    definition = json.loads(tokenizer.to_str())
    # Special tokens that a text spells out are text; without a post-processor, none are added.
    plain = json.dumps({**definition, "added_tokens": [], "post_processor": None, "decoder": None})
    if is_among(definition, BYTE_LEVEL_BPE) and has_every_byte(definition["model"]["vocab"]):
        return partial(ByteLevelEncoder, plain)
    if is_among(definition, WORD_PIECE):
        return partial(WordPieceEncoder, plain)
    return None


@contextmanager
def failures_of(library: str) -> Iterator[None]:
    """Turns what a library raises in the block, a Rust panic included, into EncoderError; ImportError passes."""
    try:
        yield
    except ImportError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise EncoderError(f"{library} failed ({type(error).__name__}: {error})") from error
        raise


def hostile_texts() -> list[str]:
    """Returns texts on which encoders often differ: all planes of Unicode, one character repeated, special tokens."""
    codes = {*range(SCRIPTS), *range(SCRIPTS, sys.maxunicode + 1, 61)}.difference(SURROGATES)
    characters = "".join(map(chr, sorted(codes)))
    specials = "<s> </s> <mask> [MASK] [CLS][SEP] <unk> [UNK] <pad>[PAD] ##a Ġa ▁a"
    mixed = (
        "İstanbul ǅ ẞ ﬁ ½ é e\u0301 한국어 \u1112\u1161\u11ab 日本語 "
        "👩\u200d👧 🇨🇭 \u200b\ufeff\u00ad\x00\ufffd don't DON'T I'll"
    )
    runs = [character * 20_000 for character in "a \n9中=\u0301"]
    return [characters, " ".join(characters), specials, *mixed.split(" "), mixed, "A" * 101, *runs, "a" * 1_000_000]


def record_of(tokenizer: Tokenizer, library: str, texts: Sequence[str]) -> Path | None:
    """Returns the path of the record for these texts; None without a home folder, or if the libraries are not known."""
    with suppress(OSError, RuntimeError, metadata.PackageNotFoundError):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "longmlm" / "encoders"
        installed = [metadata.distribution(name) for name in ("tokenizers", library)]
        builds = [(one.version, one.read_text("RECORD")) for one in installed]  # with the hashes of their files
        code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
        return folder / hashlib.sha256(repr((tokenizer.to_str(), builds, code, texts)).encode()).hexdigest()
    return None


def is_recorded(record: Path) -> bool:
    """Returns whether there is a record; a damaged one does not count."""
    with suppress(OSError, ValueError):
        return record.read_text(encoding="utf-8") == record.name
    return False


def write_record(record: Path) -> None:
    """Writes a record, as other processes may at the same time; does nothing if the cache is not writable."""
    with suppress(OSError, FolderError):
        record.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(record, record.parent) as partial:
            partial.write_text(record.name, encoding="utf-8")
