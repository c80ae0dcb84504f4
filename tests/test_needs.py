"""What would stop a pipeline later is refused before its first stage, by run as by plan, and nothing else is."""

import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from longmlm import needs, pipeline_needs
from longmlm.config import parse
from longmlm.data import words
from longmlm.data.engine import prepare_rows
from longmlm.data.notes import unread_notes
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ReleaseError, UserError
from longmlm.folders import MANIFEST
from longmlm.needs import check_inputs
from longmlm.planning import command as planning
from longmlm.planning.command import check_terms, machine_notes
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline
from tests.support.extras import folder_with_heads, sentence_folder
from tests.support.tiny import tiny_folder

KINDS = (ResolvedPipeline, PlanConfig)
OWN_LENGTH = "--no-extension --length 16"
WINDOW = "--extend.recipe.attention-window 8 --extend.recipe.initialisation tile"
GENERATED = "--extend.recipe.mode generated --extend.recipe.initialisation hierarchical"
ROW_PAIRS = "--prepare.recipe.pairs --prepare.recipe.packing doc-sentences"
PAIRS = f"--pretrain.recipe.pairs.kind nsp {ROW_PAIRS}"
ONNX, POOLED = "--release.recipe.onnx", "--release.recipe.sentence-transformer mean"
TO_HUB, UNTRAINED = "--release.publish ms:me/model", "--pretrain.start.architecture roberta/config.json"
NEW_HEAD = "--pretrain.start.new-head"
CHINESE = "--prepare.recipe.words rjieba --language zh"

