"""The inspect command: shows packed rows on the terminal or on a page, with masks and predictions."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from longmlm.artifacts.artifact import present
from longmlm.artifacts.provenance import ModelSource, Provenance, read_provenance
from longmlm.artifacts.rows import RowsPlan
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import IN_ORDER, NEGATIVE, NO_PAIR, PairedRow, Pairing
from longmlm.batches.sampling import mixture_of, next_epoch
from longmlm.config import read
from longmlm.data.pretrained import TOKENIZER_FILE
from longmlm.data.row import LooseRows
from longmlm.data.rows import Rows, open_named_rows, pin_rows
from longmlm.data.vocabulary import Vocabulary, decode, load_vocabulary, tokenizer_folder, vocabulary_of
from longmlm.errors import ConfigError, DataError, FolderError, ModelError, counted
from longmlm.escaping import markup, print_escaped
from longmlm.evaluation.frozen import viewer_of
from longmlm.hubs.models import file_of_model
from longmlm.inspect.drawing import PAGE_HEADER, has_colours, rows_page, rows_text
from longmlm.inspect.reading import Reader, Reading
from longmlm.inspect.settings import InspectConfig, masks_of
from longmlm.model.facts import facts_of
from longmlm.progress import Progress
from longmlm.reports.pages import Head, made_with, public_path, write_page
from longmlm.settings.masking import HeldOut, Masking
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe
from longmlm.settings.shipped import bundled_name, bundled_resolved
from longmlm.temporary import check_own_file, check_writable
from longmlm.training.run_folder import (
    CHECKPOINTS,
    SETTINGS,
    checkpoint_folder,
    cursor_after,
    likely_best_checkpoint,
    newest_state,
)

PAIR_LABELS = {IN_ORDER: "a pair in order", NEGATIVE: "a negative pair", NO_PAIR: "no pair"}
NAMES = {"train": "training row", "held_out": "held-out row"}
MAX_NUMBERS = 20  # of rows that are listed


def inspect(config: InspectConfig) -> None:
    """Prints the chosen rows, or writes their page.

    Raises DataError for rows that do not exist, for a text that none contains, and for models that do not fit.
    """
    config = resolved(config)
    if config.page is not None:
        check_page(Path(config.page))
    rows = opened_rows(config)
    if config.pairs and not rows.manifest.plan.pairs:
        raise DataError(f"{config.rows} were prepared without pairs = true, so there are no pairs: remove pairs")
    reader = Reader(vocabulary_of_rows(rows.manifest.plan, config.tokenizer), rows.manifest.plan.sources)
    rows.check_tokens(reader.vocabulary.size, reader.vocabulary.special)
    base_positions = chunk_length(config, rows.row_length)
    numbers, finding = chosen_rows(config, rows, reader.vocabulary)
    readings = {number: list(readings_of(config, rows, number, reader, base_positions)) for number in numbers}
    if config.model:
        from longmlm.inspect.predictions import with_guesses  # it imports torch

        short = {public_path(name): name for name in config.model}
        models = short if len(short) == len(config.model) else {name: name for name in config.model}
        readings = with_guesses(readings, models, config.num_guesses, rows, reader)
    titled = {}
    for number, own in readings.items():
        row = rows[number]
        titled[f"row {number:,}: {counted(len(row), 'token')}, {counted(len(row.document_starts), 'document')}"] = own
    print(finding)
    if config.page is None:
        print_escaped(markup(rows_text(titled, has_colours())))
    else:
        head, page = Head(f"Rows of {public_path(config.rows)}", finding), Path(config.page)
        write_page(rows_page(head, titled, made_with("inspect", present(asdict(config)))), page)
        print(f"page: {page}")


def check_page(page: Path) -> None:
    """Raises FolderError if the page cannot be written, or would replace what is no such page."""
    if not page.parent.is_dir():
        raise FolderError(f"{page.parent}: no such folder: create it, or name another page")
    check_writable(page.parent)
    check_own_file(page, PAGE_HEADER)


def resolved(config: InspectConfig) -> InspectConfig:
    """Returns the settings with the rows and the masks of a run folder, or with the default masks of the split.

    Raises ConfigError for masks that are set although a run folder has its own.
    """
    run = Path(config.rows)
    if (run / CHECKPOINTS).is_dir():
        trained = read(PretrainConfig, [run / SETTINGS])
        own = (config.seed, config.masking, config.pairs, config.run, config.start, config.weights or None)
        if any(one is not None for one in own):
            raise ConfigError(
                f"{run} has masks of its own: remove seed, masking, pairs, run, start, weights and the pipeline file, "
                f"or name its rows, {trained.rows}"
            )
        masks = masks_of(trained.recipe, trained.recipe.held_out, config.split)
        return replace(config, rows=trained.rows, run=config.rows, start=trained.start.checkpoint, **masks)
    trained_seed = PretrainRecipe.__dataclass_fields__["seed"].default
    seed = HeldOut().mask_seed if config.split == "held_out" else trained_seed
    return replace(config, seed=seed if config.seed is None else config.seed, masking=config.masking or Masking())


def opened_rows(config: InspectConfig) -> Rows:
    """Returns the rows of the split, verified."""
    return open_named_rows(pin_rows(config.rows), config.split)


def vocabulary_of_rows(plan: RowsPlan, name: str | None) -> Vocabulary:
    """Returns the tokenizer that rows were made with; raises DataError if it cannot be found.

    Most are read from tokenizer.json alone, without transformers, whose import takes seconds: the fingerprint shows
    whether that gives the same tokenizer.
    """
    name = likely_best_checkpoint(bundled_resolved(name or plan.tokenizer))
    try:
        path = tokenizer_folder(name) / TOKENIZER_FILE
        with suppress(Exception):  # tokenizers raises nothing narrower
            vocabulary = vocabulary_of(Tokenizer.from_file(str(path)), name)
            if vocabulary.fingerprint == plan.tokenizer_fingerprint:
                return vocabulary
        vocabulary = load_vocabulary(name)
    except DataError as error:
        raise DataError(f"{error}; or name the tokenizer of the rows with --tokenizer") from None
    if vocabulary.fingerprint != plan.tokenizer_fingerprint:
        raise DataError(f"the rows were made with another tokenizer, not {name}: name theirs with --tokenizer")
    return vocabulary


def chunk_length(config: InspectConfig, row_length: int) -> int:
    """Returns the length of cut rows and of chunks, at most that of the rows.

    Raises DataError for a model that reads less than it is shown.
    """

    def positions(name: str, needs_weights: bool = True) -> int:
        facts = facts_of(likely_best_checkpoint(name))
        if needs_weights:
            facts.check_weights()
        return row_length if facts.num_positions is None else facts.num_positions

    base_positions = min(row_length, positions(config.base, False)) if config.base else row_length
    length = row_length if "whole" in config.views else base_positions
    for name in config.model:
        if (num_positions := positions(name)) < length:
            raise DataError(
                f"{bundled_name(name)} reads {num_positions} tokens, and the rows have {length}: extend it first, or "
                f"show what it reads of held-out rows: --split held_out --views cut chunks --base {bundled_name(name)}"
            )
    return base_positions


def chosen_rows(config: InspectConfig, rows: Rows, vocabulary: Vocabulary) -> tuple[Sequence[int], str]:
    """Returns the numbers of the rows to show, and a sentence about the choice; raises DataError if there are none."""
    name, total = NAMES[config.split], counted(len(rows), NAMES[config.split])
    if missing := [number for number in config.row if number >= len(rows)]:
        raise DataError(f"there is no {name} {missing[0]}: the rows of this split are 0 to {len(rows) - 1}")
    if config.find is None:
        numbers = tuple(dict.fromkeys(config.row)) or range(min(config.max_rows, len(rows)))
        return numbers, f"{len(numbers):,} of {total} of up to {counted(rows.row_length, 'token')}"
    found = list(rows_with(config.find, rows, vocabulary))
    if not found:
        raise DataError(f"no {name} contains {config.find!r}: search for a shorter part of it, or in the other split")
    listed = ", ".join(map(str, found[:MAX_NUMBERS])) + (" …" if len(found) > MAX_NUMBERS else "")
    shown = found[: config.max_rows]
    which = f"; the first {len(shown)} of them" if len(shown) < len(found) else ""
    return shown, f"{len(found):,} of {total} contain {config.find!r}: {listed}{which}"


def rows_with(text: str, rows: Rows | LooseRows, vocabulary: Vocabulary) -> Iterator[int]:
    """Yields the numbers of the rows that contain a text, or what the tokenizer makes of it.

    Upper and lower case count as equal, and so do all kinds of white space.
    """
    encoded = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    is_known = encoded and vocabulary.special.unk not in encoded
    texts = [text, decode(vocabulary, np.array(encoded))] if is_known else [text]
    searched = {" ".join(one.split()).casefold() for one in texts}
    with Progress("search", len(rows), "row") as progress:
        for number in progress.over(range(len(rows))):
            content = " ".join(decode(vocabulary, rows[number].input_ids).split()).casefold()
            if any(one in content for one in searched):
                yield number


def readings_of(
    config: InspectConfig, rows: Rows, number: int, reader: Reader, base_positions: int
) -> Iterator[Reading]:
    """Yields a row under the masks of epochs, or a held-out row in views, as training and evaluation read it."""
    special, seed, masking = reader.vocabulary.special, config.seed or 0, config.masking or Masking()
    maskable = reader.vocabulary.maskable_in(masking.unit)
    if config.split == "train":
        pairing = Pairing(config.pairs, special) if config.pairs else None
        first_epoch = first_epoch_of(config, rows, number)
        for shown in config.epochs:
            epoch = first_epoch + shown
            row = pairing.pair(rows, number, seed, epoch) if pairing else rows[number]
            kind = f", {PAIR_LABELS[row.label]}" if isinstance(row, PairedRow) else ""
            yield reader.read(f"epoch {shown:,}{kind}", mask_row(row, maskable, masking, seed, epoch, number))
        return
    masked = mask_row(rows[number], maskable, masking, seed, 0, number)
    for view in config.views:
        shown = viewer_of(view, base_positions, special)(masked)
        for index, (one, _) in enumerate(shown):
            title = {"whole": "whole row", "cut": f"cut to {base_positions:,} tokens"}.get(view)
            yield reader.read(title or f"chunk {index + 1} of {len(shown)}", one, index * (base_positions - 2))


def first_epoch_of(config: InspectConfig, rows: Rows, row_id: int) -> int:
    """Returns the epoch in which training masks a row when it reads that row for the first time.

    It is that of the run as its checkpoints record it, or else that of a run that starts now.
    """
    run, seed = Path(config.run or ""), config.seed or 0
    if config.run and (saved := newest_state(run)):
        cursor, about = saved.first_cursor, read_provenance(checkpoint_folder(run, saved.state.step))
    elif config.start:
        start = likely_best_checkpoint(bundled_resolved(config.start))
        cursor, about = cursor_after(Path(start), rows.sha256, seed, config.weights), _history(start)
    else:
        return 0
    mixture = mixture_of(config.weights, rows.manifest.sources("train"))
    return about.first_epoch + next_epoch(row_id, cursor, len(rows), mixture, seed)


def _history(start: str) -> Provenance:
    """Returns the history of a run that starts from a model, an empty one if the model is out of reach."""
    path = None
    with suppress(ModelError):
        path = file_of_model(start, None, Provenance.FILE)
    return (read_provenance(path.parent) if path else Provenance()).of_run(ModelSource(name=start))
