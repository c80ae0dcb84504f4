"""Heads that classify documents: transformers' own on every family, and those over chunks."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from longmlm.artifacts.provenance import Provenance
from longmlm.batches.tasks import collate_examples, documents_of
from longmlm.errors import ModelError
from longmlm.model.architecture import set_dropout
from longmlm.model.carried import Carried
from longmlm.model.classification import ClassificationObjective, load_classifier
from longmlm.model.families import LEARNED_FAMILIES
from longmlm.model.saving import save_model
from longmlm.settings.downstream import Arm, Pooling
from tests.support.documents import random_examples
from tests.support.tiny import tiny_folder

LABELS = ("animal", "mineral", "plant")
SINGLE = [[5], [14], [9], [3]]
CHUNKED = [[5], [14, 9, 3], [9], [3, 12]]
POOLINGS = get_args(Pooling)


@pytest.fixture(scope="session")
def encoder(any_kind: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pretrained model of any family, which no test may change."""
    return tiny_folder(tmp_path_factory.mktemp("encoder") / "model", *any_kind)


def classifier(folder: Path, arm: Arm, is_multilabel: bool = False, seed: int = 0, keeps_head: bool = False):
    return load_classifier(replace(arm, model=str(folder)), LABELS, is_multilabel, seed, keeps_head)


def pad_of(loaded) -> int | None:
    objective = ClassificationObjective(loaded.model)
    return None if objective.reads_packed_batches else loaded.tokenizer.pad_token_id


def logits_of(loaded, lengths: list[list[int]], **options: object) -> torch.Tensor:
    objective = ClassificationObjective(loaded.model, **options).eval()
    with torch.inference_mode():
        return objective.logits(collate_examples(random_examples(lengths), pad_of(loaded)))


def test_logits_equal_those_of_the_stock_model_on_padded_inputs(any_kind, encoder: Path, tmp_path: Path) -> None:
    loaded = classifier(encoder, Arm(reads="first"))
    assert (pad_of(loaded) is None) == (any_kind[0] in LEARNED_FAMILIES)
    save_model(loaded.model, loaded.tokenizer, Carried(), tmp_path)
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert stock.config.id2label == dict(enumerate(LABELS)) and stock.config.label2id["plant"] == 2
    padded = collate_examples(random_examples(SINGLE), loaded.tokenizer.pad_token_id)
    with torch.inference_mode():
        expected = stock(input_ids=padded.input_ids, attention_mask=padded.attention_mask.long()).logits
    assert expected.std() > 1e-3
    torch.testing.assert_close(logits_of(loaded, SINGLE), expected, rtol=1e-4, atol=1e-5)


def test_a_trained_head_is_replaced_unless_the_trial_has_trained_it(encoder: Path, tmp_path: Path) -> None:
    trained = classifier(encoder, Arm(reads="first"), seed=5)
    assert not any("head" in note for note in trained.notes)
    save_model(trained.model, trained.tokenizer, Carried(), tmp_path)
    kept = classifier(tmp_path, Arm(reads="first"), seed=7, keeps_head=True)
    torch.testing.assert_close(kept.model.state_dict(), trained.model.state_dict(), rtol=0, atol=0)
    renewed, again = (classifier(tmp_path, Arm(reads="first"), seed=7) for _ in range(2))
    assert renewed.notes[-1] == f"{tmp_path} has a trained head: it is replaced by a new one"
    torch.testing.assert_close(renewed.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)
    before, after = trained.model.state_dict(), renewed.model.state_dict()
    outputs = [name for name, value in before.items() if value.ndim == 2 and len(value) == len(LABELS)]
    assert len(outputs) == 1 and not torch.equal(before[outputs[0]], after[outputs[0]])
    for name in trained.model.base_model.state_dict():
        full = name if name in before else f"{trained.model.base_model_prefix}.{name}"
        is_pooler = "pooler." in name and before[full].ndim > 1
        assert torch.equal(before[full], after[full]) != is_pooler, name


def test_gradients_equal_those_of_the_stock_model(any_kind, encoder: Path) -> None:
    loaded = classifier(encoder, Arm(reads="first"))
    set_dropout(loaded.model, 0.0)
    objective, examples = ClassificationObjective(loaded.model).train(), random_examples(SINGLE)
    loss, num_correct = objective(collate_examples(examples, pad_of(loaded)))
    loss.backward()
    own = {name: value.grad for name, value in loaded.model.named_parameters() if value.grad is not None}
    loaded.model.zero_grad()
    padded = collate_examples(examples, loaded.tokenizer.pad_token_id)
    output = loaded.model(
        input_ids=padded.input_ids, attention_mask=padded.attention_mask.long(), labels=padded.targets
    )
    (len(SINGLE) * output.loss).backward()
    assert loss.item() == pytest.approx(len(SINGLE) * output.loss.item(), rel=1e-5)
    assert int(num_correct) == int((output.logits.argmax(-1) == padded.targets).sum())
    stock = {name: value.grad for name, value in loaded.model.named_parameters() if value.grad is not None}
    assert own.keys() == stock.keys() and len(own) > (15 if any_kind[0] == "modernbert" else 20)
    for name, value in own.items():
        torch.testing.assert_close(value, stock[name], rtol=1e-3, atol=1e-5)