REFUSED = (  # model, options, and two texts in the line with which they are refused
    ("roberta", "--pretrain.dry-run", "dry_run", "use longmlm pretrain FILE --dry-run"),
    ("roberta", "--pretrain.runtime.num-processes 2", "num_processes is 2", "launch is not set"),
    ("roberta", "--launch ddp --pretrain.runtime.num-processes 2", "num_processes is 2", "launch = 'ddp' starts 8"),
    ("roberta", "--launch 'ddp -n 4' --pretrain.runtime.num-processes 2", "is 2", "launch = 'ddp -n 4' starts 4"),
    ("roberta", "--launch zero-2 --pretrain.recipe.precision fp16", "precision is fp16", "DeepSpeed"),
    ("roberta", "--no-extension --pretrain.runtime.stop-when-recovered", "for extended models", "extension = false"),
    ("roberta", "--pretrain.recipe.batch-tokens 10", "batch_tokens = 10 gives 0 rows of 40", "1 process"),
    ("roberta", "--launch two-cpu-processes --pretrain.recipe.batch-tokens 40", "gives 1 row", "at least 80"),
    ("roberta", f"{ROW_PAIRS} --pretrain.recipe.batch-tokens 1", "gives 0 rows", "1 process"),
    ("gone", "", "gone", "no such folder"),
    ("roberta", "--length 257", "num_positions = 257", "16 trained positions extend to 256 at most"),
    ("roberta", "--length 257 --until prepare", "num_positions = 257", "256 at most"),
    ("albert", "", "share weights", "set initialisation to fitted"),
    ("encoder", "", "encoder has no MLM head", "extension = false, length = 16, [pretrain.start] and new_head = true"),
    ("encoder", OWN_LENGTH, "encoder has no MLM head", "add the lines [pretrain.start] and new_head = true"),
    ("bert", PAIRS, "bert has no pair head", "[pretrain.start] and new_head = true"),
    ("roberta", PAIRS, "a roberta model, which has no head for pairs", "[pretrain.recipe.pairs]"),
    ("paired", f"{PAIRS} {WINDOW}", "paired has a window", "a Longformer, which has no head for pairs"),
    ("paired", f"{PAIRS} {NEW_HEAD} {OWN_LENGTH}", "an MLM head and a pair head", "remove new_head"),
    ("roberta", "--release.recipe.num-positions 32", "num_positions", "extend.recipe.mode = generated"),
    ("roberta", f"{WINDOW} {ONNX}", "ONNX", "a model with a window"),
    ("roberta", f"{WINDOW} {POOLED}", "global tokens", "sentence-transformers"),
    ("albert", WINDOW, "exported as a Longformer", "no albert layers"),
    ("sentences", POOLED, "already has sentence-transformers modules", "(1_Pooling, 2_Dense"),
    ("roberta", f"{TO_HUB} --release.card.license 'Apache 2'", "'Apache 2'", "not an identifier of a licence"),
    ("licensed", f"{TO_HUB} --release.card.languages english", "'english'", "such as 'en'"),
    ("roberta", TO_HUB, "the licence of the base model roberta", '[release.card] and license = "apache-2.0"'),
    ("unlicensed", TO_HUB, "the licence of the base model unlicensed", '[release.card] and license = "apache-2.0"'),
    (None, f"{TO_HUB} {UNTRAINED}", "there is no base model", '[release.card] and license = "apache-2.0"'),
    ("roberta", "--corpus one.jsonl", "only one document", "training and held-out rows need two"),
)
ACCEPTED = (
    ("roberta", ""),
    ("roberta", "--pretrain.recipe.batch-tokens 10 --until prepare"),
    ("roberta", "--launch two-cpu-processes --pretrain.recipe.batch-tokens 80"),
    ("roberta", f"{ROW_PAIRS} --pretrain.recipe.batch-tokens 10"),  # such rows may be almost empty
    ("roberta", "--launch 'ddp --num_processes=2' --pretrain.runtime.num-processes 2"),
    ("roberta", "--launch ddp --pretrain.recipe.precision fp16"),
    ("roberta", f"{GENERATED} --release.recipe.num-positions 32"),
    ("roberta", f"{WINDOW} --extend.recipe.num-global-tokens 0 {POOLED}"),
    ("albert", f"--extend.recipe.attention-window 40 {ONNX}"),  # it covers all positions
    ("albert", f"--extend.recipe.initialisation fitted {POOLED}"),
    ("albert", f"{WINDOW} --until evaluate"),
    ("sentences", ""),
    ("encoder", f"{OWN_LENGTH} {NEW_HEAD}"),
    ("paired", PAIRS),
    ("bert", f"{PAIRS} {NEW_HEAD}"),
    ("roberta", f"{TO_HUB} --release.card.license cc-by-sa-4.0"),
    ("licensed", TO_HUB),
    ("roberta", f"{TO_HUB} --until evaluate"),
    ("roberta", "--release.publish folder:there"),
    ("roberta", "--release.publish memory://bucket"),
    ("roberta", "--release.card.license 'Our own'"),  # without a hub
    *(("roberta", f"--output {output}") for output in ("mine", "./mine", "mine/")),  # need not exist
)
ON_MACHINE = (  # what stops a run, and is noted by a plan
    ("--launch 'acelerate launch'", "there is no program 'acelerate'"),
    ("--launch 'accelerate launch --config_file gone/zero-2.yaml'", "launch = 'zero-2' takes the one of longmlm"),
    (ONNX, "needs onnx, which is not installed: pip install 'longmlm[onnx]'"),
    ("--release.publish folder:there", "there: no token"),
    ("--prepare.publish folder:rows --prepare.card.license mit", "rows: no token"),
    (CHINESE, "pip install 'longmlm[words]'"),
)


