"""Windows as an option of the extend stage: settings, longmlm.json, and all that loads the model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import longmlm
from longmlm.artifacts.provenance import read_provenance
from longmlm.model import families
from longmlm.model.loading import load_model, meta_model
from longmlm.model.window import Window
from longmlm.model.window_attention import window_of
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.stages.extend import extend
from tests.support.tiny import LONG_POSITIONS, World, held_out, mark_trained

Run = Callable[..., tuple[int, str, str]]
WINDOW = Window(3, 2, num_layers=1)


def settings(base: Path, output: Path, **more: object) -> dict[str, object]:
    recipe = {"num_positions": LONG_POSITIONS, "initialisation": "hierarchical", **more}
    return {"base": str(base), "output": str(output), "recipe": recipe}


@pytest.fixture
def long(world: World, tmp_path: Path) -> Path:
    """A long model with a window."""
    window = {"attention_window": WINDOW.each_side, "num_global_tokens": WINDOW.num_global, "local_layers": 1}
    recipe = ExtendRecipe(num_positions=LONG_POSITIONS, initialisation="hierarchical", **window)
    extend(ExtendConfig(base=str(world.base), output=str(tmp_path / "long"), recipe=recipe))
    return tmp_path / "long"


@pytest.mark.parametrize(
    ("local_layers", "words"),
    [({}, ""), ({"local_layers": 1}, " in the lowest layer"), ({"local_layers": 2}, " in the 2 lowest layers")],
)
def test_extend_records_the_window_and_writes_the_weights_of_full_attention(
    world: World, tmp_path: Path, run_here: Run, local_layers: dict[str, int], words: str
) -> None:
    config = settings(world.base, tmp_path / "long", attention_window=3, **local_layers)
    code, said, warned = run_here(ExtendConfig, extend, config)
    assert (code, warned) == (0, "")
    assert f"attention: 3 tokens on each side{words}, 1 global" in said
    assert ("a Longformer that pads every text to 80 tokens or more" in said) == (words == " in the lowest layer")
    assert "largest difference of a logit on inputs of up to 16 tokens: 0.0\n" in said
    extension = read_provenance(tmp_path / "long").extension
    assert Window.of(extension) == Window(3, 1, local_layers.get("local_layers"))
    full, windowed = (folder / "model.safetensors" for folder in (world.long, tmp_path / "long"))
    assert full.read_bytes() == windowed.read_bytes()
    assert (world.long / "config.json").read_text() == (tmp_path / "long" / "config.json").read_text()


@pytest.mark.parametrize(
    ("recipe", "note"),
    [
        ({"initialisation": "tile", "attention_window": 8}, ""),
        ({"initialisation": "tile", "attention_window": 9}, "tiled positions repeat within 9 tokens on each side"),
        ({"attention_window": 8}, "initialisation = tile keeps more accuracy than hierarchical"),
        ({"attention_window": 9}, ""),
        ({"num_positions": 128}, "128 positions, 8 times as many as were trained: "),
        ({"num_positions": 127}, ""),
        ({"num_positions": 128, "attention_window": 9}, ""),
    ],
)
def test_extend_says_what_keeps_more_accuracy(
    world: World, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch, recipe: dict[str, object], note: str
) -> None:
    monkeypatch.setattr(families, "MANY_POSITIONS", 1)
    code, said, _ = run_here(ExtendConfig, extend, settings(world.base, tmp_path / "long", **recipe))
    assert code == 0
    assert note in said
    assert ("full attention" in said or " keeps more " in said) == bool(note)


def test_all_that_loads_the_model_gets_its_window(long: Path) -> None:
    loaded = load_model(str(long))
    assert window_of(loaded.model) == WINDOW
    assert window_of(meta_model(str(long))) == WINDOW
    tokens = torch.randint(10, 290, (1, LONG_POSITIONS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        windowed = loaded.model(tokens).logits
        full = AutoModelForMaskedLM.from_pretrained(long)(tokens).logits
    assert (windowed - full).abs().max() > 0.01


def test_the_api_evaluates_within_the_window_and_leaves_the_model_as_it_was(world: World, long: Path) -> None:
    tokenizer, rows = AutoTokenizer.from_pretrained(long), [held_out(world.rows)[number] for number in range(8)]
    model = AutoModelForMaskedLM.from_pretrained(long)
    within = longmlm.evaluate(model, rows, tokenizer).whole
    assert model.config._attn_implementation == "sdpa"
    assert within == longmlm.evaluate(load_model(str(long)).model, rows, tokenizer).whole
    full = longmlm.evaluate(AutoModelForMaskedLM.from_pretrained(world.long), rows, tokenizer).whole
    assert within.num_selected == full.num_selected > 0
    assert abs(within.loss - full.loss) > 1e-4


def test_a_window_that_covers_the_rows_evaluates_as_full_attention(world: World, tmp_path: Path) -> None:
    recipe = ExtendRecipe(num_positions=LONG_POSITIONS, initialisation="hierarchical", attention_window=LONG_POSITIONS)
    extend(ExtendConfig(base=str(world.base), output=str(tmp_path / "long"), recipe=recipe))
    tokenizer, rows = AutoTokenizer.from_pretrained(world.long), [held_out(world.rows)[number] for number in range(8)]
    models = [load_model(str(folder)).model for folder in (tmp_path / "long", world.long)]
    assert window_of(models[0]) == Window(LONG_POSITIONS, 1)
    covered, full = (longmlm.evaluate(model, rows, tokenizer) for model in models)
    assert covered == full


def test_a_model_with_a_window_is_extended_with_a_window_only(long: Path, tmp_path: Path, run_here: Run) -> None:
    mark_trained(long)
    config = settings(long, tmp_path / "longer", num_positions=100)
    code, _, warned = run_here(ExtendConfig, extend, config)
    assert code == 2
    assert warned.count("\n") == 1
    window = "3 tokens on each side in the lowest layer, 2 global"
    assert f"was trained with a window of {window}: set num_positions and attention_window" in warned
    with pytest.raises(longmlm.errors.PositionsError, match="was trained with a window"):
        longmlm.extend(str(long), 100)
    code, said, _ = run_here(
        ExtendConfig, extend, settings(long, tmp_path / "longer", num_positions=100, attention_window=5)
    )
    assert code == 0
    assert "largest difference of a logit" in said
    assert window_of(load_model(str(tmp_path / "longer")).model) == Window(5, 1)


def test_more_local_layers_than_the_model_has_are_refused(world: World, tmp_path: Path, run_here: Run) -> None:
    config = settings(world.base, tmp_path / "long", attention_window=3, local_layers=3)
    code, _, warned = run_here(ExtendConfig, extend, config)
    assert code == 2
    assert warned == "error: local_layers = 3, but the model has 2 layers: set fewer\n"
    assert not (tmp_path / "long").exists()
