"""A fine-tuned or frozen encoder as the Predictor that a trial measures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from longmlm.artifacts.downstream import Prediction
from longmlm.batches.examples import Example
from longmlm.data.labelled import LabelledDocument
from longmlm.evaluation.task_outputs import outputs_of
from longmlm.evaluation.task_predictions import predictions_of
from longmlm.model.encoding import TaskObjective
from longmlm.model.loading import LoadedModel
from longmlm.training.finetuning import FinetuningTrial


@dataclass(frozen=True, slots=True)
class EncoderPredictor:
    """A fine-tuned or frozen encoder, which reads documents as its arm does, in batches of `rows_per_batch`."""

    trial: FinetuningTrial
    loaded: LoadedModel
    objective: TaskObjective
    pad_token_id: int
    rows_per_batch: int

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the encoder and its head."""
        return self.loaded.model.num_parameters()

    def predictions(self, documents: Sequence[LabelledDocument]) -> tuple[Prediction, ...]:
        """Returns the predicted labels, spans or score of each document."""
        corpus = replace(self.trial.corpus, documents=tuple(documents))
        examples = self.trial.examples(self.loaded, corpus)
        return predictions_of(self.trial.config.task.kind, corpus, examples, self._outputs(examples))

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the probability of each label for each text to classify, (texts, labels)."""
        corpus = self.trial.corpus
        documents = tuple(replace(corpus.documents[0], text=text) for text in texts)
        return np.stack(self._outputs(self.trial.examples(self.loaded, replace(corpus, documents=documents))))

    def characters_read(self, text: str) -> np.ndarray:
        """Returns the first and end character of each token of a text that it reads."""
        return self.trial.characters_read(self.loaded, text)

    def _outputs(self, examples: Sequence[Example]) -> list[np.ndarray]:
        return outputs_of(self.objective, examples, self.pad_token_id, self.rows_per_batch)
