"""Extension with distilled lowest layers, as a user runs it: what it writes, prints and refuses, and in a pipeline."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

import longmlm
from longmlm.artifacts.provenance import read_provenance
from longmlm.config import resolved_pipeline
from longmlm.errors import PositionsError
from longmlm.needs import check_inputs
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.stages.extend import extend
from longmlm.staleness import differences_of
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, tiny_rows

Run = Callable[..., tuple[int, str, str]]


def config_of(world: World, output: Path, **recipe: object) -> dict[str, object]:
    distilled = {"layers": 1, "num_tokens": 400, "batch_tokens": 80, "precision": "no"}
    given = {"num_positions": LONG_POSITIONS, "initialisation": "distilled", "distillation": distilled}
    return {"base": str(world.base), "output": str(output), "rows": str(world.rows), "recipe": {**given, **recipe}}


def test_extend_writes_a_stock_model_and_says_what_was_distilled(world: World, tmp_path: Path, run_here: Run) -> None:
    code, said, warned = run_here(ExtendConfig, extend, config_of(world, tmp_path / "long"))
    assert code == 0, warned
    assert "positions: 16 -> 40, distilled, lowest layer, teacher window 8, 3" in said
    assert "(expected: trained rows change)" in said
    assert read_provenance(tmp_path / "long").extension.distilled.window == NUM_POSITIONS // 2
    stock, base = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (tmp_path / "long", world.base))
    assert type(stock) is type(base)
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_more_layers_than_the_model_has_are_refused(world: World, tmp_path: Path, run_here: Run) -> None:
    config = config_of(world, tmp_path / "long", distillation={"layers": 3})
    code, _, warned = run_here(ExtendConfig, extend, config)
    assert code == 2
    assert warned == "error: distillation.layers = 3, but the model has 2 layers: set fewer\n"
    assert not (tmp_path / "long").exists()


def test_rows_are_needed_and_only_for_a_distillation(world: World) -> None:
    recipe = ExtendRecipe(num_positions=LONG_POSITIONS, initialisation="distilled")
    with pytest.raises(ValueError, match="initialisation = distilled needs rows"):
        ExtendConfig(base=str(world.base), output="long", recipe=recipe)
    with pytest.raises(PositionsError, match="needs rows: use longmlm extend or a pipeline"):
        longmlm.extend(AutoModelForMaskedLM.from_pretrained(world.base), LONG_POSITIONS, initialisation="distilled")


def pipeline_of(world: World, output: Path) -> ResolvedPipeline:
    recipe = {"initialisation": "distilled", "distillation": {"layers": 1, "num_tokens": 400, "precision": "no"}}
    base = {"model": str(world.base), "corpus": [str(world.rows.parent / "text.jsonl")], "length": LONG_POSITIONS}
    return resolved_pipeline({**base, "output": str(output), "extend": {"recipe": recipe}})


def test_a_pipeline_prepares_rows_before_it_extends(world: World, tmp_path: Path) -> None:
    pipeline = pipeline_of(world, tmp_path / "out")
    assert [*pipeline.stages] == ["prepare", "extend", "pretrain", "evaluate", "release"]
    assert pipeline.extend.rows == pipeline.prepare.output == str(tmp_path / "out" / "rows")


def test_a_model_distilled_on_other_rows_is_not_current(world: World, tmp_path: Path) -> None:
    pipeline = pipeline_of(world, tmp_path)
    rows = tiny_rows(tmp_path / "made", world.base)
    rows.rename(tmp_path / "rows")
    extend(pipeline.extend)
    assert differences_of(pipeline, "extend") == []
    (tmp_path / "rows").rename(tmp_path / "before")
    tiny_rows(tmp_path / "made", world.base, packing="doc-sentences").rename(tmp_path / "rows")
    assert [one.text for one in differences_of(pipeline, "extend")] == [
        f"other rows than {tmp_path / 'rows'} holds now"
    ]


def test_rows_are_not_made_for_a_length_that_the_model_cannot_have(world: World, tmp_path: Path) -> None:
    base = {"model": str(world.base), "corpus": [str(world.rows.parent / "text.jsonl")], "output": str(tmp_path)}
    config = resolved_pipeline({**base, "length": NUM_POSITIONS**2 + 1, "until": "prepare"})
    with pytest.raises(PositionsError, match=f"extend to {NUM_POSITIONS**2} at most"):
        check_inputs(config)


def test_a_pipeline_ends_after_the_stage_that_until_names(world: World, tmp_path: Path) -> None:
    pipeline = pipeline_of(world, tmp_path / "out")
    assert [*replace(pipeline, until="prepare").stages] == ["prepare"]
    assert [*replace(pipeline, until="extend").stages] == ["prepare", "extend"]


def test_rows_are_refused_where_nothing_is_distilled_and_where_they_are_too_short(
    world: World, tmp_path: Path, run_here: Run
) -> None:
    given = config_of(world, tmp_path / "new" / "long")
    code, _, warned = run_here(ExtendConfig, extend, {**given, "recipe": {"num_positions": LONG_POSITIONS}})
    assert (code, "rows has no effect without initialisation = distilled" in warned) == (2, True)
    longer = config_of(world, tmp_path / "new" / "long", num_positions=LONG_POSITIONS + 1)
    code, _, warned = run_here(ExtendConfig, extend, longer)
    assert (code, "of which the last would not be trained: prepare rows of that length" in warned) == (2, True)
    code, _, warned = run_here(ExtendConfig, extend, {**given, "rows": str(tmp_path / "none")})
    assert code == 2 and "none" in warned
