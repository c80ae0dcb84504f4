"""The last lines of a pipeline: the finding in a sentence, paths, and what to do next."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation
from longmlm.config import resolved_pipeline
from longmlm.stages.run import summary
from tests.support.evaluations import FULL, measured

BASE = {"model": "owner/base", "corpus": ["a.jsonl"], "length": 40, "output": "out"}
LOST = replace(FULL, measured=FULL.measured | {"base_chunks": measured(99.0)}).signed()
ALL_LOST = replace(LOST, measured=LOST.measured | {"base_cut": measured(99.0, 1)}).signed()
OPTIONS = ("allow_unrecovered", "allow_worse_short_texts")


def allowing(*options: str) -> dict[str, object]:
    return {"release": {"recipe": dict.fromkeys(options, True)}}


CASES: dict[str, tuple[Evaluation, dict[str, object], bool]] = {  # measured, settings, whether it was released
    "released": (FULL, {}, True),
    "until the evaluation": (FULL, {"until": "evaluate"}, True),
    "released and published": (FULL, {"release": {"publish": "folder:elsewhere"}}, True),
    "not recovered": (LOST, {}, True),
    "not recovered and worse on short texts": (ALL_LOST, {}, False),
    "of which the first is allowed": (ALL_LOST, allowing(OPTIONS[0]), False),
    "of which the second is allowed": (ALL_LOST, allowing(OPTIONS[1]), False),
    "of which both are allowed": (ALL_LOST, allowing(*OPTIONS), False),
}


def test_the_last_lines_are_those_that_were_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: Callable[[str, str], None]
) -> None:
    assert FULL.is_recovered and not LOST.is_recovered and ALL_LOST.is_worse_on_short_texts
    monkeypatch.chdir(tmp_path)
    Path("out/evaluation").mkdir(parents=True)
    parts = []
    for name, (evaluation, settings, is_released) in CASES.items():
        artifact.write(Path("out/evaluation") / Evaluation.FILE, evaluation)
        parts.append(f"== {name}\n{summary(resolved_pipeline(BASE | settings), is_released=is_released)}\n")
    accepted("last_lines.txt", "\n".join(parts))
