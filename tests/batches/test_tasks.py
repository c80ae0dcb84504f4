"""Batches of labelled documents: the same global batch for any launch, and the same content padded or packed."""

import dataclasses

import numpy as np
import pytest
import torch

from longmlm.batches.examples import IGNORED, Example
from longmlm.batches.tasks import TaskBatch, TaskBatches, collate_examples, documents_of
from longmlm.errors import TrainingError
from tests.support.documents import labelled_example, random_examples

PAD = 1
LENGTHS = [[4], [5, 3], [7], [2, 2, 9], [3], [6], [8, 1], [5], [4, 4], [2], [3], [9], [1]]


def inputs_of(batch: TaskBatch) -> list[list[int]]:
    """Returns the tokens of each input of a batch, padded or packed, without padding."""
    if batch.row_lengths:
        return [part.tolist() for part in batch.input_ids[0].split(batch.row_lengths)]
    masks = torch.ones_like(batch.input_ids, dtype=torch.bool) if batch.attention_mask is None else batch.attention_mask
    return [row[mask].tolist() for row, mask in zip(batch.input_ids, masks, strict=True)]


def content_of(batch: TaskBatch) -> list[tuple[int, list[list[int]], list[float]]]:
    """Returns number, inputs and target of each document of a batch."""
    inputs = inputs_of(batch)
    return [
        (
            row_id,
            [tokens for tokens, owner in zip(inputs, batch.owners, strict=True) if owner == place],
            batch.targets[place].tolist(),
        )
        for place, row_id in enumerate(batch.row_ids)
    ]


def expected(examples: tuple[Example, ...]) -> list[tuple[int, list[list[int]], list[float]]]:
    return [(one.document, [tokens.tolist() for tokens in one.inputs], one.target.tolist()) for one in examples]


@pytest.mark.parametrize("is_multilabel", [False, True])
@pytest.mark.parametrize("pad", [PAD, None])
def test_a_batch_holds_the_inputs_and_the_target_of_each_document(pad: int | None, is_multilabel: bool) -> None:
    examples = random_examples(LENGTHS, is_multilabel=is_multilabel)
    batch = collate_examples(examples, pad)
    assert content_of(batch) == expected(examples)
    assert batch.num_tokens == sum(map(len, examples))
    assert batch.num_targets == batch.num_documents == len(examples)
    longest, num_inputs = max(map(max, LENGTHS)), sum(map(len, LENGTHS))
    assert batch.num_with_padding == (batch.num_tokens if pad is None else longest * num_inputs)
    if pad is not None:
        assert (batch.input_ids[~batch.attention_mask] == PAD).all()


def test_a_batch_without_padding_has_no_mask() -> None:
    assert collate_examples(random_examples([[4], [4]]), PAD).attention_mask is None


def test_targets_of_labelling_are_those_of_all_tokens_and_only_labelled_ones_count() -> None:
    examples = (labelled_example(0, [[1, 2], [2, 0, 0]]), labelled_example(1, [[3]]))
    for pad in (PAD, None):
        batch = collate_examples(examples, pad)
        assert batch.targets.tolist() == [IGNORED, 1, 2, IGNORED, IGNORED, 2, 0, 0, IGNORED, IGNORED, 3, IGNORED]
        assert batch.num_targets == 6 and batch.num_documents == 2


def test_a_pair_counts_once_whatever_its_score() -> None:
    pairs = tuple(
        dataclasses.replace(one, target=np.array(score, dtype=np.float32), num_first=1)
        for one, score in zip(random_examples([[4, 5], [3, 3]]), (-100.0, 0.5), strict=True)
    )
    batch = collate_examples(pairs, PAD)
    assert batch.num_targets == 2 and batch.num_first == (1, 1) and batch.targets.tolist() == [-100.0, 0.5]


@pytest.mark.parametrize("pad", [PAD, None])
def test_the_batch_of_a_single_document_does_not_depend_on_the_others(pad: int | None) -> None:
    examples = random_examples(LENGTHS)
    parts = list(documents_of(collate_examples(examples, pad)))
    assert len(parts) == len(examples)
    for part, example in zip(parts, examples, strict=True):
        alone = collate_examples([example], pad)
        assert torch.equal(part.input_ids, alone.input_ids)
        assert part.row_lengths == alone.row_lengths and part.row_ids == alone.row_ids
        assert inputs_of(part) == inputs_of(alone)
        assert part.owners.tolist() == [0] * len(example.inputs)


