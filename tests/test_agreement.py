"""What follows from the base keys of a pipeline: no file sets it, and what run writes is a pipeline again."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from longmlm.artifacts.artifact import to_toml
from longmlm.config import parse, read, resolved_pipeline
from longmlm.errors import ConfigError
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import DERIVED, ResolvedPipeline
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


def given(tmp_path: Path, tables: dict[str, Any]) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return str(path)


def test_what_follows_from_the_base_keys_is_no_key_of_a_file_and_no_option(tmp_path: Path) -> None:
    mine = given(tmp_path, BASE)
    assert len(DERIVED) > 20
    for name in DERIVED:
        value = 48 if name.endswith(("row_length", "num_positions")) else "other"
        with pytest.raises(ConfigError, match=rf"^{name}: cannot be set in a pipeline"):
            resolved_pipeline(merged(BASE, table_of(name, value)))
        option = f"--{name.replace('_', '-')}"
        with pytest.raises(ConfigError, match=f"^unknown option {option}"):
            parse(ResolvedPipeline, [mine, option, str(value)])


def test_pipelines_may_share_rows(tmp_path: Path) -> None:
    before, after = (
        dict(leaves(tomllib.loads(to_toml(resolved_pipeline(one))))) for one in (BASE, BASE | {"rows": "r"})
    )
    assert after == before | {"rows": "r"}
    pipeline = parse(ResolvedPipeline, [given(tmp_path, BASE), "--rows", "r"])
    readers = (pipeline.pretrain, pipeline.evaluate, pipeline.release, pipeline.extend)
    assert pipeline.prepare.output == "r" and all(stage.rows == "r" for stage in readers)
    assert pipeline.pretrain.run == "out/run"


def test_the_corpus_is_one_of_the_sources(tmp_path: Path) -> None:
    both = [{"files": ["a.jsonl"]}, {"dataset": "owner/texts", "split": "train"}]
    pipeline = resolved_pipeline(merged(BASE, {"prepare": {"recipe": {"sources": both}}}))
    assert [source.files for source in pipeline.prepare.recipe.sources] == [("a.jsonl",), ()]
    pipeline = resolved_pipeline(merged(BASE, {"corpus": [], "prepare": {"recipe": {"sources": both[1:]}}}))
    assert pipeline.prepare.recipe.sources == (
        Source(dataset="owner/texts", split="train", language=pipeline.language, text_field=pipeline.text_field),
    )
    with pytest.raises(ConfigError, match=r"corpus and prepare\.recipe\.sources"):
        parse(PrepareConfig, [given(tmp_path, merged(BASE, {"prepare": {"recipe": {"sources": both[1:]}}}))])


def test_one_stage_may_read_and_write_elsewhere(tmp_path: Path) -> None:
    mine = given(tmp_path, BASE)
    assert parse(PretrainConfig, [mine, "--rows", "hf:owner/rows"]).rows == "hf:owner/rows"
    assert parse(EvaluateConfig, [mine, "--base", "owner/other"]).base == "owner/other"
    assert parse(ExtendConfig, [mine, "--output", "other", "--recipe.num-positions", "48"]).output == "other"


@pytest.mark.parametrize("kind", PIPELINES)
def test_what_run_writes_can_be_run_again_also_with_other_base_keys(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pipeline.toml"
    for pipeline in (resolved_pipeline(PIPELINES[kind]), parse(ResolvedPipeline, ["demo"])):
        path.write_text(to_toml(pipeline), encoding="utf-8")
        assert read(ResolvedPipeline, [path]) == pipeline
        longer = parse(ResolvedPipeline, [str(path), "--length", "512", "--output", "longer"])
        assert (longer.prepare.recipe.row_length, longer.pretrain.run) == (512, "longer/run")


def test_sources_keep_their_weights(tmp_path: Path) -> None:
    sources = [{"name": "novels", "files": ["a.jsonl"]}, {"files": ["b.jsonl"]}]
    tables = {key: value for key, value in BASE.items() if key not in ("corpus", "language")}
    tables |= {"prepare": {"recipe": {"sources": sources}}}
    good = resolved_pipeline(tables | {"pretrain": {"recipe": {"weights": {"novels": 2, "source-2": 0.5}}}})
    assert good.pretrain.recipe.weights == {"novels": 2.0, "source-2": 0.5}
    assert resolved_pipeline(tomllib.loads(to_toml(good))) == good
