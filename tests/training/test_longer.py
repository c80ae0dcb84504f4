"""A new run that starts from another run's checkpoint goes on in the rows where that one ended."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.errors import ArtifactError
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.stages.prepare import prepare
from longmlm.training.run_folder import checkpoint_folder
from tests.support.training import Drawn, Train, state_at, with_recipe


@pytest.fixture
def short(settings: PretrainConfig) -> PretrainConfig:
    return with_recipe(settings, num_steps=4)


def test_no_row_is_repeated_with_the_same_mask(
    short: PretrainConfig, train: Train, drawn: Drawn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(short)
    seen, cursor = {*drawn}, state_at(first, 4).cursor
    assert len(seen) == cursor > 0 and "goes on" not in capsys.readouterr().out
    drawn.clear()
    start = Start(checkpoint=str(checkpoint_folder(first, 4)))
    longer = with_recipe(replace(short, run=str(tmp_path / "longer"), start=start), num_steps=8, learning_rate=1e-4)
    second = train(longer)
    assert f"trained on {cursor} rows: the run goes on" in capsys.readouterr().out
    assert [state_at(second, step).cursor for step in (4, 8)] == [2 * cursor, 3 * cursor]
    assert len({*drawn}) == 2 * cursor and seen.isdisjoint(drawn)


@pytest.mark.parametrize("change", ["seed", "rows"])
def test_other_rows_and_another_order_are_read_from_the_start_with_other_masks(
    short: PretrainConfig, train: Train, drawn: Drawn, inputs: Path, tmp_path: Path, change: str
) -> None:
    first = train(short)
    last_epoch = max(epoch for _, epoch in drawn)
    drawn.clear()
    other = replace(short, run=str(tmp_path / "other"), start=Start(checkpoint=str(first)))
    if change == "seed":
        other = with_recipe(other, seed=other.recipe.seed + 1)
    else:
        sources = (Source(files=(str(inputs / "text.jsonl"),)),)
        recipe = PrepareRecipe(
            tokenizer=str(inputs / "tokenizer"), sources=sources, row_length=32, held_out_fraction=0.6
        )
        prepare(PrepareConfig(output=str(tmp_path / "rows"), recipe=recipe))
        other = replace(other, rows=str(tmp_path / "rows"))
    state = state_at(train(other), 4)
    assert state.cursor == 4 * (state.cursor // 4) < 2 * state_at(first, 4).cursor
    assert min(epoch for _, epoch in drawn) > last_epoch  # a row that both have is masked in another way


def test_a_damaged_state_is_not_taken_for_another_model(short: PretrainConfig, train: Train, tmp_path: Path) -> None:
    start = checkpoint_folder(train(short), 4)
    (start / "state.json").write_text("{", encoding="utf-8")
    (start / "manifest.json").unlink()
    other = replace(short, run=str(tmp_path / "other"), start=Start(checkpoint=str(start)))
    with pytest.raises(ArtifactError, match=r"step-00000004/state\.json"):
        train(other)


def test_a_dry_run_goes_on_there_too(short: PretrainConfig, train: Train, drawn: Drawn, tmp_path: Path) -> None:
    first = train(short)
    seen = {*drawn}
    drawn.clear()
    train(replace(short, run=str(tmp_path / "dry"), start=Start(checkpoint=str(first)), dry_run=True))
    assert drawn and seen.isdisjoint(drawn)
