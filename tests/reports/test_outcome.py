"""The last lines of a pipeline: the finding in a sentence, paths, and what to do next."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation
from longmlm.config import resolved_pipeline
from longmlm.reports.evaluation import finding
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.stages.run import summary

BASE = {"model": "owner/base", "corpus": ["a.jsonl"], "length": 40, "output": "out"}


@pytest.fixture
def evaluated(measured: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "evaluation").mkdir(parents=True)
    artifact.write(tmp_path / "out" / "evaluation" / Evaluation.FILE, measured)
    return measured


def settings(**more: object) -> ResolvedPipeline:
    return resolved_pipeline(BASE | more)


@pytest.mark.parametrize(
    ("more", "step"),
    [
        ({}, r"next: read out/release/README.md, then publish: longmlm release out/pipeline.toml --publish"),
        ({"until": "evaluate"}, "next: to make a release, run the same pipeline without until"),
        ({"release": {"publish": "folder:elsewhere"}}, None),
    ],
)
def test_the_finding_comes_first_and_the_next_step_last(evaluated: Evaluation, more, step: str | None) -> None:
    assert evaluated.is_recovered
    lines = summary(settings(**more)).splitlines()
    assert lines[:2] == [finding(evaluated), "page: out/evaluation/index.html"]
    assert ("released: out/release" in lines) == ("until" not in more)
    assert [line.startswith("next: ") for line in lines] == [False] * (len(lines) - 1) + [step is not None]
    assert step is None or lines[-1].startswith(step)


def test_a_model_that_did_not_recover_is_trained_longer_first(evaluated: Evaluation) -> None:
    base = evaluated.measured["base_chunks"]
    better = replace(base, whole=replace(base.whole, accuracy=99.0))
    lost = replace(evaluated, measured=evaluated.measured | {"base_chunks": better}).signed()
    artifact.write(Path("out/evaluation") / Evaluation.FILE, lost)
    first, *_, train, release = summary(settings()).splitlines()
    assert first.startswith("Not recovered")
    assert train == "next: train longer, for example by 1,500 steps: longmlm run out/pipeline.toml --more-steps 1500"
    assert release.startswith("or release it all the same: longmlm run out/pipeline.toml --release.recipe.allow-unrec")


@pytest.mark.parametrize(
    ("allowed", "named"),
    [
        ([], ["allow-unrecovered", "allow-worse-short-texts"]),
        (["allow_unrecovered"], ["allow-worse-short-texts"]),
        (["allow_worse_short_texts"], ["allow-unrecovered"]),
        (["allow_unrecovered", "allow_worse_short_texts"], []),
    ],
)
def test_every_option_that_a_release_still_needs_is_named(evaluated: Evaluation, allowed, named) -> None:
    better = {
        view: replace(evaluated.measured[view], whole=replace(evaluated.measured[view].whole, accuracy=99.0))
        for view in ("base_cut", "base_chunks")
    }
    lost = replace(evaluated, measured=evaluated.measured | better).signed()
    assert lost.is_worse_on_short_texts and lost.is_recovered is False
    artifact.write(Path("out/evaluation") / Evaluation.FILE, lost)
    lines = summary(settings(release={"recipe": dict.fromkeys(allowed, True)}), is_released=False).splitlines()
    options = " ".join(f"--release.recipe.{name}" for name in named)
    assert lines[-1].endswith(f"longmlm run out/pipeline.toml {options}" if named else "--more-steps 1500")
