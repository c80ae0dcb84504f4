"""Pipeline files that the package prints and contains."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from longmlm.cli import main
from longmlm.config import parse
from longmlm.errors import ConfigError, UserError
from longmlm.options import explanations
from longmlm.pipeline_files import init, pipeline_file, shipped_pipelines
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline, recommended
from longmlm.settings.shipped import SHIPPED
from tests.support.prepare_settings import written

INIT = ["--model", "google-bert/bert-base-chinese", "--corpus", "docs/*.jsonl", "b.txt", "--length", "1536"]


def resolved(*arguments: str) -> ResolvedPipeline:
    return parse(ResolvedPipeline, arguments)


def printed_for(arguments: list[str]) -> str:
    """Returns what init prints without checking the model."""
    return pipeline_file(parse(Pipeline, arguments, "longmlm init", {"output": "out/mine"}))


def test_init_prints_a_file_that_describes_the_same_pipeline(tmp_path: Path) -> None:
    printed = printed_for([*INIT, "--language", "zh", "--output", "out/zh"])
    pipeline = resolved(written(tmp_path, "mine.toml", printed))
    assert pipeline == resolved(*INIT, "--language", "zh", "--output", "out/zh")
    assert tomllib.loads(printed_for(INIT))["output"] == "out/mine"


def test_init_names_a_bundled_model_by_its_prefix() -> None:
    given = ["--model", "bundled:roberta-mini", "--corpus", "bundled:text/demo.jsonl", "--length", "300"]
    printed = tomllib.loads(printed_for(given))
    assert (printed["model"], printed["corpus"]) == ("bundled:roberta-mini", ["bundled:text/demo.jsonl"])


def test_what_init_prints_in_comments_can_be_changed(tmp_path: Path) -> None:
    printed = printed_for(INIT)
    live = "\n".join(
        line.removeprefix("#") if line[1:2] not in ("", " ", ":") else line for line in printed.splitlines()
    )
    examples = [f'{name} = "..."' for name in ("rows", "revision", "launch")]
    for example in (*examples, 'sentence_transformer = "mean"', 'license = "apache-2.0"'):
        assert example in live
        live = live.replace(example, "")
    assert resolved(written(tmp_path, "live.toml", live)) == resolved(written(tmp_path, "mine.toml", printed))
    changed = printed.replace("#num_steps = 3000", "num_steps = 600").replace("#title = ", "title = 'T' #")
    pipeline = resolved(written(tmp_path, "changed.toml", changed))
    assert (pipeline.pretrain.recipe.num_steps, pipeline.pretrain.recipe.warmup_steps) == (600, 30)
    assert pipeline.release.card.title == "T"


def test_init_explains_every_base_key_by_its_docstring() -> None:
    printed, texts = printed_for(INIT), explanations(Pipeline)
    assert texts.keys() == {item.name for item in fields(Pipeline)}
    assert all(f"# {text}\n" in printed for text in texts.values())
    assert "# Number of optimizer updates" in printed


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"--model": "gpt"}, "gpt is a gpt2 model: only"),
        ({"--model": "rotary"}, "it has rotary positions"),
        ({"--model": "./nowhere"}, r"\./nowhere: no such folder"),
        ({"--model": "out/mine/long"}, "out/mine/long: no such folder: .*run the stage that writes it first"),
        ({"--language": "Chinese"}, "'en', 'zh' or 'de'"),
        ({"--length": "100"}, "already has 128 positions; set more .*length"),
        ({"--length": "99999"}, "set fewer .*length"),
    ],
)
def test_init_refuses_a_model_a_language_or_a_length_that_cannot_work(changed, error, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, family in (("gpt", "gpt2"), ("rotary", "modernbert")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"model_type": "{family}", "max_position_embeddings": 64}}')
    given = {"--model": "bundled:roberta-mini", "--corpus": "a.txt", "--length": "256", **changed}
    with pytest.raises(UserError, match=error):
        init([part for pair in given.items() for part in pair])


def test_a_model_on_a_hub_that_cannot_be_reached_is_not_checked() -> None:
    """As in every test, HF_HUB_OFFLINE is set."""
    assert tomllib.loads(init(INIT))["model"] == INIT[1]


@pytest.mark.parametrize(
    ("model", "title"),
    [
        ("owner/name", "name-256"),
        ("out/news/run/checkpoints/step-00000040", "news-256"),
        ("out/news/run", "news-256"),
        ("out/news/release", "news-256"),
        ("long", "long-256"),
    ],
)
def test_a_result_of_another_pipeline_gives_the_title_its_name(model: str, title: str) -> None:
    base = Pipeline(model=model, corpus=("a",), length=256, output="o")
    assert recommended(base, {})["release"]["card"]["title"] == title


@pytest.mark.parametrize("text", ["[a.b]\nc = 1\n[a.b]\nd = 1\n", "length = 1\nlength = 2\n"])
def test_a_repeated_table_or_key_has_a_remedy(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="put all keys of a table under one heading, each key once"):
        resolved(written(tmp_path, "mine.toml", text))


def test_help_of_init_explains_the_base_keys(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["longmlm", "init", "--help"])
    with pytest.raises(SystemExit) as stop:
        main()
    output = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(f"--{item.name.replace('_', '-')}" in output for item in fields(Pipeline))
    assert "(default: out/mine)" in output


def test_help_without_a_file_says_what_is_required(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["longmlm", "run", "--help"])
    with pytest.raises(SystemExit):
        main()
    text = " ".join(capsys.readouterr().out.split())
    assert "Folder for all results. (required)" in text
    assert "Positions of the long model, and tokens per row. (required)" in text
    assert "on the hub. (optional)" in text
    assert "of their text, or of their split_field. (default: 0.05)" in text


def test_pipelines_takes_no_arguments(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["longmlm", "pipelines", "demo"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert (stop.value.code, capsys.readouterr().err.count("\n")) == (2, 1)


def test_pipelines_lists_every_shipped_file_in_a_line(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["longmlm", "pipelines"])
    main()
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert sorted(names) == sorted(path.stem for path in SHIPPED.glob("*.toml"))
    assert {"demo", "minilm-512", "minilm-1536", "roberta-mini", "roberta-base"} <= set(names)
    assert "from 128 to 384 positions" in shipped_pipelines()


def test_a_shipped_pipeline_is_known_by_its_name_unless_a_file_has_that_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(ExtendConfig, ["demo"]).recipe.num_positions == 384
    written(tmp_path, "demo", "model = 'm'\ncorpus = ['a']\nlength = 1536\noutput = 'o'\n")
    assert parse(ExtendConfig, ["demo"]).recipe.num_positions == 1536
    with pytest.raises(ConfigError, match="dmeo: no such TOML file .*longmlm pipelines"):
        resolved("dmeo")


def test_sources_have_the_language_and_field_of_the_pipeline_unless_they_name_their_own(tmp_path: Path) -> None:
    text = 'model = "base"\nlength = 40\noutput = "out"\nlanguage = "zh"\ntext_field = "body"\n'
    text += '[[prepare.recipe.sources]]\nfiles = ["a.jsonl"]\n'
    text += '[[prepare.recipe.sources]]\nfiles = ["b.jsonl"]\nlanguage = "de"\n'
    pipeline = resolved(written(tmp_path, "mine.toml", text), "--prepare.recipe.sources.1.text-field", "text")
    found = [(source.files, source.language, source.text_field) for source in pipeline.prepare.recipe.sources]
    assert found == [(("a.jsonl",), "zh", "body"), (("b.jsonl",), "de", "text")]
    bare = ("--model", "base", "--length", "40", "--output", "out", "--language", "zh")
    pipeline = resolved(*bare, "--prepare.recipe.sources.0.files", "a.jsonl")
    assert pipeline.prepare.recipe.sources[0].language == "zh"
