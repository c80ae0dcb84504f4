"""Twenty steps give the losses that they gave before."""

import json

import pytest

from longmlm.config import parse
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.stages.prepare import prepare
from tests.golden import NUM_STEPS, write_inputs
from tests.support.training import ROOT, losses


def test_losses_are_those_of_the_reference(train, tmp_path, monkeypatch):
    """When numerics are meant to change: python tests/golden.py . > tests/golden_losses.json."""
    content = json.loads((ROOT / "tests" / "golden_losses.json").read_text())
    expected = [float.fromhex(loss) for loss in content["losses"]]
    assert len(expected) == NUM_STEPS
    assert expected[-1] < expected[0] - 0.5
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    prepare(parse(PrepareConfig, ["prepare.toml"]))
    assert losses(train(parse(PretrainConfig, ["pretrain.toml"]))) == pytest.approx(expected, rel=1e-4)
