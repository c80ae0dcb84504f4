"""Documents as a model reads them, by its own tokenizer: token ids of one input or several, and the targets.

With a length of 6, an input holds 4 tokens of the document, between both special tokens. Of a document of 10 tokens:

    first       0 1 2 3
    last        6 7 8 9
    chunks      0 1 2 3 | 4 5 6 7 | 8 9
    windows     0 1 2 3 | 2 3 4 5 | 4 5 6 7 | 6 7 8 9      chunks, for labelling
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.records import LabelledDocument
from longmlm.downstream.settings import Arm
from longmlm.errors import ModelError

IGNORED = -100  # the target of a special token


@dataclass(frozen=True, slots=True)
class Example:
    """A document: the token ids of its inputs, and its target.

    The target is a class, a 0 or 1 for each class, or, for labelling, a class for each token of each input. In place of
    `inputs`, a frozen encoder's head reads `vectors`, those of the inputs' first tokens, (inputs, width).
    """

    inputs: tuple[list[int], ...]
    target: Any
    vectors: Tensor | None = None


def windows_overlap(num_tokens: int) -> int:
    """Returns how many tokens two neighbouring windows of a labelling model have in common: half of what they hold."""
    return (num_tokens - 2) // 2


def set_reading(tokenizer: PreTrainedTokenizerBase, arm: Arm, num_tokens: int) -> None:
    """Makes the tokenizer cut texts as the arm reads them, and save that: a released tokenizer does the same."""
    tokenizer.model_max_length = num_tokens
    tokenizer.truncation_side = "left" if arm.reads == "last" else "right"
    tokenizer.init_kwargs["truncation_side"] = tokenizer.truncation_side


def classification_examples(
    corpus: LabelledCorpus, numbers: Sequence[int], tokenizer: PreTrainedTokenizerBase, arm: Arm
) -> list[Example]:
    """Returns the documents of these numbers; raises ModelError for a tokenizer without a first token for chunks."""
    classes = {label: number for number, label in enumerate(corpus.labels)}
    examples = []
    for document in (corpus.documents[number] for number in numbers):
        encoded = tokenizer(document.text, truncation=True, return_overflowing_tokens=arm.reads == "chunks")
        rows = encoded["input_ids"] if arm.reads == "chunks" else [encoded["input_ids"]]
        if arm.reads == "chunks" and rows[0][0] != tokenizer.cls_token_id:
            raise ModelError(f"{arm.model} puts no classification token first: chunks need a model that does")
        target: Any = classes[document.labels[0]] if not corpus.is_multilabel else np.zeros(len(classes), np.float32)
        if corpus.is_multilabel:
            target[[classes[label] for label in document.labels]] = 1
        examples.append(Example(tuple(rows), target))
    return examples


def labelling_examples(
    corpus: LabelledCorpus, numbers: Sequence[int], tokenizer: PreTrainedTokenizerBase, arm: Arm
) -> list[Example]:
    """Returns the documents of these numbers, with the class of each token: O, B-x or I-x."""
    classes = {label: 1 + 2 * number for number, label in enumerate(corpus.labels)}
    overlap = windows_overlap(tokenizer.model_max_length)
    examples = []
    for document in (corpus.documents[number] for number in numbers):
        encoded = tokenizer(
            document.text,
            truncation=True,
            stride=overlap if arm.reads == "chunks" else 0,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        num_read = None if arm.reads == "chunks" else 1
        offsets, masks = encoded["offset_mapping"][:num_read], encoded["special_tokens_mask"][:num_read]
        targets = [
            [IGNORED if is_special else one for one, is_special in zip(_bio(document, row, classes), mask, strict=True)]
            for row, mask in zip(offsets, masks, strict=True)
        ]
        examples.append(Example(tuple(encoded["input_ids"][:num_read]), targets))
    return examples


def bio_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the classes of tokens: O, then B-x and I-x for each label x."""
    return ("O", *(f"{prefix}-{label}" for label in labels for prefix in "BI"))


def _bio(document: LabelledDocument, offsets: Sequence[tuple[int, int]], classes: dict[str, int]) -> list[int]:
    """Returns the class of each token of a window, which begins with I-x if it begins inside a span.

    A token that overlaps two spans in characters is the first one's, unless the second would have no token without it
    and the first has others.
    """
    spans, owners, number = document.spans, list[int](), 0  # the span of each token, or -1
    for start, end in offsets:
        while number < len(spans) and spans[number].end <= start:
            number += 1
        is_outside = start == end or number == len(spans) or end <= spans[number].start
        owners.append(-1 if is_outside else number)
    for index, (first, (_, end)) in enumerate(zip(owners, offsets, strict=True)):
        second = first + 1
        overlaps = first >= 0 and second < len(spans) and spans[second].start < end
        if overlaps and second not in owners and owners.count(first) > 1:
            owners[index] = second
    found = []
    for before, owner, (start, _) in zip([-1, *owners], owners, offsets, strict=False):
        is_inside = owner == before or start > spans[owner].start
        found.append(0 if owner < 0 else classes[spans[owner].label] + is_inside)
    return found


def collate(examples: Sequence[Example], pad: int) -> dict[str, Tensor]:
    """Returns the inputs of all examples as rows, padded on the right, the example of each row, and the targets."""
    owners = torch.tensor([number for number, one in enumerate(examples) for _ in one.inputs])
    if examples[0].vectors is not None:
        vectors = torch.cat([one.vectors for one in examples if one.vectors is not None])
        batch = {"inputs_embeds": vectors[:, None]}
    else:
        rows = list(chain.from_iterable(one.inputs for one in examples))
        input_ids = _padded(rows, pad)
        lengths = torch.tensor([*map(len, rows)])
        batch = {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()}
    if isinstance(examples[0].target, list):
        return {**batch, "labels": _padded(list(chain.from_iterable(one.target for one in examples)), IGNORED)}
    return {**batch, "owners": owners, "labels": torch.from_numpy(np.stack([one.target for one in examples]))}


def _padded(rows: Sequence[list[int]], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, rows)], batch_first=True, padding_value=value)
