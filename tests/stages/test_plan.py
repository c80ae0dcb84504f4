"""The plan of a pipeline: what it says agrees with the rows, the model and the run that follow."""

import gzip
import json
import re
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmlm.config import parse
from longmlm.data import disk
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ConfigError, DataError, ModelError, PositionsError
from longmlm.model.loading import load_model
from longmlm.model.window import Window
from longmlm.model.window_attention import window_of
from longmlm.planning import command as stage
from longmlm.planning.command import plan
from longmlm.settings.pipeline import PlanConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.shipped import PACKAGE
from longmlm.stages.prepare import prepare
from tests.support.rows import mixed_rows
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, tiny_folder


@pytest.fixture
def planned(world: World, auto_precision, tmp_path, monkeypatch, capsys):
    """Plans the world's pipeline with these options; returns kind and text of each line by subject."""
    monkeypatch.setattr(stage, "cpu_tokens_per_second", lambda *_: 1000.0)
    monkeypatch.setattr(stage, "free_memory_bytes", lambda: 10**10)
    monkeypatch.setattr(stage, "check_base", lambda _: None)  # test_untrained_base.py

    def run(*options: str) -> dict[str, tuple[str, str]]:
        file = tmp_path / "mine.toml"
        file.write_text(
            f'model = "{world.base}"\ncorpus = ["{world.rows.parent}/text.jsonl"]\nlength = {LONG_POSITIONS}\n'
            f'output = "{tmp_path}/out"\n[pretrain.recipe]\nbatch_tokens = 640\nnum_steps = 30\n'
        )
        capsys.readouterr()
        plan(parse(PlanConfig, [str(file), *options]))
        lines = capsys.readouterr().out.splitlines()
        return {line[:8].strip(): (line[8:18].strip(), line[18:]) for line in lines}

    return run


