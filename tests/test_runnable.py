"""What would stop a pipeline later is found before its first stage, by plan as by run."""

import shutil
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from longmlm import runnable
from longmlm.artifacts.artifact import to_toml
from longmlm.config import parse
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ConfigError, ModelError, ReleaseError, TrainingError, UserError
from longmlm.hubs.weight_names import weight_names
from longmlm.inputs import check_inputs
from longmlm.runnable import check_runnable, machine_notes
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.tables import Table, merged
from tests.support.extras import folder_with_heads
from tests.support.tiny import tiny_folder

CARD = "---\nlicense: mit\n---\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text('{"text": "A text."}\n', encoding="utf-8")
    return tmp_path


def settings(*options: str, kind: type = ResolvedPipeline) -> ResolvedPipeline:
    base = ("--model", "base", "--corpus", "text.jsonl", "--length", "40", "--output", "out")
    return parse(kind, [*base, *options])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def base(folder: Path, model: Path) -> Path:
    return Path(shutil.copytree(model, folder / "base"))


def without_head(base: Path, kind: str = "safetensors") -> None:
    """Leaves the encoder's weights alone, in one file, in two, or in a file of torch.save."""
    model = AutoModel.from_pretrained(base)
    (base / "model.safetensors").unlink()
    if kind == "bin":
        torch.save(model.state_dict(), base / "pytorch_model.bin")
    else:
        model.save_pretrained(base, max_shard_size="40KB" if kind == "shards" else "1GB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--launch", "acelerate launch"), "there is no program 'acelerate'"),
        (
            ("--launch", "accelerate launch --config_file gone/zero-2.yaml"),
            "launch = 'zero-2' takes the one of longmlm",
        ),
        (("--pretrain.dry-run",), "use longmlm pretrain FILE --dry-run"),
        (("--pretrain.runtime.num-processes=2",), "num_processes is 2, but launch is not set"),
        (("--no-extension", "--pretrain.runtime.stop-when-recovered"), "is for a long model, and extension = false"),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_stage(base: Path, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_inputs(settings(*options))


MODEL = {"model": "base"}
UNTRAINED = {"extension": False, "pretrain": {"start": {"architecture": "config.json", "tokenizer": "tokenizer"}}}
LICENSED = MODEL | {"release": {"card": {"license": "mit"}}}


@pytest.mark.parametrize("publish", [None, "folder:there", "memory://bucket", "hf:me/model", "ms:me/model"])
@pytest.mark.parametrize("given", [MODEL, UNTRAINED, MODEL | {"until": "evaluate"}, LICENSED])
@pytest.mark.parametrize("card", [None, "# no metadata", CARD])
def test_a_licence_is_needed_for_a_hub_only(folder: Path, publish: str | None, given: Table, card: str | None) -> None:
    base = folder / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "roberta"}', encoding="utf-8")
    if card:
        (base / "README.md").write_text(card, encoding="utf-8")
    tables = merged({"corpus": ["text.jsonl"], "length": 40, "output": "out"}, given)
    tables = merged(tables, {"release": {"publish": publish}} if publish else {})
    (folder / "mine.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")
    is_hub = publish is not None and publish[:3] in ("hf:", "ms:")
    is_unknown = given is UNTRAINED or (given is MODEL and card != CARD)
    for kind in (ResolvedPipeline, PlanConfig):
        config = parse(kind, ["mine.toml"])
        if is_hub and is_unknown:
            with pytest.raises(ConfigError, match=r'\[release\.card\] and license = "apache-2\.0"'):
                check_runnable(config)
        else:
            check_runnable(config)


@pytest.mark.parametrize("kind", ["safetensors", "shards", "bin"])
@pytest.mark.parametrize("command", [ResolvedPipeline, PlanConfig])
def test_a_missing_head_is_found_before_any_stage_with_the_lines_to_add(base: Path, kind: str, command: type) -> None:
    check_runnable(settings(kind=command))
    without_head(base, kind)
    lines = r"extension = false, length = 16, \[pretrain\.start\] and new_head = true"
    with pytest.raises(ModelError, match=rf"^base has no MLM head.*{lines}"):
        check_inputs(settings(kind=command))
    own = ("--no-extension", "--length", "16")
    with pytest.raises(ModelError, match=r"^base has no MLM head.*add the lines \[pretrain\.start\] and new_head"):
        check_inputs(settings(*own, kind=command))
    check_runnable(settings(*own, "--pretrain.start.new-head", kind=command))
    (base.parent / "out" / "long").mkdir(parents=True)
    check_runnable(settings(kind=command))


