"""Twenty steps give the losses that they gave before."""

import json
from pathlib import Path

import pytest

from tests.golden import NUM_STEPS, golden_losses

ROOT = Path(__file__).parents[2]


def test_losses_are_those_of_the_reference() -> None:
    """When numerics are meant to change: python tests/golden.py . > tests/golden_losses.json."""
    content = json.loads((ROOT / "tests" / "golden_losses.json").read_text())
    expected = [float.fromhex(loss) for loss in content["losses"]]
    assert len(expected) == NUM_STEPS
    assert expected[-1] < expected[0] - 0.5
    assert golden_losses(ROOT) == pytest.approx(expected, rel=1e-4)
