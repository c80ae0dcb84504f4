"""What the release stage would refuse after training is refused before the first stage, by plan as by run."""

import shutil
from pathlib import Path

import pytest

from longmlm.config import parse
from longmlm.errors import UserError
from longmlm.folders import MANIFEST
from longmlm.inputs import check_inputs
from longmlm.planning.command import check_terms
from longmlm.releasable import MAX_ONNX_BYTES, onnx_problem
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline
from tests.support.extras import sentence_folder
from tests.support.tiny import tiny_folder

FITTED = ("--extend.recipe.initialisation", "fitted")
WINDOW = ("--extend.recipe.attention-window", "8", "--extend.recipe.initialisation", "tile")
GENERATED = ("--extend.recipe.mode", "generated", "--extend.recipe.initialisation", "hierarchical")
ONNX, POOLED = ("--release.recipe.onnx",), ("--release.recipe.sentence-transformer", "mean")
TO_HUB = ("--release.publish", "ms:me/model")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_folder(folder / "roberta")
    tiny_folder(folder / "albert", "albert", 0)
    sentence_folder(folder / "sentences")
    lines = "".join(f'{{"text": "Text {number}."}}\n' for number in range(20))
    (folder / "text.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def in_folder(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "token")


def settings(*options: str, model: str = "roberta", kind: type = ResolvedPipeline) -> ResolvedPipeline:
    base = ("--model", model, "--corpus", "text.jsonl", "--length", "40", "--output", "out")
    return parse(kind, [*base, "--prepare.recipe.held-out-fraction", "0.5", *options])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("roberta", ("--release.recipe.num-positions", "32"), "needs extend.recipe.mode = generated"),
        ("roberta", (*WINDOW, *ONNX), "ONNX files cannot be written for a model with a window"),
        ("roberta", (*WINDOW, *POOLED), "the model has global tokens"),
        ("albert", WINDOW, "exported as a Longformer, and this one cannot be: Longformer has no albert layers"),
        ("sentences", POOLED, r"already has sentence-transformers modules \(1_Pooling, 2_Dense"),
        ("roberta", (*TO_HUB, "--release.card.license", "Apache 2"), "'Apache 2' is not an identifier of a licence"),
        (
            "roberta",
            (*TO_HUB, "--release.card.license", "mit", "--release.card.languages", "english"),
            "language 'english' is not an ISO 639 code: did you mean 'en'",
        ),
        (
            "roberta",
            ("--launch", "zero-2", "--pretrain.recipe.precision", "fp16"),
            "precision is fp16, which DeepSpeed's backend does not support",
        ),
        (
            "roberta",
            ("--launch", "ddp --num_processes 4", "--pretrain.runtime.num-processes", "2"),
            "num_processes is 2, but launch = 'ddp --num_processes 4' starts 4",
        ),
        ("roberta", ("--launch", "ddp", "--pretrain.runtime.num-processes", "2"), "launch = 'ddp' starts 8"),
    ],
)
@pytest.mark.parametrize("kind", [ResolvedPipeline, PlanConfig])
def test_it_is_refused_before_any_stage(model: str, options: tuple[str, ...], message: str, kind: type) -> None:
    with pytest.raises(UserError, match=message):
        check_inputs(settings(*options, model=model, kind=kind))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("roberta", (*GENERATED, "--release.recipe.num-positions", "32")),
        ("roberta", (*WINDOW, "--extend.recipe.num-global-tokens", "0", *POOLED)),
        ("albert", ("--extend.recipe.attention-window", "40", *ONNX)),  # it covers all positions
        ("albert", (*FITTED, *POOLED)),
        ("sentences", ()),
        ("roberta", (*TO_HUB, "--release.card.license", "cc-by-sa-4.0")),
        ("roberta", ("--release.card.license", "Our own")),  # without a hub
        ("albert", (*WINDOW, "--until", "evaluate")),
        ("roberta", ("--launch", "ddp --num_processes=2", "--pretrain.runtime.num-processes", "2")),
        ("roberta", ("--launch", "ddp", "--pretrain.recipe.precision", "fp16")),
    ],
)
def test_what_can_be_released_is_not_refused(model: str, options: tuple[str, ...]) -> None:
    check_inputs(settings(*options, model=model, kind=PlanConfig))


def test_a_release_that_exists_is_not_checked(models: Path) -> None:
    (models / "out" / "release").mkdir(parents=True)
    config = settings("--release.recipe.num-positions", "32", kind=PlanConfig)
    try:
        with pytest.raises(UserError, match="out/release exists and is no release: move it away"):
            check_inputs(config)
        (models / "out" / "release" / MANIFEST).write_text("{}", encoding="utf-8")
        check_inputs(config)
    finally:
        shutil.rmtree(models / "out")


def test_a_model_too_large_for_onnx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_inputs(settings(*ONNX, kind=PlanConfig))
    monkeypatch.setattr("longmlm.releasable.MAX_ONNX_BYTES", 1000)
    with pytest.raises(UserError, match=r"set recipe\.onnx = false"):
        check_inputs(settings(*ONNX, kind=PlanConfig))
    assert "2.1 GB" in onnx_problem(MAX_ONNX_BYTES)


@pytest.mark.parametrize("name", ["me/x..y", "me/x--y", f"me/{'a' * 200}", "me/.x"])
def test_a_name_that_no_repository_can_have_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--release.publish", f"hf:{name}", "--release.card.license", "mit")
    with pytest.raises(UserError, match="cannot be the name of a repository"):
        check_inputs(settings(*options))


def test_terms_of_which_none_needs_a_token_are_refused(models: Path) -> None:
    (models / "terms.txt").write_text("the\n", encoding="utf-8")
    planned = settings("--extend.recipe.add-tokens", "terms.txt", kind=PlanConfig)
    with pytest.raises(UserError, match="has no term that needs a new token"):
        check_terms(planned)
    (models / "terms.txt").write_text("the\nmyocarditis\n", encoding="utf-8")
    check_terms(planned)
