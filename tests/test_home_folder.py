"""Paths of settings that start with ~/: the home folder, in every command, file and option."""

from pathlib import Path

import pytest

from longmlm.artifacts.artifact import to_toml
from longmlm.config import read
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig

PIPELINE = """
model = "~/base"
corpus = ["~/texts/*.txt", "other/~/a.jsonl"]
length = 512
output = "~/out"
launch = "accelerate launch --config_file ~/ddp.yaml"
[prepare]
publish = "folder:~/rows"
card.license = "cc0-1.0"
card.data = ["Texts in ~/texts", "~ 5 MB of text"]
[extend.recipe]
add_tokens = "~/terms.txt"
[release]
publish = "folder:~/release"
card.license = "mit"
"""
SOURCES = """
[[prepare.recipe.sources]]
dataset = "~/saved"
split = "train"
[[prepare.recipe.sources]]
files = ["~/a.csv"]
delimiter = "~"
"""
KINDS = [ResolvedPipeline, PlanConfig, PrepareConfig, ExtendConfig, PretrainConfig, EvaluateConfig, ReleaseConfig]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def without_text(toml: str) -> str:
    kept = ("other/~/a.jsonl", "Texts in ~/texts", "~ 5 MB of text", '"~"')
    for text in kept:
        toml = toml.replace(text, "")
    return toml


@pytest.mark.parametrize("sources", ["", SOURCES])
@pytest.mark.parametrize("kind", KINDS)
def test_every_path_of_a_pipeline_starts_from_the_home_folder(
    kind: type, sources: str, home: Path, tmp_path: Path
) -> None:
    content = PIPELINE.replace("corpus =", "#") if sources else PIPELINE
    (tmp_path / "a.toml").write_text(content + sources, encoding="utf-8")
    written = to_toml(read(kind, [tmp_path / "a.toml"]))
    assert written.count(str(home)) > 2
    assert "~" not in without_text(written)


def test_only_paths_are_changed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(PIPELINE, encoding="utf-8")
    assert read(ResolvedPipeline, [tmp_path / "b.toml"]).corpus == (f"{home}/texts/*.txt", "other/~/a.jsonl")
    content = PIPELINE.replace("corpus =", "#") + SOURCES.replace("~/a.csv", "x/~/a.csv")
    (tmp_path / "a.toml").write_text(content, encoding="utf-8")
    config = read(ResolvedPipeline, [tmp_path / "a.toml"])
    assert config.launch == f"accelerate launch --config_file {home}/ddp.yaml"
    assert config.prepare.publish == f"folder:{home}/rows"
    assert config.prepare.card.data == ("Texts in ~/texts", "~ 5 MB of text")
    assert config.prepare.recipe.sources[1].files == ("x/~/a.csv",)
    assert config.prepare.recipe.sources[1].delimiter == "~"
    assert config.pretrain.run == f"{home}/out/run"
