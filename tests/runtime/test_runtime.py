"""What a launch finds: the precision that the hardware has."""

import time
from types import SimpleNamespace

import pytest

from longmlm.runtime.launch import launch as runtime
from longmlm.runtime.precision import resolved_precision
from longmlm.runtime.watchdog import heartbeat, pause_watchdog, watchdog


def machine(monkeypatch: pytest.MonkeyPatch, has_gpu: bool, has_bf16: bool) -> None:
    """Lets torch believe that it runs on such a machine."""
    gpu = SimpleNamespace(is_available=lambda: has_gpu, is_bf16_supported=lambda **_: has_bf16)
    mkldnn = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: has_bf16)
    monkeypatch.setattr(runtime.torch, "cuda", gpu)
    monkeypatch.setattr(runtime.torch, "ops", SimpleNamespace(mkldnn=mkldnn))


@pytest.mark.parametrize("has_gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("has_bf16", "expected"), [(True, "bf16"), (False, "no")])
def test_auto_is_bf16_where_the_hardware_computes_in_it(monkeypatch, has_gpu, has_bf16, expected):
    machine(monkeypatch, has_gpu, has_bf16)
    assert resolved_precision("auto") == expected


@pytest.mark.parametrize("asked", ["no", "bf16"])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_what_is_asked_for_is_taken(monkeypatch, asked, has_bf16):
    machine(monkeypatch, False, has_bf16)
    assert resolved_precision(asked) == asked


def test_who_beats_or_is_busy_writing_does_not_hang_and_who_does_neither_does(monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(runtime.os, "_exit", ended.append)
    with watchdog(0.4, 3):
        for _ in range(12):
            heartbeat()
            time.sleep(0.1)
        with pause_watchdog():
            time.sleep(1.2)
        assert ended == []
        time.sleep(1.5)
    assert ended and set(ended) == {1}
    assert "process 3 waited 0 s for its fellows" in capsys.readouterr().err


def test_a_process_that_was_stopped_for_a_while_does_not_hang(monkeypatch):
    ended = []
    monkeypatch.setattr(runtime.os, "_exit", ended.append)
    clock = SimpleNamespace(monotonic=lambda: time.time() * 1e6)
    monkeypatch.setattr(runtime, "time", clock)
    with watchdog(60.0, 0):
        time.sleep(1.5)
    assert ended == []
