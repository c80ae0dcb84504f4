"""Training steps of a BERT, 512 positions to 1536, in fp32: generated compared with materialized positions.

python benchmarks/generated_positions.py [--quick]
"""

from collections.abc import Callable
from functools import partial

import torch
from paired import Comparison, Way, run
from steps import random_batch
from transformers import BertConfig, BertForMaskedLM

from longmlm.artifacts.provenance import Extension, ModelSource
from longmlm.model.architecture import set_dropout
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import rebuild_positions
from longmlm.settings.extend import PositionMode

BASE, LENGTH, NUM_STEPS, VOCABULARY = 512, 1536, 3, 30522
SIZES = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}


def steps(num_layers: int, mode: PositionMode) -> Callable[[], int]:
    """Returns training steps on a row of 1536 tokens, after one warm-up step."""
    torch.manual_seed(0)
    model = BertForMaskedLM(
        BertConfig(**SIZES, num_hidden_layers=num_layers, vocab_size=VOCABULARY, max_position_embeddings=LENGTH)
    )
    base = ModelSource(name="random")
    sizes = {"base_positions": BASE, "num_positions": LENGTH}
    rebuild_positions(model, Extension(base=base, **sizes, initialisation="hierarchical", alpha=0.4, seed=0, mode=mode))
    set_dropout(model, 0.0)
    objective = MlmObjective(model.train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = random_batch(objective, 1, LENGTH, round(0.15 * LENGTH))

    def work(num_steps: int = NUM_STEPS) -> int:
        for _ in range(num_steps):
            (objective(batch)["mlm"].loss_sum / len(batch.labels)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return num_steps * LENGTH

    work(1)
    return work


def comparison(num_layers: int) -> Comparison:
    """Returns the comparison for a model with `num_layers` layers."""
    generated, materialized = (Way(mode, partial(steps, num_layers, mode)) for mode in ("generated", "materialized"))
    return Comparison(f"{num_layers} layers of 384, a row of {LENGTH} tokens", generated, materialized, aim=0.95)


if __name__ == "__main__":
    run("generated positions", __doc__ or "", [comparison(6)], [comparison(2)])