def test_weights_that_are_not_known_are_left_to_loading(base: Path) -> None:
    names = weight_names(str(base))
    assert names == frozenset(load_file(base / "model.safetensors"))
    for content in (b"", b"version https://git-lfs", b"PK\3\4" + bytes(40)):
        for name in ("model.safetensors", "pytorch_model.bin"):
            (base / "model.safetensors").unlink(missing_ok=True)
            (base / name).write_bytes(content)
            assert weight_names(str(base)) is None
            check_runnable(settings())
            (base / name).unlink()
    assert weight_names(str(base)) is None


@pytest.mark.parametrize("name", runnable.ONNX_PACKAGES)
def test_a_package_of_onnx_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(runnable, "find_spec", lambda package: None if package == name else "installed")
    with pytest.raises(ReleaseError, match=rf"needs {name},.*longmlm\[onnx\]"):
        runnable.check_onnx_installed()


def test_what_this_machine_cannot_do_stops_a_run_and_is_noted_by_a_plan(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runnable, "find_spec", lambda _: None)
    monkeypatch.setattr(runnable, "check_can_publish", cannot_publish)
    options = ("--release.recipe.onnx", "--launch", "acelerate", "--release.publish", "folder:there")
    options += ("--release.recipe.sentence-transformer", "mean", "--prepare.publish", "folder:rows")
    options += ("--prepare.card.license", "mit")
    with pytest.raises(UserError, match="acelerate"):
        check_inputs(settings(*options))
    planned = settings(*options, kind=PlanConfig)
    check_runnable(planned)
    for part in ("acelerate", r"longmlm\[onnx\]", "there: no token", "rows: no token", r"longmlm\[sentence-transf"):
        assert any(part.replace("\\", "") in note for note in machine_notes(planned)), part
    assert not machine_notes(settings(kind=PlanConfig))


