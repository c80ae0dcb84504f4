"""Mean vectors of texts, cosines and the contrastive loss, by their formulas."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from transformers import AutoModel

from longmlm.batches.examples import Example
from longmlm.batches.tasks import collate_examples
from longmlm.model.similarity import (
    SCALE,
    SimilarityObjective,
    contrastive_loss,
    load_embedder,
    mean_vectors,
)
from longmlm.settings.downstream import Arm
from tests.support.families import demo_texts, tiny_config
from tests.support.tiny import tiny_folder


def vectors(num: int, seed: int) -> Tensor:
    return torch.randn(num, 6, generator=torch.Generator().manual_seed(seed))


def cosine(one: Tensor, other: Tensor) -> float:
    dot = sum(a * b for a, b in zip(one.tolist(), other.tolist(), strict=True))
    return dot / math.sqrt(sum(a * a for a in one.tolist()) * sum(b * b for b in other.tolist()))


def test_chunks_weigh_as_much_as_they_have_tokens():
    states = torch.tensor([[1.0, 0.0], [3.0, 0.0], [8.0, 6.0], [5.0, 5.0]])
    means = mean_vectors(states, torch.tensor([0, 0, 0, 1]), 2)
    torch.testing.assert_close(means, torch.tensor([[4.0, 2.0], [5.0, 5.0]]))
    by_chunk = (2 * states[:2].mean(0) + 1 * states[2:3].mean(0)) / 3
    torch.testing.assert_close(means[0], by_chunk)


def loss_by_formula(first: Tensor, second: Tensor, negatives: list[list[int]]) -> tuple[float, int]:
    """Returns sum_i -log(exp(s_ii) / (exp(s_ii) + sum_j exp(s_ij))), j the negatives of i, and how often s_ii leads."""
    loss, correct = 0.0, 0
    for i, others in enumerate(negatives):
        own = SCALE * cosine(first[i], second[i])
        rest = [SCALE * cosine(first[i], second[j]) for j in others]
        loss += math.log(sum(map(math.exp, [own, *rest]))) - own
        correct += all(own > score for score in rest)
    return loss, correct


def test_all_other_pairs_are_negatives():
    first, second = vectors(5, 0), vectors(5, 0) + 1.5 * vectors(5, 1)
    texts = torch.arange(10).view(5, 2)
    loss, correct = contrastive_loss(first, second, texts)
    expected = loss_by_formula(first, second, [[j for j in range(5) if j != i] for i in range(5)])
    assert (loss.item(), correct.item()) == pytest.approx(expected, rel=1e-5)
    assert loss.item() > 0.1


def test_loss_is_that_of_sentence_transformers():
    first, second = vectors(5, 0), vectors(5, 0) + 1.5 * vectors(5, 1)
    theirs = MultipleNegativesRankingLoss(torch.nn.Identity()).compute_loss_from_embeddings([first, second], None)
    loss, _ = contrastive_loss(first, second, torch.arange(10).view(5, 2))
    torch.testing.assert_close(loss / 5, theirs)


def test_pairs_that_share_a_text_are_not_each_others_negatives():
    """Pairs 0 and 1 share their first text, 1 and 2 their second, 3 begins with what 0 ends with."""
    texts = torch.tensor([[0, 1], [0, 2], [3, 2], [1, 4], [5, 6]])
    first, second = vectors(5, 2), vectors(5, 3)
    loss, correct = contrastive_loss(first, second, texts)
    expected = loss_by_formula(first, second, [[2, 4], [3, 4], [0, 3, 4], [1, 2, 4], [0, 1, 2, 3]])
    assert (loss.item(), correct.item()) == pytest.approx(expected, rel=1e-5)


def test_a_pair_alone_has_no_loss():
    loss, correct = contrastive_loss(vectors(1, 0), vectors(1, 1), torch.tensor([[0, 1]]))
    assert (loss.item(), correct.item()) == (0.0, 1)


def pairs_of(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Example]:
    """Returns pairs of random texts, by the lengths of the chunks of the first and the second."""
    generator = np.random.default_rng(0)
    examples = []
    for number, (first, second) in enumerate(pairs):
        inputs = tuple(generator.integers(10, 290, length) for length in first + second)
        target = np.array([2 * number, 2 * number + 1])
        examples.append(Example(number, inputs, target, sum(first + second), num_first=len(first)))
    return examples


PAIRS = pairs_of(((16, 5), (9,)), ((3,), (12,)), ((7,), (16, 16, 4)))


def test_vectors_are_those_of_sentence_transformers(kind: tuple[str, int], tmp_path: Path):
    """Of texts that are read as one input; the release of a plain folder gets mean pooling there too."""
    folder = tiny_folder(tmp_path / "model", *kind)
    loaded = load_embedder(Arm(model=str(folder)))
    loaded.model.eval()
    texts = [text[:12] for text in demo_texts()[:4]]
    encoded = [np.array(ids) for ids in loaded.tokenizer(texts)["input_ids"]]
    assert len({len(ids) for ids in encoded}) > 1
    examples = [
        Example(number, pair, np.array([2 * number, 2 * number + 1]), sum(map(len, pair)), num_first=1)
        for number, pair in enumerate([(encoded[0], encoded[1]), (encoded[2], encoded[3])])
    ]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    with torch.no_grad():
        for pad in (loaded.tokenizer.pad_token_id, None):
            first, second = SimilarityObjective(loaded.model).vectors(collate_examples(examples, pad))
            torch.testing.assert_close(first, theirs[[0, 2]], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(second, theirs[[1, 3]], rtol=1e-4, atol=1e-5)


def test_chunks_of_a_text_are_averaged_by_their_tokens(any_kind: tuple[str, int]):
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny_config(*any_kind)).eval()
    objective = SimilarityObjective(model)
    batch = collate_examples(PAIRS, 4)
    with torch.no_grad():
        vectors = torch.stack(objective.vectors(batch), 1)
        cosines = objective.outputs(batch)
        for example, both in zip(PAIRS, vectors, strict=True):
            states = [model(torch.from_numpy(ids)[None]).last_hidden_state[0] for ids in example.inputs]
            expected = [torch.cat(states[: example.num_first]).mean(0), torch.cat(states[example.num_first :]).mean(0)]
            torch.testing.assert_close([*both], expected, rtol=1e-4, atol=1e-5)
    assert cosines == pytest.approx([cosine(*both) for both in vectors], abs=1e-5)


def test_gradient_reaches_every_weight_of_the_encoder(tmp_path: Path):
    """There is no pooler left, whose weights would have no gradient."""
    folder = tiny_folder(tmp_path / "model", "bert", 0)
    objective = SimilarityObjective(load_embedder(Arm(model=str(folder))).model)
    loss, _ = objective(collate_examples(PAIRS, None))
    loss.backward()
    assert loss.item() > 0
    without = [name for name, parameter in objective.named_parameters() if parameter.grad is None]
    assert not without
