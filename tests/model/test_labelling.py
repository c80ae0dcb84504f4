"""Labelling of tokens: the stock model's loss, packed batches, and a folder that transformers loads."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, PreTrainedModel

from longmlm.batches.examples import IGNORED, Example
from longmlm.batches.tasks import collate_examples
from longmlm.model.labelling import LabellingObjective, load_labeller
from longmlm.model.packed_attention import use_packed_attention
from longmlm.settings.downstream import Arm
from tests.support.families import tiny_config
from tests.support.tiny import tiny_folder

NUM_CLASSES = 5
PAD_OF_TESTS = 4  # any id: padding is not read
LENGTHS = ((16, 9), (3,), (12, 12, 7))  # of the windows of each document


def labelled_examples() -> list[Example]:
    """Returns documents of random tokens and classes, with special tokens at both ends of each window."""
    generator = np.random.default_rng(0)
    examples = []
    for number, lengths in enumerate(LENGTHS):
        inputs = tuple(generator.integers(10, 290, length) for length in lengths)
        windows = [generator.integers(0, NUM_CLASSES, length) for length in lengths]
        for window in windows:
            window[[0, -1]] = IGNORED
        indices = np.concatenate([[-1, *range(length - 2), -1] for length in lengths])
        num_tokens = max(lengths) - 2
        offsets = np.stack([np.arange(num_tokens), np.arange(1, num_tokens + 1)], 1)
        examples.append(Example(number, inputs, np.concatenate(windows), num_tokens, offsets, indices))
    return examples


def tiny_labeller(family: str, pad: int) -> PreTrainedModel:
    torch.manual_seed(1)
    return AutoModelForTokenClassification.from_config(tiny_config(family, pad, num_labels=NUM_CLASSES)).eval()


def test_loss_is_that_of_transformers(any_kind: tuple[str, int]):
    model, examples = tiny_labeller(*any_kind), labelled_examples()
    batch = collate_examples(examples, PAD_OF_TESTS)
    labels = torch.full_like(batch.input_ids, IGNORED)
    labels[batch.attention_mask] = torch.from_numpy(np.concatenate([example.target for example in examples]))
    stock = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), labels=labels)
    num_labelled = sum(length - 2 for lengths in LENGTHS for length in lengths)
    assert batch.num_targets == int((labels != IGNORED).sum()) == num_labelled
    loss, correct = LabellingObjective(model)(batch)
    torch.testing.assert_close(loss, stock.loss * num_labelled)
    assert correct == (stock.logits.argmax(-1) == labels).sum()


def test_packed_batch_gives_the_same(kind: tuple[str, int]):
    examples, losses, gradients, classes = labelled_examples(), [], [], []
    for pad in (PAD_OF_TESTS, None):
        model = tiny_labeller(*kind).double()
        use_packed_attention(model)
        objective = LabellingObjective(model)
        assert objective.reads_packed_batches
        batch = collate_examples(examples, pad)
        assert bool(batch.row_lengths) is (pad is None)
        loss, _ = objective(batch)
        loss.backward()
        losses.append(loss)
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        with torch.no_grad():
            classes.append(objective.outputs(batch))
    torch.testing.assert_close(*losses)
    assert len(gradients[0]) > 10
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert [one.tolist() for one in classes[0]] == [one.tolist() for one in classes[1]]
    assert [len(one) for one in classes[0]] == [sum(lengths) for lengths in LENGTHS]


def test_outputs_are_those_of_each_window_by_itself():
    model, examples = tiny_labeller("roberta", 1), labelled_examples()
    with torch.no_grad():
        outputs = LabellingObjective(model).outputs(collate_examples(examples, PAD_OF_TESTS))
        for example, classes in zip(examples, outputs, strict=True):
            alone = [model(input_ids=torch.from_numpy(window)[None]).logits[0].argmax(-1) for window in example.inputs]
            assert classes.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize("kind", [("roberta", 1), ("modernbert", 3)], ids=["roberta", "modernbert"])
def test_head_names_the_classes_and_is_saved(kind: tuple[str, int], tmp_path: Path):
    base = tiny_folder(tmp_path / "base", *kind)
    loaded = load_labeller(Arm(model=str(base)), ("LOC", "PER"), seed=3)
    names = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert [loaded.model.config.id2label[number] for number in range(5)] == names
    assert loaded.model.config.label2id == {name: number for number, name in enumerate(names)}
    again = load_labeller(Arm(model=str(base)), ("LOC", "PER"), seed=3)
    torch.testing.assert_close(loaded.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)
    loaded.model.save_pretrained(tmp_path / "saved")
    stock, info = AutoModelForTokenClassification.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"]
    assert [stock.config.id2label[number] for number in range(5)] == names
    ids = torch.arange(10, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(stock(ids).logits, loaded.model.eval()(ids).logits)
