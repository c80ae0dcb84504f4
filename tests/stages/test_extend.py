"""A checkpoint to a long checkpoint, as a user does it: what is written, what is said, what is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from longmlm.folders import verify
from longmlm.model import extension
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.stages.extend import extend
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, mark_trained

Run = Callable[..., tuple[int, str, str]]


def settings(base: Path, output: Path, **more: object) -> dict[str, object]:
    return {"base": str(base), "output": str(output), "num_positions": LONG_POSITIONS, **more}


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    """A base model to spoil."""
    return Path(shutil.copytree(world.base, tmp_path / "base"))


def test_long_checkpoint_is_whole_and_stock_and_short_inputs_are_told_as_before(
    world: World, tmp_path: Path, run_here: Run
) -> None:
    output = tmp_path / "out" / "long"
    code, said, warned = run_here(ExtendConfig, extend, settings(world.base, output))
    assert (code, warned) == (0, "")
    assert f"positions: {NUM_POSITIONS} -> {LONG_POSITIONS}, hierarchical" in said
    assert f"inputs of up to {NUM_POSITIONS} tokens: 0.0" in said
    assert "Traceback" not in said
    verify(output)
    assert not list(output.parent.glob("*.partial"))
    base, long = (AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (world.base, output))
    tokens = torch.randint(5, 290, (4, NUM_POSITIONS), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(NUM_POSITIONS) < torch.tensor([[16], [9], [2], [1]])
    tokens[~mask] = base.config.pad_token_id
    with torch.no_grad():
        before, after = (one(input_ids=tokens, attention_mask=mask.long()).logits[mask] for one in (base, long))
        longer = long(input_ids=tokens[:1].repeat(1, 3)[:, :LONG_POSITIONS]).logits
    assert torch.equal(before, after)
    assert longer.shape[1] == LONG_POSITIONS
    assert AutoTokenizer.from_pretrained(output).model_max_length == LONG_POSITIONS
    about = json.loads((output / "longmlm.json").read_text())
    assert (about["base"], about["num_positions"], about["trained"]) == (str(world.base), LONG_POSITIONS, None)


def test_settings_reach_the_table(world: World, tmp_path: Path) -> None:
    base = ExtendConfig(
        base=str(world.base), output=str(tmp_path / "0"), recipe=ExtendRecipe(num_positions=LONG_POSITIONS)
    )
    others = [
        base,
        replace(base, alpha=0.2),
        replace(base, initialisation="tile"),
        replace(base, initialisation="random"),
        replace(base, initialisation="random", seed=1),
        replace(base, initialisation="interpolate"),
    ]
    tables = []
    for number, config in enumerate(others):
        extend(replace(config, output=str(tmp_path / str(number))))
        weights = load_file(tmp_path / str(number) / "model.safetensors")
        tables.append(weights["roberta.embeddings.position_embeddings.weight"])
    assert len({table.numpy().tobytes() for table in tables}) == len(others)
    trained = load_file(world.base / "model.safetensors")["roberta.embeddings.position_embeddings.weight"]
    assert all(torch.equal(table[: len(trained)], trained) for table in tables[:-1])


def test_same_settings_give_the_same_checkpoint(world: World, tmp_path: Path, copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    headless = {name: tensor for name, tensor in weights.items() if not name.startswith("lm_head")}
    save_file(headless, copy / "model.safetensors", {"format": "pt"})
    for number, seed in enumerate((4, 4, 5)):
        config = ExtendConfig(
            base=str(copy), output=str(tmp_path / str(number)), recipe=ExtendRecipe(num_positions=20, new_head=True)
        )
        extend(replace(config, initialisation="random", seed=seed))
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "012")
    assert one == same
    assert one != other


def test_what_the_checkpoint_lacked_is_said(copy: Path, tmp_path: Path, run_here: Run) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    code, said, warned = run_here(ExtendConfig, extend, settings(copy, tmp_path / "long"))
    assert (code, warned) == (0, "")
    assert said.startswith(f"{copy} has no safetensors file")


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def take_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("lm_head")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def take_encoder_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["roberta.encoder.layer.0.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def make_rotary(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "modernbert"}')


def mark_as_extended(folder: Path) -> None:
    about = {"base": "its-base", "num_positions": NUM_POSITIONS, "trained": None}
    (folder / "longmlm.json").write_text(json.dumps(about))


def shut_down(folder: Path) -> None:
    assert (folder / "config.json").is_file()


ERRORS = {
    "absent": (shutil.rmtree, {}, "neither a folder with a model nor one that the hub gives"),
    "cut short": (cut_weights, {}, "model.safetensors is damaged"),
    "headless": (take_head, {}, "set new_head = true"),
    "encoder": (take_encoder_weight, {"new_head": True}, "lacks weights of its encoder"),
    "rotary": (make_rotary, {}, "rotary positions"),
    "extended": (mark_as_extended, {}, "extend its-base to the length you want, or pretrain this one first"),
    "shorter": (shut_down, {"num_positions": NUM_POSITIONS}, "has 16 positions already"),
    "too long": (shut_down, {"num_positions": NUM_POSITIONS**2 + 1}, "can be stretched to 256 at the most"),
    "alpha": (shut_down, {"alpha": 0.5}, "alpha must be"),
    "unknown key": (shut_down, {"num_position": 3}, "did you mean num_positions?"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_users_error_is_one_line_and_leaves_nothing(name: str, copy: Path, tmp_path: Path, run_here: Run) -> None:
    spoil, more, message = ERRORS[name]
    spoil(copy)
    code, said, warned = run_here(ExtendConfig, extend, settings(copy, tmp_path / "out" / "long", **more))
    assert (code, said) == (2, "")
    assert warned.startswith("error: ")
    assert warned.count("\n") == 1
    assert message in warned
    assert not list((tmp_path / "out").glob("*"))


def test_failing_check_is_one_line_and_leaves_nothing(
    world: World, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "largest_change", lambda *_: 0.25)
    code, said, warned = run_here(ExtendConfig, extend, settings(world.base, tmp_path / "out" / "long"))
    assert (code, said) == (2, "")
    assert "differ from the base model's by 2.50e-01" in warned
    assert list((tmp_path / "out").iterdir()) == []


def test_trained_long_model_is_extended_again(world: World, tmp_path: Path, run_here: Run) -> None:
    trained = mark_trained(Path(shutil.copytree(world.long, tmp_path / "trained")))
    code, said, _ = run_here(ExtendConfig, extend, settings(trained, tmp_path / "longer", num_positions=90))
    assert code == 0
    assert f"positions: {LONG_POSITIONS} -> 90" in said
    assert json.loads((tmp_path / "longer" / "longmlm.json").read_text())["base_positions"] == LONG_POSITIONS


def test_command_ends_on_an_error_with_one_line_and_code_2(world: World, tmp_path: Path, run_there: Run) -> None:
    output = tmp_path / "mine"
    output.mkdir()
    (output / "kept").write_text("kept")
    code, said, warned = run_there("extend", settings(world.base, output))
    assert (code, said) == (2, "")
    assert warned == f"error: {output} exists already: remove it or name another folder\n"
    assert [path.name for path in output.iterdir()] == ["kept"]
