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
from longmlm.model.loading import load_model
from longmlm.model.position_table import position_table_of
from tests.support.logit_tensors import LogitTensors
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, mark_trained, tiny_extension, tiny_long

LENGTHS = (1, 2, 7, NUM_POSITIONS - 1, NUM_POSITIONS)


def settings(base: Path, initialisation: str = "hierarchical") -> Extension:
    return tiny_extension(base, initialisation=initialisation, seed=3)


def short_inputs(model: PreTrainedModel) -> list[dict[str, torch.Tensor]]:
    """Returns batches of several lengths up to the longest that the base model reads, the last row of each padded."""
    generator = torch.Generator().manual_seed(11)
    batches = []
    for length in LENGTHS:
        tokens = torch.randint(5, model.config.vocab_size, (3, length), generator=generator)
        mask = torch.ones_like(tokens)
        mask[2, length // 2 + 1 :] = 0
        tokens[mask == 0] = model.config.pad_token_id
        batches.append({"input_ids": tokens, "attention_mask": mask})
    return batches


@torch.no_grad()
def short_logits(model: PreTrainedModel, is_masked: bool) -> list[torch.Tensor]:
    found = []
    for batch in short_inputs(model.eval()):
        mask = batch["attention_mask"] == 1
        given = batch if is_masked else {"input_ids": batch["input_ids"][:2]}
        logits = model(**given).logits
        found.append(logits[mask] if is_masked else logits)
    return found


UNCHANGED = ("hierarchical", "tile", "random")


@pytest.mark.parametrize("initialisation", UNCHANGED)
def test_logits_on_inputs_that_fit_the_base_model_stay_bit_for_bit(
    base: Path, tmp_path: Path, initialisation: str
) -> None:
    report = write_extension(load_model(str(base)), settings(base, initialisation), tmp_path / "long")
    models = [AutoModelForMaskedLM.from_pretrained(folder) for folder in (base, tmp_path / "long")]
    assert architecture_of(models[1]).num_positions == LONG_POSITIONS
    for is_masked in (False, True):
        before, after = (short_logits(model, is_masked) for model in models)
        assert len(before) == len(LENGTHS)
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert before[-1].std() > 0.1
    assert report.largest_difference == 0


@pytest.mark.parametrize("initialisation", ["interpolate", "stretched", "fitted"])
def test_interpolation_changes_logits_and_reports_by_how_much(base: Path, tmp_path: Path, initialisation: str) -> None:
    report = write_extension(load_model(str(base)), settings(base, initialisation), tmp_path / "long")
    assert report.largest_difference > 0.01
    models = [AutoModelForMaskedLM.from_pretrained(folder) for folder in (base, tmp_path / "long")]
    before, after = (short_logits(model, False) for model in models)
    assert not torch.equal(before[-1], after[-1])


def test_logits_are_compared_for_some_positions_at_a_time(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both models; of short inputs those of all tokens, padding included. The difference is the same."""
    loaded, at_a_time = load_model(str(base)), NUM_POSITIONS + 2
    kinds, differences = (settings(base), settings(base, "interpolate")), []
    for is_whole in (True, False):
        if not is_whole:
            monkeypatch.setattr(mlm, "MAX_LOGITS", at_a_time * loaded.model.config.vocab_size)
        with LogitTensors(loaded.model) as logits:
            reports = [write_extension(loaded, one, tmp_path / f"{is_whole}-{one.initialisation}") for one in kinds]
        assert max(logits.positions) == (2 * NUM_POSITIONS if is_whole else NUM_POSITIONS)
        differences.append([report.largest_difference for report in reports])
    assert differences[0] == pytest.approx(differences[1], rel=1e-4)
    assert differences[0][0] == differences[1][0] == 0 < differences[0][1]


def test_tokenizer_knows_the_new_length(base: Path, tmp_path: Path) -> None:
    tiny_long(tmp_path / "long", base)
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (base, tmp_path / "long"))
    assert (before.model_max_length, after.model_max_length) == (NUM_POSITIONS, LONG_POSITIONS)
    text = "Many years have passed since my wife and I left."
    assert after(text)["input_ids"] == before(text)["input_ids"]
    assert len(after(text * 5, truncation=True)["input_ids"]) == LONG_POSITIONS


def test_history_is_written_next_to_the_weights(base: Path, tmp_path: Path) -> None:
    write_extension(load_model(str(base)), settings(base), tmp_path / "long")
    assert read_provenance(tmp_path / "long") == Provenance(
        extension=Extension(
            base=ModelSource(name=str(base)),
            base_positions=NUM_POSITIONS,
            num_positions=LONG_POSITIONS,
            initialisation="hierarchical",
            alpha=0.4,
            seed=3,
            mode="materialized",
        )
    )
    assert json.loads((tmp_path / "long" / "longmlm.json").read_text())["trained"] is None


def test_report_tells_the_size_of_trained_and_new_rows(base: Path, tmp_path: Path) -> None:
    report = write_extension(load_model(str(base)), settings(base), tmp_path / "long")
    rows = position_table_of(load_model(str(tmp_path / "long")).model).usable_rows
    sizes = [float(part.square().mean().sqrt()) for part in (rows[:NUM_POSITIONS], rows[NUM_POSITIONS:])]
    assert [report.trained_rows_rms, report.new_rows_rms] == pytest.approx(sizes)
    assert sizes[1] > sizes[0] > 0


def test_base_model_stays_as_it_was(base: Path, tmp_path: Path) -> None:
    loaded = load_model(str(base))
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    write_extension(loaded, settings(base), tmp_path / "long")
    after = loaded.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert architecture_of(loaded.model).num_positions == NUM_POSITIONS
    assert loaded.tokenizer.model_max_length == NUM_POSITIONS


def test_untrained_extension_is_not_extended_again(world: World, tmp_path: Path) -> None:
    long = tiny_long(tmp_path / "long", world.base)
    with pytest.raises(PositionsError, match=f"extend {world.base} ") as caught:
        check_extendable(read_provenance(long), str(long))
    assert f"{long} was extended to {LONG_POSITIONS}" in str(caught.value)
    check_extendable(read_provenance(mark_trained(long)), str(long))
    check_extendable(read_provenance(world.base), str(world.base))


@pytest.mark.parametrize(("row_length", "steps"), [(24, 5), (LONG_POSITIONS, 0)])
def test_training_at_another_length_does_not_count(row_length: int, steps: int) -> None:
    trained = TrainingRecord(row_length=row_length, steps=steps, tokens=10)
    about = Provenance(extension=settings(Path("base")), trained=trained)
    with pytest.raises(PositionsError, match=str(LONG_POSITIONS)):
        check_extendable(about, "long")
    check_extendable(replace(about, trained=replace(trained, row_length=LONG_POSITIONS, steps=5)), "long")


def test_trained_extension_becomes_the_base_of_the_next(world: World, tmp_path: Path) -> None:
    loaded = load_model(str(world.trained))
    again = tiny_extension(world.trained, 100, base_positions=LONG_POSITIONS)
    report = write_extension(loaded, again, tmp_path / "longer")
    assert report.largest_difference == 0
    assert architecture_of(load_model(str(tmp_path / "longer")).model).num_positions == 100


@pytest.mark.parametrize("change", [0.5, float("nan")])
def test_nothing_is_left_when_the_check_fails(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    was_there = []

    def failing(*models: PreTrainedModel) -> float:
        was_there.extend(path.name for path in (tmp_path / "long.partial").iterdir())
        return change

    monkeypatch.setattr(extension, "largest_difference", failing)
    with pytest.raises(ModelError, match=f"differ .*{change:.2e}"):
        write_extension(load_model(str(base)), settings(base), tmp_path / "long")
    assert {"model.safetensors", "longmlm.json"} <= set(was_there)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("position", [0, NUM_POSITIONS - 1])
def test_a_changed_trained_row_is_found(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    table_of = extension.extended_table

    def spoilt(*arguments: object) -> torch.Tensor:
        table = table_of(*arguments).clone()
        table[position] += 1e-3
        return table

    monkeypatch.setattr(extension, "extended_table", spoilt)
    with pytest.raises(ModelError, match="logits .*differ"):
        write_extension(load_model(str(base)), settings(base), tmp_path / "long")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("initialisation", ["hierarchical", "interpolate"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_in_the_base_model_is_refused_with_the_weights_name(
    base: Path, tmp_path: Path, initialisation: str, value: float
) -> None:
    loaded = load_model(str(base))
    name = next(key for key in loaded.model.state_dict() if key.endswith("embeddings.LayerNorm.weight"))
    with torch.no_grad():
        loaded.model.state_dict()[name][0] = value
    with pytest.raises(ModelError, match=f"{base}: {name} holds NaN"):
        write_extension(loaded, settings(base, initialisation), tmp_path / "long")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(base: Path, tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "mine").write_text("kept")
    with pytest.raises(FolderError, match=f"{tmp_path / 'long'} already exists"):
        write_extension(load_model(str(base)), settings(base), tmp_path / "long")
    assert [path.name for path in tmp_path.rglob("*")] == ["long", "mine"]


@pytest.mark.parametrize("error", [SafetensorError, Exception])  # of safetensors and of tokenizers
def test_a_full_disk_is_an_os_error_and_leaves_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("I/O error: No space left on device (os error 28)")

    loaded = load_model(str(base))
    monkeypatch.setattr(loaded.tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_extension(loaded, settings(base), tmp_path / "long")
    assert (raised.value.errno, list(tmp_path.iterdir())) == (errno.ENOSPC, [])


@pytest.mark.parametrize("initialisation", ["fitted", "random", "hierarchical"])
def test_a_table_is_computed_on_one_thread_whatever_their_number(
    initialisation: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, before, tables = [], torch.get_num_threads(), []
    for name in ("extended_table", "fitted_table"):
        monkeypatch.setattr(extension, name, noting_threads(getattr(extension, name), used))
    monkeypatch.setattr(fitted_positions, "NUM_STEPS", 2)
    model = load_model(str(world.base)).model
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            tables.append(extension.long_table(model, settings(world.base, initialisation)).numpy().tobytes())
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