def write_texts(name: str, number: int) -> None:
    lines = (f'{{"text": "Text number {index} of many."}}\n' for index in range(number))
    Path(name).write_text("".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    roberta = tiny_folder(folder / "roberta")
    for name, card in (("licensed", "---\nlicense: mit\n---\n"), ("unlicensed", "# no metadata")):
        shutil.copytree(roberta, folder / name)
        (folder / name / "README.md").write_text(card, encoding="utf-8")
    shutil.copytree(roberta, folder / "encoder")
    AutoModel.from_pretrained(roberta).save_pretrained(folder / "encoder")
    for family in ("albert", "bert"):
        tiny_folder(folder / family, family, 0)
    folder_with_heads(folder / "paired", "bert")
    sentence_folder(folder / "sentences")
    return folder


@pytest.fixture(autouse=True)
def in_folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has the models and two corpora."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "token")
    for model in models.iterdir():
        Path(model.name).symlink_to(model)
    write_texts("text.jsonl", 60)
    write_texts("one.jsonl", 1)


def settings(options: str = "", model: str | None = "roberta", kind: type = ResolvedPipeline) -> ResolvedPipeline:
    own = ["--model", model] if model else ["--no-extension", "--pretrain.start.tokenizer", "roberta"]
    base = [*own, "--corpus", "text.jsonl", "--length", "40", "--output", "out"]
    return parse(kind, [*base, "--prepare.recipe.held-out-fraction", "0.4", *shlex.split(options)])


@pytest.mark.parametrize(("model", "options", "first", "second"), REFUSED)
def test_it_is_refused_before_any_stage(model: str | None, options: str, first: str, second: str) -> None:
    for kind in KINDS:
        with pytest.raises(UserError) as refused:
            check_inputs(settings(options, model, kind))
        assert first in str(refused.value) and second in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("model", "options"), ACCEPTED)
def test_what_can_be_released_is_not_refused(model: str, options: str) -> None:
    check_inputs(settings(options, model, PlanConfig))


