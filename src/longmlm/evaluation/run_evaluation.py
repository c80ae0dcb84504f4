"""The evaluation of a run: masked-token accuracy at full length, and base_chunks, the accuracy to recover."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.accuracy import Accuracy, FilledMask, Measured, PairAccuracy
from longmlm.artifacts.provenance import ModelSource
from longmlm.artifacts.run import TrainState
from longmlm.errors import TrainingError
from longmlm.evaluation.filled_masks import filled_masks
from longmlm.evaluation.frozen import FrozenRows, check_predicts, viewer_of, whole
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

    def baseline(self) -> tuple[Measured, Accuracy] | tuple[None, None]:
        """Returns base_chunks, the accuracy to recover, and base_cut; neither if the base model is not available.

        It prints the reason, or raises TrainingError if the run is to stop once the accuracy is recovered.
        """
        if self.base is None:
            return None, None
        name, revision = self.base.name, self.base.revision
        is_missing = revision is None and not Path(name).is_dir()  # a release drops the path of a local base
        if any_rank(self.accelerator, is_missing):
            if self.stops_when_recovered:
                raise TrainingError(
                    f"runtime.stop_when_recovered needs the accuracy of the base model {name}, which is not on this "
                    "machine: put it there, or remove the setting"
                )
            self.accelerator.print(f"the base model {name} is not on this machine: its accuracy is not measured")
            return None, None
        loaded = with_tokens_of(load_model(name, revision), self.tokenizer)
        model, isolates = loaded.model.to(self.accelerator.device), loaded.provenance.isolates_documents
        heartbeat()
        row_chunks, cut_row = (viewer_of(view, self.base_positions, self.frozen.special) for view in ("chunks", "cut"))
        base = MlmObjective(model, self.objective.precision, isolates)
        views = {"chunks": Subject(base, row_chunks), "cut": Subject(base, cut_row)}
        found = tallies(views, self.frozen, self.base_positions, self.accelerator, "base model")
        chunks, cut = (found[view].measured for view in ("chunks", "cut"))
        check_predicts(cut.whole, self.frozen, cut_row, name)
        return replace(chunks, blocks=(), positions=()), cut.whole

    def measure(self, between_rows: Callable[[], None]) -> tuple[Measured, PairAccuracy | None, tuple[FilledMask, ...]]:
        """Returns the accuracy now, of whole rows and per block, that on pairs, and `num_examples` predictions.

        Masked tokens are measured in rows as they are, without pairs, so that runs with and without pairs compare.
        """
        subject, pairs, examples = {"": Subject(self.objective, whole)}, None, []
        found = tallies(subject, self.frozen, self.base_positions, self.accelerator, "evaluate", between_rows)
        if self.frozen.pairs:
            pairs = measure_pairs(self.objective, self.frozen, self.accelerator, "evaluate", between_rows)
        if self.num_examples:  # on every rank, because a partitioned model needs all of them
            examples = filled_masks(self.objective, self.tokenizer, self.frozen, self.num_examples)
        return replace(found[""].measured, positions=()), pairs, tuple(examples)

    def is_over(self, state: TrainState) -> bool:
        """Returns whether the lost accuracy is recovered, if the run stops then."""
        return self.stops_when_recovered and state.recovered_at_step is not None
