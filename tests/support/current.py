"""A project whose pipeline has results, and the stages of it that are not current."""

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import staleness
from longmlm.config import resolved_pipeline
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.tables import merged
from tests.support.results import write_results
from tests.support.tiny import LONG_POSITIONS, tiny_folder

TABLES = {
    "model": "base",
    "corpus": ["text.jsonl"],
    "length": LONG_POSITIONS,
    "output": "out",
    "prepare": {"recipe": {"held_out_fraction": 0.4}},
    "release": {"card": {"title": "T"}},  # by default, it has the name of the model
}


def with_settings(**changes: object) -> ResolvedPipeline:
    extend = {"extend": {"recipe": {"initialisation": "fitted"}}} if changes.get("extension", True) else {}
    return resolved_pipeline(merged(TABLES | extend, changes))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text and the results of a pipeline, all but a release."""
    folder = tmp_path_factory.mktemp("project")
    tiny_folder(folder / "base")
    lines = [json.dumps({"text": f"Text number {number}."}) for number in range(30)]
    (folder / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with contextlib.chdir(folder):
        write_results(replace(with_settings(), until="evaluate"))
    return folder


@pytest.fixture
def pipeline(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ResolvedPipeline]:
    """A pipeline in the current folder whose stages have results, all but a release; returns it with other settings."""
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return with_settings


def stale(config: ResolvedPipeline) -> list[str]:
    """Makes the checks of `run`, and returns the stages that it would start."""
    staleness.check_results(config)
    return [name for name in config.stages if not staleness.is_done(config, name)]
