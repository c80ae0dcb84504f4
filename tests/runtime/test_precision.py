"""What precision `auto` means on which hardware."""

from types import SimpleNamespace

import pytest

from longmlm.runtime import launch
from longmlm.runtime.launch import resolved_precision, supported_precision
from tests.support import precision


def machine(monkeypatch: pytest.MonkeyPatch, has_gpu: bool, has_bf16: bool) -> None:
    """Makes torch report such a machine."""
    gpu = SimpleNamespace(is_available=lambda: has_gpu, is_bf16_supported=lambda **_: has_bf16)
    backends = SimpleNamespace(mkldnn=SimpleNamespace(is_available=lambda: True))
    ops = SimpleNamespace(mkldnn=SimpleNamespace(_is_mkldnn_bf16_supported=lambda: has_bf16))
    monkeypatch.setattr(launch, "torch", SimpleNamespace(cuda=gpu, backends=backends, ops=ops))
    monkeypatch.setattr(launch, "has_bf16", precision.of_machine["has_bf16"])


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


@pytest.mark.parametrize("has_gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_precision_that_the_machine_is_slow_in_or_lacks_is_not_supported(monkeypatch, has_gpu, has_bf16):
    machine(monkeypatch, has_gpu, has_bf16)
    supported = {name: supported_precision(name) == name for name in ("no", "bf16", "fp16")}
    assert supported == {"no": True, "bf16": has_bf16, "fp16": has_gpu}


def test_what_auto_means_is_said_by_each_test_and_never_by_its_machine(monkeypatch):
    monkeypatch.delenv(precision.VARIABLE, raising=False)
    with pytest.raises(AssertionError, match="use the fixture auto_precision"):
        resolved_precision("auto")


def test_tests_that_use_the_fixture_run_with_each_meaning_of_auto(auto_precision):
    assert resolved_precision("auto") == auto_precision
