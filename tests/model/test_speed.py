"""The speed of training: extrapolated from short measurements, or from a GPU's data sheet."""

import pytest
import torch

from longmlm.model.cost import GPUS, Work, cost_of
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window
from longmlm.planning import speed
from longmlm.planning.speed import cpu_tokens_per_second, gpu_tokens_per_second
from tests.support.families import NUM_POSITIONS, SPECIAL_OF_OTHERS, tiny_model

LENGTH = 256


@pytest.fixture
def measured(monkeypatch):
    """Sets the seconds of one layer, of three layers, and of attention; the steps are made once."""

    def set_to(shallow, deep, attention):
        def seconds_of(*steps):
            for step in steps:
                step()
            return (shallow, deep) if len(steps) == 2 else (attention,)

        monkeypatch.setattr(speed, "_seconds_of", seconds_of)

    return set_to


@pytest.mark.parametrize("kind", [("roberta", 1), ("distilbert", 0)])
def test_layers_and_attention_add_up(kind, measured):
    measured(1.0, 3.0, 0.5)  # a layer takes 1 s for 1,024 tokens, attention 0.5 s for 256 tokens
    model = tiny_model(*kind)
    model.config.num_hidden_layers = 5
    seconds = (1.0 + 4 * 1.0) / 1024 + 5 * 0.5 / LENGTH**2 * (LENGTH - 128)
    work = Work(LENGTH, 0.15, is_half=False)
    assert cpu_tokens_per_second(model, work, 0.1) == pytest.approx(1 / seconds)
    recomputed = Work(LENGTH, 0.15, is_half=False, is_checkpointed=True)
    assert cpu_tokens_per_second(model, recomputed, 0.1) == pytest.approx(0.75 / seconds)
    assert model.config.num_hidden_layers == 5


def test_a_window_takes_the_same_time_per_token_at_any_length(measured):
    measured(1.0, 3.0, 0.5)
    model = tiny_model("roberta", 1)
    use_window(model, Window(70, 1))
    speeds = [cpu_tokens_per_second(model, Work(length, 0.15, is_half=False), 0.1) for length in (1024, 8192)]
    assert speeds[0] == speeds[1]
    layers, attended = model.config.num_hidden_layers, 2 * 70 + 2
    seconds = (1.0 + (layers - 1) * 1.0) / 1024 + layers * 0.5 / (1024 * attended) * (attended - 128)
    assert speeds[0] == pytest.approx(1 / seconds)


@pytest.mark.parametrize(("family", "pad"), SPECIAL_OF_OTHERS)
def test_a_family_with_computed_positions_is_measured(family, pad, measured):
    measured(1.0, 3.0, 0.5)
    work = Work(NUM_POSITIONS, 0.15, is_half=False)
    assert cpu_tokens_per_second(tiny_model(family, pad), work, 0.1) == pytest.approx(1024 / 2)


def test_a_deeper_model_is_slower_when_it_is_measured():
    few, many = tiny_model("bert", 0), tiny_model("bert", 0)
    few.config.num_hidden_layers, many.config.num_hidden_layers = 1, 200
    work = Work(32, 0.15, is_half=False)
    torch.manual_seed(0)
    assert cpu_tokens_per_second(few, work, 0.0) > 5 * cpu_tokens_per_second(many, work, 0.0) > 0


def test_a_gpu_reaches_a_quarter_of_its_peak():
    work = Work(64, 0.15, is_half=True, has_gpu=True)
    cost = cost_of(tiny_model("roberta", 1, 64), work)
    speed_of_a100 = gpu_tokens_per_second(GPUS["A100|A800"], cost, work)
    assert speed_of_a100 * cost.flop_per_token == pytest.approx(0.25 * 312e12)
    recomputed = Work(64, 0.15, is_half=True, is_checkpointed=True, has_gpu=True)
    assert gpu_tokens_per_second(GPUS["A100|A800"], cost, recomputed) == pytest.approx(0.75 * speed_of_a100)
