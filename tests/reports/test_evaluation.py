"""Measures to files: evaluation.json, a table, pictures, and a page that tells all of it."""

import html
import json
import math
import re
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import matplotlib.image
import pytest
from accelerate import Accelerator

from longmlm.evaluation.examples import FilledMask
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import Accuracy, Measured, measure
from longmlm.evaluation.views import cut, whole, windows
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.reports.evaluation import NAMES, as_json, block_names, cells, content_sha256, explanation, write_evaluation
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, with_fresh_process_state

SOURCES = {"rows": "r", "base": "b", "before": "l", "after": "a & <b>", "after_sha256": "0" * 64}
MADE_BY = "# the command\nbase = 'b'\n"
PICTURES = {"blocks.png", "recovery.png"}
EXAMPLES = [
    FilledMask(
        7, 38, "He came to the", " of the king.", " house", ((" house", 0.75), (" <hut>", 0.125), (" inn", 0.0625))
    ),
    FilledMask(9, 37, "天下", "。", "人", (("事", 0.5), ("人", 0.25), ("家", 0.125))),
]

pytestmark = pytest.mark.parametrize("world", [("roberta", 1)], ids=["roberta"], indirect=True)


@pytest.fixture(scope="module")
def measured(world: World, frozen: FrozenRows) -> dict[str, Measured]:
    with_fresh_process_state()
    accelerator = Accelerator(cpu=True)
    shorter = {"num_positions": NUM_POSITIONS, "special": frozen.special}
    views = {"cut": partial(cut, **shorter), "windows": partial(windows, **shorter), "whole": whole}
    base, trained = (MlmObjective(load_model(str(folder)).model) for folder in (world.base, world.trained))
    wanted = [(base, "base_cut", "cut"), (base, "base_windows", "windows")]
    wanted += [(trained, "long_after", "whole"), (trained, "long_after_cut", "cut")]
    found = {}
    for one, name, view in wanted:
        found[name] = measure(one, frozen, views[view], NUM_POSITIONS, accelerator)
    with_fresh_process_state()
    return found | {"long_before": found["long_after"]}


