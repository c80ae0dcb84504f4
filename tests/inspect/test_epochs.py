"""Epochs that inspect shows: 0 has the mask under which a run reads a row for the first time."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.batches.masking import mask_row
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.inspect.command import first_epoch_of, readings_of, resolved
from longmlm.inspect.drawing import rows_text
from longmlm.inspect.reading import Reader
from longmlm.inspect.settings import InspectConfig
from longmlm.settings.masking import HeldOut
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig, Start, Weight
from tests.support.tiny import LONG_POSITIONS, World, demo_texts
from tests.support.training import Drawn, with_recipe

Train = Callable[[PretrainConfig], Path]


@pytest.fixture
def one_after_the_other(world: World, settings: PretrainConfig, train: Train, drawn: Drawn, tmp_path: Path):
    """Trains a run and prepares one that starts from it: its settings, and what the first one drew, rows and epochs."""

    def made(weights: dict[str, Weight], seed: int) -> tuple[PretrainConfig, Drawn]:
        rows = few_rows(world, tmp_path)
        own = replace(settings, rows=str(rows), start=Start(checkpoint=str(world.long)), run=str(tmp_path / "first"))
        own = with_recipe(own, num_steps=8, batch_tokens=400, weights=weights, held_out=HeldOut(max_rows=4))
        own = replace(own, runtime=replace(own.runtime, evaluate_every_steps=50, save_every_steps=50))
        first, before = train(own), drawn.copy()
        drawn.clear()
        second = replace(own, start=Start(checkpoint=str(first)), run=str(tmp_path / "second"))
        return with_recipe(second, seed=seed), before

    return made


def few_rows(world: World, folder: Path) -> Path:
    """Packs the beginnings of some texts into rows of two sources, few enough to be read several times."""
    sources = []
    for name, texts in {"novels": demo_texts()[:8], "laws": demo_texts()[8:12]}.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"text": text[:250]}) + "\n" for text in texts), encoding="utf-8")
        sources.append(Source(name=name, files=(str(file),)))
    recipe = PrepareRecipe(
        tokenizer=str(world.base), row_length=LONG_POSITIONS, sources=tuple(sources), held_out_fraction=0.3
    )
    prepare_rows(recipe, load_vocabulary(str(world.base)), folder / "rows")
    return folder / "rows"


@pytest.mark.parametrize(("weights", "seed"), [({}, 8), ({}, 9), ({"laws": 4.0}, 8)])
def test_epochs_of_a_run_that_starts_from_another_one_are_those_of_its_masks(
    world: World, one_after_the_other, train: Train, drawn: Drawn, weights: dict[str, Weight], seed: int
) -> None:
    config, before = one_after_the_other(weights, seed)
    rows = open_rows(Path(config.rows), "train")
    planned = InspectConfig(rows=config.rows, seed=seed, weights=weights, run=config.run, start=config.start.checkpoint)
    expected = [first_epoch_of(planned, rows, row_id) for row_id in range(len(rows))]
    second, times = train(config), Counter[int]()
    shown = resolved(InspectConfig(rows=str(second)))
    assert [first_epoch_of(shown, rows, row_id) for row_id in range(len(rows))] == expected
    assert drawn and not {*before} & {*drawn}
    assert max(Counter(row_id for row_id, _ in drawn).values()) > 1
    for row_id, epoch in drawn:
        assert epoch == expected[row_id] + times[row_id]
        times[row_id] += 1

    row_id, epoch = drawn[-1]
    vocabulary = load_vocabulary(str(world.base))
    reader, number = Reader(vocabulary, rows.manifest.plan.sources), epoch - expected[row_id]
    masked = mask_row(rows[row_id], vocabulary.maskable, config.recipe.masking, seed, epoch, row_id)
    found = [*readings_of(replace(shown, epochs=(number,)), rows, row_id, reader, LONG_POSITIONS)]
    assert rows_text({"": found}, False) == rows_text({"": [reader.read(f"epoch {number}", masked)]}, False)


def test_a_run_of_the_base_model_counts_from_0(world: World, settings: PretrainConfig, tmp_path: Path) -> None:
    rows = open_rows(world.rows, "train")
    for start in (None, str(world.long), str(world.base), str(tmp_path / "missing")):
        config = InspectConfig(rows=str(world.rows), seed=1, start=start, run=settings.run)
        assert first_epoch_of(config, rows, 3) == 0
