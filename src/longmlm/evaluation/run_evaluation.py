"""The evaluation of a run: masked-token accuracy at full length, and base_cut, the accuracy to be recovered."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.accuracy import FilledMask, Measured, PairAccuracy
from longmlm.artifacts.provenance import ModelSource
from longmlm.artifacts.run import TrainState
from longmlm.errors import TrainingError
from longmlm.evaluation.filled_masks import filled_masks
from longmlm.evaluation.frozen import FrozenRows, Viewer, check_predicts, viewer_of, whole
from longmlm.evaluation.measure import Subject, measure_pairs, tallies
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.terms import with_tokens_of
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.watchdog import heartbeat


@dataclass(frozen=True, slots=True)
class RunEvaluation:
    """Measures `objective`, the model in training, on frozen held-out rows; `base` is its base model."""

    objective: MlmObjective
    frozen: FrozenRows
    base_positions: int
    base: ModelSource | None
    tokenizer: PreTrainedTokenizerBase
    num_examples: int
    accelerator: Accelerator
    stops_when_recovered: bool = False

    @property
    def num_rows(self) -> int:
        """The number of held-out rows that are measured."""
        return len(self.frozen.row_ids)

    def baseline(self, between_rows: Callable[[], None]) -> Measured | None:
        """Returns the accuracy to recover; None, after printing the reason, when the base model is not available.

        Raises TrainingError then, if the run is to stop once the accuracy is recovered.
        """
        if self.base is None:
            return None
        name, revision = self.base.name, self.base.revision
        is_missing = revision is None and not Path(name).is_dir()  # a release drops the path of a local base
        if any_rank(self.accelerator, is_missing):
            if self.stops_when_recovered:
                raise TrainingError(
                    f"runtime.stop_when_recovered needs the accuracy of the base model {name}, which is not on this "
                    "machine: put it there, or remove the setting"
                )
            self.accelerator.print(f"the base model {name} is not on this machine: base_cut is not measured")
            return None
        loaded = with_tokens_of(load_model(name, revision), self.tokenizer)
        model, isolates = loaded.model.to(self.accelerator.device), loaded.provenance.isolates_documents
        heartbeat()
        view = viewer_of("cut", self.base_positions, self.frozen.special)
        base = MlmObjective(model, self.objective.precision, isolates)
        measured = self._measure(base, view, between_rows, "base model")
        check_predicts(measured.whole, self.frozen, view, name)
        return replace(measured, blocks=(), positions=())

    def measure(self, between_rows: Callable[[], None]) -> tuple[Measured, PairAccuracy | None, tuple[FilledMask, ...]]:
        """Returns the accuracy now, of whole rows and per block, that on pairs, and `num_examples` predictions.

        Masked tokens are measured in rows as they are, without pairs, so that runs with and without pairs compare.
        """
        measured, pairs, examples = self._measure(self.objective, whole, between_rows, "evaluate"), None, []
        if self.frozen.pairs:
            pairs = measure_pairs(self.objective, self.frozen, self.accelerator, "evaluate", between_rows)
        if self.num_examples:  # on every rank, because a partitioned model needs all of them
            examples = filled_masks(self.objective, self.tokenizer, self.frozen, self.num_examples)
        return replace(measured, positions=()), pairs, tuple(examples)

    def is_over(self, state: TrainState) -> bool:
        """Returns whether the lost accuracy is recovered, if the run stops then."""
        return self.stops_when_recovered and state.recovered_at_step is not None

    def _measure(self, objective: MlmObjective, view: Viewer, between_rows: Callable[[], None], name: str) -> Measured:
        subject = {name: Subject(objective, view)}
        found = tallies(subject, self.frozen, self.base_positions, self.accelerator, name, between_rows)
        return found[name].measured
