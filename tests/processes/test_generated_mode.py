"""Generated positions on two processes: the losses of one."""

from dataclasses import replace

import pytest
import torch

from longmlm.settings.pretrain import Start
from tests.support.launching import accelerate, trained
from tests.support.training import losses, weights_at, with_recipe, with_runtime


@pytest.mark.parametrize("yaml", ["ddp.yaml", pytest.param("zero-3.yaml", marks=pytest.mark.slow)])
def test_two_processes_have_the_losses_of_one(settings, models, train, tmp_path, yaml):
    start = Start(checkpoint=str(models["generated"]))
    settings = with_recipe(replace(settings, rows=str(models["rows"]), start=start), dropout=0.0)
    one = train(replace(settings, run=str(tmp_path / "one")))
    two = trained(
        with_runtime(settings, num_processes=2, rows_per_micro_batch=2),
        tmp_path,
        accelerate(yaml, "--num_processes", "2"),
    )
    assert len(losses(one)) == 12
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    left, right = weights_at(one, 12), weights_at(two, 12)
    for key in [
        key for key in left if not key.endswith("key.bias")
    ]:  # without a gradient, AdamW amplifies its rounding
        torch.testing.assert_close(right[key], left[key], rtol=0, atol=2e-6)
