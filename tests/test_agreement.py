"""Two settings of a pipeline for one thing: both count, or one line names both and nothing is ignored."""

import functools
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from longmlm.artifacts.artifact import to_toml
from longmlm.config import parse, read, resolved_pipeline
from longmlm.errors import ConfigError
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.pipeline import ResolvedPipeline, followers
from longmlm.settings.prepare import PrepareConfig, Source
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.tables import leaves, merged, table_of

BASE = {"model": "owner/base", "corpus": ["a.jsonl"], "length": 64, "output": "out", "revision": "v1", "language": "de"}
SCRATCH = {"pretrain": {"start": {"architecture": "config.json", "tokenizer": "owner/tokens"}}}
PIPELINES: dict[str, dict[str, Any]] = {
    "extended": BASE,
    "own length": BASE | {"extension": False},
    "more tokens": BASE | {"extend": {"recipe": {"add_tokens": "terms.txt"}}},
    "from scratch": {key: BASE[key] for key in ("corpus", "length", "output")} | {"extension": False} | SCRATCH,
}
NUM_FOLLOWERS = {"extended": 15, "own length": 10, "more tokens": 14, "from scratch": 5}
OTHER = {int: 48, str: "other/name"}


def resolved(tables: dict[str, Any], *overlays: dict[str, Any]) -> ResolvedPipeline:
    """Returns the pipeline of a file with others over it; options are merged over it in the same way."""
    return resolved_pipeline(functools.reduce(merged, overlays, tables))


def given(tmp_path: Path, tables: dict[str, Any]) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return str(path)


def refusal(*tables: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        resolved(*tables)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def settings_of(pipeline: ResolvedPipeline) -> dict[str, object]:
    return dict(leaves(tomllib.loads(to_toml(pipeline))))


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_setting_that_contradicts_the_one_it_follows_from_is_refused_with_both_names(kind: str) -> None:
    pipeline = resolved(PIPELINES[kind])
    names = [(name, follower) for name, _, follower in followers(pipeline, asdict(pipeline))]
    assert len(names) == NUM_FOLLOWERS[kind]
    names += [("revision", "pretrain.start.revision")] if kind == "own length" else []
    for name, follower in names:
        value = settings_of(pipeline)[follower]
        error = refusal(PIPELINES[kind], table_of(follower, OTHER[type(value)]))
        assert name in error and follower in error


@pytest.mark.parametrize("name", ["prepare.output", "extend.output", "pretrain.run", "evaluate.output"])
def test_later_stages_read_from_a_configured_output_path(name: str) -> None:
    before, after = settings_of(resolved(BASE)), settings_of(resolved(BASE, table_of(name, "other")))
    moved = {key for key in after if after[key] == "other"}
    assert moved == {key for key in before if before[key] == before[name]} > {name}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pretrain.recipe.batch_tokens", 48),
        ("release.card.title", "other"),
        ("release.card.languages", ["other"]),
        ("release.output", "other"),
        ("pretrain.start.checkpoint", "other"),  # an earlier run of the same model: its folder says which
    ],
)
def test_what_is_recommended_or_of_one_stage_alone_may_be_changed(name: str, value: object) -> None:
    assert settings_of(resolved(BASE, table_of(name, value)))[name] == value


def test_the_same_thing_under_another_name_does_not_contradict(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "base")
    tables = merged(BASE, {"model": "base", "pretrain": {"rows": f"{tmp_path}/out/rows"}, "extend": {"base": "link"}})
    del tables["revision"]
    pipeline = resolved(tables)
    assert pipeline.extend.base == "link"
    checkpoint = merged(tables, {"release": {"model": "./out/run/checkpoints/step-00000010"}})
    assert resolved(checkpoint).release.model.endswith("10")


