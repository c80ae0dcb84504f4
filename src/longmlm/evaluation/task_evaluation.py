"""The evaluation of fine-tuning: the score on the development documents, and when training ends early."""

from collections.abc import Callable
from dataclasses import dataclass

from longmlm.artifacts.accuracy import Accuracy, FilledMask, Measured
from longmlm.artifacts.run import TrainState
from longmlm.batches.examples import Example
from longmlm.data.labelled import LabelledCorpus
from longmlm.evaluation.task_outputs import outputs_of
from longmlm.evaluation.task_predictions import predictions_of
from longmlm.model.encoding import TaskObjective
from longmlm.scoring.scores import main_score
from longmlm.settings.downstream import TaskKind


@dataclass(frozen=True, slots=True)
class TaskEvaluation:
    """Scores `objective` on the development documents.

    Training is over `patience_steps` after the best score, but not before `min_steps`: a new head may need some epochs
    until it predicts more than the commonest label.
    """

    objective: TaskObjective
    kind: TaskKind
    corpus: LabelledCorpus
    examples: tuple[Example, ...]
    pad: int
    rows_per_batch: int
    patience_steps: int
    min_steps: int

    @property
    def metric(self) -> str:
        """The task's main metric."""
        return "development score"

    @property
    def num_rows(self) -> int:
        """The number of development documents."""
        return len(self.examples)

    def baseline(self, between_rows: Callable[[], None]) -> Accuracy | None:  # noqa: ARG002 - as the protocol has it
        """Returns None: there is nothing to recover."""
        return None

    def measure(self, between_rows: Callable[[], None]) -> tuple[Measured, tuple[FilledMask, ...]]:
        """Returns the task's main metric, in percent, as accuracy."""
        outputs = outputs_of(self.objective, self.examples, self.pad, self.rows_per_batch, between_rows)
        predictions = predictions_of(self.kind, self.corpus, self.examples, outputs)
        score = main_score(predictions, self.kind, self.corpus.is_multilabel)
        return Measured(Accuracy(score, None, None, len(predictions)), blocks=()), ()

    def is_over(self, state: TrainState) -> bool:
        """Returns whether no score since the best one has been better, for too long."""
        is_stuck = state.best_at_step is not None and state.step - state.best_at_step >= self.patience_steps
        return is_stuck and state.step >= self.min_steps
