"""The report of an evaluation: its table, pictures and page say what evaluation.json holds, and nothing else."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.accuracy import Accuracy
from longmlm.artifacts.evaluation import EVALUATION_FILES, VIEW_NAMES, Evaluation, read_evaluation
from longmlm.folders import replaced_folder
from longmlm.reports.evaluation import (
    accuracy_table,
    explanation,
    finding,
    is_good,
    sources_table,
    write_evaluation,
)
from tests.support.evaluations import FULL, measured
from tests.support.pages import words

MADE_BY = "# the command\nbase = 'b'\n"
PICTURES = {"blocks.png", "recovery.png"}
UNTRAINED = {name: FULL.measured[name] for name in VIEW_NAMES[:3]}


def write(evaluation: Evaluation, folder: Path) -> None:
    """Writes an evaluation in place of an earlier one."""
    with replaced_folder(folder, EVALUATION_FILES) as partial:
        write_evaluation(evaluation, partial, MADE_BY)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation that has everything."""
    folder = tmp_path_factory.mktemp("evaluation") / "full"
    write(FULL, folder)
    return folder


def test_table_has_a_line_per_block_and_a_column_per_view() -> None:
    table = accuracy_table(FULL)
    assert list(table.header) == ["accuracy in %", *VIEW_NAMES]
    assert [line[0] for line in table.lines] == ["whole row", "0–15", "16–31", "32–39"]
    assert [line[1] for line in table.lines] == ["30.00 ± 0.50", "30.00 ± 0.25", "–", "–"]
    assert [line[4] for line in table.lines] == ["31.50 ± 0.50", "31.50 ± 0.25", "31.00 ± 0.25", "30.50 ± 0.25"]
    assert "300 selected" in explanation(FULL)


def test_sources_are_listed_with_their_accuracies_loss_and_recovery(tmp_path: Path) -> None:
    assert sources_table(FULL).lines == []
    views = {
        name: replace(one, sources={"laws & <b>": replace(one, whole=Accuracy(20.0 + number, 0.5, 2.5, 100))})
        for number, (name, one) in enumerate(FULL.measured.items())
    }
    mixed = replace(FULL, measured=views).signed()
    [line] = sources_table(mixed).lines
    assert line[:2] == ["laws & <b>", "100"] and line[2:7] == [f"{20 + number}.00 ± 0.50" for number in range(5)]
    assert line[7] == "2.500" and line[8].startswith("+2.00 ± ")
    write(mixed, tmp_path / "mixed")
    assert "By source" in words(tmp_path / "mixed") and "laws & <b>" in words(tmp_path / "mixed")
    assert read_evaluation(tmp_path / "mixed" / Evaluation.FILE) == mixed
    untrained = replace(mixed, measured={name: views[name] for name in VIEW_NAMES[:3]})
    assert sources_table(untrained).lines[0][-1] == "–"


@pytest.mark.parametrize(
    ("after", "error", "verdict", "points"),
    [
        (31.5, 0.25, "Recovered, and better than reading in chunks", "1.50 ± 0.35 points above"),
        (30.5, 0.5, "Recovered", "0.50 ± 0.71 points above"),
        (29.7, 1.0, "Recovered", "0.30 ± 1.41 points below"),
        (20.0, 1.0, "Not recovered", "10.00 ± 1.41 points below"),
    ],
)
def test_the_finding_states_the_difference_with_its_error(after, error, verdict, points) -> None:
    sides = {"base_chunks": measured(30.0, error=error), "long_after": measured(after, error=error)}
    found = replace(FULL, measured={**FULL.measured, **sides, "base_cut": measured(33.0, 1)})
    start, colon, reason = finding(found).partition(": ")
    assert (start, colon) == (verdict, ": ")
    within = ", which may be chance" * (abs(after - 30.0) < 1)
    assert f"{points} the base model's 30.00 % on the same tokens in chunks of 16 tokens{within}." in reason
    error, chance = r"\d+\.\d\d ± \d+\.\d\d points (above|below)", "(, which may be chance)?"
    verdict = "(Better|Worse|Not clearly better or worse)"
    assert re.search(
        rf"\. That is {error} its 33\.00 % on rows cut to 16 tokens{chance}\. "
        rf"{verdict} on short texts: .*{error} the base model{chance}\.$",
        reason,
    )
    at_own_length = {"base_cut": sides["base_chunks"], "long_after": sides["long_after"]}
    text = finding(replace(found, base_positions=found.row_length, measured=at_own_length))
    assert f"{points} the 30.00 % before training{within}." in text


