"""Compares training steps of longmlm with those of other long-context models of RoBERTa-base's size, in bf16.

All models have RoBERTa-base's number of layers, width and vocabulary, and random weights. Each has the dropout of its
configuration, and longmlm's RoBERTa has the same.

- ModernBERT (transformers, Trainer): windows of 128 in two of three layers, as many parameters, no dropout.
- Longformer (transformers, Trainer): windows of 512, no global tokens but 21 M parameters for them, dropout 0.1.
- bert4torch's BERT with hierarchical positions: full attention, dropout 0.1, in a plain loop under autocast, with the
  head at every position. It is compared only where bert4torch is installed: pip install --no-deps bert4torch==0.6.1
  torch4keras==0.3.3 (0.6.2 imports torchvision without requiring it). Its position table has 512 rows.

Speed and memory are compared, not accuracy; only bert4torch's model could start from BERT's weights, as
longmlm's does.

    python benchmarks/other_models.py [--quick]
"""

import importlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from paired import Comparison, Way, run
from steps import BASE, RATE, SMALL, TOKENIZER, WARM_UP_STEPS, Shape, ours, trainer_way
from torch import nn
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    LongformerConfig,
    LongformerForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
)

BASE_POSITIONS = 512
MAX_BERT4TORCH = 2048  # tokens; at 4096, its attention probabilities and logits took more than 20 GB


def modernbert(shape: Shape) -> PreTrainedModel:
    """Returns an untrained ModernBERT, whose gated layers have as many weights as RoBERTa's plain ones."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.width // 64,
        intermediate_size=8 * shape.width // 3,
        max_position_embeddings=shape.row_length,
        pad_token_id=1,
        bos_token_id=0,
        cls_token_id=0,
        eos_token_id=2,
        sep_token_id=2,
    )
    return ModernBertForMaskedLM(config).train()


def longformer(shape: Shape) -> PreTrainedModel:
    """Returns an untrained Longformer."""
    torch.manual_seed(0)
    return LongformerForMaskedLM(LongformerConfig(**shape.config().to_diff_dict(), attention_window=512)).train()


def bert4torch(shape: Shape) -> Callable[[], int]:
    """Returns steps of bert4torch's BERT with hierarchical positions, after one warm-up step."""
    config = {
        "model": "bert",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.width // 64,
        "intermediate_size": 4 * shape.width,
        "hidden_act": "gelu",
        "max_position_embeddings": BASE_POSITIONS,
        "hierarchical_position": 0.4,
        "dropout_rate": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "segment_vocab_size": 0,
        "with_mlm": "linear",
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert4torch_config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        model: nn.Module = importlib.import_module("bert4torch.models").build_transformer_model(str(path)).train()
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    rows = iter(shape.rows().reshape(-1, shape.num_rows, shape.row_length))

    def work(num_steps: int = shape.num_steps) -> int:
        for _ in range(num_steps):
            batch = collator([{"input_ids": row} for row in next(rows)])
            with torch.autocast("cpu", torch.bfloat16):
                *_, logits = model(batch["input_ids"])
                loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return num_steps * shape.tokens_per_step

    work(WARM_UP_STEPS)
    return work


def comparisons(shape: Shape) -> list[Comparison]:
    """Returns the comparisons at this row length, with bert4torch only where it is installed."""
    plain = replace(shape, dropout=0.0)
    ways = [
        (plain, trainer_way("ModernBERT, Trainer", plain, partial(modernbert, plain))),
        (shape, trainer_way("Longformer, Trainer", shape, partial(longformer, shape))),
    ]
    if not find_spec("bert4torch"):
        print("bert4torch is not installed and therefore not compared")
    elif shape.row_length <= MAX_BERT4TORCH:
        ways.append((shape, Way("bert4torch, hierarchical positions", partial(bert4torch, shape))))
    return [Comparison(own.label, Way("longmlm", partial(ours, own)), peer) for own, peer in ways]


if __name__ == "__main__":
    full = [comparison for length in (1536, 4096) for comparison in comparisons(replace(BASE, row_length=length))]
    run("other models", __doc__ or "", full, comparisons(replace(SMALL, row_length=1024)))