def test_moving_a_batch_keeps_what_is_no_tensor() -> None:
    batch = collate_examples(random_examples(LENGTHS), None)
    moved = batch.to(torch.device("meta"))
    assert moved.input_ids.device.type == moved.targets.device.type == "meta"
    assert (moved.row_ids, moved.row_lengths) == (batch.row_ids, batch.row_lengths)


def global_batch(examples: tuple[Example, ...], rows_per_micro_batch: int, cursor: int) -> list[tuple]:
    batches = TaskBatches(examples, 3, 5, None).in_micro_batches_of(rows_per_micro_batch)[cursor]
    return [document for batch in batches for document in content_of(batch)]


@pytest.mark.parametrize("rows_per_micro_batch", [2, 3, 5])
def test_micro_batches_of_any_size_form_the_same_global_batches(rows_per_micro_batch: int) -> None:
    examples = random_examples(LENGTHS)
    for cursor in (0, 5, 10, 23):
        batch = global_batch(examples, rows_per_micro_batch, cursor)
        assert len(batch) == 5
        assert sorted(batch) == sorted(global_batch(examples, 1, cursor))


def test_an_epoch_has_every_document_once_in_an_order_of_its_own() -> None:
    examples = random_examples(LENGTHS)
    batches = TaskBatches(examples, 3, 5, None, rows_per_micro_batch=5)
    drawn = [row_id for cursor in range(0, 2 * len(examples), 1) for row_id in _first_row(batches, cursor)]
    first, second = drawn[: len(examples)], drawn[len(examples) :]
    assert sorted(first) == sorted(second) == list(range(len(examples)))
    assert first != second
    other = TaskBatches(examples, 4, 5, None, rows_per_micro_batch=5)
    assert drawn != [row_id for cursor in range(2 * len(examples)) for row_id in _first_row(other, cursor)]


def _first_row(batches: TaskBatches, cursor: int) -> tuple[int, ...]:
    return dataclasses.replace(batches, rows_per_step=1)[cursor][0].row_ids


def test_the_steps_of_an_epoch_read_every_document() -> None:
    examples = random_examples(LENGTHS)
    batches = TaskBatches(examples, 3, 5, None, rows_per_micro_batch=2)
    assert batches.steps_per_epoch == 3 and batches.num_rows == 13
    read = {row_id for step in range(3) for batch in batches[5 * step] for row_id in batch.row_ids}
    assert read == set(range(13))


def test_micro_batches_hold_documents_of_similar_length() -> None:
    examples = random_examples([[length] for length in range(1, 40)])
    for cursor in (0, 10, 20):
        batches = TaskBatches(examples, 3, 10, PAD, rows_per_micro_batch=3)[cursor]
        lengths = [len(examples[row_id]) for batch in batches for row_id in batch.row_ids]
        assert len(batches) == 4 and lengths == sorted(lengths, reverse=True)


def test_micro_batches_have_as_many_tokens_as_the_longest_documents() -> None:
    examples = random_examples([[30], *([length] for length in (9, 8, 7, 6, 5, 4, 3, 2, 1))])
    batches = TaskBatches(examples, 3, 10, PAD).in_micro_batches_of(1)[0]
    assert [[len(examples[row_id]) for row_id in batch.row_ids] for batch in batches] == [
        [30],
        [9, 8, 7],
        [6, 5, 4, 3, 2],
        [1],
    ]
    for num_rows in (2, 3, 10):
        parts = TaskBatches(examples, 3, 10, PAD).in_micro_batches_of(num_rows)[0]
        assert max(batch.input_ids.numel() for batch in parts) <= num_rows * 30
    assert len(TaskBatches(examples, 3, 10, PAD).in_micro_batches_of(10)[0]) == 1


def test_micro_batches_of_chunks_count_padding() -> None:
    examples = random_examples([[9, 9, 9], *([[9, 1]] * 6), *([[5, 5, 5, 5]] * 3)])
    parts = TaskBatches(examples, 3, 10, PAD).in_micro_batches_of(1)[0]
    assert max(batch.input_ids.numel() for batch in parts) <= 27
    assert sorted(row_id for batch in parts for row_id in batch.row_ids) == list(range(10))


def test_no_pair_of_contrastive_tuning_is_alone_in_a_micro_batch() -> None:
    examples = random_examples([[5]] * 15)
    batches = TaskBatches(examples, 3, 15, PAD, min_in_micro_batch=2)
    assert [len(batch.row_ids) for batch in batches.in_micro_batches_of(4)[0]] == [4, 4, 4, 3]
    for rows_per_micro_batch in (1, 2):
        with pytest.raises(TrainingError, match=r"at least 2 pairs in every micro-batch: raise recipe\.documents_per"):
            batches.in_micro_batches_of(rows_per_micro_batch)
