"""Notes on a corpus that can be read but not used as it is, such as on unknown tokens, and on the rows made of it."""

from collections import Counter
from collections.abc import Iterator, Sequence

from longmlm.artifacts.rows import SPLITS, RowsManifest
from longmlm.data.corpus import SAMPLED_FILES, paths_of
from longmlm.data.encoding import encode_batch
from longmlm.data.files import Span, files_of, kind_of, readable
from longmlm.data.foreign_content import HEAD_BYTES, MARKUP, head_of
from longmlm.data.records import WHOLE_FILE, records_of
from longmlm.data.texts import REMEDIES, Unreadable
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import counted
from longmlm.hubs.datasets import is_local
from longmlm.hubs.storage import is_url
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.prepare import Source, source_names

# On eight corpora a BERT tokenizer of the same language maps 0.00 to 0.43 % of the tokens to [UNK], and 3.6 % in novels
# whose quotation marks are not in its vocabulary; a tokenizer of another script maps 55 % and more.
MAX_UNKNOWN_SHARE = 0.01
MAX_BROKEN_SHARE = 0.01  # of the records
MAX_RATIO = 2  # of held-out tokens to those asked for: half as many make the error of an accuracy 1.4 times as large
SAMPLED_CHARACTERS = 200_000
NAMED_WORDS, NAMED_CHARACTERS = 5, 20


def markup_note(sources: Sequence[Source]) -> str | None:
    """Returns what to do about local texts that begin like HTML or XML, whose tags become tokens; None without any."""
    names = [[name for name in source.files if not is_url(name)] for source in sources]
    paths = [path for files in names for path in files_of(files) if kind_of(path) == ".txt"]
    tagged = [path for path in paths if MARKUP.match(head_of(path, HEAD_BYTES))]
    if not tagged:
        return None
    return (
        f"note: {len(tagged):,} of {counted(len(paths), '.txt file')} begin as HTML or XML, such as {tagged[0]}: their "
        "tags become tokens; extract the text first unless the model is to read them"
    )


def rows_notes(manifest: RowsManifest) -> Iterator[str]:
    """Yields what to do about many broken records, and about a split whose share of tokens is far from the setting.

    Sources that are held out as a whole have no share.
    """
    report, plan = manifest.report, manifest.plan
    num_records = report.train.documents + report.held_out.documents + sum(report.set_aside.values())
    for reason in (name for name in REMEDIES if report.set_aside.get(name, 0) > MAX_BROKEN_SHARE * num_records):
        share = f"{report.set_aside[reason]:,} of {counted(num_records, 'record')}"
        yield f"note: {share} are {reason}: {REMEDIES[reason]}"
    tokens = {
        name: counts
        for name, source, *counts in zip(
            source_names(plan.sources),
            plan.sources,
            *(report.of(split).tokens_per_source for split in SPLITS),
            strict=True,
        )
        if not source.held_out and any(counts)
    }
    train, held_out = (sum(counts[number] for counts in tokens.values()) for number in range(len(SPLITS)))
    share, asked = held_out / (train + held_out), plan.held_out_fraction
    if not (asked / MAX_RATIO <= share <= MAX_RATIO * asked and 1 - share >= (1 - asked) / MAX_RATIO):
        groups = ["documents with the same split_field"] if any(one.split_field for one in plan.sources) else []
        groups += ["copies"] if report.duplicates else []
        together = " and ".join(groups) or "long documents"
        yield (
            f"note: {share:.1%} of the tokens are held out, not {asked:.1%}, since {together} are not divided: set "
            f"held_out_fraction {'higher' if share < asked else 'lower'}, or hold out a source, with held_out = true"
        )
    for name in (name for name, counts in tokens.items() if not all(counts)):
        split = "training" if not tokens[name][0] else "held-out"
        yield f"note: {name} has no {split} rows, since none of its documents is in that split: add documents"


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


def unread_notes(config: ResolvedPipeline) -> Iterator[str]:
    """Yields a line for each thing that prepare stores in rows and that training then does not read.

    Other runs may read it, so it is no error.
    """
    rows, training = config.prepare.recipe, config.pretrain.recipe
    if "pretrain" not in config.stages:
        return
    if rows.pairs and training.pairs is None:
        yield "note: rows are prepared for pairs, but none are trained: set kind in [pretrain.recipe.pairs] to do so"
    if rows.words and training.masking.unit == "token":
        yield f"note: words = {rows.words} has no effect on masks of single tokens: set unit = word or span to use it"