def test_a_loss_against_cut_rows_is_stated_and_decides_nothing(tmp_path: Path) -> None:
    views = dict.fromkeys(("base_cut", "long_after_cut"), measured(50.0, 1))
    lost = replace(FULL, measured=FULL.measured | views)
    write(lost, tmp_path / "lost")
    assert "✓ Recovered, and better than reading in chunks: " in words(tmp_path / "lost")
    assert "That is 18.50 ± 0.71 points below its 50.00 % on rows cut to 16 tokens." in words(tmp_path / "lost")


def test_a_model_that_got_worse_on_short_texts_has_no_green_mark(tmp_path: Path) -> None:
    worse = replace(FULL, measured=FULL.measured | {"long_after_cut": measured(20.0, 1)})
    assert worse.is_recovered and is_good(FULL) and is_good(worse) is False
    write(worse, tmp_path / "worse")
    assert "✗ Recovered" in words(tmp_path / "worse") and "Worse on short texts: " in words(tmp_path / "worse")


def test_the_same_accuracy_without_an_error_is_not_called_better() -> None:
    sides = dict.fromkeys(("base_chunks", "long_after"), measured(30.0, error=0.0))
    assert finding(replace(FULL, measured=FULL.measured | sides)).startswith("Recovered: ")


def test_page_reports_everything_that_was_measured(written: Path) -> None:
    text = words(written)
    assert "from 16 to 40 positions" in text
    assert re.search(r"✓ Recovered, .*: .* 31\.50 % .*40 tokens.* 29\.00 %.* 16 tokens.* 30\.00 % on rows cut", text)
    assert re.search(r"\+2\.50\s+± 0\.71 points", text)
    for line in accuracy_table(FULL).lines:
        assert all(cell in text for cell in line)
    assert all(name in text for name in VIEW_NAMES)
    axes = {"accuracy (%)", "held-out accuracy (%)", "step (optimizer updates)", "position in the row (tokens)"}
    assert all(title in text for title in axes)
    assert re.search("step 20, after 12,345 tokens", text)
    assert "row 7, position 38" in text
    assert "He came to the house of the king." in text
    assert all(part in text for part in ("天下人。", "✓ predicted", "guess 2"))
    assert all(value in text for value in ("some/rows", "a & <b>", "0" * 64, "1789", MADE_BY))


def test_page_of_a_model_that_did_not_recover_states_the_missing_points(tmp_path: Path) -> None:
    lost = replace(FULL, measured=FULL.measured | {"long_after": measured(27.25)})
    write(lost, tmp_path / "lost")
    assert re.search(r"✗ Not recovered.*: .*1\.75 ± \S+ points below", words(tmp_path / "lost"))
    before = replace(FULL, measured=UNTRAINED, gains={})
    assert list(accuracy_table(before).header) == ["accuracy in %", *VIEW_NAMES[:3]]
    assert "long_after:" not in explanation(before)
    write(before, tmp_path / "untrained")
    text = words(tmp_path / "untrained")
    assert "Not trained yet" in text
    assert "long_before at the last masked position" in text
    assert "Recovered" not in text
    assert "None" not in text


def test_accuracy_by_position_is_drawn_per_bin(written: Path) -> None:
    page = (written / "index.html").read_text()
    label = re.findall(r'aria-label="(Accuracy by position[^"]*)"', page)[0]
    assert "long_after from 31.5 to 30.5" in label
    assert "base_cut 30;" in label


def test_earlier_result_is_replaced(written: Path, tmp_path: Path) -> None:
    output = Path(shutil.copytree(written, tmp_path / "out"))
    files = {"evaluation.json", "index.html"} | PICTURES
    assert {path.name for path in output.iterdir()} == files
    assert "Recovery during training" in words(output)
    assert read_evaluation(output / "evaluation.json") == FULL
    write(replace(FULL, curve=(), examples=()).signed(), output)
    assert {path.name for path in output.iterdir()} == files - {"recovery.png"}
    assert read_evaluation(output / "evaluation.json").curve == ()
    assert "Recovery during training" not in words(output)
    assert "Masks near the end" not in words(output)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
