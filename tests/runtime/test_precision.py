"""What precision `auto` means on which hardware."""

from types import SimpleNamespace

import pytest

from longmlm.runtime import launch
from longmlm.runtime.launch import resolved_precision


def machine(monkeypatch: pytest.MonkeyPatch, has_gpu: bool, has_bf16: bool) -> None:
    """Makes torch report such a machine."""
    gpu = SimpleNamespace(is_available=lambda: has_gpu, is_bf16_supported=lambda **_: has_bf16)
    backends = SimpleNamespace(mkldnn=SimpleNamespace(is_available=lambda: True))
    ops = SimpleNamespace(mkldnn=SimpleNamespace(_is_mkldnn_bf16_supported=lambda: has_bf16))
    monkeypatch.setattr(launch, "torch", SimpleNamespace(cuda=gpu, backends=backends, ops=ops))


@pytest.mark.parametrize("has_gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("has_bf16", "expected"), [(True, "bf16"), (False, "no")])
def test_auto_is_bf16_where_the_hardware_supports_it(monkeypatch, has_gpu, has_bf16, expected):
    machine(monkeypatch, has_gpu, has_bf16)
    assert resolved_precision("auto") == expected


@pytest.mark.parametrize("requested", ["no", "bf16"])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_precision_that_is_named_is_kept(monkeypatch, requested, has_bf16):
    machine(monkeypatch, False, has_bf16)
    assert resolved_precision(requested) == requested
