"""What init knows of a model before its weights are read; what it prints runs from the first stage to the last."""

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModel

from longmlm.artifacts.evaluation import Evaluation
from longmlm.config import parse
from longmlm.errors import ModelError, UserError
from longmlm.model import families
from longmlm.model.facts import facts_of
from longmlm.needs import check_inputs
from longmlm.pipeline_files import checked_model, init
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline
from tests.support.commands import command
from tests.support.extras import sentence_folder
from tests.support.families import NUM_POSITIONS, demo_texts
from tests.support.hub import Hub, point_client_at, serve
from tests.support.tiny import tiny_folder

__all__ = ["command"]
SHORT = (
    "--pretrain.recipe.num-steps",
    "2",
    "--pretrain.recipe.batch-tokens",
    "320",
    "--pretrain.recipe.precision",
    "no",
    "--pretrain.runtime.num-threads",
    "1",
)
DISTILLED = ("--extend.recipe.distillation.num-tokens", "200", "--extend.recipe.distillation.precision", "no")
SMALL = ("--pretrain.recipe.held-out.max-rows", "8", "--prepare.recipe.held-out-fraction", "0.25")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, a BERT and a sentence encoder without an MLM head."""
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({"text": text}) + "\n" for text in demo_texts())
    (tmp_path / "text.jsonl").write_text("".join(lines), encoding="utf-8")
    tiny_folder(tmp_path / "bert", "bert", 0)
    encoder = sentence_folder(tmp_path / "sentences")
    model = AutoModel.from_pretrained(encoder)
    (encoder / "model.safetensors").unlink()
    model.save_pretrained(encoder)
    return tmp_path


def base(model: str, length: int = 40, **more: object) -> Pipeline:
    return Pipeline(model=model, corpus=("text.jsonl",), length=length, output="out", **more)


def test_a_head_a_sentence_encoder_and_a_licence_are_recognized(folder: Path) -> None:
    facts = checked_model(base("bert"))
    assert (facts.num_positions, facts.has_head, facts.modules, facts.licence) == (NUM_POSITIONS, True, None, None)
    (folder / "sentences" / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    facts = checked_model(base("sentences"))
    assert (facts.num_positions, facts.has_head, facts.licence) == (NUM_POSITIONS, False, "mit") and facts.modules
    assert checked_model(base("sentences", NUM_POSITIONS, extension=False)).has_head is False


@pytest.mark.parametrize("length", [NUM_POSITIONS + 1, 4000])
def test_a_length_without_an_extension_must_fit_the_model(folder: Path, length: int) -> None:
    with pytest.raises(UserError, match=f"and bert reads {NUM_POSITIONS}"):
        checked_model(base("bert", length, extension=False))


@pytest.mark.parametrize("extension", [True, False])
def test_a_model_without_a_head_gets_the_lines_for_a_new_one(folder: Path, extension: bool) -> None:
    options = [] if extension else ["--no-extension"]
    length = 40 if extension else NUM_POSITIONS
    printed = init(["--model", "sentences", "--corpus", "text.jsonl", "--length", str(length), *options])
    content = tomllib.loads(printed)
    assert content["pretrain"]["start"] == {"new_head": True}
    assert (content["length"], content["extension"]) == (NUM_POSITIONS, False)
    comment = f"# sentences is a sentence encoder without an MLM head. It can be extended to {length} positions"
    assert (comment in printed) == extension
    assert "new_head" not in init(["--model", "bert", "--corpus", "text.jsonl", "--length", "40"])


def test_an_albert_whose_layers_share_weights_is_extended_without_a_distillation(folder: Path) -> None:
    options = "--corpus", "text.jsonl", "--length", "40"
    tiny_folder(folder / "albert", "albert", 0)
    assert tomllib.loads(init(["--model", "albert", *options]))["extend"] == {"recipe": {"initialisation": "fitted"}}
    printed = init(["--model", "bert", *options])
    assert '#initialisation = "distilled"' in printed and tomllib.loads(printed)["extend"] == {"recipe": {}}
    pipeline = parse(ResolvedPipeline, ["--model", "albert", *options, "--output", "out"])
    with pytest.raises(ModelError, match=r"share weights: set initialisation to fitted"):
        check_inputs(pipeline)


def test_release_and_licence_stand_in_the_file(folder: Path) -> None:
    (folder / "bert" / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n", encoding="utf-8")
    printed = init(["--model", "bert", "--corpus", "text.jsonl", "--length", "40"])
    assert printed.startswith("#:schema ./longmlm.schema.json\n")
    assert '# The card of bert says cc-by-4.0.\n#license = "cc-by-4.0"\n' in printed
    assert re.search(r"\n\[release\.recipe\]\n(#.*\n)+#allow_unrecovered = false", printed)
    printed = init(["--model", "sentences", "--corpus", "text.jsonl", "--length", "40"])
    assert "# The card of sentences is not known to state one: set it before you publish.\n" in printed


def test_the_second_file_reads_the_same_fields_and_bundled_names_stay(folder: Path) -> None:
    options = ["--text-fields", "title", "body", "--language", "de"]
    printed = init(["--model", "sentences", "--corpus", "bundled:text/demo.jsonl", "--length", "40", *options])
    [second] = re.findall(r"#   longmlm init (.*) > long\.toml", printed)
    assert "--corpus bundled:text/demo.jsonl" in second and second.count("--language de") == 1
    assert tomllib.loads(init([*shlex.split(second), "--model", "bert"]))["text_fields"] == ["title", "body"]
    own = init(["--model", "bundled:roberta-mini", "--corpus", "bundled:text/demo.jsonl", "--length", "200"])
    assert "# The card of bundled:roberta-mini says apache-2.0." in own


def test_a_missing_corpus_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(["--model", "bert", "--corpus", "later/*.jsonl", "--length", "40"])
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith("note: later/*.jsonl: no such file") and "needs its corpus when it runs" in note


@pytest.mark.parametrize(("times", "is_said"), [(7, False), (8, True)])
def test_what_full_attention_loses_at_many_times_the_trained_positions_is_noted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], times: int, is_said: bool
) -> None:
    monkeypatch.setattr(families, "MANY_POSITIONS", 8 * NUM_POSITIONS)
    checked_model(base("bert", times * NUM_POSITIONS))
    assert (f"attention_window = {NUM_POSITIONS // 2} with initialisation = tile" in capsys.readouterr().err) == is_said
    checked_model(base("sentences", times * NUM_POSITIONS))  # without a head: the first file does not extend
    assert "attention_window" not in capsys.readouterr().err


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with serve() as served:
        point_client_at(served, tmp_path / "cache", monkeypatch)
        yield served


def publish(hub: Hub, folder: Path) -> None:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.repository(f"models/owner/{folder.name}").commit(files)


@pytest.mark.parametrize(("name", "has_head"), [("bert", True), ("sentences", False)])
def test_of_a_model_on_a_hub_only_the_header_of_the_weights_is_read(
    folder: Path, hub: Hub, name: str, has_head: bool
) -> None:
    publish(hub, folder / name)
    assert facts_of(f"owner/{name}").weight_names == facts_of(str(folder / name)).weight_names
    about = checked_model(base(f"owner/{name}"))
    assert (about.has_head, about.modules is None) == (has_head, has_head)
    assert not [*(folder / "cache").rglob("*.safetensors")]


def test_weights_of_a_hub_in_another_format_are_not_known(folder: Path, hub: Hub) -> None:
    (folder / "bert" / "model.safetensors").rename(folder / "bert" / "pytorch_model.bin")
    publish(hub, folder / "bert")
    assert facts_of("owner/bert").weight_names is None


@pytest.mark.slow
def test_the_file_of_a_bert_runs_to_its_release(folder: Path, command: Callable[..., None]) -> None:
    write(folder / "mine.toml", init(["--model", "bert", "--corpus", "text.jsonl", "--length", "40"]))
    command(
        "run",
        "mine.toml",
        *SHORT,
        *SMALL,
        *DISTILLED,
        "--release.recipe.allow-unrecovered",
        "--evaluate.recipe.held-out.max-rows",
        8,
        "--evaluate.recipe.precision",
        "no",
    )
    assert (folder / "out/mine/release/model.safetensors").is_file()
    assert (folder / "out/mine/evaluation" / Evaluation.FILE).is_file()


@pytest.mark.slow
def test_the_two_files_of_a_sentence_encoder_run_to_their_releases(folder: Path, command: Callable[..., None]) -> None:
    printed = init(["--model", "sentences", "--corpus", "text.jsonl", "--length", "40"])
    write(folder / "head.toml", printed)
    command("run", "head.toml", *SHORT, *SMALL)
    assert (folder / "out/mine/release/1_Pooling/config.json").is_file()
    [second] = re.findall(r"#   longmlm init (.*) > long\.toml", printed)
    shutil.rmtree(folder / "sentences")
    write(folder / "long.toml", init(shlex.split(second)))
    assert tomllib.loads((folder / "long.toml").read_text())["length"] == 40
    command(
        "run",
        "long.toml",
        *SHORT,
        *SMALL,
        *DISTILLED,
        "--release.recipe.allow-unrecovered",
        "--evaluate.recipe.held-out.max-rows",
        8,
        "--evaluate.recipe.precision",
        "no",
    )
    assert (folder / "out/mine-40/release/1_Pooling/config.json").is_file()


def write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
