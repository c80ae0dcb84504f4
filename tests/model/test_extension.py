"""The swap into a model on disk: short inputs are told as before, and nothing half-made is left."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from longmlm.errors import FolderError, ModelError, PositionsError
from longmlm.model import extension
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import Provenance, check_extendable, write_extension
from longmlm.model.loading import load_model, read_provenance
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, mark_trained, tiny_long

LENGTHS = (1, 2, 7, NUM_POSITIONS - 1, NUM_POSITIONS)


def provenance(base: Path, initialisation: str = "hierarchical") -> Provenance:
    return Provenance(str(base), None, NUM_POSITIONS, LONG_POSITIONS, initialisation, 0.4, 3)


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


@pytest.mark.parametrize("initialisation", ["hierarchical", "tile", "random"])
def test_inputs_that_the_base_model_reads_are_told_bit_for_bit_as_before(
    base: Path, tmp_path: Path, initialisation: str
) -> None:
    report = write_extension(load_model(str(base)), provenance(base, initialisation), tmp_path / "long")
    models = [AutoModelForMaskedLM.from_pretrained(folder) for folder in (base, tmp_path / "long")]
    assert architecture_of(models[1]).num_positions == LONG_POSITIONS
    for is_masked in (False, True):
        before, after = (short_logits(model, is_masked) for model in models)
        assert len(before) == len(LENGTHS)
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert before[-1].std() > 0.1
    assert report.largest_change == 0


def test_interpolation_changes_what_was_told_and_says_by_how_much(base: Path, tmp_path: Path) -> None:
    report = write_extension(load_model(str(base)), provenance(base, "interpolate"), tmp_path / "long")
    assert report.largest_change > 0.01
    models = [AutoModelForMaskedLM.from_pretrained(folder) for folder in (base, tmp_path / "long")]
    before, after = (short_logits(model, False) for model in models)
    assert not torch.equal(before[-1], after[-1])


def test_tokenizer_knows_the_new_length(base: Path, tmp_path: Path) -> None:
    tiny_long(tmp_path / "long", base)
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (base, tmp_path / "long"))
    assert (before.model_max_length, after.model_max_length) == (NUM_POSITIONS, LONG_POSITIONS)
    text = "Many years have passed since my wife and I left."
    assert after(text)["input_ids"] == before(text)["input_ids"]
    assert len(after(text * 5, truncation=True)["input_ids"]) == LONG_POSITIONS


def test_history_is_written_beside_the_weights(base: Path, tmp_path: Path) -> None:
    about = provenance(base)
    write_extension(load_model(str(base)), about, tmp_path / "long")
    written = json.loads((tmp_path / "long" / "longmlm.json").read_text())
    assert written == asdict(about)
    assert written == {
        "base": str(base),
        "base_revision": None,
        "base_positions": NUM_POSITIONS,
        "num_positions": LONG_POSITIONS,
        "initialisation": "hierarchical",
        "alpha": 0.4,
        "seed": 3,
        "mode": "materialized",
        "trained": None,
    }


def test_report_tells_the_size_of_trained_and_new_rows(base: Path, tmp_path: Path) -> None:
    report = write_extension(load_model(str(base)), provenance(base), tmp_path / "long")
    parts = architecture_of(load_model(str(tmp_path / "long")).model)
    rows = parts.position_table.weight.detach()[parts.position_offset :]
    sizes = [float(part.square().mean().sqrt()) for part in (rows[:NUM_POSITIONS], rows[NUM_POSITIONS:])]
    assert [report.trained_rows_rms, report.new_rows_rms] == pytest.approx(sizes)
    assert sizes[1] > sizes[0] > 0


def test_base_model_stays_as_it_was(base: Path, tmp_path: Path) -> None:
    loaded = load_model(str(base))
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    write_extension(loaded, provenance(base), tmp_path / "long")
    after = loaded.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert architecture_of(loaded.model).num_positions == NUM_POSITIONS
    assert loaded.tokenizer.model_max_length == NUM_POSITIONS


def test_untrained_extension_is_not_extended_again(world: World, tmp_path: Path) -> None:
    long = tiny_long(tmp_path / "long", world.base)
    with pytest.raises(PositionsError, match=f"extend {world.base} to the length you want, or pretrain") as caught:
        check_extendable(read_provenance(str(long)), str(long))
    assert f"extended to {LONG_POSITIONS} positions" in str(caught.value)
    check_extendable(read_provenance(str(mark_trained(long))), str(long))
    check_extendable(read_provenance(str(world.base)), str(world.base))


@pytest.mark.parametrize("trained", [{}, {"row_length": 24, "steps": 5}, {"row_length": LONG_POSITIONS, "steps": 0}])
def test_training_at_another_length_is_not_training_at_its_own(trained: dict) -> None:
    about = asdict(provenance(Path("base"))) | {"trained": trained}
    with pytest.raises(PositionsError, match="not trained at that length"):
        check_extendable(about, "long")
    check_extendable(about | {"trained": {"row_length": LONG_POSITIONS, "steps": 5}}, "long")


def test_trained_extension_becomes_the_base_of_the_next(world: World, tmp_path: Path) -> None:
    loaded = load_model(str(world.trained))
    about = Provenance(str(world.trained), None, LONG_POSITIONS, 100, "hierarchical", 0.4, 0)
    report = write_extension(loaded, about, tmp_path / "longer")
    assert report.largest_change == 0
    assert architecture_of(load_model(str(tmp_path / "longer")).model).num_positions == 100


@pytest.mark.parametrize("change", [0.5, float("nan")])
def test_nothing_is_left_when_the_check_fails(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    was_there = []

    def failing(*models: PreTrainedModel) -> float:
        was_there.extend(path.name for path in (tmp_path / "long.partial").iterdir())
        return change

    monkeypatch.setattr(extension, "largest_change", failing)
    with pytest.raises(ModelError, match=f"differ from the base model's by {change:.2e}"):
        write_extension(load_model(str(base)), provenance(base), tmp_path / "long")
    assert {"model.safetensors", "longmlm.json"} <= set(was_there)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0, NUM_POSITIONS - 1])
def test_a_changed_trained_row_is_found(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    table_of = extension.extended_table

    def spoilt(*arguments: object) -> torch.Tensor:
        table = table_of(*arguments).clone()
        table[place] += 1e-3
        return table

    monkeypatch.setattr(extension, "extended_table", spoilt)
    with pytest.raises(ModelError, match="logits on short inputs differ"):
        write_extension(load_model(str(base)), provenance(base), tmp_path / "long")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("initialisation", ["hierarchical", "interpolate"])
def test_logits_that_are_no_numbers_do_not_pass_for_equal(base: Path, tmp_path: Path, initialisation: str) -> None:
    loaded = load_model(str(base))
    with torch.no_grad():
        architecture_of(loaded.model).embeddings.LayerNorm.weight[0] = float("nan")
    with pytest.raises(ModelError, match="differ from the base model's by nan"):
        write_extension(loaded, provenance(base, initialisation), tmp_path / "long")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_there_already_is_left_alone(base: Path, tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "mine").write_text("kept")
    with pytest.raises(FolderError, match="exists already"):
        write_extension(load_model(str(base)), provenance(base), tmp_path / "long")
    assert [path.name for path in tmp_path.rglob("*")] == ["long", "mine"]