def test_the_corpus_is_one_of_the_sources_or_refused(tmp_path: Path) -> None:
    both = [{"files": ["a.jsonl"]}, {"dataset": "owner/texts", "split": "train"}]
    pipeline = resolved(merged(BASE, {"prepare": {"recipe": {"sources": both}}}))
    assert [source.files for source in pipeline.prepare.recipe.sources] == [("a.jsonl",), ()]
    alone = [{"dataset": "owner/texts", "split": "train"}]
    overlay = {"corpus": [], "prepare": {"recipe": {"sources": alone}}}
    pipeline = resolved(BASE, overlay)
    assert pipeline.prepare.recipe.sources == (
        Source(dataset="owner/texts", split="train", language=pipeline.language, text_field=pipeline.text_field),
    )
    for kind in (ResolvedPipeline, PrepareConfig):
        with pytest.raises(ConfigError, match=r"corpus and prepare\.recipe\.sources"):
            parse(kind, [given(tmp_path, merged(BASE, {"prepare": {"recipe": {"sources": alone}}}))])


def test_one_stage_may_read_and_write_elsewhere(tmp_path: Path) -> None:
    mine = given(tmp_path, BASE)
    assert parse(PretrainConfig, [mine, "--rows", "hf:owner/rows"]).rows == "hf:owner/rows"
    assert parse(EvaluateConfig, [mine, "--base", "owner/other"]).base == "owner/other"


def test_what_contradicts_the_base_keys_is_refused(tmp_path: Path) -> None:
    tokens = {"recipe": {"add_tokens": "terms.txt", "num_positions": 128}}
    error = refusal(BASE | {"extension": False, "extend": tokens})
    assert "extension is false" in error and "extend.recipe.num_positions" in error
    error = refusal(BASE | {"extension": False} | SCRATCH)
    assert "model" in error and "pretrain.start.architecture" in error


@pytest.mark.parametrize("kind", PIPELINES)
def test_what_run_writes_can_be_run_again(tmp_path: Path, kind: str) -> None:
    pipeline = resolved(PIPELINES[kind])
    path = tmp_path / "pipeline.toml"
    for written in (pipeline, parse(ResolvedPipeline, ["demo"])):
        path.write_text(to_toml(written), encoding="utf-8")
        assert read(ResolvedPipeline, [path]) == written
    error = refusal(tomllib.loads(to_toml(pipeline)), {"length": 32})
    assert "length is 32, but prepare.recipe.row_length is 64" in error


def test_an_option_of_run_contradicts_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^prepare\.output is out/rows, but pretrain\.rows is other: "):
        parse(ResolvedPipeline, [given(tmp_path, BASE), "--pretrain.rows", "other"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"poems": 2.0}, "pretrain.recipe.weights.poems names no source to train on: name one of novels, source-2"),
        ({"laws": 2.0}, "pretrain.recipe.weights.laws names no source to train on: name one of novels, source-2"),
        ({"novels": {"share": 1.0}}, "pretrain.recipe.weights has no share for source-2"),
    ],
)
def test_weights_name_the_sources_that_are_trained_on(weights: dict[str, Any], message: str) -> None:
    laws = {"name": "laws", "files": ["l.jsonl"], "held_out": True}
    sources = [{"name": "novels", "files": ["a.jsonl"]}, {"files": ["b.jsonl"]}, laws]
    tables = {key: value for key, value in BASE.items() if key not in ("corpus", "language")}
    mixed = tables | {"prepare": {"recipe": {"sources": sources}}}
    assert message in refusal(mixed, {"pretrain": {"recipe": {"weights": weights}}})
    good = resolved(mixed, {"pretrain": {"recipe": {"weights": {"novels": 2, "source-2": 0.5}}}})
    assert good.pretrain.recipe.weights == {"novels": 2.0, "source-2": 0.5}
    assert resolved_pipeline(tomllib.loads(to_toml(good))) == good
    assert "is the only one" in refusal(BASE, {"pretrain": {"recipe": {"weights": {"source-1": 2.0}}}})
