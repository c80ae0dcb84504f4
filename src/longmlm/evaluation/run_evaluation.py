"""The MLM evaluation of a run: masked-token accuracy at full length, to be won back from the base model's base_cut."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.accuracy import FilledMask, Measured
from longmlm.artifacts.provenance import ModelSource
from longmlm.batches.masking import MaskedRow
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
    """Measures `objective`, which is in training, on frozen held-out rows; `base` is its base model.

    `num_examples` filled masks are shown with each evaluation.
    """

    objective: MlmObjective
    frozen: FrozenRows
    base_positions: int
    base: ModelSource | None
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
        name, revision = self.base.name, self.base.revision
        is_missing = revision is None and not Path(name).is_dir()  # a release drops the path of a local base
        if any(any_rank(self.accelerator, is_missing)):
            self.accelerator.print(f"the base model {name} is not on this machine: base_cut is not measured")
            return None
        model = load_model(name, revision).model.to(self.accelerator.device)
        heartbeat()
        base = MlmObjective(model, self.objective.is_bf16)
        view = partial(cut, base_positions=self.base_positions, special=self.frozen.special)
        return self._measure(base, view, between_rows, "base model").whole.accuracy

    def measure(self, between_rows: Callable[[], None]) -> tuple[Measured, tuple[FilledMask, ...]]:
        """Returns long_after as it is now, of whole rows and per block of base_positions, and some predictions."""
        measured = self._measure(self.objective, whole, between_rows, "evaluate")
        return replace(measured, positions=()), tuple(self._examples())

    def is_recovered(self, accuracy: float, baseline: float | None) -> bool:
        """Returns whether accuracy at full length has reached base_cut."""
        return baseline is not None and accuracy >= baseline

    def _measure(
        self,
        objective: MlmObjective,
        view: Callable[[MaskedRow], list[View]],
        between_rows: Callable[[], None],
        name: str,
    ) -> Measured:
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
        return filled_masks(self.objective, self.tokenizer, self.frozen, self.num_examples, self.accelerator.device)
