"""The MLM evaluation of a run: masked-token accuracy at full length, to be won back from the base model's base_cut."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.accuracy import Accuracy, FilledMask, Measured
from longmlm.batches.masking import MaskedRow
from longmlm.evaluation import measure as measuring
from longmlm.evaluation.examples import filled_masks
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import measure
from longmlm.evaluation.views import View, cut, whole
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.watchdog import heartbeat


@dataclass(frozen=True, slots=True)
class RunEvaluation:
    """Measures `objective`, which is in training, on frozen held-out rows; `base` and its revision are its base model.

    `num_examples` filled masks are shown with each evaluation.
    """

    objective: MlmObjective
    frozen: FrozenRows
    base_positions: int
    base: str | None
    base_revision: str | None
    tokenizer: PreTrainedTokenizerBase
    num_examples: int
    accelerator: Accelerator

    @property
    def num_rows(self) -> int:
        """The number of held-out rows that are measured."""
        return len(self.frozen.row_ids)

    def baseline(self, between_rows: Callable[[], None]) -> float | None:
        """Returns base_cut; None, with a line that says so, where there is no base model on this machine."""
        if self.base is None:
            return None
        is_missing = self.base_revision is None and not Path(self.base).is_dir()  # a release names a local base only
        if any(any_rank(self.accelerator, is_missing)):
            self.accelerator.print(f"the base model {self.base} is not on this machine: base_cut is not measured")
            return None
        model = load_model(self.base, self.base_revision).model.to(self.accelerator.device)
        heartbeat()
        base = MlmObjective(model, self.objective.is_bf16)
        view = partial(cut, num_positions=self.base_positions, special=self.frozen.special)
        return self._measure(base, view, between_rows, "base model").whole.accuracy

    def measure(self, between_rows: Callable[[], None]) -> tuple[Measured, tuple[FilledMask, ...]]:
        """Returns long_after as it is now, of whole rows and per block of base_positions, and some predictions."""
        measured = self._measure(self.objective, whole, between_rows, "evaluate")
        blocks = tuple(_recorded(block) for block in measured.blocks)
        return Measured(_recorded(measured.whole), blocks), tuple(self._examples())

    def is_recovered(self, accuracy: float, baseline: float | None) -> bool:
        """Returns whether accuracy at full length has reached base_cut."""
        return baseline is not None and accuracy >= baseline

    def _measure(
        self,
        objective: MlmObjective,
        view: Callable[[MaskedRow], list[View]],
        between_rows: Callable[[], None],
        name: str,
    ) -> measuring.Measured:
        def view_of_next_row(row: MaskedRow) -> list[View]:  # called equally often on every rank
            between_rows()
            return view(row)

        try:
            return measure(objective, self.frozen, view_of_next_row, self.base_positions, self.accelerator, name)
        finally:
            self.objective.train()

    def _examples(self) -> list[FilledMask]:
        """Returns predictions near the end of some rows; every rank computes them, as a partitioned model needs."""
        if not self.num_examples:
            return []
        device = self.accelerator.device
        filled = filled_masks(self.objective, self.tokenizer, self.frozen, self.num_examples, device)
        return [FilledMask(x.row_id, x.place, x.before, x.after, x.truth, x.guesses) for x in filled]


def _recorded(measured: measuring.Accuracy) -> Accuracy:
    """Returns an accuracy as metrics.jsonl has it, its parts absent where no token was selected."""
    if not measured.num_selected:
        return Accuracy(None, None, None, 0)
    return Accuracy(measured.accuracy, measured.standard_error, measured.loss, measured.num_selected)
