"""What a trial makes of its settings: recipe, runtime, the length of inputs, the memory that documents take."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, FlaubertConfig, FlaubertModel

from longmlm.artifacts.run import TrainState
from longmlm.errors import ModelError
from longmlm.model.architecture import position_offset
from longmlm.model.classification import ClassificationObjective, load_classifier
from longmlm.model.cost import Work, cost_of, finetuning_cost
from longmlm.model.loading import load_model
from longmlm.settings.downstream import Arm, DownstreamTrialConfig, FinetuneRecipe, LabelledData, LabelledTask
from longmlm.settings.pretrain import PretrainRuntime
from longmlm.training.finetuning import check_longest_input, input_length, padding_token, recipe_of, runtime_of
from longmlm.training.optimizer import learning_rate
from tests.support.documents import random_examples
from tests.support.families import NUM_POSITIONS, tiny_config, tiny_tokenizer
from tests.support.tiny import tiny_folder

LIKE_ROBERTA = ("roberta", "roberta-prelayernorm", "xlm-roberta-xl", "data2vec-text", "xmod", "longformer")
KINDS = [("roberta", 1), ("roberta", 3), ("bert", 0), ("distilbert", 0), ("modernbert", 3), ("mpnet", 1)]


def folder_like_roberta(folder: Path, family: str) -> Path:
    """Writes a tiny encoder that longmlm does not extend, with the tokenizer of a RoBERTa, and returns the folder."""
    values = tiny_config("roberta", 1).to_dict()
    shape = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    own = {
        "xmod": {"languages": ("en",), "default_language": "en"},
        "longformer": {"attention_window": 4},
    }
    AutoModel.from_config(AutoConfig.for_model(family, **shape | own.get(family, {}))).save_pretrained(folder)
    tokenizer = tiny_tokenizer("roberta", 1)
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(folder)
    return folder


def trial(model: Path, **arm: object) -> DownstreamTrialConfig:
    return DownstreamTrialConfig(
        folder="trial",
        task=LabelledTask(kind="classification", data=LabelledData(files=("documents.jsonl",))),
        arm_name="mine",
        arm=Arm(model=str(model), **arm),
        learning_rate=1e-3,
        num_epochs=5,
        seed=9,
        fold=0,
        settings_sha256="0" * 64,
        documents_sha256="0" * 64,
        recipe=FinetuneRecipe(warmup_fraction=0.1),
        runtime=PretrainRuntime(),
    )


def test_the_rate_rises_in_the_share_of_warm_up_and_decays_over_all_epochs(tmp_path: Path) -> None:
    recipe = recipe_of(trial(tmp_path), steps_per_epoch=8)
    assert (recipe.num_steps, recipe.warmup_steps, recipe.seed) == (40, 4, 9)
    rates = [learning_rate(step, recipe) for step in range(40)]
    assert rates[0] == pytest.approx(2.5e-4) and max(rates) == rates[3] == rates[4] == 1e-3
    assert rates[4:] == sorted(rates[4:], reverse=True) and 0 < rates[-1] < 5e-5


def test_every_epoch_is_scored_and_saved(tmp_path: Path) -> None:
    runtime = runtime_of(trial(tmp_path), steps_per_epoch=8)
    assert (runtime.evaluate_every_steps, runtime.save_every_steps, runtime.stop_when_recovered) == (8, 8, False)


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_is_as_long_as_the_model_reads_unless_the_arm_says_less(kind: tuple[str, int], tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", *kind)
    loaded = load_classifier(Arm(model=str(folder)), ("a", "b"), False, 0)
    assert input_length(trial(folder), loaded.model, loaded.tokenizer) == NUM_POSITIONS
    assert input_length(trial(folder, length=9), loaded.model, loaded.tokenizer) == 9
    with pytest.raises(ModelError, match=f"reads {NUM_POSITIONS} tokens, but arms.mine.length is {NUM_POSITIONS + 1}"):
        input_length(trial(folder, length=NUM_POSITIONS + 1), loaded.model, loaded.tokenizer)


@pytest.mark.parametrize("family", LIKE_ROBERTA)
def test_positions_that_a_model_like_roberta_reserves_are_not_read(family: str, tmp_path: Path) -> None:
    folder = folder_like_roberta(tmp_path / "model", family)
    config = trial(folder)
    loaded = load_classifier(config.arm, ("a", "b"), False, 0)
    assert input_length(config, loaded.model, loaded.tokenizer) == NUM_POSITIONS
    objective, generator = ClassificationObjective(loaded.model), torch.get_rng_state()
    fitting, too_long = random_examples([[NUM_POSITIONS], [4]]), random_examples([[NUM_POSITIONS + 1], [4]])
    check_longest_input(config, objective, fitting, pad=1)
    assert torch.equal(torch.get_rng_state(), generator) and objective.training
    with pytest.raises(ModelError) as raised:
        check_longest_input(config, objective, too_long, pad=1)
    line = str(raised.value)
    assert line.startswith(f"{folder} fails on an input of {NUM_POSITIONS + 1} tokens: ") and "\n" not in line
    with pytest.raises(ModelError, match=rf"^{folder} fails on an input of {NUM_POSITIONS + 1} tokens: [^;]*$"):
        check_longest_input(config, ClassificationObjective(loaded.model, "bf16"), too_long, pad=1)


def test_a_model_that_fails_in_bf16_only_is_refused_with_the_remedy(tmp_path: Path) -> None:
    config = trial(tiny_folder(tmp_path / "model", "bert", 0))
    objective = ClassificationObjective(load_classifier(config.arm, ("a", "b"), False, 0).model, "bf16")

    def only_fp32(*_: object, **__: object) -> None:
        if torch.is_autocast_enabled("cpu"):
            raise TypeError("scatter(): Expected self.dtype to be equal to src.dtype")

    objective.model.register_forward_pre_hook(only_fp32, with_kwargs=True)
    objective.model.base_model.register_forward_pre_hook(only_fp32, with_kwargs=True)
    with pytest.raises(ModelError, match=r'src\.dtype; in fp32 it does not: set precision = "no" in \[recipe\]$'):
        check_longest_input(config, objective, random_examples([[9], [4]]), pad=0)


def test_a_word_embedding_with_padding_reserves_no_position() -> None:
    config = FlaubertConfig(vocab_size=300, emb_dim=32, n_layers=1, n_heads=2, max_position_embeddings=16, pad_index=2)
    encoder = FlaubertModel(config)
    assert encoder.embeddings.padding_idx == 2
    assert position_offset(encoder) == 0


def test_a_model_with_a_word_embedding_of_its_own_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = folder_like_roberta(tmp_path / "model", "ibert")
    with pytest.raises(ModelError, match=f"^{folder} cannot be loaded: .*QuantEmbedding"):
        load_classifier(Arm(model=str(folder)), ("a", "b"), False, 0)


def test_a_model_that_does_not_say_how_much_it_reads_needs_a_length(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", "bert", 0)
    loaded = load_classifier(Arm(model=str(folder)), ("a", "b"), False, 0)
    loaded.model.config.max_position_embeddings = 0  # as a model with relative positions may have
    loaded.tokenizer.model_max_length = 10**30
    with pytest.raises(ModelError, match="set arms.mine.length"):
        input_length(trial(folder), loaded.model, loaded.tokenizer)
    assert input_length(trial(folder, length=64), loaded.model, loaded.tokenizer) == 64


def test_a_tokenizer_without_padding_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", "bert", 0)
    tokenizer = load_classifier(Arm(model=str(folder)), ("a", "b"), False, 0).tokenizer
    assert padding_token(trial(folder), tokenizer) == 0
    tokenizer.pad_token = None
    with pytest.raises(ModelError, match="has no padding token"):
        padding_token(trial(folder), tokenizer)


@pytest.mark.parametrize("kind", [*KINDS, ("albert", 0)])
def test_a_document_takes_the_memory_of_a_row_without_its_logits(kind: tuple[str, int], tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", *kind)
    work = Work(row_length=NUM_POSITIONS, selected_fraction=0.0, is_half=False, has_gpu=False)
    row = cost_of(load_model(str(folder)).model, work)
    classifier = load_classifier(Arm(model=str(folder)), ("a", "b"), False, 0).model
    document = finetuning_cost(classifier, work, NUM_POSITIONS)
    assert document.row_bytes == row.row_bytes and document.evaluation_row_bytes == row.evaluation_row_bytes
    assert document.flop_per_token == pytest.approx(row.flop_per_token, rel=0.1)  # a pooler reads one token only
    chunked = finetuning_cost(classifier, work, 5 * NUM_POSITIONS)
    assert chunked.row_bytes == pytest.approx(5 * row.row_bytes, abs=5)
    recomputed = finetuning_cost(classifier, replace(work, is_checkpointed=True), NUM_POSITIONS)
    assert recomputed.row_bytes < document.row_bytes
    ClassificationObjective(classifier, is_frozen=True)
    frozen = finetuning_cost(classifier, work, NUM_POSITIONS)
    assert frozen.row_bytes == document.evaluation_row_bytes < document.row_bytes
    assert frozen.state_bytes < document.state_bytes / 5


def test_the_best_accuracy_is_the_first_of_equals_after_an_update() -> None:
    state = TrainState().after_evaluation(90.0)
    assert state.best_at_step is None
    for accuracy, best in ((40.0, 1), (None, 1), (60.0, 3), (60.0, 3), (50.0, 3)):
        state = state.after_update(1, 1, 1.0).after_evaluation(accuracy)
        assert state.best_at_step == best
    assert state.best_accuracy == 60.0
