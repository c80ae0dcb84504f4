"""What models predict at the selected tokens of rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.evaluation.measure import inference, row_logits
from longmlm.inspect.reading import Guess, Reader, Reading, original_ids
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.reports.pages import visible
from longmlm.training.run_folder import model_or_best_checkpoint


def with_guesses(
    readings: Mapping[int, Sequence[Reading]], models: Mapping[str, str], num_guesses: int, rows: Rows, reader: Reader
) -> dict[int, list[Reading]]:
    """Returns the readings of each row with the guesses of each model, one model in memory at a time.

    `models` are folders, runs or names on a hub, by the names to show. Raises ModelError for a model that cannot be
    loaded, and DataError for one with another tokenizer than the rows.
    """
    found = {row_id: list(own) for row_id, own in readings.items()}
    for shown, name in models.items():
        loaded = load_model(model_or_best_checkpoint(name))
        check_rows_fit_model(rows, vocabulary_of_pretrained(loaded.tokenizer, name))
        objective = MlmObjective(loaded.model, isolates_documents=loaded.provenance.isolates_documents)
        print(*loaded.notes, sep="\n", end="\n" if loaded.notes else "")
        with inference(objective):
            for own in found.values():
                own[:] = [
                    replace(one, guesses={**one.guesses, shown: list(_guesses(objective, one, num_guesses, reader))})
                    for one in own
                ]
    return found


def _guesses(
    objective: MlmObjective, reading: Reading, num_guesses: int, reader: Reader
) -> Iterator[tuple[Guess, ...]]:
    """Yields the likeliest tokens at each selected position."""
    masked, ids = reading.masked, original_ids(reading.masked)
    if not len(masked.selected):
        return
    probabilities = row_logits(objective, masked, reader.vocabulary.special.pad).softmax(-1)
    likeliest = probabilities.topk(min(num_guesses, probabilities.shape[-1]))
    for number, position in enumerate(masked.selected.tolist()):
        yield tuple(
            Guess(visible(reader.text(ids, position, np.array([token_id]))), probability, token_id == ids[position])
            for probability, token_id in zip(*(part[number].tolist() for part in likeliest), strict=True)
        )
