"""The report of an evaluation: its table, pictures and page say what evaluation.json holds, and nothing else."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts.accuracy import ROW, Accuracy, Difference, Measured
from longmlm.artifacts.evaluation import EVALUATION_FILES, VIEW_NAMES, Evaluation, read_evaluation
from longmlm.folders import replaced_folder
from longmlm.reports.context import context_finding, context_sections, context_sentence
from longmlm.reports.evaluation import evaluation_page, explanation, finding, is_good, sources_table, write_evaluation
from tests.support.accepted import changes, lines_of
from tests.support.evaluations import FULL, measured
from tests.support.pages import words

MADE_BY = "# the command\nbase = 'b'\n"
PICTURES = {"blocks.png", "recovery.png"}
UNTRAINED = replace(FULL, measured={name: FULL.measured[name] for name in VIEW_NAMES[:3]}, gains={})


def with_views(**views: Measured) -> Evaluation:
    return replace(FULL, measured=FULL.measured | views)


def compared(after: float, error: float) -> Evaluation:
    """Returns an evaluation of a base model with 30 % in chunks and 33 % on cut rows."""
    chunks, long_after = measured(30.0, error=error), measured(after, error=error)
    return with_views(base_chunks=chunks, long_after=long_after, base_cut=measured(33.0, 1))


def with_gain(gain: Difference | None) -> Evaluation:
    """Returns an evaluation with another gain for tokens that occur again only beyond their chunk."""
    return replace(FULL, gains=FULL.gains | {"occurrence": {**FULL.gains["occurrence"], ROW: gain}})


def at_own_length(after: float, error: float) -> Evaluation:
    views = {"base_cut": measured(30.0, error=error), "long_after": measured(after, error=error)}
    return replace(FULL, base_positions=FULL.row_length, measured=views, gains={})


FINDINGS = {
    "better than in chunks": compared(31.5, 0.25),
    "recovered, perhaps by chance": compared(30.5, 0.5),
    "recovered within the error": compared(29.7, 1.0),
    "not recovered": compared(20.0, 1.0),
    "at the base model's own length": at_own_length(31.5, 0.25),
    "worse at the base model's own length": at_own_length(20.0, 1.0),
    "a loss against cut rows decides nothing": with_views(base_cut=measured(50.0, 1), long_after_cut=measured(50.0, 1)),
    "worse on short texts": with_views(long_after_cut=measured(28.0, 1)),
    "worse on short texts, perhaps by chance": with_views(long_after_cut=measured(29.0, 1)),
    "much worse on short texts": with_views(long_after_cut=measured(20.0, 1)),
    "the same accuracy without an error": compared(30.0, 0.0),
    "before training": UNTRAINED,
    "a loss from longer context": with_gain(Difference(-2.5, 0.5)),
    "a gain from longer context, perhaps by chance": with_gain(Difference(0.5, 0.5)),
    "hardly any token that longer context could help": with_gain(None),
}


def write(evaluation: Evaluation, folder: Path) -> None:
    """Writes an evaluation in place of an earlier one."""
    with replaced_folder(folder, EVALUATION_FILES) as partial:
        write_evaluation(evaluation, partial, MADE_BY)


def test_findings_are_those_that_were_accepted(accepted: Callable[[str, str], None]) -> None:
    marks, parts = {True: "✓", False: "✗", None: " "}, []
    for name, one in {"usual": FULL, **FINDINGS}.items():
        context = [context_finding(one), context_sentence(one)] if one.gains else []
        parts.append("\n".join([f"== {name}", f"{marks[is_good(one)]} {finding(one)}", *context, ""]))
    accepted("findings.txt", "\n".join(parts))


def test_pages_are_those_that_were_accepted(accepted: Callable[[str, str], None]) -> None:
    usual = lines_of(evaluation_page(FULL, MADE_BY))
    accepted("evaluation_page.txt", usual)
    variants = {
        "not recovered": with_views(long_after=measured(27.25)),
        "before training": UNTRAINED,
        "without curve and examples": replace(FULL, curve=(), examples=()),
    }
    pages = {name: lines_of(evaluation_page(one.signed(), MADE_BY)) for name, one in variants.items()}
    assert not any("None" in page for page in pages.values())
    accepted("evaluation_pages.diff", changes(usual, pages))


def test_the_verdicts_follow_from_the_numbers() -> None:
    verdicts = {name: finding(one).partition(":")[0] for name, one in FINDINGS.items()}
    assert verdicts["better than in chunks"] == "Recovered, and better than reading in chunks"
    assert verdicts["recovered within the error"] == verdicts["the same accuracy without an error"] == "Recovered"
    assert verdicts["not recovered"] == "Not recovered" and "Recovered" not in verdicts["before training"]
    worse = FINDINGS["much worse on short texts"]
    assert worse.is_recovered and is_good(FULL) and is_good(worse) is False
    assert "long_after:" in explanation(FULL) and "long_after:" not in explanation(UNTRAINED)
    assert context_finding(replace(FULL, measured={})) == "" and context_sections(UNTRAINED) == []


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


def test_earlier_result_is_replaced(tmp_path: Path) -> None:
    write(FULL, tmp_path / "full")
    output = Path(shutil.copytree(tmp_path / "full", tmp_path / "out"))
    shutil.rmtree(tmp_path / "full")
    files = {"evaluation.json", "index.html"} | PICTURES
    assert {path.name for path in output.iterdir()} == files
    assert read_evaluation(output / "evaluation.json") == FULL
    write(replace(FULL, curve=(), examples=()).signed(), output)
    assert {path.name for path in output.iterdir()} == files - {"recovery.png"}
    assert read_evaluation(output / "evaluation.json").curve == ()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
