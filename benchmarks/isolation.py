"""Compares training steps with isolate_documents and without, on rows of short documents.

The same rows of random tokens are trained on by a RoBERTa, which reads packed batches and attends to less, and by a
ModernBERT of the same size, which reads padded ones and masks what it computes, in bf16 where the processor has
instructions for it, else in fp32. The peer is longmlm, too. Speeds are by CPU time: others may use the machine.

    python benchmarks/isolation.py [--quick]
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from paired import Comparison, Way, run
from steps import BASE, SMALL, WARM_UP_STEPS, Shape, own_step
from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedModel

from longmlm.runtime.launch import resolved_precision
from longmlm.settings.pretrain import number_format

DOCUMENT_TOKENS = 150
ROBERTA, MODERNBERT = "RoBERTa", "ModernBERT"
SHAPES = ((4, 512), (1, 1536))  # rows of a step, tokens of a row


def cpu_rate(work: Callable[[], float]) -> float:
    """Runs the work, which returns a number of tokens, and returns that number per second of CPU time."""
    started = time.process_time()
    amount = work()
    return amount / (time.process_time() - started)


def modernbert(shape: Shape) -> PreTrainedModel:
    """Returns an untrained ModernBERT of about this shape, without dropout, as in its own config."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.width // 64,
        intermediate_size=2 * shape.width,
        max_position_embeddings=shape.row_length,
        bos_token_id=0,
        cls_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        sep_token_id=2,
    )
    return ModernBertForMaskedLM(config).train()


def steps(shape: Shape, family: str) -> Callable[[], int]:
    """Returns a function that runs training steps, after the warm-up steps."""
    step = own_step(shape, shape.roberta() if family == ROBERTA else modernbert(shape), resolved_precision("auto"))
    for _ in range(WARM_UP_STEPS):
        step()

    def work() -> int:
        for _ in range(shape.num_steps):
            step()
        return shape.num_steps * shape.tokens_per_step

    return work


def comparison(shape: Shape, family: str) -> Comparison:
    """Returns the comparison for this shape."""
    isolated = replace(shape, isolates_documents=True)
    model = f"{family} ({shape.num_layers} x {shape.width}), {shape.num_rows} x {shape.row_length} tokens"
    label = f"{model}, documents of {shape.document_tokens} on average, dropout {shape.dropout}"
    own, peer = (
        Way(name, partial(steps, one, family), cpu_rate)
        for name, one in (("isolated", isolated), ("whole rows", shape))
    )
    return Comparison(f"{label}, {number_format(resolved_precision('auto'))}", own, peer)


def comparisons(size: Shape) -> list[Comparison]:
    """Returns those of this size: RoBERTa with dropout and without, ModernBERT without."""
    shapes = [
        replace(size, num_rows=rows, row_length=length, document_tokens=DOCUMENT_TOKENS, dropout=dropout)
        for rows, length in SHAPES
        for dropout in (0.1, 0.0)
    ]
    families = [(ROBERTA, shapes), (MODERNBERT, [shape for shape in shapes if not shape.dropout])]
    return [comparison(shape, family) for family, own in families for shape in own]


if __name__ == "__main__":
    run("isolated documents", __doc__ or "", comparisons(replace(BASE, vocabulary=8192)), comparisons(SMALL))
