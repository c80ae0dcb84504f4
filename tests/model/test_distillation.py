"""Distillation of the lowest layers: what is trained, towards what, resumed exactly, and refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longmlm.artifacts.provenance import Extension
from longmlm.data.rows import Rows, open_rows
from longmlm.errors import DataError
from longmlm.model import distillation
from longmlm.model.carried import save_model
from longmlm.model.distillation import distill
from longmlm.model.extension import long_table, with_distilled_layers, with_positions
from longmlm.model.families import LEARNED_FAMILIES, SHARED_LAYERS
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.position_table import position_table_of
from longmlm.settings.extend import Distillation
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, tiny_extension, tiny_folder, tiny_rows

SETTINGS = Distillation(layers=1, num_tokens=4800, batch_tokens=80, learning_rate=2e-3, precision="no")


@pytest.fixture
def base(world: World) -> LoadedModel:
    return load_model(str(world.base))


@pytest.fixture
def rows(world: World) -> Rows:
    return open_rows(world.rows, "train")


def extension_of(**more: object) -> Extension:
    return tiny_extension("base", initialisation="distilled", **{"distillation": SETTINGS, **more})


def long_of(base: LoadedModel, extension: Extension) -> LoadedModel:
    return with_positions(base, long_table(base.model, extension))


def states(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the states after the first layer."""
    with torch.no_grad():
        return model(tokens, output_hidden_states=True).hidden_states[1]


def test_the_lowest_layer_comes_closer_to_the_states_within_a_window(
    base: LoadedModel, rows: Rows, tmp_path: Path
) -> None:
    extension = extension_of()
    long = long_of(base, extension)
    trained, record = with_distilled_layers(long, base, extension, rows, tmp_path / "unfinished")
    distilled = record.distilled
    assert (distilled.layers, distilled.window, distilled.rows_sha256) == (1, NUM_POSITIONS // 2, rows.sha256)
    assert 4500 < distilled.tokens <= 5100
    assert "lowest layer, teacher window 8, 4," in record.description
    table = position_table_of(base.model).usable_rows[torch.arange(LONG_POSITIONS) % NUM_POSITIONS]
    teacher = with_positions(base, table).model
    index = torch.arange(LONG_POSITIONS)
    within = ((index[:, None] - index).abs() <= 8)[None, None]
    tokens = torch.from_numpy(rows[3].input_ids.astype(int))[None]
    tokens, visible = tokens[:, :LONG_POSITIONS], within[..., : tokens.shape[1], : tokens.shape[1]]
    teacher.set_attn_implementation("sdpa")
    with torch.no_grad():
        goal = teacher(tokens, attention_mask=visible, output_hidden_states=True).hidden_states[1]
    before, after = ((states(one.model, tokens) - goal).square().sum() for one in (long, trained))
    assert after < 0.85 * before
    assert distilled.relative_error == pytest.approx(float(after / goal.square().sum()), rel=0.5)


@pytest.mark.parametrize("family", sorted({*LEARNED_FAMILIES} - {*SHARED_LAYERS}))
def test_every_family_comes_closer_to_the_states_within_a_window(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "base", family, pad=0 if family in ("bert", "electra", "distilbert") else 1)
    rows, base, extension = open_rows(tiny_rows(tmp_path, folder), "train"), load_model(str(folder)), extension_of()
    long = long_of(base, extension)
    trained, record = with_distilled_layers(long, base, extension, rows, tmp_path / "unfinished")
    untrained = replace(SETTINGS, num_tokens=800, learning_rate=1e-9)  # the error of the table alone
    _, start = with_distilled_layers(
        long, base, extension_of(distillation=untrained), rows, tmp_path / "other unfinished"
    )
    assert 0 < record.distilled.relative_error < 0.9 * start.distilled.relative_error
    save_model(trained.model, trained.tokenizer, trained.carried, tmp_path / "long")
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path / "long").eval()
    tokens = torch.from_numpy(rows[3].input_ids.astype(int))[None]
    with torch.no_grad():
        assert torch.allclose(stock(tokens).logits, trained.model.eval()(tokens).logits, atol=1e-5)


def test_only_the_lowest_layers_and_the_position_table_change(base: LoadedModel, rows: Rows, tmp_path: Path) -> None:
    extension = extension_of()
    long = long_of(base, extension)
    trained, _ = with_distilled_layers(long, base, extension, rows, tmp_path / "unfinished")
    before, after = long.model.state_dict(), trained.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("position_embeddings" in name or "layer.0." in name for name in changed)
    reserved = position_table_of(base.model).offset
    table = next(name for name in changed if "position_embeddings" in name)
    assert torch.equal(before[table][:reserved], after[table][:reserved])
    assert [path.name for path in tmp_path.iterdir()] == ["unfinished"]  # until the extension is written


def test_an_interrupted_distillation_goes_on_and_gives_the_same_bits(
    base: LoadedModel, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "STEPS_PER_SAVE", 3)
    extension, unfinished, update = extension_of(), tmp_path / "unfinished", distillation._Run.update
    whole, record = with_distilled_layers(long_of(base, extension), base, extension, rows, unfinished)
    unfinished.unlink()
    steps: list[int] = []
    stops = [7]

    def interrupted(run: distillation._Run, *batches: object) -> None:
        if run.step in stops:
            raise InterruptedError
        steps.append(run.step)
        update(run, *batches)

    monkeypatch.setattr(distillation._Run, "update", interrupted)
    with pytest.raises(InterruptedError):
        with_distilled_layers(long_of(base, extension), base, extension, rows, unfinished)
    assert steps == [*range(7)] and unfinished.is_file()
    stops.clear()
    again, resumed = with_distilled_layers(long_of(base, extension), base, extension, rows, unfinished)
    assert steps[7] == 6 and resumed == record
    weights, others = whole.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    steps.clear()
    assert with_distilled_layers(long_of(base, extension), base, extension, rows, unfinished)[1] == record
    assert steps == []  # all steps were saved
    unfinished.write_bytes(b"not what torch wrote")
    other = replace(extension, seed=1)
    with_distilled_layers(long_of(base, other), base, other, rows, unfinished)
    assert steps[0] == 0


def test_rows_that_do_not_fit_are_refused(base: LoadedModel, rows: Rows, world: World, tmp_path: Path) -> None:
    extension = extension_of(num_positions=LONG_POSITIONS - 1)
    long = long_of(base, extension)
    with pytest.raises(DataError, match="40"):
        distill(long, base, extension, rows, tmp_path / "unfinished")