def test_the_encoder_is_the_pretrained_one_and_the_seed_decides_the_head(encoder: Path) -> None:
    one, same, other = (classifier(encoder, Arm(), seed=seed).model for seed in (0, 0, 1))
    base = AutoModel.from_pretrained(encoder)
    pooled = {name for name, _ in base.named_parameters() if name.startswith("pooler.")}
    for name, value in base.named_parameters():
        if name not in pooled:
            assert torch.equal(value, one.base_model.get_parameter(name)), name
    differing = set()
    for name, value in one.named_parameters():
        assert torch.equal(value, same.get_parameter(name)), name
        if not torch.equal(value, other.get_parameter(name)):
            differing.add(name)
    prefix = f"{one.base_model_prefix}."
    assert differing and all(not name.startswith(prefix) or ".pooler." in name for name in differing)


def test_a_checkpoint_with_missing_or_misshapen_encoder_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layer.1.output.dense.weight"))
    for changed, problem in (({}, "is missing"), ({name: weights[name][:3].clone()}, "shape")):
        kept = {key: value for key, value in weights.items() if key != name}
        save_file({**kept, **changed}, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=f"layer.1.output.dense.weight .*{problem}"):
            classifier(folder, Arm())
        with pytest.raises(ModelError, match=problem):
            classifier(folder, Arm(model="encoder", reads="chunks"))


def test_with_several_labels_the_loss_is_the_mean_binary_cross_entropy_of_each_document(tmp_path: Path) -> None:
    loaded = classifier(tiny_folder(tmp_path / "model"), Arm(), is_multilabel=True)
    objective = ClassificationObjective(loaded.model).eval()
    batch = collate_examples(random_examples(SINGLE, is_multilabel=True), None)
    with torch.inference_mode():
        logits, (loss, num_correct) = objective.logits(batch), objective(batch)
        outputs = np.stack(objective.outputs(batch))
    chances = 1 / (1 + np.exp(-logits.double().numpy()))
    targets = batch.targets.numpy()
    expected = -(targets * np.log(chances) + (1 - targets) * np.log(1 - chances)).mean(axis=1).sum()
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert int(num_correct) == ((chances > 0.5) == targets).all(axis=1).sum()
    assert outputs == pytest.approx(chances, rel=1e-4)
    assert loaded.model.config.problem_type == "multi_label_classification"


def test_probabilities_of_one_label_add_up_to_one(tmp_path: Path) -> None:
    objective = ClassificationObjective(classifier(tiny_folder(tmp_path / "model"), Arm()).model).eval()
    with torch.inference_mode():
        outputs = objective.outputs(collate_examples(random_examples(SINGLE), None))
    assert len(outputs) == len(SINGLE) and np.stack(outputs).sum(axis=1) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_chunk_logits_depend_on_the_chunks_of_the_document_alone(pooling: Pooling, tmp_path: Path) -> None:
    arm = Arm(model="encoder", reads="chunks", pooling=pooling)
    loaded = classifier(tiny_folder(tmp_path / "model"), arm)
    together = logits_of(loaded, CHUNKED)
    objective = ClassificationObjective(loaded.model).eval()
    with torch.inference_mode():
        batch = collate_examples(random_examples(CHUNKED), None)
        alone = torch.cat([objective.logits(document) for document in documents_of(batch)])
        padded = objective.logits(collate_examples(random_examples(CHUNKED), loaded.tokenizer.pad_token_id))
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together, padded, rtol=1e-4, atol=1e-5)
    first_chunks = logits_of(loaded, [[lengths[0]] for lengths in CHUNKED])
    assert (together[0] - first_chunks[0]).abs().max() < 1e-4
    assert (together[1] - first_chunks[1]).abs().max() > 1e-4


