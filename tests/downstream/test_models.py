"""Models of arms: transformers' own heads on every family, those over chunks, and heads of frozen encoders."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from longmlm.artifacts.provenance import Provenance
from longmlm.downstream.arm_model import load_arm_model
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.models import ChunkClassifier, ChunkPooling, freeze_encoder
from longmlm.downstream.reading import Example, collate
from longmlm.downstream.settings import Arm, Pooling
from longmlm.errors import ModelError
from longmlm.model.carried import Carried, save_model
from longmlm.model.loading import LoadedModel
from tests.support.tiny import tiny_folder

LABELS = ("animal", "mineral", "plant")
CORPUS = LabelledCorpus((), (), LABELS, "label", ())
CHUNKED = [[5], [14, 9, 3], [9], [3, 12]]
POOLINGS = get_args(Pooling)
LAST = "layer.1.output.dense.weight"


@pytest.fixture(scope="session")
def encoder(any_kind: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pretrained model of any family, which no test may change."""
    return tiny_folder(tmp_path_factory.mktemp("encoder") / "model", *any_kind)


def loaded_arm(folder: Path, seed: int = 0, **arm: object) -> LoadedModel:
    loaded = load_arm_model(Arm(model=str(folder), **arm), CORPUS, seed)
    loaded.model.eval()
    return loaded


def examples(lengths: list[list[int]]) -> list[Example]:
    """Returns documents of random tokens: for each, the lengths of its inputs."""
    generator = torch.Generator().manual_seed(0)
    inputs = [
        tuple(torch.randint(5, 250, (length,), generator=generator).tolist() for length in own) for own in lengths
    ]
    return [Example(own, torch.tensor(0).numpy()) for own in inputs]


def inputs_of(loaded: LoadedModel, documents: list[Example]) -> dict[str, torch.Tensor]:
    batch = collate(documents, loaded.tokenizer.pad_token_id)
    del batch["labels"]
    if not isinstance(loaded.model, ChunkClassifier):
        del batch["owners"]
    return batch


@torch.inference_mode()
def logits_of(loaded: LoadedModel, documents: list[Example]) -> torch.Tensor:
    return loaded.model(**inputs_of(loaded, documents)).logits


def test_the_encoder_is_the_pretrained_one_and_the_seed_decides_the_head(encoder: Path) -> None:
    one, same, other = (loaded_arm(encoder, seed).model for seed in (0, 0, 1))
    assert one.config.id2label == dict(enumerate(LABELS)) and one.config.label2id["plant"] == 2
    for name, value in AutoModel.from_pretrained(encoder).named_parameters():
        if not name.startswith("pooler."):
            assert torch.equal(value, one.base_model.get_parameter(name)), name
    differing = set()
    for name, value in one.named_parameters():
        assert torch.equal(value, same.get_parameter(name)), name
        if not torch.equal(value, other.get_parameter(name)):
            differing.add(name)
    prefix = f"{one.base_model_prefix}."
    assert differing and all(not name.startswith(prefix) or ".pooler." in name for name in differing)


def test_the_head_of_a_frozen_encoder_needs_the_states_of_first_tokens_alone_but_for_eurobert(
    any_kind, encoder: Path, tmp_path: Path
) -> None:
    loaded, documents = loaded_arm(encoder), examples([[5], [14], [9]])
    expected, frozen = logits_of(loaded, documents), loaded.model.base_model
    forward = frozen.forward
    freeze_encoder(loaded.model, inputs_of(loaded, documents[:1]))
    torch.testing.assert_close(logits_of(loaded, documents), expected, rtol=1e-4, atol=1e-5)
    trained = {name for name, one in loaded.model.named_parameters() if one.requires_grad}
    assert all("pooler" in name for name in trained if name.startswith(f"{loaded.model.base_model_prefix}."))
    loaded.model.save_pretrained(tmp_path)
    assert {*load_file(tmp_path / "model.safetensors")} == trained, "checkpoints hold the head alone"
    if any_kind[0] == "eurobert":  # whose head reads all tokens
        assert frozen.forward == forward
    else:
        assert len(frozen.forward.known) == 3, "each of them is computed once"


