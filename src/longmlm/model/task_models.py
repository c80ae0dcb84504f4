"""The model, the training examples and the objective of each kind of task."""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from longmlm.batches.examples import Example
from longmlm.batches.pairs import positive_pairs
from longmlm.data.labelled import LabelledCorpus
from longmlm.model.classification import ClassificationObjective, load_classifier
from longmlm.model.encoding import TaskObjective
from longmlm.model.labelling import LabellingObjective, load_labeller
from longmlm.model.loading import LoadedModel
from longmlm.model.similarity import SimilarityObjective, load_embedder
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.settings.pretrain import ComputePrecision


def load_task_model(
    config: DownstreamTrialConfig, corpus: LabelledCorpus, checkpoint: str | None = None
) -> LoadedModel:
    """Returns the arm's model with the new head that its task needs, or the model of a checkpoint of the trial."""
    keeps_head = checkpoint is not None
    arm = replace(config.arm, model=checkpoint, revision=None) if checkpoint else config.arm
    match config.task.kind:
        case "classification":
            return load_classifier(arm, corpus.labels, corpus.is_multilabel, config.seed, keeps_head=keeps_head)
        case "labelling":
            return load_labeller(arm, corpus.labels, config.seed, keeps_head=keeps_head)
        case "similarity":
            return load_embedder(arm)
        case _:
            assert_never(config.task.kind)


def training_examples(config: DownstreamTrialConfig, examples: Sequence[Example]) -> Sequence[Example]:
    """Returns the training documents as the objective reads them; raises DataError if too few of them can be used."""
    match config.task.kind:
        case "classification" | "labelling":
            return examples
        case "similarity":
            return positive_pairs(examples)
        case _:
            assert_never(config.task.kind)


def task_objective(config: DownstreamTrialConfig, loaded: LoadedModel, precision: ComputePrecision) -> TaskObjective:
    """Returns what the trial minimises."""
    match config.task.kind:
        case "classification":
            return ClassificationObjective(loaded.model, precision, config.arm.frozen)
        case "labelling":
            return LabellingObjective(loaded.model, precision)
        case "similarity":
            return SimilarityObjective(loaded.model, precision)
        case _:
            assert_never(config.task.kind)
