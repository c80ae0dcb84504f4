"""Verification of a release succeeds for a faithful folder, and fails for every kind of damage."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmlm.data.rows import Rows
from longmlm.errors import ReleaseError
from longmlm.model.carried import Carried
from longmlm.model.loading import LoadedModel, load_model
from longmlm.release import reload
from longmlm.release.export import TYPES, export
from longmlm.release.proof import masked_text, prove
from longmlm.reports.card_code import LoadingCode
from tests.support.extras import extra_weights
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, held_out, prove_in_this_process


@pytest.fixture
def trained(world: World, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    prove_in_this_process(monkeypatch)
    return load_model(str(world.trained))


@pytest.fixture
def rows(world: World) -> Rows:
    return held_out(world.rows)


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def nudge(folder: Path) -> None:
    change_weights(folder, lambda weights: weights["lm_head.layer_norm.bias"].add_(1e-3))


def last_position(folder: Path) -> None:
    change_weights(folder, lambda weights: weights["roberta.embeddings.position_embeddings.weight"][-1, 0].add_(0.5))


def round_positions(folder: Path) -> None:
    name = "roberta.embeddings.position_embeddings.weight"
    change_weights(folder, lambda weights: weights.update({name: weights[name].bfloat16().float()}))


def drop(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("lm_head.dense.bias"))


def add(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update(stray=torch.zeros(2)))


def untie(folder: Path) -> None:
    name = "roberta.embeddings.word_embeddings.weight"
    change_weights(folder, lambda weights: weights.update({"lm_head.decoder.weight": weights[name].clone()}))
    change_json(folder / "config.json", tie_word_embeddings=False)


def forget_length(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", model_max_length=NUM_POSITIONS)


TAMPERINGS = {
    nudge: "outputs differ by",
    last_position: "outputs differ by",
    round_positions: "outputs differ by",
    drop: r"missing weights \['lm_head\.dense\.bias'\]",
    add: r"unexpected weights \['stray'\]",
    untie: "the decoder is not tied",
    forget_length: f"model_max_length is {NUM_POSITIONS}, not {LONG_POSITIONS}",
}


@pytest.mark.parametrize("weights", TYPES)
def test_faithful_folder_passes_in_every_type(trained: LoadedModel, rows: Rows, tmp_path: Path, weights: str) -> None:
    export(trained, weights, tmp_path)
    proof = prove(trained, weights, rows, tmp_path)
    assert proof.largest_difference <= 1e-4
    assert "outputs are identical" in " ".join(replace(proof, largest_difference=0.0).summary)
    assert "outputs differ by at most 1.0e-05" in " ".join(replace(proof, largest_difference=1e-5).summary)
    assert NUM_POSITIONS < proof.text_tokens <= LONG_POSITIONS
    assert proof.answer


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_tampering_is_found(trained: LoadedModel, rows: Rows, tmp_path: Path, tamper: Callable[[Path], None]) -> None:
    export(trained, "fp32", tmp_path)
    tamper(tmp_path)
    with pytest.raises(ReleaseError, match=TAMPERINGS[tamper]):
        prove(trained, "fp32", rows, tmp_path)


@pytest.mark.parametrize(("base_positions", "length"), [(NUM_POSITIONS, NUM_POSITIONS), (None, 20), (99, 40)])
def test_logits_are_compared_at_the_base_models_length(
    trained: LoadedModel,
    rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base_positions: int | None,
    length: int,
) -> None:
    compared = {}
    monkeypatch.setattr("longmlm.release.proof.save_file", lambda tensors, path: compared.update(tensors, path=path))
    monkeypatch.setattr(reload, "load_file", lambda _: {name: compared[name] for name in compared if name != "path"})
    export(trained, "fp32", tmp_path)
    prove(trained, "fp32", rows, tmp_path, base_positions)
    shapes = {name: tuple(compared[f"{name}.input_ids"].shape) for name in ("short", "base", "whole", "padded")}
    assert shapes == {"short": (1, 1), "base": (1, length), "whole": (1, LONG_POSITIONS), "padded": (2, LONG_POSITIONS)}
    assert compared["padded.attention_mask"].sum(1).tolist() == [LONG_POSITIONS, LONG_POSITIONS // 2]


def test_last_position_is_verified_where_no_row_reaches_it(trained: LoadedModel, rows: Rows, tmp_path: Path) -> None:
    short = [row_id for row_id in range(len(rows)) if len(rows[row_id]) < LONG_POSITIONS - 4]
    assert len(short) > 10
    export(trained, "fp32", tmp_path)
    last_position(tmp_path)
    with pytest.raises(ReleaseError, match="outputs differ by"):
        prove(trained, "fp32", replace(rows, table=rows.table.select(short)), tmp_path)


def test_stored_type_other_than_said_is_found(trained: LoadedModel, rows: Rows, tmp_path: Path) -> None:
    export(trained, "bf16", tmp_path)
    with pytest.raises(ReleaseError, match="outputs differ by"):
        prove(trained, "fp32", rows, tmp_path)


def test_weights_that_the_stored_type_cannot_hold_are_found(trained: LoadedModel, rows: Rows, tmp_path: Path) -> None:
    with torch.no_grad():
        trained.model.lm_head.layer_norm.weight[0] = 1e6
    export(trained, "fp16", tmp_path)
    assert load_file(tmp_path / "model.safetensors")["lm_head.layer_norm.weight"].isinf().any()
    with pytest.raises(ReleaseError, match="outputs differ by nan"):
        prove(trained, "fp16", rows, tmp_path)


@pytest.mark.parametrize(
    ("script", "message"),
    [("raise OSError('no\\nsuch config')", "such config"), ("import os; os._exit(9)", "exit code 9")],
)
def test_folder_that_cannot_be_read_is_refused_in_a_line(
    world: World, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    (tmp_path / "reload.py").write_text(script)
    monkeypatch.setattr(reload, "__file__", str(tmp_path / "reload.py"))
    with pytest.raises(ReleaseError, match=f"transformers cannot read .*: {message}") as caught:
        prove(load_model(str(world.trained)), "fp32", rows, tmp_path)
    assert "\n" not in str(caught.value)


def test_text_for_fill_mask_nearly_fills_a_row_and_asks_for_one_token_near_its_end(
    trained: LoadedModel, rows: Rows
) -> None:
    tokenizer = trained.tokenizer
    tokens = tokenizer(masked_text(tokenizer, rows, rows.row_length))["input_ids"]
    assert 0.8 * LONG_POSITIONS < len(tokens) <= LONG_POSITIONS
    assert tokens.count(tokenizer.mask_token_id) == 1
    assert tokens.index(tokenizer.mask_token_id) > max(NUM_POSITIONS, 0.8 * len(tokens))


def test_code_of_the_card_is_run_and_the_card_is_not(
    trained: LoadedModel, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(trained, "fp32", tmp_path)
    (tmp_path / "README.md").write_text("# Title\n## Use\n```python\nraise OSError\n```\n")
    code = LoadingCode("load_model.md")
    prove(trained, "fp32", rows, tmp_path, codes=[code])
    monkeypatch.setattr(LoadingCode, "runnable", "raise KeyError(FOLDER)")
    with pytest.raises(KeyError) as caught:
        prove(trained, "fp32", rows, tmp_path, codes=[code])
    assert caught.value.args == (str(tmp_path),)


def test_logits_are_compared_before_a_pipeline_takes_the_model_to_a_gpu(
    world: World, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(_task: str, model: torch.nn.Module, **_: object) -> Callable[[str], list[dict[str, str]]]:
        model.to("meta")
        return lambda _text: [{"token_str": "a"}]

    prove_in_this_process(monkeypatch)
    trained = load_model(str(world.trained))
    export(trained, "fp32", tmp_path)
    monkeypatch.setattr(reload, "pipeline", elsewhere)
    assert prove(trained, "fp32", rows, tmp_path).answer == "a", "on the meta device nothing could be compared"


def with_pooler(trained: LoadedModel) -> LoadedModel:
    """Returns the model with a pooler that was not trained."""
    return replace(trained, carried=Carried(extra_weights("roberta")))


@pytest.mark.parametrize("weights", TYPES)
def test_carried_weights_are_expected_and_compared(
    trained: LoadedModel, rows: Rows, tmp_path: Path, weights: str
) -> None:
    export(with_pooler(trained), weights, tmp_path)
    assert prove(with_pooler(trained), weights, rows, tmp_path).unexpected == []
    with pytest.raises(ReleaseError, match=r"unexpected weights \['roberta\.pooler\.dense\.bias'"):
        prove(trained, weights, rows, tmp_path)


def alter(weights: dict[str, torch.Tensor], name: str) -> None:
    weights[name].add_(1e-6)


def lose(weights: dict[str, torch.Tensor], name: str) -> None:
    del weights[name]


@pytest.mark.parametrize("change", [alter, lose])
def test_carried_weight_that_is_altered_or_lost_is_found(
    trained: LoadedModel, rows: Rows, tmp_path: Path, change: Callable[[dict[str, torch.Tensor], str], object]
) -> None:
    export(with_pooler(trained), "fp32", tmp_path)
    change_weights(tmp_path, lambda stored: change(stored, "roberta.pooler.dense.bias"))
    with pytest.raises(ReleaseError, match=r"altered weights \['roberta\.pooler\.dense\.bias'\]"):
        prove(with_pooler(trained), "fp32", rows, tmp_path)