def test_a_trained_head_is_replaced(encoder: Path, tmp_path: Path) -> None:
    trained = loaded_arm(encoder, seed=5)
    assert not any("head" in note for note in trained.notes)
    save_model(trained.model, trained.tokenizer, Carried(), tmp_path)
    renewed = loaded_arm(tmp_path, seed=7)
    assert renewed.notes[-1] == f"{tmp_path} has a trained head: it is replaced by a new one"
    before, after = trained.model.state_dict(), renewed.model.state_dict()
    outputs = [name for name, value in before.items() if value.ndim == 2 and len(value) == len(LABELS)]
    assert len(outputs) == 1 and not torch.equal(before[outputs[0]], after[outputs[0]])


def test_a_checkpoint_with_missing_or_misshapen_encoder_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith(LAST))
    for changed, problem in (({}, f"missing, .*{LAST}"), ({name: weights[name][:3].clone()}, f"{LAST} .*shape")):
        kept = {key: value for key, value in weights.items() if key != name}
        save_file({**kept, **changed}, folder / "model.safetensors", metadata={"format": "pt"})
        for reads in ("first", "chunks"):
            with pytest.raises(ModelError, match=problem):
                loaded_arm(folder, reads=reads)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_chunk_logits_depend_on_the_chunks_of_the_document_alone(pooling: Pooling, tmp_path: Path) -> None:
    loaded = loaded_arm(tiny_folder(tmp_path / "model"), reads="chunks", pooling=pooling)
    documents = examples(CHUNKED)
    together = logits_of(loaded, documents)
    alone = torch.cat([logits_of(loaded, [one]) for one in documents])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    first_chunks = logits_of(loaded, [replace(one, inputs=one.inputs[:1]) for one in documents])
    assert (together[0] - first_chunks[0]).abs().max() < 1e-4
    assert (together[1] - first_chunks[1]).abs().max() > 1e-4


def test_the_mean_is_that_of_the_first_tokens_states(tmp_path: Path) -> None:
    folder, documents = tiny_folder(tmp_path / "model"), examples(CHUNKED)
    stock, loaded = AutoModel.from_pretrained(folder).eval(), loaded_arm(folder, reads="chunks")
    with torch.inference_mode():
        states = [[stock(torch.tensor([one])).last_hidden_state[0, 0] for one in own.inputs] for own in documents]
        expected = torch.stack([loaded.model.classifier(torch.stack(own).mean(0)) for own in states])
    torch.testing.assert_close(logits_of(loaded, documents), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_order_of_chunks_matters_where_the_network_can_see_it(pooling: Pooling) -> None:
    torch.manual_seed(0)
    network, chunks = ChunkPooling(pooling, 16, 2).eval(), torch.randn(1, 4, 16)
    with torch.inference_mode():
        one, other = (network(states, torch.ones(1, 4, dtype=torch.bool)) for states in (chunks, chunks.flip(1)))
    assert one.shape == (1, 16)
    assert torch.allclose(one, other, atol=1e-5) == (pooling in ("mean", "attention"))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_chunks_are_pooled_in_half_precision_on_any_cpu(pooling: Pooling, half: torch.dtype) -> None:
    torch.manual_seed(0)
    network, chunks = ChunkPooling(pooling, 16, 2).eval(), torch.randn(2, 4, 16, requires_grad=True)
    is_chunk = torch.tensor([[True] * 4, [True] * 3 + [False]])
    exact = network(chunks, is_chunk)
    with torch.autocast("cpu", half):
        rounded = network(chunks, is_chunk)
        with torch.inference_mode():
            alone = network(chunks[:1], is_chunk[:1])  # a document without padding is computed by oneDNN
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.1)
    torch.testing.assert_close(alone.float(), exact[:1], rtol=0, atol=0.1)
    rounded.float().square().sum().backward()
    assert all(one.grad.isfinite().all() for one in (chunks, *network.parameters()))


def test_a_chunk_model_of_any_family_is_made(encoder: Path) -> None:
    loaded = loaded_arm(encoder, reads="chunks", pooling="attention")
    assert logits_of(loaded, examples(CHUNKED)).shape == (4, 3)


def test_the_seed_decides_the_head_of_a_chunk_model(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    one, same, other = (loaded_arm(folder, seed, reads="chunks").model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    differing = {name for name, value in one.items() if not torch.equal(value, other[name])}
    assert "classifier.weight" in differing
    assert all(name.startswith(("classifier", "pooling")) for name in differing)


def test_the_history_of_a_long_model_is_read(world) -> None:
    loaded = loaded_arm(world.long)
    assert isinstance(loaded.provenance, Provenance) and loaded.provenance.extension is not None
    assert isinstance(loaded.model, type(AutoModelForSequenceClassification.from_config(loaded.model.config)))
