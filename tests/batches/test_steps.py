"""Batches of rows: the same global batch for any launch, padding on the right, and rows that fit the model."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import normalizers

from longmlm.batches import sampling
from longmlm.batches.collate import MlmBatch
from longmlm.batches.masking import mask_row
from longmlm.batches.sampling import mixture_of, rows_per_step
from longmlm.batches.steps import Recipe, StepBatches, batch_notes, check_rows_fit_model
from longmlm.data.row import Row
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary, vocabulary_of_pretrained
from longmlm.errors import DataError, TrainingError
from longmlm.settings.masking import Masking, MaskingUnit
from longmlm.settings.pretrain import PretrainRecipe
from tests.support.families import tiny_tokenizer
from tests.support.rows import with_sources
from tests.support.tiny import LONG_POSITIONS, World, tiny_folder

ROWS_PER_STEP = 13
LAUNCHES = [(1, 13), (1, 4), (1, 1), (2, 3), (3, 8), (4, 1), (13, 2)]


@pytest.fixture(scope="module")
def rows(world: World) -> Rows:
    found = open_rows(world.rows, "train")
    assert len(found) > 100
    return found


@pytest.fixture(scope="module")
def vocabulary(world: World) -> Vocabulary:
    return load_vocabulary(str(world.base))


@pytest.fixture(scope="module")
def recipe(vocabulary: Vocabulary) -> Recipe:
    return Recipe(5, ROWS_PER_STEP, Masking(), vocabulary.maskable, vocabulary.special.pad)


def as_rows(batch: MlmBatch) -> list[tuple[int, list[int], list[int], list[int]]]:
    """Returns each row of a batch: its id, its tokens without padding, its selected positions and labels."""
    length = batch.input_ids.shape[1]
    found = []
    for number, (row_id, tokens) in enumerate(zip(batch.row_ids, batch.input_ids, strict=True)):
        content = tokens if batch.attention_mask is None else tokens[batch.attention_mask[number]]
        here = batch.selected // length == number
        positions, labels = (batch.selected[here] % length).tolist(), batch.labels[here].tolist()
        found.append((row_id, content.tolist(), positions, labels))
    return found


def global_batch(rows: Rows, recipe: Recipe, launch: tuple[int, int], cursor: int) -> list[tuple]:
    """Returns the rows of a step, of all processes, one after the other."""
    num_processes, rows_per_micro_batch = launch
    shares = [
        StepBatches(rows, recipe, rank, num_processes, rows_per_micro_batch)[cursor] for rank in range(num_processes)
    ]
    assert len({len(share) for share in shares}) == 1
    assert all(len(batch.row_ids) <= rows_per_micro_batch + 1 for share in shares for batch in share)
    return [row for share in shares for batch in share for row in as_rows(batch)]


@pytest.mark.parametrize("unit", ["word", "span"])
def test_batches_of_words_and_spans_are_the_same_for_any_launch_and_in_a_loader_worker(
    unit: MaskingUnit, rows: Rows, recipe: Recipe, vocabulary: Vocabulary
) -> None:
    by_unit = dataclasses.replace(recipe, masking=Masking(unit=unit), vocabulary=vocabulary.maskable_in(unit))
    assert len(pickle.dumps(by_unit)) < len(pickle.dumps(recipe)) + 2 * vocabulary.size + 1_000
    expected = sorted(global_batch(rows, by_unit, (1, 13), 26))
    assert sorted(global_batch(rows, pickle.loads(pickle.dumps(by_unit)), (3, 8), 26)) == expected
    assert sorted(global_batch(rows, recipe, (1, 13), 26)) != expected


def test_a_note_says_that_chinese_characters_count_as_words(rows: Rows) -> None:
    recipe = PretrainRecipe(num_steps=1, batch_tokens=1_000, learning_rate=1e-4)
    by_word = dataclasses.replace(recipe, masking=Masking(unit="word"))
    manifest = rows.manifest
    (source, *_) = manifest.plan.sources

    def notes(recipe: PretrainRecipe, language: str, words: str | None = None) -> list[str]:
        plan = dataclasses.replace(
            manifest.plan, sources=(dataclasses.replace(source, language=language),), words=words
        )
        changed = dataclasses.replace(rows, manifest=dataclasses.replace(manifest, plan=plan))
        return batch_notes(recipe, changed, 10, 1_000)

    (note,) = notes(by_word, "zh-cn")
    assert "each Chinese character counts as a word" in note and 'words = "rjieba"' in note
    assert notes(by_word, "en") == notes(recipe, "zh") == notes(by_word, "zh", "rjieba") == []
    assert ["batch_tokens" in note for note in batch_notes(by_word, rows, 10, 500)] == [True]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_any_launch_gives_the_same_global_batches(rows: Rows, recipe: Recipe, launch: tuple[int, int]) -> None:
    last = len(rows) // ROWS_PER_STEP
    for cursor in (0, ROWS_PER_STEP, last * ROWS_PER_STEP, len(rows) - 5):
        batch = global_batch(rows, recipe, launch, cursor)
        assert len(batch) == ROWS_PER_STEP
        assert sorted(batch) == sorted(global_batch(rows, recipe, LAUNCHES[0], cursor))


@pytest.mark.parametrize("launch", LAUNCHES[1:])
def test_any_launch_draws_the_rows_of_a_mixture(rows: Rows, recipe: Recipe, launch: tuple[int, int]) -> None:
    sources = with_sources(rows.manifest, 0.7, 0.3).sources("train")
    mixed = dataclasses.replace(recipe, mixture=mixture_of({"laws": 9.0}, sources))
    assert mixed.mixture is not None
    for cursor in (0, 5 * ROWS_PER_STEP, 990):
        batch = global_batch(rows, mixed, launch, cursor)
        assert sorted(batch) == sorted(global_batch(rows, mixed, LAUNCHES[0], cursor))
        drawn = mixed.mixture.batch(cursor, ROWS_PER_STEP, recipe.seed).row_ids.tolist()
        assert sorted(row_id for row_id, *_ in batch) == sorted(drawn)


def test_micro_batches_hold_rows_of_similar_length(rows: Rows, recipe: Recipe) -> None:
    padding, unsorted_padding = 0, 0
    for cursor in range(0, len(rows), ROWS_PER_STEP):
        batches = StepBatches(rows, recipe, 0, 1, 3)[cursor]
        lengths = [len(rows[row_id]) for batch in batches for row_id in batch.row_ids]
        assert lengths == sorted(lengths, reverse=True)
        padding += sum(batch.num_with_padding - batch.num_tokens for batch in batches)
        drawn = sampling.global_batch(cursor, ROWS_PER_STEP, len(rows), recipe.seed).row_ids.tolist()
        parts = np.array_split([len(rows[row_id]) for row_id in drawn], len(batches))
        unsorted_padding += sum(int(part.max()) * len(part) - int(part.sum()) for part in parts)
    assert padding < unsorted_padding / 2


def test_rows_are_masked_by_their_epoch(rows: Rows, recipe: Recipe) -> None:
    for epoch in (0, 1, 7):
        (batch,) = StepBatches(rows, recipe, 0, 1, ROWS_PER_STEP)[epoch * len(rows)]
        for row_id, tokens, positions, labels in as_rows(batch):
            expected = mask_row(rows[row_id], recipe.vocabulary, recipe.masking, recipe.seed, epoch, row_id)
            assert tokens == expected.row.input_ids.tolist()
            assert positions == expected.selected.tolist()
            assert labels == rows[row_id].input_ids[positions].tolist()


def test_shapes_padding_and_attention_masks_agree(rows: Rows, recipe: Recipe) -> None:
    kinds = set()
    for cursor in range(0, 12 * ROWS_PER_STEP, ROWS_PER_STEP):
        for batch in StepBatches(rows, recipe, 0, 1, 2)[cursor]:
            num_rows, length = batch.input_ids.shape
            lengths = [len(rows[row_id]) for row_id in batch.row_ids]
            assert (num_rows, length) == (len(batch.row_ids), max(lengths))
            assert batch.input_ids.dtype == batch.selected.dtype == batch.labels.dtype == torch.int64
            assert batch.selected.shape == batch.labels.shape
            is_full = len(set(lengths)) == 1
            kinds.add(is_full)
            if is_full:
                assert batch.attention_mask is None
            else:
                assert batch.attention_mask is not None
                assert batch.attention_mask.dtype == torch.bool
                assert batch.attention_mask.tolist() == [[True] * row + [False] * (length - row) for row in lengths], (
                    "padding is on the right"
                )
                assert (batch.input_ids[~batch.attention_mask] == recipe.pad).all()
                assert not batch.attention_mask.flatten()[batch.selected].logical_not().any()
    assert kinds == {True, False}
    batches = StepBatches(rows, recipe, 1, 2, 3)
    here, there = batches[4], pickle.loads(pickle.dumps(batches))[4]  # as they go to the workers of a loader
    assert [as_rows(batch) for batch in there] == [as_rows(batch) for batch in here]
    batch = next(one for one in here if one.attention_mask is not None)
    moved = batch.to(torch.device("meta"))
    tensors = [value for item in dataclasses.fields(moved) if torch.is_tensor(value := getattr(moved, item.name))]
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 4
    assert moved.row_ids == batch.row_ids


def test_a_new_column_follows_rows_into_masks_and_views(rows: Rows, recipe: Recipe) -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class LabelledRow(Row):
        pair_label: int = dataclasses.field(kw_only=True)

    row = LabelledRow(rows[0].input_ids, rows[0].document_starts, rows[0].document_sources, pair_label=7)
    masked = mask_row(row, recipe.vocabulary, recipe.masking, 0, 0, 0).row
    assert isinstance(masked, LabelledRow)
    assert masked.pair_label == 7


def test_rows_of_a_step_follow_from_their_mean_fill(rows: Rows) -> None:
    mean = np.mean([len(rows[row_id]) for row_id in range(len(rows))])
    assert mean < 0.95 * LONG_POSITIONS
    for batch_tokens in (1_000, 4_000, 20_000):
        num_rows = rows_per_step(batch_tokens, rows.row_length, rows.mean_fill, 1)
        assert num_rows == round(batch_tokens / mean)
        assert abs(num_rows * mean - batch_tokens) <= mean / 2


def test_batch_that_leaves_a_process_without_rows_is_refused_with_a_size_that_is_enough(rows: Rows) -> None:
    with pytest.raises(TrainingError, match=f"set it to at least {8 * LONG_POSITIONS}"):
        rows_per_step(100, rows.row_length, rows.mean_fill, 8)
    assert rows_per_step(8 * LONG_POSITIONS, rows.row_length, rows.mean_fill, 8) >= 8


def test_rows_of_another_tokenizer_are_refused(rows: Rows, vocabulary: Vocabulary, tmp_path: Path) -> None:
    check_rows_fit_model(rows, vocabulary)
    pretrained = tiny_tokenizer("roberta", 1)
    pretrained.backend_tokenizer.normalizer = normalizers.Lowercase()
    of_same_words = vocabulary_of_pretrained(pretrained, "other")
    for other in (load_vocabulary(str(tiny_folder(tmp_path / "other", "roberta", 3))), of_same_words):
        with pytest.raises(DataError, match=r"another tokenizer, .*other"):
            check_rows_fit_model(rows, other)


def test_rows_longer_than_the_model_reads_are_refused(rows: Rows, vocabulary: Vocabulary) -> None:
    check_rows_fit_model(rows, vocabulary, LONG_POSITIONS)
    with pytest.raises(DataError, match=f"{LONG_POSITIONS} tokens .* reads {LONG_POSITIONS - 1}"):
        check_rows_fit_model(rows, vocabulary, LONG_POSITIONS - 1)
