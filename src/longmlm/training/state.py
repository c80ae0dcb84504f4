"""Where a run stands."""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Progress of a run after `step` updates; accuracies are percent of held-out selected tokens.

    `cursor` is the number of rows consumed by all processes together, `tokens` those rows' tokens. `accuracy` is that
    of the latest evaluation, made at `evaluated_at_step`. `base_cut` is absent where there is no base model.
    """

    step: int = 0
    cursor: int = 0
    tokens: int = 0
    training_seconds: float = 0.0
    base_cut: float | None = None
    accuracy: float | None = None
    evaluated_at_step: int | None = None
    recovered_at_step: int | None = None
    recovered_at_tokens: int | None = None

    def after_update(self, num_rows: int, num_tokens: int, seconds: float) -> Self:
        """Returns the state one update later."""
        return replace(
            self,
            step=self.step + 1,
            cursor=self.cursor + num_rows,
            tokens=self.tokens + num_tokens,
            training_seconds=self.training_seconds + seconds,
        )

    def after_evaluation(self, accuracy: float) -> Self:
        """Returns the state with the accuracy at this step, and the recovery noted when it came first here."""
        seen = replace(self, accuracy=accuracy, evaluated_at_step=self.step)
        if self.recovered_at_step is None and self.base_cut is not None and accuracy >= self.base_cut:
            return replace(seen, recovered_at_step=self.step, recovered_at_tokens=self.tokens)
        return seen
