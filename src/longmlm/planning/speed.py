"""Training speed: measured on this machine's CPU, or estimated from the peak on a GPU's data sheet."""

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from longmlm.batches.collate import MlmBatch
from longmlm.model.architecture import set_dropout
from longmlm.model.cost import Cost, Gpu, Work
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import PackedRows, can_use_packed_attention, packed_attention, use_packed_attention
from longmlm.model.position_table import has_position_table, position_table_of, replace_positions
from longmlm.model.window import Window
from longmlm.model.window_attention import layers_by_window, window_attention, window_of

ASSUMED_MFU = 0.25  # an assumption: no GPU has been measured
SHORT_LENGTH = 128
NUM_ROWS = 8
MIN_SECONDS = 0.5
MIN_TIMES = 3


def gpu_tokens_per_second(gpu: Gpu, cost: Cost, work: Work) -> float:
    """Returns the tokens per second of one GPU at ASSUMED_MFU; recomputing activations costs one more forward pass."""
    return ASSUMED_MFU * gpu.peak_flops / (cost.flop_per_token * (4 / 3 if work.is_checkpointed else 1))


def cpu_tokens_per_second(model: PreTrainedModel, work: Work, dropout: float) -> float:
    """Returns the tokens per second of this CPU, measured in a few seconds.

    Training with one and with three layers on short rows gives the time of a layer, and of embeddings and head.
    Attention, whose time per token grows with the tokens attended to, is measured separately, on a row of as many
    tokens as it is computed over, but at most 1024.
    """
    config: Any = model.config
    attended = (can_use_packed_attention(config) and work.document_length) or work.row_length
    length = min(attended, 1024)
    shallow, deep = _seconds_of(_step(model, 1, work, dropout), _step(model, 3, work, dropout))
    per_token = (shallow + (config.num_hidden_layers - 1) * (deep - shallow) / 2) / (NUM_ROWS * SHORT_LENGTH)
    for window, num_layers in layers_by_window(model).items():
        (attention,) = _seconds_of(_attention(config, work, dropout, length, window))
        measured, long = (window.num_attended(one) if window else one for one in (length, attended))
        per_token += num_layers * attention / (length * measured) * max(0, long - SHORT_LENGTH)
    return 1 / (per_token * (4 / 3 if work.is_checkpointed else 1))


def _step(planned: PreTrainedModel, num_layers: int, work: Work, dropout: float) -> Callable[[], object]:
    config: Any = copy.deepcopy(planned.config)
    config.num_hidden_layers = num_layers
    config.max_position_embeddings = max(config.max_position_embeddings, SHORT_LENGTH + 2)  # MPNet reserves 2
    if kinds := getattr(config, "layer_types", None):  # ModernBERT's, one per layer
        config.layer_types = [kinds[number % len(kinds)] for number in range(num_layers)]
    model = AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    if has_position_table(model):
        replace_positions(model, torch.zeros(SHORT_LENGTH, position_table_of(model).rows.embedding_dim))
    if window_of(planned):
        model.set_attn_implementation("sdpa")  # a short row is within the window
    use_packed_attention(model)
    objective = MlmObjective(model, "bf16" if work.is_half else "no").train()
    set_dropout(objective, dropout)
    row_lengths = (SHORT_LENGTH,) * NUM_ROWS if objective.reads_packed_batches else ()
    input_ids = torch.full(
        (1, NUM_ROWS * SHORT_LENGTH) if row_lengths else (NUM_ROWS, SHORT_LENGTH), config.vocab_size - 1
    )
    selected = torch.arange(round(work.selected_fraction * input_ids.numel()))
    batch = MlmBatch(input_ids, None, selected, input_ids.flatten()[selected], row_lengths=row_lengths)

    def step() -> None:
        objective(batch)["mlm"].loss_sum.backward()

    return step


def _attention(
    config: PretrainedConfig, work: Work, dropout: float, length: int, window: Window | None
) -> Callable[[], object]:
    heads = config.num_attention_heads
    states = torch.randn(
        3, 1, heads, length, config.hidden_size // heads, dtype=torch.bfloat16 if work.is_half else None
    )
    states.requires_grad_()

    def step() -> None:
        if window:
            output, _ = window_attention(None, states[0], states[1], states[2], None, window=window, dropout=dropout)
        elif can_use_packed_attention(config):
            row = PackedRows((length,), torch.tensor([0, length]))
            output, _ = packed_attention(None, states[0], states[1], states[2], None, row, dropout=dropout)
        else:
            output = scaled_dot_product_attention(states[0], states[1], states[2], dropout_p=dropout)
        output.sum().backward()

    return step


def _seconds_of(*steps: Callable[[], object]) -> tuple[float, ...]:
    """Returns the median seconds of each step; the steps alternate because the machine's load changes."""
    times: list[list[float]] = [[] for _ in steps]
    deadline = time.monotonic() + MIN_SECONDS * len(steps)
    while time.monotonic() < deadline or len(times[-1]) < MIN_TIMES:
        for measured, step in zip(times, steps, strict=True):
            started = time.perf_counter()
            step()
            measured.append(time.perf_counter() - started)
    return tuple(statistics.median(measured[1:]) for measured in times)
