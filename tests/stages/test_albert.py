"""The shipped ALBERT, in small: trained on masks and the order of segments, released, extended, released again."""

import json
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from transformers import AlbertForPreTraining, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.artifacts.provenance import read_provenance
from longmlm.data.rows import open_rows
from longmlm.settings.shipped import PACKAGE
from tests.support.commands import Command, command
from tests.support.families import tiny_tokenizer
from tests.support.training import training_lines

__all__ = ["command"]
SHORT = {
    "num_steps": 4,
    "batch_tokens": 1024,
    "warmup_steps": 1,
    "precision": "no",
    "held_out": {"max_rows": 8},
}
RUNTIME = {"rows_per_micro_batch": 4, "log_every_steps": 1, "evaluate_every_steps": 2, "save_every_steps": 2}
NEW_PAIR_WEIGHTS = (
    "albert.pooler.weight",
    "albert.pooler.bias",
    *(f"sop_classifier.classifier.{one}" for one in ("weight", "bias")),
)


@pytest.fixture
def overlays(tmp_path: Path) -> tuple[Path, Path]:
    """Files that make either pipeline small; the tokenizer is ALBERT's, of few tokens."""
    lines = (PACKAGE / "bundled" / "text" / "demo.jsonl").read_text(encoding="utf-8").splitlines()[:16]
    texts = [json.loads(line)["text"][:3000] for line in lines]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    small = {
        "corpus": [str(tmp_path / "text.jsonl")],
        "prepare": {"recipe": {"held_out_fraction": 0.3}, "runtime": {"num_workers": 1}},
        "pretrain": {"recipe": SHORT, "runtime": {**RUNTIME, "num_threads": 1}},
    }
    tiny_tokenizer("albert", 0).save_pretrained(tmp_path / "tokenizer")
    start = {"tokenizer": str(tmp_path / "tokenizer")}
    new = {**small, "pretrain": {**small["pretrain"], "recipe": {**SHORT, "decay_steps": 1}, "start": start}}
    allowed = {"recipe": {"allow_unrecovered": True, "allow_worse_short_texts": True}}
    long = {**small, "evaluate": {"recipe": {"precision": "no", "held_out": {"max_rows": 8}}}, "release": allowed}
    files = tmp_path / "new.toml", tmp_path / "long.toml"
    for file, tables in zip(files, (new, long), strict=True):
        file.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return files


def test_albert_is_trained_from_scratch_released_extended_and_released_again(
    command: Command, overlays: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    new, long = overlays
    command("run", "albert-mini", new)
    out = Path("out/albert-mini")
    assert open_rows(out / "rows", "train").manifest.plan.pairs
    assert [line.targets.keys() for line in training_lines(out / "run")] == [{"mlm", "pair"}] * 4
    model, info = AlbertForPreTraining.from_pretrained(out / "release", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert (model.config.embedding_size, model.config.num_hidden_groups) == (64, 1)
    assert model.num_parameters() < 8192 * 64 + 1_200_000
    card = (out / "release" / "README.md").read_text(encoding="utf-8")
    assert "sentence-order prediction (SOP)" in card and "carried over" not in card.lower()
    trained = read_provenance(out / "release").trained
    assert trained.pairs == "sop" and f"the accuracy is {trained.pair_accuracy}" in card and "pairs.kind" in card

    capsys.readouterr()
    command("run", "albert-mini-384", long)
    out, printed = Path("out/albert-mini-384"), capsys.readouterr().out
    evaluation = read_evaluation(out / "evaluation" / Evaluation.FILE)
    assert f"pair accuracy: {evaluation.pairs}" in printed and str(evaluation.pairs) in (
        out / "evaluation" / "index.html"
    ).read_text(encoding="utf-8")
    *_, last = (line for line in MetricsFile(out / "run").lines() if isinstance(line, EvaluationMetrics))
    assert last.pairs and evaluation.pairs.num_pairs > 3
    released, long_start = (load_file(out / name / "model.safetensors") for name in ("release", "long"))
    assert released.keys() == long_start.keys() and {*NEW_PAIR_WEIGHTS} <= released.keys()
    assert not any(torch.equal(released[name], long_start[name]) for name in NEW_PAIR_WEIGHTS)
    before = load_file("out/albert-mini/release/model.safetensors")
    assert all(torch.equal(before[name], long_start[name]) for name in NEW_PAIR_WEIGHTS), "extend carries them over"
    assert json.loads((out / "release" / "config.json").read_text())["architectures"] == ["AlbertForPreTraining"]
    for kind in (AutoModelForPreTraining, AutoModelForMaskedLM):
        model, info = kind.from_pretrained(out / "release", output_loading_info=True)
        assert not info["missing_keys"] and model.config.max_position_embeddings == 384
    assert AutoTokenizer.from_pretrained(out / "release").model_max_length == 384
    card = (out / "release" / "README.md").read_text(encoding="utf-8")
    assert f"the accuracy is {evaluation.pairs}" in card
