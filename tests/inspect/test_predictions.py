"""Predictions are those that evaluation measures and shows."""

import pytest
from accelerate import Accelerator
from transformers import AutoModelForMaskedLM, AutoTokenizer

from longmlm.artifacts.accuracy import Measured
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.evaluation.filled_masks import NUM_GUESSES, filled_masks
from longmlm.evaluation.frozen import FrozenRows, Viewer, viewer_of
from longmlm.evaluation.measure import measure
from longmlm.inspect.predictions import with_guesses
from longmlm.inspect.reading import Reader, Reading
from longmlm.model.mlm import MlmObjective
from longmlm.reports.pages import visible
from longmlm.settings.masking import HeldOut
from tests.support.families import NUM_POSITIONS
from tests.support.tiny import LONG_POSITIONS, World, tiny_folder, with_fresh_process_state


@pytest.fixture(scope="module")
def frozen(rows: Rows, vocabulary: Vocabulary) -> FrozenRows:
    return FrozenRows(rows, HeldOut(max_rows=24), vocabulary.maskable, vocabulary.special)


def readings_of(frozen: FrozenRows, reader: Reader, view: Viewer) -> dict[int, list[Reading]]:
    return {number: [reader.read("", one.masked) for one in view(frozen.masked(number))] for number in frozen.row_ids}


def test_predictions_are_those_of_filled_masks(world: World, rows: Rows, frozen: FrozenRows, reader: Reader) -> None:
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(world.long), AutoTokenizer.from_pretrained(world.long)
    filled = filled_masks(MlmObjective(model), tokenizer, frozen, 6)
    whole = viewer_of("whole", LONG_POSITIONS, frozen.special)
    readings = with_guesses(readings_of(frozen, reader, whole), {"long": str(world.long)}, NUM_GUESSES, rows, reader)
    assert len(filled) > 2
    for one in filled:
        [reading] = readings[one.row_id]
        index = next(index for index, token in enumerate(reading.selected) if token.position == one.position)
        guesses = reading.guesses["long"][index]
        assert reading.selected[index].text == visible(one.truth)
        assert [guess.text for guess in guesses] == [visible(text) for text, _ in one.guesses]
        assert [guess.probability for guess in guesses] == pytest.approx([value for _, value in one.guesses], abs=1e-5)


@pytest.mark.parametrize(("view", "model"), [("whole", "trained"), ("cut", "base"), ("chunks", "base")])
def test_as_many_are_right_as_evaluation_counts(
    world: World, rows: Rows, frozen: FrozenRows, reader: Reader, view: str, model: str
) -> None:
    folder, viewer = str(getattr(world, model)), viewer_of(view, NUM_POSITIONS, frozen.special)
    measured = evaluated(folder, frozen, viewer)
    readings = with_guesses(readings_of(frozen, reader, viewer), {"m": folder}, 1, rows, reader)
    for own, selected, correct in zip(readings.values(), measured.selected, measured.correct, strict=True):
        guesses = [first for reading in own for [first] in reading.guesses["m"]]
        assert (len(guesses), sum(guess.is_right for guess in guesses)) == (selected, correct)
    assert sum(measured.selected) >= 50
    if model == "trained":
        assert sum(measured.correct) > 0
        assert "m predicts " in next(iter(readings.values()))[0].summary


def evaluated(folder: str, frozen: FrozenRows, view: Viewer) -> Measured:
    with_fresh_process_state()
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(folder))
    measured = measure(objective, frozen, view, NUM_POSITIONS, Accelerator(cpu=True))
    with_fresh_process_state()
    return measured


def test_more_guesses_than_tokens_are_all_tokens(world: World, rows: Rows, frozen: FrozenRows, reader: Reader) -> None:
    readings = {0: [reader.read("", frozen.masked(0))]}
    [reading] = with_guesses(readings, {"long": str(world.long)}, 10_000, rows, reader)[0]
    [first, *_] = reading.guesses["long"]
    assert len(first) == AutoModelForMaskedLM.from_pretrained(world.long).config.vocab_size
    assert sum(guess.probability for guess in first) == pytest.approx(1.0, abs=1e-4)
    assert sum(guess.is_right for guess in first) == 1


def test_a_model_with_another_tokenizer_is_refused(rows: Rows, frozen: FrozenRows, reader: Reader, tmp_path) -> None:
    other = tiny_folder(tmp_path, "bert", 0, LONG_POSITIONS)
    with pytest.raises(DataError, match="another tokenizer"):
        with_guesses({0: [reader.read("", frozen.masked(0))]}, {"other": str(other)}, 3, rows, reader)
