"""Benchmarks: ratios and targets, the JSON line, growth, groups of a profile, and the report that runs all."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import micro_batch_memory
import paired
import pytest
import report
from growth import growth
from paired import Comparison, Measured, Way
from profile_step import group_of

LENGTHS = (512, 1024, 2048, 4096)
ENTRY = {"shape", "ours", "peer", "ratio", "unit", "aim", "met"}


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that compares two given figures with given memory."""

    def compared(ours, peer, ours_gib=1.0, peer_gib=1.0, **options):
        found = [Measured(ours, ours, ours, ours_gib), Measured(peer or 0, peer, peer, peer_gib)]
        monkeypatch.setattr(paired, "_measure_alternately", lambda ways, _: found[: len(ways)])
        ways = [Way(name, lambda: lambda: 0) for name in ("ours", "peer")]
        return Comparison("work", ways[0], ways[1] if peer else None, **options).measure(1)

    return compared


def test_a_ratio_above_one_is_better_for_speed_and_for_time(measure):
    assert measure(300, 100, aim=2).ratio == 3
    assert measure(1, 4, aim=2, unit="s").ratio == 4


@pytest.mark.parametrize(
    ("options", "met"),
    [
        ({"aim": 2}, True),
        ({"aim": 4}, False),
        ({"aim": 2, "memory_aim": 2}, True),
        ({"aim": 2, "memory_aim": 3}, False),
        ({"aim": 1, "max_ratio": 2}, False),
        ({}, None),
    ],
)
def test_all_targets_must_be_met(measure, options, met):
    assert measure(300, 100, ours_gib=1, peer_gib=2.5, **options).met is met


def test_without_a_peer_nothing_is_compared(measure):
    found = measure(300, None, aim=2)
    assert (found.ours, found.peer, found.ratio, found.met, found.peer_name) == (300, None, None, None, None)


@pytest.mark.parametrize("is_quick", [True, False])
def test_the_last_line_is_a_json_object_that_names_every_figure(measure, monkeypatch, capsys, is_quick):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *(["--quick"] if is_quick else [])])
    paired.print_results("step", [measure(300, 100, aim=2), measure(200, None)], losses=[1.5])
    found = last_object(capsys)
    assert (found["name"], found["is_quick"], found["losses"]) == ("step", is_quick, [1.5])
    assert [found[key] for key in ("shape", "ours", "peer", "ratio", "unit", "aim", "met")] == [
        *("work", 300, 100, 3, "tokens/s", 2, True)
    ]
    [other] = found["others"]
    assert other.keys() >= ENTRY and (other["ours"], other["peer"]) == (200, None)


def test_the_last_line_of_the_memory_benchmark_ends_with_the_same_json_object(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["micro_batch_memory.py", "--quick"])
    monkeypatch.setattr(micro_batch_memory, "measured_bytes", micro_batch_memory.predicted_bytes)
    micro_batch_memory.main()
    found = last_object(capsys)
    assert found["name"] == "micro-batch in 24 GB"
    entries = [found, *found["others"]]
    assert len(entries) == 3 + len(micro_batch_memory.MODES)
    assert all(entry.keys() >= ENTRY for entry in entries)
    assert all(entry["ratio"] == pytest.approx(entry["ours"] / entry["peer"]) for entry in entries)


def last_object(capsys):
    """Returns the object in the last line that was printed; the lines before are for people."""
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines and not any(line.startswith("{") for line in lines)
    return json.loads(last)


def test_growth_of_linear_and_quadratic_costs():
    linear = growth("", LENGTHS, [3e-6] * len(LENGTHS))
    assert (linear.exponent, linear.is_near_linear) == (pytest.approx(1), True)
    quadratic = growth("", LENGTHS, [5e-9 * length for length in LENGTHS])
    assert (quadratic.exponent, quadratic.is_near_linear) == (pytest.approx(2), False)
    assert quadratic.quadratic_share == pytest.approx(1)
    mixed = growth("", LENGTHS, [2e-6 + 1e-9 * length for length in LENGTHS])
    assert mixed.microseconds_per_token == pytest.approx(2)
    assert mixed.nanoseconds_per_token_and_length == pytest.approx(1)
    assert mixed.quadratic_share == pytest.approx(2048 / 4048)


@pytest.mark.parametrize(
    ("names", "shapes", "group"),
    [
        (("aten::addmm",), [[768], [1536, 768]], "matrix products"),
        (("aten::addmm",), [[50265], [230, 768]], "decoder"),
        (("aten::bmm", "ChunkedAttention"), [], "attention"),
        (("aten::addmm", "Optimizer.step#AdamW.step"), [[50265, 768]], "optimizer and clipping"),
        (("aten::_softmax", "aten::log_softmax"), [[230, 50265]], "loss"),
        (("aten::bernoulli_", "aten::dropout"), [], "dropout"),
        (("aten::copy_", "aten::_to_copy"), [[50265, 768]], "decoder"),
        (("aten::add_",), [[1536, 768]], "rest"),
    ],
)
def test_an_operation_belongs_to_the_group_of_its_callers_and_shapes(names, shapes, group):
    event = None
    for name in reversed(names):
        event = SimpleNamespace(name=name, cpu_parent=event, input_shapes=shapes)
    assert group_of(event, 50265) == group


def test_the_report_runs_every_program_that_has_a_quick_version():
    sources = {path.stem: path.read_text() for path in Path(report.__file__).parent.glob("*.py")}
    documented = {name for name, text in sources.items() if f"python benchmarks/{name}.py [--quick]" in text}
    assert set(report.scripts()) == documented - {"report"}
    assert len(report.scripts()) >= 10


def test_the_report_has_a_line_for_each_comparison():
    entry = {"shape": "a", "ours": 523.4, "peer": 116.0, "ratio": 4.512, "aim": 2.5, "met": True}
    entry |= {"unit": "tokens/s", "peer_name": "Trainer", "ours_gib": 3.2, "peer_gib": 7.8}
    alone = entry | {"shape": "b", **dict.fromkeys(("peer", "ratio", "met", "peer_name", "peer_gib"))}
    lines = report.table([{"name": "step", **entry, "others": [alone]}]).splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:7] == ["523", "116", "4.51", "2.50", "yes", "3.20", "7.80"]
    assert lines[2].split()[:7] == ["523", "-", "-", "2.50", "-", "3.20", "-"]
