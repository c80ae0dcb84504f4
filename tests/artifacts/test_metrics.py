"""metrics.jsonl: appended to, cut back on resume, read line by line."""

from dataclasses import replace

import pytest

from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile, TargetMetrics, TrainingMetrics
from longmlm.errors import ArtifactError

ACCURACY = Accuracy(40.0, 1.0, 3.0, 9)
MEASURED = Measured(ACCURACY, (ACCURACY,), (), (9,), (4,))


def at(step: int) -> TrainingMetrics:
    return TrainingMetrics(
        step=step,
        tokens=90,
        targets={"mlm": TargetMetrics(loss=2.5, accuracy=40.0)},
        learning_rate=1e-3,
        gradient_norm=1.0,
        tokens_per_second=10.0,
        elapsed_seconds=9.0,
    )


def test_lines_are_read_back_in_order_and_one_cut_off_by_a_crash_is_left_out(tmp_path):
    file = MetricsFile(tmp_path)
    assert file.lines() == []
    lines = [
        at(1),
        EvaluationMetrics(step=1, tokens=30, held_out=MEASURED),
        replace(at(2), targets={"held_out": TargetMetrics(loss=2.5, accuracy=40.0)}),
    ]
    for line in lines:
        file.append(line)
    with file.path.open("a", encoding="utf-8") as stream:
        stream.write('{"step": 3, "lo')
    assert file.lines() == lines


@pytest.mark.parametrize("line", ["not JSON", '{"format": 99, "step": 1}'])
def test_a_whole_line_that_cannot_be_read_is_named_and_never_dropped(tmp_path, line):
    file = MetricsFile(tmp_path)
    file.append(at(1))
    with file.path.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    before = file.path.read_bytes()
    with pytest.raises(ArtifactError, match="line 2"):
        file.truncate(1)
    assert file.path.read_bytes() == before


def test_lines_after_the_resumed_step_are_dropped_and_the_rest_stays_byte_for_byte(tmp_path):
    file = MetricsFile(tmp_path)
    for step in (3, 4, 4, 5, 6):
        file.append(at(step))
    before = file.path.read_text(encoding="utf-8").splitlines()
    file.truncate(4)
    assert file.path.read_text(encoding="utf-8").splitlines() == before[:3]
    file.append(at(5))
    assert [line.step for line in file.lines()] == [3, 4, 4, 5]


def test_the_evaluation_of_the_resumed_step_is_dropped_if_it_has_to_be_repeated(tmp_path):
    file = MetricsFile(tmp_path)
    lines = [EvaluationMetrics(step=step, tokens=30, held_out=MEASURED) for step in (0, 4)]
    for line in (lines[0], at(4), lines[1]):
        file.append(line)
    file.truncate(4)
    assert file.lines() == [lines[0], at(4), lines[1]]
    file.truncate(4, is_evaluated=False)
    assert file.lines() == [lines[0], at(4)]
