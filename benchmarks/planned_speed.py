"""Planned tokens per second beside those of training steps, in turn, for three shapes of model on this CPU."""

import statistics
import time

import torch
from transformers import AutoModelForMaskedLM, RobertaConfig

from longmlm.batches.collate import MlmBatch
from longmlm.model.cost import CPU_TOKENS, Work
from longmlm.model.mlm import MlmObjective, set_dropout
from longmlm.model.speed import cpu_tokens_per_second
from longmlm.runtime.precision import resolved_precision

VOCABULARY, NUM_TURNS, NUM_STEPS = 50265, 3, 2
SHAPES = {  # layers, width, heads, row length
    "4 x 256 at 384": (4, 256, 4, 384),
    "12 x 768 at 512": (12, 768, 12, 512),
    "12 x 768 at 1536": (12, 768, 12, 1536),
}


def compare(name: str, dropout: float) -> None:
    """Prints the medians over the turns, and the ratio."""
    num_layers, width, heads, length = SHAPES[name]
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=num_layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=length + 2,
    )
    precision = resolved_precision("auto")
    work = Work(length, 0.15, is_half=precision != "no")
    model = AutoModelForMaskedLM.from_config(config).train()
    set_dropout(model, dropout)
    objective, optimizer = MlmObjective(model, precision), torch.optim.AdamW(model.parameters(), fused=True)
    num_rows = max(1, CPU_TOKENS // length)
    input_ids = torch.randint(5, VOCABULARY, (num_rows, length))
    selected = torch.randperm(num_rows * length)[: round(0.15 * num_rows * length)].sort().values
    batch = MlmBatch(input_ids, None, selected, input_ids.flatten()[selected])
    planned, trained = [], []
    for turn in range(NUM_TURNS):
        planned.append(cpu_tokens_per_second(config, work, dropout))
        for _ in range(NUM_STEPS):
            started = time.perf_counter()
            objective(batch).loss_sum.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if turn:  # the first steps allocate
                trained.append(num_rows * length / (time.perf_counter() - started))
    ratio = statistics.median(planned) / statistics.median(trained)
    print(f"{name}, dropout {dropout}: planned {statistics.median(planned):,.0f} tokens/s, ", end="")
    print(f"trained {statistics.median(trained):,.0f}, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    for name in SHAPES:
        for dropout in (0.0, 0.1):
            compare(name, dropout)
