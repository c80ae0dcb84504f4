"""The page of a run while it trains: what it shows of each line of metrics, and that it never stops a training."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.accuracy import ROW, Difference
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile, TargetMetrics, TrainingMetrics
from longmlm.reports import training
from longmlm.reports.training import REFRESH_SECONDS, TrainingPage
from tests.support.accepted import changes, lines_of
from tests.support.evaluations import FULL, NOTHING
from tests.support.pages import words

REFRESH = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'


def logged(step: int) -> TrainingMetrics:
    return TrainingMetrics(
        step=step,
        tokens=step * 100,
        targets={"mlm": TargetMetrics(loss=2.345, accuracy=55.0)},
        learning_rate=1e-4,
        gradient_norm=1.0,
        tokens_per_second=12345.6,
        elapsed_seconds=1.0,
        memory_bytes=1_500_000_000,
    )


def evaluated(step: int, recovered_at: int | None = None) -> EvaluationMetrics:
    held_out = FULL.measured["long_after"]
    base = {"base_chunks": 30.0, "base_chunks_error": 0.5, "base_cut": 33.0, "base_cut_error": 0.75}
    line = EvaluationMetrics(step=step, tokens=step, held_out=held_out, recovery=Difference(1.5, 0.5), **base)
    return replace(line, recovered_at_step=recovered_at, examples=FULL.examples)


@pytest.fixture
def page(tmp_path: Path) -> TrainingPage:
    run = tmp_path / "out" / "run"
    run.mkdir(parents=True)
    return TrainingPage(run, 60, {"model": "a <small> one"}, "# the command\n")


def html(page: TrainingPage) -> str:
    return (page.run / "index.html").read_text(encoding="utf-8")


VERDICTS = {
    "recovered": (Difference(-0.5, 0.5), 20),
    "recovered, but no longer": (Difference(-1.5, 0.5), 20),
    "perhaps recovered": (Difference(1.5, 0.5), None),
    "not yet recovered": (Difference(-1.5, 0.5), None),
}


def by_occurrence(step: int, is_there: bool) -> EvaluationMetrics:
    """Returns a line with the base model's accuracy in the three groups, or without tokens in the last."""
    line = replace(evaluated(step), held_out=FULL.curve[-1].held_out)
    base = {name: replace(one, accuracy=5.25) for name, one in line.held_out.groups["occurrence"].items()}
    if is_there:
        return replace(line, base_chunks_by_occurrence=base)
    groups = line.held_out.groups | {"occurrence": {**line.held_out.groups["occurrence"], ROW: NOTHING}}
    return replace(line, held_out=replace(line.held_out, groups=groups))


def test_pages_of_a_run_are_those_that_were_accepted(
    page: TrainingPage, monkeypatch: pytest.MonkeyPatch, accepted: Callable[[str, str], None]
) -> None:
    seen: dict[str, str] = {}

    def see(name: str, *lines: TrainingMetrics | EvaluationMetrics | None) -> None:
        for line in lines:
            page.show(line)
        seen[name] = re.sub(r"written [\d-]+ [\d:]+", "written TIME", lines_of(html(page)))

    see("before training", None)
    assert REFRESH in html(page)
    page.show(evaluated(0))
    page.start(0)
    monkeypatch.setattr(training.time, "monotonic", lambda: page.started + 120)
    see("in training", logged(10), logged(20), evaluated(20, recovered_at=20))
    assert html(page).count("<svg") == 2 and "<script" not in html(page)
    for name, (gain, at) in VERDICTS.items():
        see(name, replace(evaluated(40, recovered_at=at), recovery=gain))
    see("by other occurrences of the token", by_occurrence(40, is_there=True))
    see("no token with an occurrence beyond its chunk", by_occurrence(40, is_there=False))
    page.end("finished")
    see("finished")
    assert REFRESH not in html(page)
    usual = seen.pop("in training")
    accepted("training_page.txt", usual)
    accepted("training_pages.diff", changes(usual, seen))


def test_a_resumed_run_shows_what_was_measured_before(page: TrainingPage) -> None:
    for line in (evaluated(0), logged(10), evaluated(15)):
        MetricsFile(page.run).append(line)
    page.start(15)
    assert "step 15 of 60" in words(page.run) and "–" in words(page.run)
    assert [line.step for line in page.evaluations] == [0, 15]
    assert [len(line.examples) > 0 for line in page.evaluations] == [False, True]


def test_charts_are_drawn_no_more_often_than_browsers_reload_the_page_and_at_the_end(
    page: TrainingPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, svg, now = [], training.svg, 1000.0
    monkeypatch.setattr(training, "svg", lambda *chart: steps.append(page.step) or svg(*chart))
    monkeypatch.setattr(training.time, "monotonic", lambda: now)
    for line, seconds in ((evaluated(0), 0), (logged(10), 9), (evaluated(20), 9), (evaluated(30), 3), (logged(40), 1)):
        now += seconds
        page.show(line)
    assert steps == [0, 0, 20, 20]  # in two sizes each
    now += 1
    page.show(logged(50))
    assert steps == [0, 0, 20, 20, 50, 50] and len(page.evaluations) == 3
    page.show(evaluated(60))
    page.end("finished")
    assert steps[6:] == [60, 60]


def test_a_failed_drawing_is_repeated(page: TrainingPage, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, svg, fails = [], training.svg, [False, True]

    def fragile(chart: training.Chart, size: tuple[float, float]) -> str:
        if fails and fails.pop(0):
            raise OSError("no more memory")
        drawn.append(len(page.evaluations))
        return svg(chart, size)

    monkeypatch.setattr(training, "svg", fragile)
    for step in (0, 10):
        page.show(evaluated(step))
    assert drawn == [1, 2]  # the second size is that of the next evaluation
    page.end("finished")
    assert drawn == [1, 2, 2, 2]


def test_a_resumed_run_has_no_chart_of_what_it_forgot(page: TrainingPage) -> None:
    page.show(evaluated(10))
    page.start(0)
    assert "<svg" not in html(page)
    page.show(replace(evaluated(20), base_chunks=None, base_cut=None, recovery=None))
    assert html(page).count("<svg") == 2 and "Accuracy during training" in words(page.run)


def test_a_page_that_cannot_be_written_costs_one_line(page: TrainingPage, capsys: pytest.CaptureFixture[str]) -> None:
    (page.run / "index.html").mkdir()
    for step in (10, 20):
        page.show(logged(step))
    page.end("finished")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "index.html cannot be written" in lines[0] and "training is not affected" in lines[0]


@pytest.mark.parametrize(
    ("error", "said"), [(ValueError("a <bad> value"), "Ended early: a <bad> value"), (SystemExit(143), "Stopped: the")]
)
def test_an_error_is_named_on_the_page(page: TrainingPage, error: BaseException, said: str) -> None:
    with pytest.raises(type(error)), page:
        raise error
    assert said in words(page.run) and REFRESH not in html(page)


def test_other_processes_write_nothing(page: TrainingPage) -> None:
    page.is_written = False
    page.show(logged(10))
    page.start(10)
    page.end("finished")
    assert not (page.run / "index.html").exists()
