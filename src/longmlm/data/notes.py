"""Notes on a corpus that can be read but not used as it is: texts that begin with markup, and unknown tokens."""

from collections import Counter
from collections.abc import Iterator, Sequence

from longmlm.data.corpus import SAMPLED_FILES, paths_of
from longmlm.data.encoding import encode_batch
from longmlm.data.files import Span, files_of, kind_of, readable
from longmlm.data.foreign_content import HEAD_CHARACTERS, MARKUP, head_of
from longmlm.data.records import WHOLE_FILE, records_of
from longmlm.data.texts import Unreadable
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import counted
from longmlm.hubs.datasets import is_local
from longmlm.hubs.storage import is_url
from longmlm.settings.prepare import Source

# On eight corpora a BERT tokenizer of the same language maps 0.00 to 0.43 % of the tokens to [UNK], and 3.6 % in novels
# whose quotation marks are not in its vocabulary; a tokenizer of another script maps 55 % and more.
MAX_UNKNOWN_SHARE = 0.01
SAMPLED_CHARACTERS = 200_000
NAMED_WORDS, NAMED_CHARACTERS = 5, 20


def markup_note(sources: Sequence[Source]) -> str | None:
    """Returns what to do about local texts that begin like HTML or XML, whose tags become tokens; None without any."""
    names = [[name for name in source.files if not is_url(name)] for source in sources]
    paths = [path for files in names for path in files_of(files) if kind_of(path) == ".txt"]
    tagged = [path for path in paths if MARKUP.match(head_of(path, HEAD_CHARACTERS))]
    if not tagged:
        return None
    return (
        f"note: {len(tagged):,} of {counted(len(paths), '.txt file')} begin as HTML or XML, such as {tagged[0]}: their "
        "tags become tokens; extract the text first unless the model is to read them"
    )


def unknown_notes(sources: Sequence[Source], vocabulary: Vocabulary, shares: Sequence[float] | None) -> Iterator[str]:
    """Yields what to do about each source of which many tokens are unknown: as `shares`, or a sample, shows.

    Datasets on the hub are not sampled.
    """
    for number, source in enumerate(sources):
        if shares is not None and shares[number] <= MAX_UNKNOWN_SHARE:
            continue
        sampled, commonest = (0.0, "") if source.dataset and not is_local(source) else _sampled(vocabulary, source)
        share = shares[number] if shares else sampled
        if share > MAX_UNKNOWN_SHARE:
            name = source.name_of(", ".join(source.files))
            words = f", most often {commonest}" if commonest else ""
            yield (
                f"warning: {'' if shares else 'about '}{share:.1%} of the tokens of {name} are unknown to "
                f"{vocabulary.name}{words}: the model cannot read them; replace these characters in the text, add them "
                "with add_tokens under [extend.recipe], or take a model for this language"
            )


def _sampled(vocabulary: Vocabulary, source: Source) -> tuple[float, str]:
    """Returns the share of unknown tokens in a sample, and the commonest words or characters that they stand for."""
    texts = list(sampled_texts(source))
    encodings = encode_batch(vocabulary.tokenizer, texts)
    words = Counter(
        text[begin:end][:NAMED_CHARACTERS]
        for text, encoding in zip(texts, encodings, strict=True)
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True)
        if token_id == vocabulary.special.unk
    )
    num_tokens = sum(len(encoding.ids) for encoding in encodings)
    return words.total() / max(1, num_tokens), " ".join(word for word, _ in words.most_common(NAMED_WORDS))


def sampled_texts(source: Source) -> Iterator[str]:
    """Yields texts from the beginning of ten files of a source, spread over all of its files."""
    paths = paths_of(source)
    paths = paths[:: -(-len(paths) // SAMPLED_FILES)]
    for path in paths:
        room = SAMPLED_CHARACTERS // len(paths)
        with readable(path):
            for _, text, _ in records_of(Span(str(path), 0, WHOLE_FILE, 0, 0), source):
                if not isinstance(text, Unreadable):
                    yield text[:room]
                    room -= len(text)
                if room <= 0:
                    break