@pytest.mark.parametrize(("options", "message"), ON_MACHINE)
def test_what_this_machine_cannot_do_stops_a_run_and_is_noted_by_a_plan(
    monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    def check_can_publish(target) -> None:
        raise ReleaseError(f"{target.name}: no token")

    for module in (pipeline_needs, planning, words):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    monkeypatch.setattr(needs, "check_can_publish", check_can_publish)
    with pytest.raises(UserError) as refused:
        check_inputs(settings(options))
    planned = settings(options, kind=PlanConfig)
    check_inputs(planned)
    assert message in str(refused.value)
    assert machine_notes(planned) == [f"longmlm run would stop on this machine: {refused.value}"]
    [note] = machine_notes(settings(POOLED, kind=PlanConfig))
    assert "pip install 'longmlm[sentence-transformers]'" in note


@pytest.mark.parametrize("name", pipeline_needs.ONNX_PACKAGES)
def test_a_package_of_onnx_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(pipeline_needs, "find_spec", lambda package: None if package == name else "installed")
    with pytest.raises(ReleaseError, match=f"needs {name},"):
        check_inputs(settings(ONNX))


@pytest.mark.parametrize("name", ["me/x..y", "me/x--y", f"me/{'a' * 200}", "me/.x"])
def test_a_name_that_no_repository_can_have_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a repository"):
        check_inputs(settings(f"--release.publish hf:{name} --release.card.license mit"))


@pytest.mark.parametrize("num_gpus", [0, 3])
def test_more_processes_than_gpus_stop_a_run_and_are_noted_by_a_plan(
    num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(launch: str, more: str = "") -> None:
        check_inputs(settings(f"--launch '{launch}' {more}"))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    for launch, number in (("ddp", 8), ("ddp --num_processes=4", 4), ("zero-2 -n 5", 5), ("two-nodes", 8)):
        message = f"launch = '{launch}' starts {number} processes on a machine, and this one has {num_gpus or 'no'} GPU"
        with pytest.raises(UserError, match=f"^{message}.* two-cpu-processes$"):
            check(launch)
        [note] = machine_notes(settings(f"--launch '{launch}'", kind=PlanConfig))
        assert note.startswith(f"longmlm run would stop on this machine: {message}")
        assert not machine_notes(settings(f"--launch '{launch}' --gpu A100", kind=PlanConfig))
        check(launch, "--until prepare")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    for launch in ("single", "ddp -n 1", "torchrun", "zero-2"):
        check(launch)
    with monkeypatch.context() as patched:
        for launch in ("two-cpu-processes", "two-nodes-cpu", "ddp --use_cpu", "ddp"):
            if launch == "ddp":
                patched.setenv("ACCELERATE_USE_CPU", "True")
            with pytest.raises(UserError, match="set CUDA_VISIBLE_DEVICES") if num_gpus else nullcontext():
                check(launch)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "device_count", lambda: 8)
        check("ddp")
    monkeypatch.setattr(needs, "is_complete", lambda _: True)
    check("ddp")  # a run that is trained, on a machine that releases it


def test_a_batch_is_compared_with_the_rows_once_they_are_packed() -> None:
    sparse = "--prepare.recipe.packing doc-sentences --pretrain.recipe.batch-tokens"
    config = settings(f"{sparse} 40")
    manifest = prepare_rows(config.prepare.recipe, load_vocabulary("roberta"), Path(config.prepare.output))
    row_tokens = 40 * manifest.report.train.fill_rate
    for kind in KINDS:
        check_inputs(settings(f"{sparse} {round(0.6 * row_tokens)}", kind=kind))
        with pytest.raises(UserError, match="gives 0 rows of 40 for 1 process"):
            check_inputs(settings(f"{sparse} {round(0.4 * row_tokens)}", kind=kind))


def test_columns_of_rows_that_training_does_not_read_are_noted() -> None:
    pairs, unit = unread_notes(settings(f"{ROW_PAIRS} {CHINESE}"))
    assert "set kind in [pretrain.recipe.pairs]" in pairs and "words = rjieba has no effect" in unit
    assert not [*unread_notes(settings(f"{PAIRS} {CHINESE} --pretrain.recipe.masking.unit word"))]
    assert not [*unread_notes(settings(f"{ROW_PAIRS} {CHINESE} --until prepare"))]


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_exist_need_nothing(kind: type) -> None:
    config = settings("--release.recipe.num-positions 32", "encoder", kind)
    Path("text.jsonl").unlink()
    for folder in ("long", "rows", "evaluation", "release"):
        Path("out", folder).mkdir(parents=True)
    with pytest.raises(UserError, match="out/release exists and is not a release: move it away"):
        check_inputs(config)
    Path("out/release", MANIFEST).write_text("{}", encoding="utf-8")
    check_inputs(config)


def test_a_token_is_needed_to_publish_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODELSCOPE_API_TOKEN")
    Path("out/release").mkdir(parents=True)
    Path("out/release", MANIFEST).write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="MODELSCOPE_API_TOKEN"):
        check_inputs(settings(TO_HUB))


def test_weights_are_needed_by_a_run_and_not_by_a_plan(models: Path) -> None:
    shutil.copytree(models / "roberta", "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    check_inputs(settings(model="bare", kind=PlanConfig))
    with pytest.raises(UserError, match="bare has no model.safetensors"):
        check_inputs(settings(model="bare"))


def test_a_model_too_large_for_onnx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_inputs(settings(ONNX, kind=PlanConfig))
    monkeypatch.setattr(pipeline_needs, "MAX_ONNX_BYTES", 1000)
    with pytest.raises(UserError, match=r"0\.0 GB, .* 2 GB: set recipe\.onnx = false"):
        check_inputs(settings(ONNX, kind=PlanConfig))


def test_terms_of_which_none_needs_a_token_are_refused() -> None:
    Path("terms.txt").write_text("the\n", encoding="utf-8")
    planned = settings("--extend.recipe.add-tokens terms.txt --extend.recipe.initialisation fitted", kind=PlanConfig)
    with pytest.raises(UserError, match="has no term that needs a new token"):
        check_terms(planned)
    Path("terms.txt").write_text("the\nmyocarditis\n", encoding="utf-8")
    check_terms(planned)