def test_mean_and_maximum_are_those_of_the_first_tokens_states(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    stock, examples = AutoModel.from_pretrained(folder).eval(), random_examples(CHUNKED)
    with torch.inference_mode():
        states = [
            torch.cat([stock(torch.from_numpy(tokens)[None]).last_hidden_state[:, 0] for tokens in example.inputs])
            for example in examples
        ]
        for pooling, pooled in (("mean", torch.Tensor.mean), ("max", torch.Tensor.amax)):
            loaded = classifier(folder, Arm(model="encoder", reads="chunks", pooling=pooling))
            head = loaded.model.classifier
            expected = torch.stack([head(pooled(own, 0)) for own in states])
            torch.testing.assert_close(logits_of(loaded, CHUNKED), expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_chunks_matters_where_the_network_can_see_it(tmp_path: Path) -> None:
    folder, examples = tiny_folder(tmp_path / "model"), random_examples([[9, 4, 7, 12]])
    turned = (replace(examples[0], inputs=examples[0].inputs[::-1]),)
    for pooling in POOLINGS:
        objective = ClassificationObjective(
            classifier(folder, Arm(model="encoder", reads="chunks", pooling=pooling)).model
        ).eval()
        with torch.inference_mode():
            one, other = (objective.logits(collate_examples(own, None)) for own in (examples, turned))
        assert torch.allclose(one, other, atol=1e-5) == (pooling in ("mean", "max", "attention")), pooling


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_chunk_model_of_any_family_is_saved_and_loaded(encoder: Path, pooling: Pooling, tmp_path: Path) -> None:
    arm = Arm(model="encoder", reads="chunks", pooling=pooling)
    loaded = classifier(encoder, arm, seed=3)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(1.01)
    before = logits_of(loaded, CHUNKED)
    save_model(loaded.model, loaded.tokenizer, Carried(), tmp_path / "saved")
    again = classifier(tmp_path / "saved", arm, keeps_head=True)
    assert again.model.state_dict().keys() == loaded.model.state_dict().keys()
    torch.testing.assert_close(logits_of(again, CHUNKED), before)  # an LSTM computes in another order once loaded
    assert before.shape == (4, 3) and before.std() > 1e-3


@pytest.mark.parametrize("reads", ["first", "chunks"])
def test_only_the_head_of_a_frozen_model_is_trained_and_its_vectors_are_computed_once(
    encoder: Path, any_kind, reads: str
) -> None:
    arm = Arm(model=str(encoder), reads=reads, frozen=True)
    loaded = classifier(encoder, arm)
    objective = ClassificationObjective(loaded.model, is_frozen=True).train()
    objective.cached = {}
    has_vectors = reads == "chunks" or any_kind[0] in LEARNED_FAMILIES
    calls = []
    loaded.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    batch = collate_examples(random_examples(SINGLE if reads == "first" else CHUNKED), pad_of(loaded))
    losses = [objective(batch)[0] for _ in range(2)]
    losses[0].backward()
    trained = {name for name, value in loaded.model.named_parameters() if value.grad is not None}
    prefix = f"{loaded.model.base_model_prefix}."
    assert trained and all(not name.startswith(prefix) or ".pooler." in name for name in trained)
    assert len(calls) == (len(SINGLE) if has_vectors else 2)
    assert not any(module.training for module in objective.encoder.modules())
    if has_vectors:
        assert torch.equal(objective.vectors(batch), objective.vectors(batch))
        tuned = ClassificationObjective(loaded.model)
        tuned.eval()
        torch.testing.assert_close(objective.vectors(batch), tuned.vectors(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_a_frozen_model_encodes_the_documents_of_a_batch_together_in_prediction(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", family, {"roberta": 1, "modernbert": 3}[family])
    loaded = classifier(folder, Arm(model="encoder", reads="chunks"))
    objective = ClassificationObjective(loaded.model, is_frozen=True).eval()
    calls = []
    loaded.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    batch = collate_examples(random_examples(CHUNKED), pad_of(loaded))
    with torch.inference_mode():
        outputs = objective.outputs(batch)
        assert len(calls) == 1
        expected = ClassificationObjective(loaded.model).eval().outputs(batch)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4)
    objective.cached = {}
    with torch.inference_mode():
        objective.outputs(batch)
    calls.clear()
    objective.train()(batch).loss_sum.backward()  # on vectors that were computed in inference mode
    assert loaded.model.classifier.weight.grad is not None
    for document in documents_of(batch):
        np.testing.assert_allclose(objective.vectors(document), objective.eval().vectors(document))
    assert not calls


def test_dropout_acts_on_every_part_of_a_chunk_model(tmp_path: Path) -> None:
    loaded = classifier(tiny_folder(tmp_path / "model"), Arm(model="encoder", reads="chunks", pooling="attention"))
    batch = collate_examples(random_examples(CHUNKED), None)
    objective = ClassificationObjective(loaded.model).train()
    torch.manual_seed(0)
    assert not torch.equal(objective.logits(batch), objective.logits(batch))
    set_dropout(loaded.model, 0.0)
    assert torch.equal(objective.logits(batch), objective.logits(batch))


def test_the_history_of_a_long_model_is_read(world) -> None:
    loaded = classifier(world.long, Arm())
    assert loaded.provenance.extension is not None
    assert loaded.provenance_of_run("long").started_from.name == "long"
    assert (world.long / Provenance.FILE).is_file()
