"""Documents as a model reads them, by its own tokenizer: token ids of one input or several, and the targets.

With a length of 6, an input holds 4 tokens of the document, between both special tokens. Of a document of 10 tokens:

    first       0 1 2 3
    last        6 7 8 9
    chunks      0 1 2 3 | 4 5 6 7 | 8 9
    windows     0 1 2 3 | 2 3 4 5 | 4 5 6 7 | 6 7 8 9      chunks, for labelling
"""

from collections.abc import Iterator, Sequence
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

    The target is a class, a 0 or 1 for each class, or, for labelling, a class for each token of each input.
    """

    inputs: tuple[list[int], ...]
    target: Any


def windows_overlap(num_tokens: int) -> int:
    """Returns how many tokens two neighbouring windows of a labelling model have in common: half of what they hold."""
    return (num_tokens - 2) // 2


def set_reading(tokenizer: PreTrainedTokenizerBase, arm: Arm, num_tokens: int) -> None:
    """Makes the tokenizer cut texts as the arm reads them, and save that: a released tokenizer does the same."""
    tokenizer.model_max_length = num_tokens
    tokenizer.truncation_side = "left" if arm.reads == "last" else "right"
    tokenizer.init_kwargs["truncation_side"] = tokenizer.truncation_side


def examples_of(
    corpus: LabelledCorpus, numbers: Sequence[int], tokenizer: PreTrainedTokenizerBase, arm: Arm
) -> Iterator[Example]:
    """Yields the documents of these numbers; raises ModelError for a tokenizer without a first token for chunks."""
    of_document = _labelling_example if corpus.target == "spans" else _classification_example
    for number in numbers:
        yield of_document(corpus.documents[number], corpus, tokenizer, arm)


def _classification_example(
    document: LabelledDocument, corpus: LabelledCorpus, tokenizer: PreTrainedTokenizerBase, arm: Arm
) -> Example:
    inputs = tokenizer(document.text, truncation=True, return_overflowing_tokens=arm.reads == "chunks")["input_ids"]
    if arm.reads == "chunks" and inputs[0][0] != tokenizer.cls_token_id:
        raise ModelError(f"{arm.model} puts no classification token first: chunks need a model that does")
    target: Any = np.array([label in document.labels for label in corpus.labels], np.float32)
    if corpus.target == "label":
        target = target.argmax()
    return Example(tuple(inputs) if arm.reads == "chunks" else (inputs,), target)


def _labelling_example(
    document: LabelledDocument, corpus: LabelledCorpus, tokenizer: PreTrainedTokenizerBase, arm: Arm
) -> Example:
    """Returns a document with the class of each token: O, B-x or I-x."""
    classes = {label: 1 + 2 * number for number, label in enumerate(corpus.labels)}
    encoded = tokenizer(
        document.text,
        truncation=True,
        stride=windows_overlap(tokenizer.model_max_length) if arm.reads == "chunks" else 0,
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
    return Example(tuple(encoded["input_ids"][:num_read]), targets)


def bio_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the classes of tokens: O, then B-x and I-x for each label x."""
    return ("O", *(f"{prefix}-{label}" for label in labels for prefix in "BI"))


def _bio(document: LabelledDocument, offsets: Sequence[tuple[int, int]], classes: dict[str, int]) -> list[int]:
    """Returns the class of each token of a window, which begins with I-x if it begins inside a span.

    A token that overlaps two spans in characters is the first one's, unless the second would have no token without it
    and the first has others.
    """
    spans, owners, (starts, ends) = document.spans, np.full(len(offsets), -1), np.reshape(offsets, (-1, 2)).T
    for number, span in enumerate(spans):
        tokens = np.flatnonzero((starts < ends) & (starts < span.end) & (ends > span.start))
        own = tokens[owners[tokens] < 0]
        if not len(own) and len(tokens) and (owners == owners[tokens[0]]).sum() > 1:
            own = tokens[:1]
        owners[own] = number
    found = []
    for before, owner, start in zip([-1, *owners], owners, starts, strict=False):
        is_inside = owner >= 0 and (owner == before or start > spans[owner].start)
        found.append(0 if owner < 0 else classes[spans[owner].label] + int(is_inside))
    return found


def collate(examples: Sequence[Example], pad: int) -> dict[str, Tensor]:
    """Returns the inputs of all examples as rows, padded on the right, the example of each row, and the targets."""
    rows = list(chain.from_iterable(one.inputs for one in examples))
    input_ids, lengths = _padded(rows, pad), torch.tensor([*map(len, rows)])
    batch = {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()}
    if isinstance(examples[0].target, list):
        return {**batch, "labels": _padded(list(chain.from_iterable(one.target for one in examples)), IGNORED)}
    owners = torch.tensor([number for number, one in enumerate(examples) for _ in one.inputs])
    return {**batch, "owners": owners, "labels": torch.from_numpy(np.stack([one.target for one in examples]))}


def _padded(rows: Sequence[list[int]], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, rows)], batch_first=True, padding_value=value)
