"""Training steps of RoBERTa-base at 1536, bf16: head on selected positions and no mask, and the stock model."""

from collections.abc import Callable

import torch
from paired import Way, compare
from transformers import RobertaConfig, RobertaForMaskedLM

from longmlm.batches.collate import MlmBatch
from longmlm.model.mlm import MlmObjective, set_dropout

LENGTH, NUM_STEPS, VOCABULARY = 1536, 2, 50265


def model_and_batch() -> tuple[RobertaForMaskedLM, MlmBatch, torch.optim.AdamW]:
    """Returns an untrained RoBERTa-base of 1536 positions without dropout, a row with 15 % selected, and AdamW."""
    torch.manual_seed(0)
    model = RobertaForMaskedLM(RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH + 2))
    set_dropout(model, 0.0)
    input_ids = torch.randint(5, VOCABULARY, (1, LENGTH))
    selected = torch.randperm(LENGTH)[: round(0.15 * LENGTH)].sort().values
    batch = MlmBatch(input_ids, None, selected, input_ids[0, selected])
    return model.train(), batch, torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def ours() -> Callable[[], int]:
    """Returns steps as in the training loop."""
    model, batch, optimizer = model_and_batch()
    objective = MlmObjective(model, "bf16")

    def step() -> None:
        loss_sum, _ = objective(batch)
        (loss_sum / len(batch.labels)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return repeated(step)


def theirs() -> Callable[[], int]:
    """Returns steps on the stock model: labels of -100, a mask of ones, every position projected."""
    model, batch, optimizer = model_and_batch()
    labels = torch.full_like(batch.input_ids, -100)
    labels[0, batch.selected] = batch.labels

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            mask = torch.ones_like(batch.input_ids)
            loss = model(input_ids=batch.input_ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return repeated(step)


def repeated(step: Callable[[], None]) -> Callable[[], int]:
    """Returns the timed steps, after one to warm up."""
    step()

    def work() -> int:
        for _ in range(NUM_STEPS):
            step()
        return NUM_STEPS * LENGTH

    return work


if __name__ == "__main__":
    compare("training step", Way("longmlm", ours), Way("RobertaForMaskedLM, labels of -100", theirs))
