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

from longmlm import cli, needs
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
from longmlm.stages.prepare import prepare
from longmlm.training.run_folder import checkpoint_folder
from tests.support.launching import SECOND_OF_TWO, launch_as_second_of_two
from tests.support.rows import FILES, manifest_of
from tests.support.tiny import LONG_POSITIONS, tiny_folder

PIPELINE = f"""
model = "base"
corpus = ["text.jsonl"]
length = {LONG_POSITIONS}
output = "out"
[release.card]
license = "mit"
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_folder(folder / "base")
    tiny_folder(folder / "long", num_positions=LONG_POSITIONS)
    return folder


@pytest.fixture(autouse=True)
def in_folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has a pipeline file, its model, as much of its rows as is read before a stage, a corpus."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models, "out")
    shutil.move("out/base", "base")
    Path("mine.toml").write_text(PIPELINE, encoding="utf-8")
    Path("text.jsonl").write_text("".join(f'{{"text": "Text {index}."}}\n' for index in range(60)), encoding="utf-8")
    Path("out/rows").mkdir()
    write_json(Path("out/rows/manifest.json"), {**manifest_of(LONG_POSITIONS), "files": FILES})


def settings(kind: type, options: str = "") -> object:
    return parse(kind, ["mine.toml", *shlex.split(options)])


def check(kind: type, options: str = "") -> None:
    config = settings(kind, options)
    checkpoints(config) if isinstance(config, CheckpointsConfig) else check_inputs(config)


ADDED = "--recipe.tokenizer out/long"  # as add_tokens sets it
MISSING = (  # what is missing, the settings that name it, and the remedy
    ("out/rows", PretrainConfig, "", "run longmlm prepare first"),
    ("out/rows", ReleaseConfig, "--model out/long", "run longmlm prepare first"),
    ("out/rows", EvaluateConfig, "--long-after out/long --run out/long", "run longmlm prepare first"),
    ("out/run", EvaluateConfig, "", "run longmlm pretrain first"),
    ("out/run", ReleaseConfig, "", "run longmlm pretrain first"),
    ("out/run", CheckpointsConfig, "", "run longmlm pretrain first"),
    ("out/long", PrepareConfig, ADDED, "no such folder in out: check its path, or run the stage"),
    ("out/long", PretrainConfig, "", "no such folder in out: check its path, or run the stage"),
    ("out/long", EvaluateConfig, "", "no such folder in out: check its path, or run the stage"),
    ("base", EvaluateConfig, "--long-after out/long", "base"),
)


@pytest.mark.parametrize(("name", "kind", "options", "remedy"), MISSING)
def test_what_is_missing_is_answered_with_the_command_that_makes_it(
    name: str, kind: type, options: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "out/run":
        monkeypatch.setattr(needs, "evaluations_of", lambda _: None)
    shutil.rmtree("out/rows" if kind is PrepareConfig else name, ignore_errors=True)
    shutil.rmtree(name, ignore_errors=True)
    with pytest.raises(UserError) as refused:
        check(kind, options)
    assert str(refused.value).startswith(name) and remedy in str(refused.value)


@pytest.mark.parametrize("name", ["text.jsonl", "text.csv"])
def test_a_text_field_that_is_missing_lists_those_that_there_are(name: str) -> None:
    shutil.rmtree("out/rows")
    lines = {"text.jsonl": '{"id": 1, "body": "A text."}\n' * 2, "text.csv": "id,body\n1,A text.\n2,Another.\n"}
    Path(name).write_text(lines[name], encoding="utf-8")
    with pytest.raises(UserError, match=r"set text_field to one of '?id'?, '?body'?(;|$)"):
        prepare(settings(PrepareConfig, f"--corpus {name}"))


def test_a_run_that_resumes_does_not_need_the_model_that_it_started_from() -> None:
    check(PretrainConfig)
    shutil.rmtree("out/long")
    with pytest.raises(UserError, match="out/long"):
        check(PretrainConfig)
    checkpoint_folder(Path("out/run"), 1).mkdir(parents=True)
    check(PretrainConfig)


def test_documents_that_cannot_be_isolated_are_refused_before_training() -> None:
    content = {"model_type": "deberta-v2", "max_position_embeddings": LONG_POSITIONS, "conv_kernel_size": 3}
    Path("deberta").mkdir()
    write_json(Path("deberta/config.json"), content)
    Path("deberta/model.safetensors").touch()
    deberta, isolated = "--start.checkpoint deberta", "--recipe.isolate-documents"
    check(PretrainConfig, deberta)
    check(PretrainConfig, isolated)
    with pytest.raises(UserError, match="deberta mixes neighbouring tokens in a convolution.*: remove recipe.isolate"):
        check(PretrainConfig, f"{deberta} {isolated}")
    manifest = json.loads(Path("out/rows/manifest.json").read_bytes())
    manifest["plan"]["packing"] = "doc-sentences"
    write_json(Path("out/rows/manifest.json"), manifest)
    with pytest.raises(UserError, match="isolate_documents has no effect, since every row .* has one document"):
        check(PretrainConfig, isolated)


def test_a_batch_of_fewer_rows_than_processes_is_refused() -> None:
    with pytest.raises(UserError, match="gives 0 rows of .* for 1 process"):
        check(PretrainConfig, "--recipe.batch-tokens 1")


@pytest.mark.parametrize(("is_second", "is_checked"), [(False, True), (True, False)])
def test_one_process_of_a_machine_checks(monkeypatch: pytest.MonkeyPatch, is_second: bool, is_checked: bool) -> None:
    checked = []
    if is_second:
        launch_as_second_of_two(monkeypatch)
    monkeypatch.setattr(cli, "_run", lambda *_: None)
    monkeypatch.setattr(needs, "check_inputs", checked.append)
    monkeypatch.setattr("sys.argv", ["longmlm", "pretrain", "mine.toml"])
    cli.main()
    assert len(checked) == is_checked


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


@pytest.mark.parametrize("kind", [ResolvedPipeline, PrepareConfig])
def test_a_small_corpus_is_read_before_the_stage_and_a_large_one_is_not(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree("out")
    Path("text.jsonl").write_text('{"text": "Only one document."}\n')
    with pytest.raises(UserError, match="only one document"):
        check(kind)
    monkeypatch.setattr(needs, "QUICKLY_READ_BYTES", 10)
    check(kind)


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_are_not_masked_with_a_tokenizer_that_does_not_tell_them(unit: str) -> None:
    levels = Tokenizer(WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    levels.pre_tokenizer = Whitespace()
    check(PretrainConfig, f"--recipe.masking.unit {unit}")
    levels.save("out/long/tokenizer.json")
    check(PretrainConfig)
    with pytest.raises(UserError, match="out/long: its tokens do not show where a word starts"):
        check(PretrainConfig, f"--recipe.masking.unit {unit}")
    levels.save("base/tokenizer.json")
    with pytest.raises(UserError, match="base: its tokens do not show"):
        check(ResolvedPipeline, f"--pretrain.recipe.masking.unit {unit}")


def test_rjieba_is_needed_until_the_rows_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "find_spec", lambda _: None)
    options = "--language zh --recipe.words rjieba"
    check(PrepareConfig, options)
    shutil.rmtree("out/rows")
    with pytest.raises(UserError, match=r"pip install 'longmlm\[words\]'"):
        check(PrepareConfig, options)


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