@pytest.fixture(scope="module")
def written(measured: dict[str, Measured], frozen: FrozenRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation that has all there can be."""
    folder = tmp_path_factory.mktemp("evaluation")
    write_evaluation(as_json(measured, frozen, NUM_POSITIONS, SOURCES, curve(), EXAMPLES), folder, MADE_BY)
    return folder


def curve() -> list[dict]:
    def line(step: int, accuracy: float) -> dict:
        one = {"accuracy": accuracy, "standard_error": 0.5, "loss": 3.0, "num_selected": 100}
        about = {"base_cut": 9.0, "recovered_at_step": 20 if step == 20 else None, "recovered_at_tokens": 12_345}
        return {"step": step, "held_out": {"whole": one, "blocks": [one]}, **about}

    return [line(0, 3.0), line(10, 8.0), line(20, 9.5)]


def strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_file_holds_what_was_measured(measured: dict[str, Measured], frozen: FrozenRows, written: Path) -> None:
    found = strict((written / "evaluation.json").read_text())
    expected = {
        "row_length": LONG_POSITIONS,
        "block": NUM_POSITIONS,
        "num_rows": len(frozen.row_ids),
        "mask_seed": 1789,
        "held_out": json.loads(json.dumps(asdict(frozen.config))),
        "sources": SOURCES,
        "curve": curve(),
        "examples": json.loads(json.dumps([asdict(example) for example in EXAMPLES])),
        "position_starts": [0, 16, 32],
    }
    assert {name: found[name] for name in expected} == expected
    assert found.keys() - expected.keys() == {"measured", "gains", "sha256"}
    assert found["sha256"] == content_sha256(found) != content_sha256({**found, "gains": {}})
    assert found["measured"].keys() == measured.keys()
    for name, one in measured.items():
        assert found["measured"][name]["whole"] == asdict(one.whole)
        assert len(found["measured"][name]["blocks"]) == len(found["measured"][name]["positions"]) == 3
    unmeasured = found["measured"]["base_cut"]["blocks"][1]
    assert unmeasured == {"accuracy": None, "standard_error": None, "loss": None, "num_selected": 0}


def test_gains_are_differences_on_the_right_pairs(measured: dict[str, Measured], frozen: FrozenRows) -> None:
    after, base_cut, base_windows = (
        measured[name].whole.accuracy for name in ("long_after", "base_cut", "base_windows")
    )
    assert after > max(base_cut, base_windows)
    gains = as_json(measured, frozen, NUM_POSITIONS, SOURCES, [], [])["gains"]
    assert gains == {"recovered": True, "context": after - base_windows}
    swapped = measured | {"long_after": measured["base_windows"], "base_cut": measured["long_after"]}
    assert as_json(swapped, frozen, NUM_POSITIONS, SOURCES, [], [])["gains"]["recovered"] is False
    equal = measured | {"long_after": measured["base_cut"]}
    assert as_json(equal, frozen, NUM_POSITIONS, SOURCES, [], [])["gains"]["recovered"] is True
    before = {name: one for name, one in measured.items() if name != "long_after"}
    assert as_json(before, frozen, NUM_POSITIONS, SOURCES, [], [])["gains"] == {}


def test_nothing_measured_is_said_in_strict_json(
    measured: dict[str, Measured], frozen: FrozenRows, tmp_path: Path
) -> None:
    nothing = Accuracy(math.nan, math.nan, math.nan, 0)
    empty = measured | {"base_windows": Measured(nothing, (nothing,) * 3, (nothing,) * 3)}
    write_evaluation(as_json(empty, frozen, NUM_POSITIONS, SOURCES, [], []), tmp_path, MADE_BY)
    found = strict((tmp_path / "evaluation.json").read_text())
    assert found["gains"]["context"] is None
    assert found["measured"]["base_windows"]["whole"]["accuracy"] is None


def test_table_has_a_line_for_whole_rows_and_each_block(measured: dict[str, Measured], frozen: FrozenRows) -> None:
    evaluation = as_json(measured, frozen, NUM_POSITIONS, SOURCES, [], [])
    table = cells(evaluation)
    assert list(table.header) == ["accuracy in %", *NAMES]
    assert [line[0] for line in table.lines] == ["whole row", "0–15", "16–31", "32–39"]
    assert block_names(evaluation) == ["0–15", "16–31", "32–39"]
    for name in NAMES:
        one, column = measured[name], table.header.index(name)
        for line, told in zip(table.lines, [one.whole, *one.blocks], strict=True):
            shown = f"{told.accuracy:.2f} ± {told.standard_error:.2f}" if told.num_selected else "–"
            assert line[column] == shown
    assert [line[1] for line in table.lines[2:]] == ["–", "–"]
    assert f"{measured['long_after'].whole.num_selected:,} selected" in explanation(evaluation)


def test_columns_that_were_not_measured_are_left_out(measured: dict[str, Measured], frozen: FrozenRows) -> None:
    before = {name: one for name, one in measured.items() if not name.startswith("long_after")}
    evaluation = as_json(before, frozen, NUM_POSITIONS, SOURCES, [], [])
    assert list(cells(evaluation).header) == ["accuracy in %", *NAMES[:3]]
    assert "long_after:" not in explanation(evaluation)


def words(folder: Path) -> str:
    """Returns what the page says, without its markup."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)))


def test_page_tells_all_that_was_measured(measured: dict[str, Measured], written: Path) -> None:
    evaluation = strict((written / "evaluation.json").read_text())
    said = words(written)
    after, base = (measured[name].whole.accuracy for name in ("long_after", "base_cut"))
    assert f"from {NUM_POSITIONS} to {LONG_POSITIONS} positions" in said
    assert f"✓ Recovered: on whole rows of {LONG_POSITIONS} tokens the long model tells {after:.2f} %" in said
    assert f"the base model {base:.2f} %" in said
    assert f"+{evaluation['gains']['context']:.2f} points" in said
    for line in cells(evaluation).lines:
        assert all(cell in said for cell in line)
    assert all(name in said for name in NAMES)
    axes = {"accuracy (%)", "held-out accuracy (%)", "step (optimizer updates)", "position in the row (tokens)"}
    assert all(title in said for title in axes)
    assert "back at step 20, after 12,345 tokens" in said
    assert "row 7, position 38 of 40" in said and "He came to the house of the king." in said
    assert "天下人。" in said and "✓ told" in said and "guess 2" in said
    assert all(value in said for value in (*SOURCES.values(), MADE_BY))


def test_page_of_a_model_that_did_not_recover_says_what_is_missing(
    measured: dict[str, Measured], frozen: FrozenRows, tmp_path: Path
) -> None:
    swapped = measured | {"long_after": measured["base_windows"], "base_cut": measured["long_after"]}
    write_evaluation(as_json(swapped, frozen, NUM_POSITIONS, SOURCES, [], []), tmp_path, MADE_BY)
    missing = measured["long_after"].whole.accuracy - measured["base_windows"].whole.accuracy
    assert "✗ Not recovered" in words(tmp_path) and f"{missing:.2f} points are missing" in words(tmp_path)
    assert missing > 1
    untrained = {name: one for name, one in measured.items() if not name.startswith("long_after")}
    write_evaluation(as_json(untrained, frozen, NUM_POSITIONS, SOURCES, [], EXAMPLES), tmp_path, MADE_BY)
    assert "Not trained yet" in words(tmp_path) and "as long_before fills it in" in words(tmp_path)
    assert "Recovered" not in words(tmp_path) and "NaN" not in words(tmp_path)


def test_accuracy_by_position_is_drawn_finer_than_by_block(
    world: World, frozen: FrozenRows, accelerator: Accelerator, tmp_path: Path
) -> None:
    objective = MlmObjective(load_model(str(world.trained)).model)
    one = measure(objective, frozen, whole, 2 * NUM_POSITIONS, accelerator)
    same = dict.fromkeys(("base_cut", "base_windows", "long_before"), one)
    evaluation = as_json(same, frozen, 2 * NUM_POSITIONS, SOURCES, [], [])
    assert (len(one.blocks), len(one.positions)) == (2, 3)
    assert evaluation["position_starts"] == [0, 16, 32]
    write_evaluation(evaluation, tmp_path, MADE_BY)
    label = re.findall(r'aria-label="(Accuracy by position[^"]*)"', (tmp_path / "index.html").read_text())[0]
    shares = [told.accuracy for told in one.positions]
    assert f"long_before from {shares[0]:.4g} to {shares[-1]:.4g}" in label


def test_pictures_show_something(written: Path) -> None:
    for name in PICTURES:
        picture = matplotlib.image.imread(written / name)
        height, width = picture.shape[:2]
        assert width > height > 300
        assert len({tuple(pixel) for pixel in picture[::5, ::5, :3].reshape(-1, 3).round(1)}) > 4


def test_earlier_result_is_replaced(
    measured: dict[str, Measured], frozen: FrozenRows, written: Path, tmp_path: Path
) -> None:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    files = {"evaluation.json", "index.html"} | PICTURES
    assert {path.name for path in tmp_path.iterdir()} == files
    assert "Recovery in training" in words(tmp_path) and "Masks near the end" in words(tmp_path)
    write_evaluation(as_json(measured, frozen, NUM_POSITIONS, SOURCES, [], []), tmp_path, MADE_BY)
    assert {path.name for path in tmp_path.iterdir()} == files - {"recovery.png"}
    assert strict((tmp_path / "evaluation.json").read_text())["curve"] == []
    assert "Recovery in training" not in words(tmp_path) and "Masks near the end" not in words(tmp_path)