def write_many_texts() -> None:
    lines = [f'{{"text": "Text number {number} of many."}}\n' for number in range(60)]
    Path("text.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("num_gpus", [0, 3])
def test_more_processes_than_gpus_stop_a_run_before_any_stage_and_are_noted_by_a_plan(
    base: Path, num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_many_texts()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    found = f"this one has {num_gpus or 'no'} GPU"
    for launch, number in (("ddp", 8), ("ddp --num_processes=4", 4), ("zero-2 -n 5", 5), ("two-nodes", 8)):
        message = f"launch = '{launch}' starts {number} processes on a machine, and {found}"
        with pytest.raises(ConfigError, match=f"^{message}.* two-cpu-processes$"):
            check_inputs(settings("--launch", launch))
        [note] = machine_notes(settings("--launch", launch, kind=PlanConfig))
        assert note.startswith(f"longmlm run would stop on this machine: {message}")
        assert not machine_notes(settings("--launch", launch, "--gpu", "A100", kind=PlanConfig))
        check_inputs(settings("--launch", launch, "--until", "prepare"))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    for launch in ("two-cpu-processes", "two-nodes-cpu", "single", "ddp -n 1", "ddp --use_cpu", "torchrun", "zero-2"):
        check_inputs(settings("--launch", launch))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    check_inputs(settings("--launch", "ddp"))
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    check_inputs(settings("--launch", "ddp"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(runnable, "is_complete", lambda _: True)
    check_inputs(settings("--launch", "ddp"))  # a run that is trained, on a machine that releases it


@pytest.mark.parametrize("command", [ResolvedPipeline, PlanConfig])
def test_a_batch_of_fewer_rows_than_processes_is_found_before_any_stage(base: Path, command: type) -> None:
    write_many_texts()

    def check(batch_tokens: int, *options: str) -> None:
        check_inputs(settings("--pretrain.recipe.batch-tokens", str(batch_tokens), *options, kind=command))

    check(20)
    check(10, "--until", "prepare")
    with pytest.raises(TrainingError, match=r"^batch_tokens = 10 gives 0 rows of 40 for 1 process: set it to at least"):
        check(10)
    two = ("--launch", "two-cpu-processes")
    check(80, *two)
    with pytest.raises(TrainingError, match=r"^batch_tokens = 40 gives 1 row of 40 for 2 processes: set it to .* 80$"):
        check(40, *two)
    short = ("--prepare.recipe.packing", "doc-sentences")  # such rows may be almost empty
    check(10, *short)
    with pytest.raises(TrainingError, match="for 1 process"):
        check(1, *short)


def test_a_batch_is_compared_with_the_rows_once_they_are_packed(base: Path) -> None:
    write_many_texts()
    sparse = ("--prepare.recipe.packing", "doc-sentences", "--prepare.recipe.held-out-fraction", "0.4")
    config = settings(*sparse)
    manifest = prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path(config.prepare.output))
    row_tokens = 40 * manifest.report.train.fill_rate
    for kind in (ResolvedPipeline, PlanConfig):
        check_inputs(settings(*sparse, "--pretrain.recipe.batch-tokens", str(round(0.6 * row_tokens)), kind=kind))
        with pytest.raises(TrainingError, match="gives 0 rows of 40 for 1 process"):
            check_inputs(settings(*sparse, "--pretrain.recipe.batch-tokens", str(round(0.4 * row_tokens)), kind=kind))
    (base.parent / "stage.toml").write_text(to_toml(config.pretrain), encoding="utf-8")
    stage = parse(PretrainConfig, ["stage.toml", "--start.checkpoint", "base", "--recipe.batch-tokens", "1"])
    with pytest.raises(TrainingError, match="gives 0 rows of 40 for 1 process"):
        check_inputs(stage)


def test_columns_of_rows_that_training_does_not_read_are_noted(base: Path) -> None:
    options = ("--prepare.recipe.pairs", "--prepare.recipe.packing", "doc-sentences")
    options += ("--prepare.recipe.words", "rjieba", "--language", "zh")
    pairs, words = machine_notes(settings(*options, kind=PlanConfig))
    assert "set kind in [pretrain.recipe.pairs]" in pairs and "words = rjieba has no effect" in words
    options += ("--pretrain.recipe.pairs.kind", "nsp", "--pretrain.recipe.masking.unit", "word")
    assert not machine_notes(settings(*options, kind=PlanConfig))
    assert not machine_notes(settings(*options[:7], "--until", "prepare", kind=PlanConfig))


def cannot_publish(target) -> None:
    raise ReleaseError(f"{target.name}: no token")


PAIRS = ("--pretrain.recipe.pairs.kind", "nsp", "--prepare.recipe.pairs", "--prepare.recipe.packing", "doc-sentences")


@pytest.mark.parametrize("command", [ResolvedPipeline, PlanConfig])
def test_a_missing_pair_head_is_found_before_any_stage(folder: Path, command: type) -> None:
    tiny_folder(folder / "base", "bert", 0)
    check_runnable(settings(kind=command))
    with pytest.raises(ModelError, match=r"^base has no pair head: .* \[pretrain\.start\] and new_head = true"):
        check_inputs(settings(*PAIRS, kind=command))
    config = settings(*PAIRS, "--pretrain.start.new-head", kind=command)
    check_runnable(config)
    assert config.evaluate is not None, "the base model has an MLM head to compare with"
    shutil.rmtree(folder / "base")
    folder_with_heads(folder / "base", "bert")
    check_runnable(settings(*PAIRS, kind=command))
    windowed = ("--extend.recipe.attention-window", "8", "--extend.recipe.initialisation", "tile")
    check_runnable(settings(*windowed, kind=command))
    with pytest.raises(ModelError, match="base has a window, so it is released as a Longformer, which has no head"):
        check_inputs(settings(*PAIRS, *windowed, kind=command))


def test_models_and_rows_without_pairs_are_refused_in_a_pipeline(base: Path) -> None:
    with pytest.raises(
        ModelError, match=r"base is a roberta model, which has no head for pairs.*pretrain\.recipe\.pairs"
    ):
        check_inputs(settings(*PAIRS))
    with pytest.raises(ConfigError, match=r"prepare\.recipe\.pairs is false: set it to true"):
        settings(*PAIRS[:2])
    assert settings(*PAIRS[2:]).prepare.recipe.pairs, "such rows may be read without pairs"
