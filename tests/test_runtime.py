"""What a launch finds: the precision that the hardware has."""

from types import SimpleNamespace

import pytest

from longmlm import runtime
from longmlm.runtime import resolved_precision


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
