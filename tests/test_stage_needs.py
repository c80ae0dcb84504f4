"""A stage that is started by itself needs what it still reads, and is refused with the error that it would raise."""

import json
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from longmlm import cli, needs, pipeline_needs
from longmlm.config import parse
from longmlm.data import words
from longmlm.errors import ModelError, UserError
from longmlm.folders import write_json
from longmlm.model.loading import load_model
from longmlm.needs import check_inputs
from longmlm.processes import LAUNCHED, MPI
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.stages.checkpoints import checkpoints
from longmlm.training.run_folder import checkpoint_folder, evaluations_of
from tests.support.launching import SECOND_OF_TWO, launch_as_second_of_two
from tests.support.rows import FILES, manifest_of
from tests.support.tiny import LONG_POSITIONS, tiny_folder

PIPELINE = f'model = "base"\ncorpus = ["text.jsonl"]\nlength = {LONG_POSITIONS}\noutput = "out"\n'
ISOLATED, WORDS, SPANS = "--recipe.isolate-documents", "--recipe.masking.unit word", "--recipe.masking.unit span"
EVALUATED = "--long-after out/long --run run"
NO_FOLDER = "no such folder in out: check its path, or run the stage"
REFUSED = (  # a command, options, and two texts in the line with which it is refused
    (PretrainConfig, "--rows gone", "gone: no such folder", "run longmlm prepare first"),
    (ReleaseConfig, "--rows gone --model out/long", "gone: no such folder", "run longmlm prepare first"),
    (EvaluateConfig, f"--rows gone {EVALUATED}", "gone: no such folder", "run longmlm prepare first"),
    (EvaluateConfig, "", "out/run: no such folder", "run longmlm pretrain first"),
    (ReleaseConfig, "", "out/run: no such folder", "run longmlm pretrain first"),
    (CheckpointsConfig, "", "out/run: no such folder", "run longmlm pretrain first"),
    (PrepareConfig, "--recipe.tokenizer out/gone --output new", "out/gone", NO_FOLDER),  # as add_tokens sets it
    (PretrainConfig, "--start.checkpoint out/gone", "out/gone", NO_FOLDER),
    (EvaluateConfig, "--long-before out/gone", "out/gone", NO_FOLDER),
    (EvaluateConfig, f"--base gone {EVALUATED}", "gone", "no such folder"),
    (EvaluateConfig, f"--long-before base {EVALUATED}", f"have {LONG_POSITIONS} tokens", "base reads 16"),
    (PretrainConfig, "--start.checkpoint base", f"have {LONG_POSITIONS} tokens", "base reads 16"),
    (PretrainConfig, "--recipe.batch-tokens 1", "gives 0 rows of", "for 1 process"),
    (PretrainConfig, f"--start.checkpoint deberta {ISOLATED}", "deberta mixes neighbouring", "remove recipe.isolate"),
    (PretrainConfig, f"--rows single {ISOLATED}", "isolate_documents has no effect", "has one document"),
    (PretrainConfig, f"--start.checkpoint levels {WORDS}", "levels", "tokens do not show where a word starts"),
    (PretrainConfig, f"--start.checkpoint levels {SPANS}", "levels", "tokens do not show where a word starts"),
    (ResolvedPipeline, "--model levels --pretrain.recipe.masking.unit word", "levels", "do not show where a word"),
    (PrepareConfig, "--corpus one.jsonl --output new", "only one document", "training and held-out"),
    (PrepareConfig, "--corpus one.csv --output new", "no column 'text'", "set text_field to one of 'id', 'body'"),
)
ACCEPTED = (
    (PretrainConfig, ISOLATED),
    (PretrainConfig, WORDS),
    (PretrainConfig, "--start.checkpoint deberta"),
    (PretrainConfig, "--start.checkpoint levels"),
    (PretrainConfig, "--rows single"),
    (PrepareConfig, "--corpus gone.jsonl"),  # the rows are there
    (EvaluateConfig, EVALUATED),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its long one, one with a convolution, and one with a tokenizer that does not tell words."""
    folder = tmp_path_factory.mktemp("models")
    tiny_folder(folder / "base")
    for name in ("long", "levels"):
        tiny_folder(folder / name, num_positions=LONG_POSITIONS)
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "levels" / "tokenizer.json"))
    content = {"model_type": "deberta-v2", "max_position_embeddings": LONG_POSITIONS, "conv_kernel_size": 3}
    (folder / "deberta").mkdir()
    write_json(folder / "deberta" / "config.json", content)
    (folder / "deberta" / "model.safetensors").touch()
    return folder


@pytest.fixture(autouse=True)
def in_folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has a pipeline file, the models, as much of rows as is read before a stage, and texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(needs, "evaluations_of", lambda run: str(run) == "run" or evaluations_of(run))
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    Path("out").mkdir()
    shutil.move("long", "out/long")
    Path("mine.toml").write_text(PIPELINE, encoding="utf-8")
    lines = [json.dumps({"text": f"Text {index}."}) for index in range(60)]
    Path("text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    Path("one.jsonl").write_text(lines[0], encoding="utf-8")
    Path("one.csv").write_text("id,body\n1,A text.\n2,Another.\n", encoding="utf-8")
    for name, packing in (("out/rows", "full-sentences"), ("single", "doc-sentences")):
        manifest = manifest_of(LONG_POSITIONS) | {"files": FILES}
        Path(name).mkdir()
        write_json(Path(name, "manifest.json"), manifest | {"plan": manifest["plan"] | {"packing": packing}})


def check(kind: type, options: str = "") -> None:
    config = parse(kind, ["mine.toml", *shlex.split(options)])
    checkpoints(config) if isinstance(config, CheckpointsConfig) else check_inputs(config)


@pytest.mark.parametrize(("kind", "options", "first", "second"), REFUSED)
def test_it_is_refused_before_the_stage(kind: type, options: str, first: str, second: str) -> None:
    with pytest.raises(UserError) as refused:
        check(kind, options)
    assert first in str(refused.value) and second in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("kind", "options"), ACCEPTED)
def test_what_a_stage_can_use_is_not_refused(kind: type, options: str) -> None:
    check(kind, options)


def test_a_run_that_resumes_does_not_need_the_model_that_it_started_from() -> None:
    shutil.rmtree("out/long")
    with pytest.raises(UserError, match="out/long"):
        check(PretrainConfig)
    checkpoint_folder(Path("out/run"), 1).mkdir(parents=True)
    check(PretrainConfig)


@pytest.mark.parametrize("is_second", [False, True])
def test_one_process_of_a_machine_checks(monkeypatch: pytest.MonkeyPatch, is_second: bool) -> None:
    checked = []
    if is_second:
        launch_as_second_of_two(monkeypatch)
    monkeypatch.setattr(cli, "resolve_name", lambda _: lambda _: None)
    monkeypatch.setattr(needs, "check_inputs", checked.append)
    monkeypatch.setattr("sys.argv", ["longmlm", "pretrain", "mine.toml"])
    cli.main()
    assert len(checked) == (not is_second)


def test_a_folder_without_config_or_weights_has_the_same_error_in_the_check_and_in_the_stage() -> None:
    Path("gone").mkdir()
    for missing in ("config.json", "model.safetensors"):
        with pytest.raises(ModelError) as early:
            check(PretrainConfig, "--start.checkpoint gone")
        with pytest.raises(ModelError) as late:
            load_model("gone")
        assert str(early.value) == str(late.value)
        assert missing in str(late.value)
        Path("gone", missing).write_text('{"model_type": "bert"}')
    check(PretrainConfig, "--start.checkpoint gone")
    Path("gone/config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json has no model_type"):
        check(PretrainConfig, "--start.checkpoint gone")


def test_a_large_corpus_is_not_read_before_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "QUICKLY_READ_BYTES", 10)
    check(PrepareConfig, "--corpus one.jsonl --output new")
    check(ResolvedPipeline, "--corpus one.jsonl --output new")


def test_rjieba_is_needed_until_the_rows_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "find_spec", lambda _: None)
    options = "--language zh --recipe.words rjieba"
    check(PrepareConfig, options)
    with pytest.raises(UserError, match=r"pip install 'longmlm\[words\]'"):
        check(PrepareConfig, f"{options} --output new")


def test_packages_of_a_release_are_needed_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_needs, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"recipe\.onnx = true needs onnx, .* pip install 'longmlm\[onnx\]'"):
        check(ReleaseConfig, "--model gone --recipe.onnx")


@pytest.mark.parametrize(
    ("variables", "required", "is_refused"),
    [({}, 1, False), ({}, 2, True), (SECOND_OF_TWO, 2, False), (SECOND_OF_TWO, None, False), (SECOND_OF_TWO, 1, True)],
)
def test_a_number_of_processes_that_the_environment_contradicts_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], required: int | None, is_refused: bool
) -> None:
    for name in (*LAUNCHED, *MPI):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="num_processes") if is_refused else nullcontext():
        check(PretrainConfig, f"--runtime.num-processes {required}" if required else "")
