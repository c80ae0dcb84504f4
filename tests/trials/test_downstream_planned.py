"""What the trials of the downstream command read: models and documents as they are when it starts."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.data.labelled import LabelledCorpus, LabelledDocument
from longmlm.errors import ModelError
from longmlm.hubs.models import model_sha256
from longmlm.inputs import check_inputs
from longmlm.settings.downstream import Arm, DownstreamConfig, FinetuneRuntime, LabelledData, LabelledTask, TaskKind
from longmlm.settings.shipped import PACKAGE
from longmlm.training import run_folder
from longmlm.trials.downstream_planned import combinations, difference, inputs_of, planned_trial, seeds_and_folds
from tests.support.tiny import tiny_folder

DOCUMENTS_FILE = str(PACKAGE / "bundled" / "text" / "demo.jsonl")
MINI = str(PACKAGE / "bundled" / "roberta-mini")
DOCUMENTS = tuple(LabelledDocument(id=name, text=f"text {name}", labels=(name,)) for name in "ab")
CORPUS = LabelledCorpus(DOCUMENTS, ("a", "b"), is_multilabel=False, set_aside=())


def config_of(**arms: Arm) -> DownstreamConfig:
    return DownstreamConfig(
        output="out",
        task=LabelledTask(kind="classification", data=LabelledData(files=(DOCUMENTS_FILE,))),
        arms=arms,
    )


def sha256_of(config: DownstreamConfig, corpus: LabelledCorpus = CORPUS) -> str:
    values = {"learning_rate": 2e-5, "num_epochs": 4}
    return planned_trial(config, inputs_of(config, corpus), "a", values, (42, 0)).settings_sha256


def test_a_result_depends_on_texts_labels_and_weights(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny_folder(model)
    config = config_of(a=Arm(model=str(model)))
    before = sha256_of(config)
    assert sha256_of(config) == before
    relabelled = (replace(DOCUMENTS[0], labels=("b",)), DOCUMENTS[1])
    assert sha256_of(config, replace(CORPUS, documents=relabelled)) != before
    shutil.copy(Path(MINI) / "model.safetensors", model / "model.safetensors")
    assert sha256_of(config) != before


@pytest.mark.parametrize(
    "name", ["config.json", "longmlm.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "spiece.model"]
)
def test_a_result_depends_on_architecture_and_tokenizer(tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    tiny_folder(model)
    config = config_of(a=Arm(model=str(model)))
    before = sha256_of(config)
    (model / "README.md").write_text("a card", encoding="utf-8")
    assert sha256_of(config) == before
    with (model / name).open("a", encoding="utf-8") as file:
        file.write(" ")
    assert sha256_of(config) != before


def test_micro_batches_matter_to_a_tuned_similarity_arm_alone() -> None:
    def changes(kind: TaskKind, arm: Arm, values: dict[str, object]) -> bool:
        config = replace(config_of(a=arm), task=LabelledTask(kind=kind, data=LabelledData(files=("docs.jsonl",))))
        other = replace(config, runtime=FinetuneRuntime(rows_per_micro_batch=2))
        first, second = (planned_trial(one, inputs_of(one, CORPUS), "a", values, (42, 0)) for one in (config, other))
        assert (difference(first, second) == "other settings of rows_per_micro_batch") == (
            first.settings_sha256 != second.settings_sha256
        )
        return first.settings_sha256 != second.settings_sha256

    values = {"learning_rate": 2e-5, "num_epochs": 4}
    assert changes("similarity", Arm(model=MINI), values)
    assert not changes("similarity", Arm(model=MINI, frozen=True), {})
    assert not changes("classification", Arm(model=MINI), values)


def test_frozen_arms_have_rates_and_epochs_of_their_own() -> None:
    config = config_of(a=Arm(model=MINI), b=Arm(model=MINI, frozen=True))
    tuned, frozen = ([tuple(values.values()) for values in combinations(config, arm)] for arm in "ab")
    assert (tuned, frozen) == ([(2e-5, 4), (5e-5, 4)], [(1e-3, 30), (5e-3, 30)])
    longer = replace(config, recipe=replace(config.recipe, frozen_num_epochs=(60,)))
    assert sha256_of(longer) == sha256_of(config)


def test_frozen_arms_share_vectors_if_the_same_encoder_reads_the_same() -> None:
    def file_of(config: DownstreamConfig, fold: int = 0, values: dict[str, object] | None = None) -> str | None:
        values = {"learning_rate": 2e-5, "num_epochs": 4} if values is None else values
        return planned_trial(config, inputs_of(config, CORPUS), "a", values, (42, fold)).vectors

    frozen = Arm(model=MINI, reads="chunks", frozen=True)
    config = config_of(a=frozen)
    file = file_of(config)
    assert file and Path(file).parent == Path("out/downstream/vectors")
    assert file_of(config, fold=1) == file_of(config_of(a=replace(frozen, pooling="lstm"))) == file
    others = (replace(frozen, reads="first"), replace(frozen, length=64))
    assert len({file, *(file_of(config_of(a=arm)) for arm in others)}) == 3
    fp32 = replace(config, recipe=replace(config.recipe, precision="no"))
    assert file_of(fp32) not in (file, None)
    assert file_of(config_of(a=replace(frozen, frozen=False))) is None
    similarity = replace(config, task=replace(config.task, kind="similarity"))
    assert file_of(similarity, values={}) is None


def test_only_the_first_trials_of_an_arm_that_shares_vectors_time_prediction() -> None:
    config = config_of(tuned=Arm(model=MINI), frozen=Arm(model=MINI, frozen=True))
    config = replace(config, task=replace(config.task, num_folds=3))
    inputs, values = inputs_of(config, CORPUS), {"learning_rate": 2e-5, "num_epochs": 4}
    first, *others = seeds_and_folds(config)
    for arm in ("tuned", "frozen"):
        assert planned_trial(config, inputs, arm, values, first).times_prediction
        assert {planned_trial(config, inputs, arm, values, one).times_prediction for one in others} == {arm == "tuned"}


def test_other_arms_and_values_do_not_matter_to_a_result() -> None:
    config = config_of(a=Arm(model=MINI))
    more = config_of(a=Arm(model=MINI), b=Arm())
    recipe = replace(more.recipe, learning_rate=(1.0, 2.0), num_epochs=(7,), seeds=(42, 43))
    assert sha256_of(replace(more, recipe=recipe)) == sha256_of(config)


def test_a_length_beyond_the_model_is_refused_before_any_trial() -> None:
    with pytest.raises(ModelError, match=r"has 130 positions, but arms\.long\.length is 512: lower it, or extend"):
        inputs_of(config_of(long=Arm(model=MINI, length=512)), CORPUS)
    with pytest.raises(ModelError, match=r"arms\.ends .* needs more than 130 positions, but .* 130"):
        inputs_of(config_of(ends=Arm(model=MINI, reads="head-tail")), CORPUS)
    assert inputs_of(config_of(long=Arm(model=MINI, length=128)), CORPUS).models_sha256.keys() == {"long"}


def test_the_best_checkpoint_of_a_run_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-00000002"
    tiny_folder(checkpoint)
    monkeypatch.setattr(run_folder, "best_checkpoint", {run: checkpoint}.get)
    config = config_of(a=Arm(model=str(run)))
    check_inputs(config)
    inputs = inputs_of(config, CORPUS)
    assert inputs.arms["a"].model == str(checkpoint)
    assert inputs.models_sha256["a"] == model_sha256(checkpoint)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    shutil.copy(Path(MINI) / "config.json", tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"nor a folder with model\.safetensors"):
        inputs_of(config_of(a=Arm(model=str(tmp_path))), CORPUS)
