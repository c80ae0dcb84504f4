"""Two ranks average their gradients once per step, while the backward pass goes on."""

import json
from dataclasses import replace

import pytest

from tests.support.communicating import SENT
from tests.support.launching import TWO_PROCESSES, run_to_end
from tests.support.training import ROOT, with_recipe, with_runtime

NUM_STEPS = 3


@pytest.fixture
def ranks(settings, inputs, tmp_path) -> list[list[tuple[bool, list[str]]]]:
    """For each micro-batch of each rank, whether it is the last of its step, and the events.

    The gradients of the model take more than DDP's first bucket of 1 MiB.
    """
    architecture = json.loads((inputs / "architecture.json").read_text(encoding="utf-8"))
    larger = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
    (tmp_path / "architecture.json").write_text(json.dumps(architecture | larger), encoding="utf-8")
    start = replace(settings.start, architecture=str(tmp_path / "architecture.json"))
    settings = with_runtime(with_recipe(replace(settings, start=start), num_steps=NUM_STEPS), rows_per_micro_batch=2)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, str(ROOT / "tests/support/communicating.py"))
    assert code == 0, output[-3000:]
    return [json.loads((tmp_path / f"events-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


def test_gradients_are_sent_only_in_the_last_micro_batch_and_before_the_last_is_computed(ranks):
    for micro_batches in ranks:
        assert all(is_last == (SENT in events) for is_last, events in micro_batches)
        sending = [events for is_last, events in micro_batches if is_last]
        assert len(sending) == NUM_STEPS and len(micro_batches) >= 2 * NUM_STEPS
        # In the first step DDP learns the order of the gradients, and sends them all at once.
        for events in sending[1:]:
            gradients = [event for event in events if event != SENT]
            assert len(gradients) == len(set(gradients)) > 60
            assert events.count(SENT) > 1
            assert events.index(SENT) < events.index(gradients[-1]) - 10