def test_every_line_is_exact_or_an_estimate_and_nothing_is_written(planned, tmp_path):
    lines = planned()
    assert [*lines] == ["corpus", "rows", "model", "steps", "memory", "disk", "time"]
    kinds = {name: kind for name, (kind, _) in lines.items()}
    assert kinds.pop("corpus") == kinds.pop("model") == "exact"
    assert set(kinds.values()) == {"estimate"}
    assert re.search(
        r"\(1,000 tokens/s on this CPU, \d+ threads?, measured now\); distillation 3.3 min in one process; "
        r"prepare 0.0 min \(1 w",
        lines["time"][1],
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_the_time_of_a_distillation_is_planned(planned):
    assert "distillation" not in planned("--extend.recipe.initialisation", "fitted")["time"][1]
    # 1 of 2 layers: 4 passes through a layer per token, 6 in training: 900,000 * 4 / 6 tokens at 1,000 tokens/s
    for launch in ((), ("--launch", "two-cpu-processes")):  # the speed is that of the machine, not of a process
        lines = planned("--extend.recipe.distillation.num-tokens", "900000", *launch)
        assert "measured now); distillation 10.0 min in one process; prepare" in lines["time"][1]


def test_plan_and_prepare_name_text_that_the_tokenizer_does_not_know(planned, tmp_path, capsys):
    assert not {"warning:", "note: 1"} & planned().keys()
    base, thai = tiny_folder(tmp_path / "bert", "bert", 0), "ทะเลสาบสงบ ชาวประมงแก่พายเรือออกไป "
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{thai * 9}{number % 7}.", encoding="utf-8")
    (tmp_path / "page.txt").write_text("<!DOCTYPE html><p>The lake was calm.</p>", encoding="utf-8")
    (tmp_path / "thai.toml").write_text(
        f'model = "{base}"\ncorpus = ["{tmp_path}/*.txt"]\nlength = {LONG_POSITIONS}\noutput = "{tmp_path}/thai"\n'
        "prepare.recipe.held_out_fraction = 0.3\n"
    )
    for kind, command, about in ((PlanConfig, plan, "about "), (PrepareConfig, prepare, "")):
        capsys.readouterr()
        command(parse(kind, [str(tmp_path / "thai.toml")]))
        said = capsys.readouterr().out
        assert re.search(rf"^warning: {about}\d\d\.\d% of .*, most often .*ชาวประมง", said, re.MULTILINE)
        assert "1 of 41 .txt files" in said
    assert re.search(r"^unknown tokens: \d\d\.\d\d% of ", said, re.MULTILINE)


@pytest.fixture(scope="module")
def vocabulary():
    return load_vocabulary(str(PACKAGE / "bundled" / "roberta-mini"))


def test_rows_are_estimated_from_the_text_and_not_from_the_size_of_its_files(world, vocabulary, tmp_path):
    corpus = world.rows.parent / "text.jsonl"
    texts = [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    pq.write_table(pa.table({"text": texts, "other": ["x" * 9_000] * len(texts)}), tmp_path / "a.parquet")
    num_tokens = []
    for path in (corpus, tmp_path / "a.jsonl.gz", tmp_path / "a.parquet"):
        options = ["--model", str(world.base), "--corpus", str(path), "--length", "48", "--output", str(tmp_path / "o")]
        num_tokens.append(stage.planned_rows(parse(PlanConfig, options), vocabulary)[1].num_tokens)
    assert num_tokens[1] == num_tokens[0] > 100 and num_tokens[2] == pytest.approx(num_tokens[0], rel=0.1)


def test_the_corpus_is_measured_once(planned, monkeypatch):
    counted = Mock(side_effect=stage.corpus_size)
    monkeypatch.setattr(stage, "corpus_size", counted)
    planned()
    assert counted.call_count == 1


def test_rows_that_exist_make_counts_and_epochs_exact(planned, world):
    rows = open_rows(world.rows, "train")
    lines = planned("--rows", str(world.rows))
    kind, text = lines["rows"]
    assert kind == lines["steps"][0] == "exact"
    assert f"{len(rows):,} rows of {LONG_POSITIONS} tokens, {rows.mean_fill:.1%} full" in text
    per_step = round(640 / (LONG_POSITIONS * rows.mean_fill))
    assert lines["steps"][1].startswith(f"30 of {per_step} rows")
    assert lines["steps"][1].endswith(f"{30 * per_step / len(rows):.2f} epochs")


def test_the_sources_of_rows_are_said_with_how_often_each_is_seen(planned, world, tmp_path):
    rows = mixed_rows(world.rows, tmp_path / "mixed", 0.98, 0.02)
    known, text = planned("--rows", str(rows))["sources"]
    assert known == "exact"
    seen = [re.fullmatch(r"(\w+) ([\d.]+) times, ([\d.]+)% of the tokens", part) for part in text.split("; ")]
    assert all(seen) and [one[1] for one in seen] == ["novels", "laws"]
    assert seen[0][2] == seen[1][2] and float(seen[0][3]) + float(seen[1][3]) == pytest.approx(100)
    assert "sources" not in planned("--rows", str(world.rows))


def long_model(world: World) -> list[str]:
    return ["--model", str(world.base), "--corpus", "x", "--length", str(LONG_POSITIONS), "--output", "o"]


def test_the_model_has_the_parameters_of_the_long_model(planned, world):
    num_parameters = load_model(str(world.long)).model.num_parameters()
    positions = f"{NUM_POSITIONS} positions extended to {LONG_POSITIONS}"
    assert planned()["model"][1].endswith(f"{num_parameters / 1e6:.1f} M parameters, {positions}")
    base = load_model(str(world.base)).model
    _, model = stage.planned_model(parse(PlanConfig, long_model(world)))
    assert model.num_parameters() == num_parameters > base.num_parameters()
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_window_is_planned_for_and_advised_at_many_times_the_trained_positions(world, planned, monkeypatch):
    _, model = stage.planned_model(parse(PlanConfig, [*long_model(world), "--extend.recipe.attention-window", "4"]))
    assert window_of(model) == Window(4, 1)
    assert window_of(stage.planned_model(parse(PlanConfig, long_model(world)))[1]) is None
    monkeypatch.setattr("longmlm.model.families.MANY_POSITIONS", 1)
    assert "times as many as were trained" in str(planned("--length", str(8 * NUM_POSITIONS)))
    assert "times as many as were trained" not in str(planned())


def test_a_model_whose_weights_are_not_on_this_machine_is_planned(planned, world, tmp_path):
    for path in world.base.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / "bare").mkdir(exist_ok=True)
            (tmp_path / "bare" / path.name).write_bytes(path.read_bytes())
    assert planned("--model", str(tmp_path / "bare"))["model"] == planned()["model"]


def test_a_gpu_is_planned_for_by_its_name(planned):
    lines = planned("--gpu", "A100 40GB")
    assert "42.9 GB are free" in lines["memory"][1]
    assert "1 x A100 40GB" in lines["time"][1] and "25% of the data sheet's 312 TFLOP/s" in lines["time"][1]
    speeds = [
        float(re.search(r"\(([\d,]+) tokens/s", planned(*options)["time"][1])[1].replace(",", ""))
        for options in (["--gpu", "A100"], ["--gpu", "A100", "--pretrain.runtime.num-processes", "4"])
    ]
    assert speeds[1] == pytest.approx(4 * speeds[0], rel=1e-3)
    for gpu, precision, remedy in (("T4", "auto", "fp16, since it has no bf16"), ("A100", "no", "bf16")):
        with pytest.raises(ConfigError, match=f"fp32 on {gpu}.* set pretrain.recipe.precision to {remedy}"):
            planned("--gpu", gpu, "--pretrain.recipe.precision", precision)
    assert "65 TFLOP/s" in planned("--gpu", "T4", "--pretrain.recipe.precision", "fp16")["time"][1]
    assert planned("--gpu", "a100 40gb")["memory"] == lines["memory"]
    with pytest.raises(ConfigError, match="K80 is not a known GPU: set gpu to one of B200, "):
        planned("--gpu", "K80")


@pytest.mark.parametrize(
    ("launch", "total", "here"),
    [("ddp", 8, 8), ("ddp --num_processes 4", 4, 4), ("accelerate launch -n 2", 2, 2), ("two-nodes", 16, 8)],
)
def test_the_processes_that_a_launch_starts_are_planned_for(planned, launch, total, here, monkeypatch):
    monkeypatch.setattr(stage.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(stage.torch.cuda, "device_count", lambda: 0)
    assert " in 1 process: " in planned("--gpu", "A100")["steps"][1]
    lines = planned("--gpu", "A100", "--launch", launch)
    assert f" in {total} processes: " in lines["steps"][1]
    assert f"{total} x A100" in lines["time"][1] and "longmlm" not in lines
    lines = planned("--launch", launch)
    assert f"{10 / here:.1f} GB are free" in lines["memory"][1]
    assert f" starts {here} processes on a machine, and this one has no GPU: " in lines["longmlm"][1]
    assert "longmlm" not in planned("--launch", launch, "--until", "prepare")
    monkeypatch.setattr(stage.torch.cuda, "device_count", lambda: here - 1)
    found = f"this one has {here - 1} GPU{'s' * (here > 2)}: "
    assert found in planned("--launch", launch)["longmlm"][1]
    monkeypatch.setattr(stage.torch.cuda, "device_count", lambda: here)
    assert "longmlm" not in planned("--launch", launch)


def test_a_launch_on_cpus_needs_no_gpu_and_one_without_a_number_is_told(planned, monkeypatch):
    monkeypatch.setattr(stage.torch.cuda, "device_count", lambda: 0)
    lines = planned("--launch", "two-nodes-cpu")
    assert " in 4 processes: " in lines["steps"][1] and "5.0 GB are free" in lines["memory"][1]
    assert "longmlm" not in lines and "longmlm" not in planned()
    text = planned("--launch", "accelerate launch --multi_gpu")["steps"][1]
    assert " in 1 process (assumed, since launch does not say how many): " in text


def test_too_little_memory_is_said_with_the_remedy(planned, monkeypatch):
    monkeypatch.setattr(stage, "free_memory_bytes", lambda: 1000)
    assert "not even one row fits" in planned()["memory"][1]
    assert "set activation_checkpointing = true" in planned()["memory"][1]


def test_too_little_disk_is_said_with_the_numbers_and_the_remedy(planned, monkeypatch):
    assert "need" not in planned()["disk"][1]
    monkeypatch.setattr(disk, "free_bytes", lambda _: 1000)
    text = planned()["disk"][1]
    assert re.search(r"the results in .*/out need about [\d.]+ GB more \(.*\), 0.00 GB are free: free some space", text)


def test_a_model_from_scratch_is_planned_from_its_architecture(auto_precision, monkeypatch, capsys):
    monkeypatch.setattr(stage, "cpu_tokens_per_second", lambda *_: 1000.0)
    plan(parse(PlanConfig, ["roberta-mini"]))
    printed = capsys.readouterr().out
    num_parameters = load_model(str(PACKAGE / "bundled" / "roberta-mini")).model.num_parameters()
    assert f"roberta, {num_parameters / 1e6:.1f} M parameters, 128 positions\n" in printed


def test_what_a_stage_would_refuse_is_refused(planned, world, tmp_path):
    with pytest.raises(PositionsError, match="already has"):
        planned("--length", str(NUM_POSITIONS))
    with pytest.raises(
        DataError,
        match=f"the rows have {LONG_POSITIONS} tokens and .* reads {NUM_POSITIONS}: .* set length to {NUM_POSITIONS}",
    ):
        planned("--no-extension")
    with pytest.raises(ModelError):
        planned("--model", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no such file"):
        planned("--corpus", str(tmp_path / "none.jsonl"))
    reasons = {
        "": "no document .*no records",
        '{"body": "A text."}\n': "no record of .*'text': set text_field to one of 'body'",
        "Prose.": "no document .*JSON",
    }
    for content, reason in reasons.items():
        (tmp_path / "bad.jsonl").write_text(content)
        with pytest.raises(DataError, match=reason):
            planned("--corpus", str(tmp_path / "bad.jsonl"))
    with pytest.raises(DataError, match=f"holds rows of {LONG_POSITIONS} tokens, but the pipeline has"):
        planned("--rows", str(world.rows), "--length", str(LONG_POSITIONS + 8))


def test_a_model_that_only_gets_new_tokens_is_planned(planned, tmp_path):
    (tmp_path / "terms.txt").write_text("thrombolysis\n")
    options = ("--no-extension", "--length", str(NUM_POSITIONS), "--extend.recipe.add-tokens", f"{tmp_path}/terms.txt")
    assert planned(*options)["model"][1].endswith(f"parameters, {NUM_POSITIONS} positions")


def test_many_epochs_are_advised_against(planned):
    advice = "epochs; so many repetitions gain little: add text or lower num_steps"
    assert not planned()["steps"][1].endswith(advice)
    assert planned("--pretrain.recipe.num-steps", "30000")["steps"][1].endswith(advice)


def test_a_corpus_on_a_hub_has_no_known_size(world, tmp_path):
    file = tmp_path / "hub.toml"
    sources = '[[prepare.recipe.sources]]\ndataset = "someone/books"\nsplit = "train"\n'
    file.write_text(f'model = "{world.base}"\nlength = {LONG_POSITIONS}\noutput = "{tmp_path}/out"\n{sources}')
    with pytest.raises(DataError, match="the size of someone/books is not known yet: run longmlm prepare first"):
        plan(parse(PlanConfig, [str(file)]))
