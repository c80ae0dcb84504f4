"""The extend stage as a user runs it: what it writes, prints and refuses."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.folders import verify
from longmlm.model import extension
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.stages.extend import extend
from tests.support.extras import with_heads, with_modules
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, mark_trained, tiny_extension, tiny_folder

Run = Callable[..., tuple[int, str, str]]


def settings(base: Path, output: Path, **more: object) -> dict[str, object]:
    recipe = {"num_positions": LONG_POSITIONS, "initialisation": "hierarchical", **more}
    return {"base": str(base), "output": str(output), "recipe": recipe}


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    """A base model to damage."""
    return Path(shutil.copytree(world.base, tmp_path / "base"))


def test_long_checkpoint_is_complete_and_stock_and_logits_on_short_inputs_are_unchanged(
    world: World, tmp_path: Path, run_here: Run
) -> None:
    output = tmp_path / "out" / "long"
    code, said, warned = run_here(ExtendConfig, extend, settings(world.base, output))
    assert (code, warned) == (0, "")
    assert f"positions: {NUM_POSITIONS} -> {LONG_POSITIONS}, hierarchical, alpha 0.4, materialized" in said
    assert f"inputs of up to {NUM_POSITIONS} tokens: 0.0" in said
    assert "above 0.5" not in said
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
    extension = about["extension"]
    assert (extension["base"]["name"], extension["num_positions"]) == (str(world.base), LONG_POSITIONS)
    assert about["trained"] is None


def test_a_change_of_logits_is_expected_where_trained_rows_change(world: World, tmp_path: Path, run_here: Run) -> None:
    code, said, _ = run_here(ExtendConfig, extend, settings(world.base, tmp_path / "long", initialisation="fitted"))
    assert code == 0
    assert re.search(r"inputs of up to 16 tokens: [\d.]{1,6} \(expected: trained rows change\)\n", said)


def test_settings_reach_the_table(world: World, tmp_path: Path) -> None:
    base = ExtendRecipe(num_positions=LONG_POSITIONS, initialisation="hierarchical")
    recipes = [
        *(base, replace(base, alpha=0.2)),
        *(replace(base, initialisation="fitted", seed=seed) for seed in (0, 1)),
        replace(base, initialisation="fitted", smooth_terms=5),
    ]
    tables = []
    for number, recipe in enumerate(recipes):
        extend(ExtendConfig(base=str(world.base), output=str(tmp_path / str(number)), recipe=recipe))
        weights = load_file(tmp_path / str(number) / "model.safetensors")
        tables.append(weights["roberta.embeddings.position_embeddings.weight"])
    assert len({table.numpy().tobytes() for table in tables}) == len(recipes)


def test_same_settings_give_the_same_checkpoint(tmp_path: Path, copy: Path) -> None:
    take_head(copy)
    for number, seed in enumerate((4, 4, 5)):
        recipe = ExtendRecipe(num_positions=20, new_head=True, initialisation="fitted", seed=seed)
        extend(ExtendConfig(base=str(copy), output=str(tmp_path / str(number)), recipe=recipe))
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "012")
    assert one == same
    assert one != other


def test_notes_about_the_base_model_are_printed(copy: Path, tmp_path: Path, run_here: Run) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    code, said, warned = run_here(ExtendConfig, extend, settings(copy, tmp_path / "long"))
    assert (code, warned) == (0, "")
    assert said.startswith(f"{copy} has no safetensors file")


def test_terms_are_added_with_or_without_positions(world: World, tmp_path: Path, run_here: Run) -> None:
    (tmp_path / "terms.txt").write_text("myocarditis\nheart failure\nmyocarditis\n", encoding="utf-8")
    said = {}
    for number in (LONG_POSITIONS, NUM_POSITIONS):
        output, recipe = tmp_path / str(number), {"add_tokens": str(tmp_path / "terms.txt"), "num_positions": number}
        wanted = {"base": str(world.base), "output": str(output), "recipe": recipe}
        code, said[number], warned = run_here(ExtendConfig, extend, wanted)
        assert (code, warned) == (0, "")
        assert "tokens: 2 added from" in said[number] and "1 skipped" in said[number]
        about = read_provenance(output)
        assert about.added_tokens.base.name == str(world.base)
        assert (about.extension is not None) == (number == LONG_POSITIONS)
        tokenizer = AutoTokenizer.from_pretrained(output)
        assert tokenizer.model_max_length == number
        assert len(tokenizer("Acute myocarditis", add_special_tokens=False)["input_ids"]) == 1 + len(
            tokenizer("Acute", add_special_tokens=False)["input_ids"]
        )
    assert "positions: " in said[LONG_POSITIONS] and "positions: " not in said[NUM_POSITIONS]


@pytest.mark.parametrize(
    ("name", "value"),
    [("initialisation", "tile"), ("smooth_terms", 5), ("attention_window", 8)],
)
def test_settings_of_new_positions_are_refused_where_there_are_none(
    world: World, tmp_path: Path, run_here: Run, name: str, value: object
) -> None:
    (tmp_path / "terms.txt").write_text("myocarditis\n", encoding="utf-8")
    derived = {"initialisation": "tile"} if name == "attention_window" else {}  # as in a pipeline
    recipe = {"add_tokens": str(tmp_path / "terms.txt"), **derived, name: value}
    wanted = {"base": str(world.base), "output": str(tmp_path / "long"), "recipe": recipe}
    code, _, warned = run_here(ExtendConfig, extend, wanted)
    assert (code, warned) == (2, f"error: {name} is for new positions, but the model keeps its 16: remove it\n")


def test_alpha_above_a_half_is_noted(world: World, tmp_path: Path, run_here: Run) -> None:
    code, said, _ = run_here(ExtendConfig, extend, settings(world.base, tmp_path / "long", alpha=0.7))
    assert code == 0 and "alpha = 0.7 is above 0.5" in said


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
    shutil.rmtree(folder)
    tiny_folder(folder, "modernbert", 3)


def mark_as_extended(folder: Path) -> None:
    about = Provenance(extension=tiny_extension("its-base", NUM_POSITIONS))
    artifact.write(folder / Provenance.FILE, about)


def poison(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["roberta.embeddings.LayerNorm.weight"][0] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def make_config_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def keep(folder: Path) -> None:
    assert (folder / "config.json").is_file()


ERRORS = {
    "absent": (shutil.rmtree, {}, "base: no such"),
    "cut short": (cut_weights, {}, "model.safetensors is damaged"),
    "list": (make_config_a_list, {}, "config.json is damaged"),
    "NaN": (poison, {}, "roberta.embeddings.LayerNorm.weight holds NaN"),
    "headless": (take_head, {}, "set new_head = true"),
    "encoder": (take_encoder_weight, {"new_head": True}, "weights of its encoder are missing"),
    "rotary": (make_rotary, {}, "rotary positions"),
    "extended": (mark_as_extended, {}, "extend its-base to"),
    "shorter": (keep, {"num_positions": NUM_POSITIONS}, "num_positions = 16"),
    "too long": (keep, {"num_positions": NUM_POSITIONS**2 + 1}, "extend to 256 at most"),
    "too smooth": (
        keep,
        {"initialisation": "fitted", "smooth_terms": NUM_POSITIONS + 1},
        "smooth_terms = 17: 16 trained positions have 16 at most",
    ),
    "no terms": (keep, {"add_tokens": "/nowhere/terms.txt"}, "add_tokens: /nowhere/terms.txt cannot be read"),
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
    monkeypatch.setattr(extension, "largest_difference", lambda *_: 0.25)
    code, said, warned = run_here(ExtendConfig, extend, settings(world.base, tmp_path / "out" / "long"))
    assert (code, said) == (2, "")
    assert "2.50e-01" in warned
    assert list((tmp_path / "out").iterdir()) == []


def test_trained_long_model_is_extended_again(world: World, tmp_path: Path, run_here: Run) -> None:
    trained = mark_trained(Path(shutil.copytree(world.long, tmp_path / "trained")))
    code, said, _ = run_here(ExtendConfig, extend, settings(trained, tmp_path / "longer", num_positions=90))
    assert code == 0
    assert f"positions: {LONG_POSITIONS} -> 90" in said
    assert read_provenance(tmp_path / "longer").extension.base_positions == LONG_POSITIONS


def test_no_library_writes_to_the_terminal(world: World, tmp_path: Path, run_there: Run) -> None:
    code, said, warned = run_there("extend", settings(world.base, tmp_path / "long"))
    assert (code, warned) == (0, "")
    assert said.startswith(f"positions: {NUM_POSITIONS} -> ")


def test_what_is_carried_and_what_is_not_is_said(copy: Path, tmp_path: Path, run_here: Run) -> None:
    with_modules(with_heads(copy, "roberta"), ("Transformer", "Pooling"))
    (copy / "own.py").write_text("")
    code, said, warned = run_here(ExtendConfig, extend, settings(copy, tmp_path / "long"))
    assert (code, warned) == (0, "")
    files = ["1_Pooling/config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"]
    assert said.splitlines()[:3] == [
        "carried over untrained: pooler",
        f"files carried over: {', '.join(files)}",
        "not carried over: own.py",
    ]
