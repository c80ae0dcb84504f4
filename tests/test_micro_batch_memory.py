"""The table of the largest micro-batch in 24 GB: the cost model behind it, and the page that shows it."""

from dataclasses import replace

import pytest
from steps import BASE, LARGE, Shape
from transformers import ModernBertConfig, ModernBertForMaskedLM

from benchmarks.micro_batch_memory import (
    AUTHOR,
    CHECKED,
    MODES,
    OURS,
    Mode,
    measured_bytes,
    predicted_bytes,
    rows_that_fit,
    table_line,
)
from longmlm.model.cost import Work, cost_of
from longmlm.model.dropout import set_dropout
from tests.support.training import ROOT


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_cost_model_gives_what_autograd_saves(mode: Mode) -> None:
    assert predicted_bytes(CHECKED, mode) == pytest.approx(measured_bytes(CHECKED, mode), rel=0.1)


def test_a_filled_card_holds_what_the_author_reached_with_eager_attention_in_fp32() -> None:
    rows = {length: rows_that_fit(replace(BASE, row_length=length), MODES[0], share=1.0) for length in AUTHOR}
    assert all(abs(rows[length] - AUTHOR[length]) <= max(1, AUTHOR[length] / 10) for length in AUTHOR)


def test_four_times_the_rows_of_the_author_fit_on_a_filled_card() -> None:
    rows = {length: rows_that_fit(replace(BASE, row_length=length), OURS, share=1.0) for length in AUTHOR}
    assert all(rows[length] >= 4 * AUTHOR[length] for length in AUTHOR)


@pytest.mark.parametrize("shape", [BASE, LARGE], ids=lambda shape: shape.name)
def test_the_page_has_the_table(shape: Shape) -> None:
    page = (ROOT / "docs" / "performance-memory.md").read_text(encoding="utf-8")
    for mode in MODES:
        assert table_line(mode.name, shape, mode) in page


@pytest.mark.parametrize(("is_half", "mask"), [(True, 2), (False, 4)])
def test_a_gpu_saves_a_mask_of_each_pair_of_tokens_unless_rows_are_packed(is_half: bool, mask: int) -> None:
    packed = CHECKED.roberta()
    assert len({cost_of(packed, Work(512, 0.15, is_half, has_gpu=gpu)).row_bytes for gpu in (True, False)}) == 1
    config = ModernBertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=3, num_attention_heads=1, pad_token_id=0
    )
    model = ModernBertForMaskedLM(config)
    set_dropout(model, 0.0)
    per_row = [
        cost_of(model, Work(length, 0.15, is_half, has_gpu=True)).row_bytes
        - cost_of(model, Work(length, 0.15, is_half, has_gpu=False)).row_bytes
        for length in (256, 512)
    ]
    fused = [mask * 3 * length**2 for length in (256, 512)]
    assert per_row == fused
