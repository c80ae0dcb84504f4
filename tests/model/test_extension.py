"""Extending a model on disk: logits on short inputs do not change, and nothing is left of a failure."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from longmlm.artifacts.provenance import Extension, ModelSource, Provenance, TrainingRecord, read_provenance
from longmlm.errors import FolderError, ModelError, PositionsError
from longmlm.model import extension, fitted_positions, mlm
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import write_extension
from longmlm.model.families import check_extendable
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.position_table import position_table_of
from tests.support.logit_tensors import LogitTensors
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, mark_trained, tiny_extension, tiny_long

LENGTHS = (1, 2, 7, NUM_POSITIONS - 1, NUM_POSITIONS)


def settings(base: Path, initialisation: str = "hierarchical") -> Extension:
    return tiny_extension(base, initialisation=initialisation, seed=3)


@pytest.fixture
def roberta(world: World) -> LoadedModel:
    return load_model(str(world.base))


@torch.no_grad()
def short_logits(model: PreTrainedModel, is_masked: bool) -> list[torch.Tensor]:
    """Returns logits on inputs of several lengths up to the longest that the base model reads, some padded."""
    generator, found = torch.Generator().manual_seed(11), []
    for length in LENGTHS:
        tokens = torch.randint(5, model.config.vocab_size, (3, length), generator=generator)
        mask = torch.ones_like(tokens)
        mask[2, length // 2 + 1 :] = 0
        tokens[mask == 0] = model.config.pad_token_id
        if is_masked:
            found.append(model(tokens, attention_mask=mask).logits[mask == 1])
        else:
            found.append(model(tokens[:2]).logits)
    return found


def test_logits_on_inputs_that_fit_the_base_model_stay_bit_for_bit(base: Path, tmp_path: Path) -> None:
    """The base model stays as it was, and the tokenizer knows the new length."""
    loaded = load_model(str(base))
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    report = write_extension(loaded, settings(base), tmp_path / "long")
    assert report.largest_difference == 0
    models = [AutoModelForMaskedLM.from_pretrained(folder) for folder in (base, tmp_path / "long")]
    for is_masked in (False, True):
        pair = [short_logits(model, is_masked) for model in models]
        assert all(torch.equal(one, other) for one, other in zip(*pair, strict=True))
        assert pair[0][-1].std() > 0.1
    state = loaded.model.state_dict()
    assert all(torch.equal(before[name], state[name]) for name in before)
    assert loaded.tokenizer.model_max_length == NUM_POSITIONS
    rows = position_table_of(models[1]).usable_rows
    assert len(rows) == architecture_of(models[1]).num_positions == LONG_POSITIONS
    sizes = [float(part.square().mean().sqrt()) for part in (rows[:NUM_POSITIONS], rows[NUM_POSITIONS:])]
    assert [report.trained_rows_rms, report.new_rows_rms] == pytest.approx(sizes)
    assert sizes[1] > sizes[0] > 0
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (base, tmp_path / "long"))
    assert (old.model_max_length, new.model_max_length) == (NUM_POSITIONS, LONG_POSITIONS)
    text = "Many years have passed since my wife and I left."
    assert new(text)["input_ids"] == old(text)["input_ids"]
    assert len(new(text * 5, truncation=True)["input_ids"]) == LONG_POSITIONS


@pytest.mark.parametrize("initialisation", ["tile", "fitted"])
def test_the_report_says_by_how_much_logits_change(
    roberta: LoadedModel, world: World, tmp_path: Path, initialisation: str
) -> None:
    difference = write_extension(roberta, settings(world.base, initialisation), tmp_path / "long").largest_difference
    after = AutoModelForMaskedLM.from_pretrained(tmp_path / "long")
    same = torch.equal(short_logits(roberta.model, False)[-1], short_logits(after, False)[-1])
    assert same == (difference == 0) == (difference < 0.01) == (initialisation == "tile")


def test_logits_are_compared_for_some_positions_at_a_time(
    roberta: LoadedModel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both models. The difference is the same."""
    kinds, differences = (settings(world.base), settings(world.base, "fitted")), []
    num_tokens = NUM_POSITIONS + NUM_POSITIONS * 3 // 4  # of two rows, one of which is padded
    for size in (2 * NUM_POSITIONS, NUM_POSITIONS):
        monkeypatch.setattr(mlm, "MAX_LOGITS", size * roberta.model.config.vocab_size)
        with LogitTensors(roberta.model) as logits:
            reports = [write_extension(roberta, one, tmp_path / f"{size}-{one.initialisation}") for one in kinds]
        assert max(logits.positions) == (num_tokens if size > num_tokens else num_tokens // 2)
        differences.append([report.largest_difference for report in reports])
    assert differences[0] == pytest.approx(differences[1], rel=1e-4)
    assert differences[0][0] == differences[1][0] == 0 < differences[0][1]


def test_history_is_written_next_to_the_weights(roberta: LoadedModel, world: World, tmp_path: Path) -> None:
    write_extension(roberta, settings(world.base), tmp_path / "long")
    assert read_provenance(tmp_path / "long") == Provenance(
        extension=Extension(
            base=ModelSource(name=str(world.base)),
            base_positions=NUM_POSITIONS,
            num_positions=LONG_POSITIONS,
            initialisation="hierarchical",
            alpha=0.4,
            seed=3,
            mode="materialized",
        )
    )
    assert json.loads((tmp_path / "long" / "longmlm.json").read_text())["trained"] is None


def test_an_extension_is_extended_again_only_after_training_at_its_length(world: World, tmp_path: Path) -> None:
    long = tiny_long(tmp_path / "long", world.base)
    with pytest.raises(PositionsError, match=f"extend {world.base} ") as caught:
        check_extendable(read_provenance(long), str(long))
    assert f"{long} was extended to {LONG_POSITIONS}" in str(caught.value)
    check_extendable(read_provenance(world.base), str(world.base))
    about = read_provenance(mark_trained(long))
    check_extendable(about, str(long))
    for row_length, steps in ((24, 5), (LONG_POSITIONS, 0)):
        elsewhere = replace(about, trained=TrainingRecord(row_length=row_length, steps=steps, tokens=10))
        with pytest.raises(PositionsError, match=str(LONG_POSITIONS)):
            check_extendable(elsewhere, "long")
    again = tiny_extension(world.trained, 100, base_positions=LONG_POSITIONS)
    assert write_extension(load_model(str(world.trained)), again, tmp_path / "longer").largest_difference == 0
    assert architecture_of(load_model(str(tmp_path / "longer")).model).num_positions == 100


@pytest.mark.parametrize("change", [0.5, float("nan")])
def test_nothing_is_left_when_the_check_fails(
    roberta: LoadedModel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    was_there = []

    def failing(*models: PreTrainedModel) -> float:
        was_there.extend(path.name for path in (tmp_path / "long.partial").iterdir())
        return change

    monkeypatch.setattr(extension, "largest_difference", failing)
    with pytest.raises(ModelError, match=f"differ .*{change:.2e}"):
        write_extension(roberta, settings(world.base), tmp_path / "long")
    assert {"model.safetensors", "longmlm.json"} <= set(was_there)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("position", [0, NUM_POSITIONS - 1])
def test_a_changed_trained_row_is_found(
    roberta: LoadedModel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    table_of = extension.extended_table

    def spoilt(*arguments: object) -> torch.Tensor:
        table = table_of(*arguments).clone()
        table[position] += 1e-3
        return table

    monkeypatch.setattr(extension, "extended_table", spoilt)
    with pytest.raises(ModelError, match="logits .*differ"):
        write_extension(roberta, settings(world.base), tmp_path / "long")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_in_the_base_model_is_refused_with_the_weights_name(
    roberta: LoadedModel, world: World, tmp_path: Path, value: float
) -> None:
    name = next(key for key in roberta.model.state_dict() if key.endswith("embeddings.LayerNorm.weight"))
    with torch.no_grad():
        roberta.model.state_dict()[name][0] = value
    for initialisation in ("hierarchical", "fitted"):
        with pytest.raises(ModelError, match=f"{world.base}: {name} holds NaN"):
            write_extension(roberta, settings(world.base, initialisation), tmp_path / "long")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(roberta: LoadedModel, world: World, tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "mine").write_text("kept")
    with pytest.raises(FolderError, match=f"{tmp_path / 'long'} already exists"):
        write_extension(roberta, settings(world.base), tmp_path / "long")
    assert [path.name for path in tmp_path.rglob("*")] == ["long", "mine"]


@pytest.mark.parametrize("error", [SafetensorError, Exception])  # of safetensors and of tokenizers
def test_a_full_disk_is_an_os_error_and_leaves_nothing(
    roberta: LoadedModel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(roberta.tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_extension(roberta, settings(world.base), tmp_path / "long")
    assert (raised.value.errno, list(tmp_path.iterdir())) == (errno.ENOSPC, [])


@pytest.mark.parametrize("initialisation", ["fitted", "hierarchical"])
def test_a_table_is_computed_on_one_thread_whatever_their_number(
    initialisation: str, roberta: LoadedModel, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, before, tables = [], torch.get_num_threads(), []
    for name in ("extended_table", "fitted_table"):
        monkeypatch.setattr(extension, name, noting_threads(getattr(extension, name), used))
    monkeypatch.setattr(fitted_positions, "NUM_STEPS", 2)
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            table = extension.long_table(roberta.model, settings(world.base, initialisation))
            tables.append(table.numpy().tobytes())
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert set(used) == {1}
    assert len(set(tables)) == 1


def noting_threads(function: Callable[..., torch.Tensor], used: list[int]) -> Callable[..., torch.Tensor]:
    def noting(*arguments: Any) -> torch.Tensor:
        used.append(torch.get_num_threads())
        return function(*arguments)

    return noting
