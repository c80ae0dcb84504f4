"""What is checked before a stage starts: only what it still needs, with the errors that the stage itself raises."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from longmlm import cli, inputs
from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.config import parse, resolved_pipeline
from longmlm.data import words
from longmlm.errors import ConfigError, DataError, ModelError, ModelNotFoundError, TrainingError
from longmlm.folders import write_json
from longmlm.inputs import check_inputs
from longmlm.model.loading import load_model
from longmlm.processes import LAUNCHED, MPI
from longmlm.settings.masking import Masking
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, Start
from longmlm.settings.tables import Table, merged
from longmlm.training.run_folder import checkpoint_folder
from tests.support.launching import SECOND_OF_TWO, launch_as_second_of_two
from tests.support.rows import FILES, manifest_of
from tests.support.tiny import tiny_extension

BUNDLED = Path(cli.__file__).parent / "bundled"
MINI, DEMO = str(BUNDLED / "roberta-mini"), BUNDLED / "text" / "demo.jsonl"


@pytest.fixture
def pretrain(tmp_path: Path) -> PretrainConfig:
    (tmp_path / "rows").mkdir()
    write_json(tmp_path / "rows" / "manifest.json", {**manifest_of(128), "files": FILES})
    return PretrainConfig(
        rows=str(tmp_path / "rows"),
        run=str(tmp_path / "run"),
        start=Start(checkpoint=str(tmp_path / "gone")),
        recipe=PretrainRecipe(num_steps=1, batch_tokens=4096, learning_rate=1e-4),
    )


def pipeline(folder: Path, model: str, corpus: Path, more: Table | None = None) -> ResolvedPipeline:
    base = {"model": model, "corpus": [str(corpus)], "length": 1024, "output": str(folder / "out")}
    return resolved_pipeline({**base, **(more or {})})


def test_a_run_that_resumes_does_not_need_the_model_that_it_started_from(pretrain: PretrainConfig) -> None:
    with pytest.raises(ModelNotFoundError, match="gone"):
        check_inputs(pretrain)
    check_inputs(replace(pretrain, start=Start(checkpoint=MINI)))
    checkpoint_folder(Path(pretrain.run), 1).mkdir(parents=True)
    check_inputs(pretrain)


def test_documents_that_cannot_be_isolated_are_refused_before_training(
    pretrain: PretrainConfig, tmp_path: Path
) -> None:
    base = tmp_path / "deberta"
    base.mkdir()
    write_json(
        base / "config.json", {"model_type": "deberta-v2", "max_position_embeddings": 512, "conv_kernel_size": 3}
    )
    (base / "model.safetensors").touch()
    started = replace(pretrain, start=Start(checkpoint=str(base)))
    check_inputs(started)
    isolated = replace(started, recipe=replace(pretrain.recipe, isolate_documents=True))
    with pytest.raises(ModelError, match="deberta mixes neighbouring tokens in a convolution.*: remove recipe.isolate"):
        check_inputs(isolated)
    check_inputs(replace(isolated, start=Start(checkpoint=MINI)))
    manifest = json.loads((Path(pretrain.rows) / "manifest.json").read_bytes())
    manifest["plan"]["packing"] = "doc-sentences"
    write_json(Path(pretrain.rows) / "manifest.json", manifest)
    with pytest.raises(DataError, match="isolate_documents has no effect, since every row .* has one document"):
        check_inputs(replace(isolated, start=Start(checkpoint=MINI)))


def test_a_pipeline_needs_what_its_unfinished_stages_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("check_model", "config_of_model"):
        monkeypatch.setattr(inputs, check, lambda name, *_: checked.append(name))
    checked: list[str] = []
    corpus = tmp_path / "text.jsonl"
    config = pipeline(tmp_path, MINI, corpus)
    with pytest.raises(DataError, match="text.jsonl"):
        check_inputs(config)
    shutil.copy(DEMO, corpus)
    check_inputs(config)
    assert set(checked) == {MINI}
    for stage in ("long", "rows", "evaluation"):
        (tmp_path / "out" / stage).mkdir(parents=True)
    corpus.unlink()
    checked.clear()
    check_inputs(config)
    assert checked == []


@pytest.mark.parametrize("output", ["mine", "./mine", "mine/"])
def test_what_a_stage_makes_need_not_exist_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    base = {"model": MINI, "corpus": [str(DEMO)], "length": 1024, "output": "out", "extend": {"output": output}}
    check_inputs(resolved_pipeline(base))


@pytest.mark.parametrize(("is_second", "is_checked"), [(False, True), (True, False)])
def test_one_process_of_a_machine_checks(
    pretrain: PretrainConfig, monkeypatch: pytest.MonkeyPatch, is_second: bool, is_checked: bool
) -> None:
    checked = []
    if is_second:
        launch_as_second_of_two(monkeypatch)
    monkeypatch.setattr(cli, "parse", lambda *_: pretrain)
    monkeypatch.setattr(cli, "_run", lambda *_: None)
    monkeypatch.setattr(inputs, "check_inputs", checked.append)
    monkeypatch.setattr("sys.argv", ["longmlm", "pretrain"])
    cli.main()
    assert checked == [pretrain] * is_checked


def test_a_folder_without_config_or_weights_has_the_same_error_in_the_check_and_in_the_stage(
    tmp_path: Path, pretrain: PretrainConfig
) -> None:
    (tmp_path / "gone").mkdir()
    for missing in ("config.json", "model.safetensors"):
        with pytest.raises(ModelError) as early:
            check_inputs(pretrain)
        with pytest.raises(ModelError) as late:
            load_model(str(tmp_path / "gone"))
        assert str(early.value) == str(late.value)
        assert missing in str(late.value)
        (tmp_path / "gone" / missing).write_text('{"model_type": "bert"}')
    check_inputs(pretrain)
    (tmp_path / "gone" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json has no model_type"):
        check_inputs(pretrain)


def test_training_starts_from_a_checkpoint_of_the_same_model_and_length_only(tmp_path: Path) -> None:
    def config(start: Path | str):
        return merged(tables, {"pretrain": {"start": {"checkpoint": str(start)}}})

    tables = {"model": MINI, "corpus": [str(DEMO)], "length": 1024, "output": str(tmp_path / "out")}
    extension = tiny_extension(MINI, 1024)
    folders = {
        "run/checkpoints/step-00000002": Provenance(extension=extension),
        "shorter": Provenance(extension=replace(extension, num_positions=512)),
        "of-another": Provenance(extension=replace(extension, base=ModelSource(name=str(tmp_path)))),
        "plain": Provenance(),
    }
    for name, about in folders.items():
        shutil.copytree(MINI, tmp_path / name)
        architecture = tmp_path / name / "config.json"
        write_json(architecture, json.loads(architecture.read_text()) | {"max_position_embeddings": 1026})
        artifact.write(tmp_path / name / Provenance.FILE, about)
    for name in ("run", "run/checkpoints/step-00000002"):
        check_inputs(resolved_pipeline(config(tmp_path / name)))
    for name in ("shorter", "of-another", "plain", MINI, "owner/name"):
        with pytest.raises(ConfigError, match=r"pretrain\.start\.checkpoint is .* model = .*roberta-mini"):
            check_inputs(resolved_pipeline(config(name if "/" in name else tmp_path / name)))


def test_a_pipeline_is_planned_without_the_weights_that_it_needs_to_run(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(MINI, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    options = ["--model", str(folder), "--corpus", str(DEMO), "--length", "1024", "--output", str(tmp_path / "out")]
    check_inputs(parse(PlanConfig, options))
    with pytest.raises(ModelError, match="model.safetensors"):
        check_inputs(pipeline(tmp_path, str(folder), DEMO))


def test_a_small_corpus_is_read_before_the_stage_and_a_large_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("Only one document.\n")
    config = pipeline(tmp_path, MINI, corpus)
    with pytest.raises(DataError, match="only one document"):
        check_inputs(config)
    with pytest.raises(DataError, match="only one document"):
        check_inputs(config.prepare)
    monkeypatch.setattr(inputs, "QUICKLY_READ_BYTES", 10)
    check_inputs(config)
    check_inputs(config.prepare)


def test_words_are_not_masked_with_a_tokenizer_that_does_not_tell_them(
    tmp_path: Path, pretrain: PretrainConfig
) -> None:
    folder = tmp_path / "gone"
    shutil.copytree(MINI, folder)
    levels = Tokenizer(WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    levels.pre_tokenizer = Whitespace()
    levels.save(str(folder / "tokenizer.json"))
    check_inputs(pretrain)
    for unit in ("word", "span"):
        by_unit = replace(pretrain, recipe=replace(pretrain.recipe, masking=Masking(unit=unit)))
        with pytest.raises(DataError, match="gone: its tokens do not show where a word starts"):
            check_inputs(by_unit)
        check_inputs(replace(by_unit, start=Start(checkpoint=MINI)))
        with pytest.raises(DataError, match="gone: its tokens do not show"):
            check_inputs(pipeline(tmp_path, str(folder), DEMO, {"pretrain": {"recipe": {"masking": {"unit": unit}}}}))


def test_rjieba_is_needed_until_the_rows_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "find_spec", lambda _: None)
    config = pipeline(tmp_path, MINI, DEMO, {"language": "zh", "prepare": {"recipe": {"words": "rjieba"}}})
    for stage in (config, config.prepare):
        with pytest.raises(DataError, match=r"pip install 'longmlm\[words\]'"):
            check_inputs(stage)
    (tmp_path / "out" / "rows").mkdir(parents=True)
    check_inputs(config.prepare)


@pytest.mark.parametrize(
    ("variables", "required", "is_refused"),
    [
        ({}, 1, False),
        ({}, 2, True),
        (SECOND_OF_TWO, 2, False),
        (SECOND_OF_TWO, None, False),
        (SECOND_OF_TWO, 1, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "MASTER_ADDR": "localhost"}, 2, False),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, 2, True),
    ],
)
def test_processes_are_counted_where_the_environment_tells(
    pretrain: PretrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    required: int | None,
    is_refused: bool,
) -> None:
    for name in (*LAUNCHED, *MPI):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    runtime = replace(pretrain.runtime, num_processes=required)
    config = replace(pretrain, runtime=runtime, start=Start(checkpoint=MINI))
    with pytest.raises(TrainingError, match="num_processes") if is_refused else nullcontext():
        check_inputs(config)
