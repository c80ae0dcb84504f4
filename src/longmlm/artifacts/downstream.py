"""trial.json and downstream.json: what an arm predicted for each test document, and what that says about the arms."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from longmlm.artifacts.artifact import Artifact, Json, without
from longmlm.settings.downstream import Arm, TaskKind, noun_of

MODEL = "model"  # the fine-tuned model, in the folder of a trial
DEFAULT_LENGTH = 512  # of an input, where an earlier version did not record it


@dataclass(frozen=True, slots=True)
class LabelledSpan:
    """A labelled part of a text, text[start:end]."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A test document: its true and its predicted labels or spans, or, for similarity, two numbers.

    `probabilities` are those of all labels of the task, in their order; `num_tokens` is the length of the document.
    Documents with the same text or group have the same `unit`; where it is empty, the document is a unit of its own.
    """

    document: str
    num_tokens: int
    unit: str = ""
    labels: tuple[str, ...] = ()
    predicted: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    spans: tuple[LabelledSpan, ...] = ()
    predicted_spans: tuple[LabelledSpan, ...] = ()
    token_starts: tuple[int, ...] = ()
    """For labelling: the index in the document's tokens at which each true span, then each predicted span, begins."""
    cut_distances: tuple[int, ...] = ()
    """How far, in tokens, each of these is from where the input that decides for it is cut out of the document; -1
    where that input is not cut, or the model did not read the token."""
    score: float | None = None
    predicted_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OccludedPart:
    """One or more paragraphs of a document, text[start:end], and how an excerpt of them reads.

    `effect` is by how many percentage points the probability of the predicted label falls when they are removed;
    `is_read` says whether what the arm reads changes then.
    """

    start: int
    end: int
    excerpt: str
    effect: float
    is_read: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOutcome:
    """A true span: its text, the document's token and character at which it begins; if the model read and found it."""

    text: str
    label: str
    token: int
    is_read: bool
    is_found: bool
    start: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A test document: for classification, what its parts contribute to the predicted labels; for labelling, its spans.

    `probability` is that of the predicted labels on the whole document, in percent, their mean if there are several. If
    no label is predicted, `predicted` has the likeliest one, and `is_predicted` is False.
    """

    document: str
    labels: tuple[str, ...] = ()
    predicted: tuple[str, ...] = ()
    is_predicted: bool = True
    probability: float | None = None
    parts: tuple[OccludedPart, ...] = ()
    spans: tuple[SpanOutcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCost:
    """What a trial took: training without evaluations, prediction without training, peak memory of the process.

    Prediction runs from text to labels, spans or scores, so it includes tokenisation; its speed is None where it reads
    vectors that another trial computed. `inference_memory_bytes` is the peak GPU memory of prediction alone; None
    without a GPU.
    """

    train_tokens_per_second: float | None
    train_seconds: float
    documents_per_second: float | None
    peak_memory_bytes: int
    num_parameters: int
    inference_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamTrial(Artifact):
    """trial.json: one training of an arm, with one seed on one fold.

    `dev_scores` holds the development score after each epoch, in percent; the model of the best one is tested. `length`
    is how many tokens of a document one input of the arm may have, without special tokens; None for TF-IDF.
    """

    FILE: ClassVar[str] = "trial.json"

    arm: str
    values: dict[str, Any]
    seed: int
    fold: int
    settings_sha256: str
    dev_scores: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    cost: TrialCost
    explanations: tuple[Explanation, ...] = ()
    length: int | None = DEFAULT_LENGTH

    @property
    def dev_score(self) -> float:
        """The best development score, in percent; 0 for an arm without one."""
        return max(self.dev_scores, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric in percent, computed over the test documents of a seed and averaged over seeds, with a 95 % interval.

    A difference is in percentage points. The interval is that of a bootstrap over documents and, if there are several,
    seeds; documents of one unit are drawn together. All three are None where no document has what the metric counts,
    `low` and `high` also where all documents are one unit.
    """

    metric: str
    mean: float | None
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high; both are the mean where there is no interval, and 0 where there is no mean either."""
        mean = self.mean or 0.0
        return (mean if self.low is None else self.low), (mean if self.high is None else self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Values that were tried with the first seed and fold, and the best development score, in percent."""

    values: dict[str, Any]
    dev_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """An arm with the values chosen for it, its metrics, and its differences from the baseline arm.

    The first score is the task's main metric; `by_seed` has it for each seed. Differences are those over the documents
    and seeds that both arms have: `num_unpaired` documents are left out. `over_tfidf` is the difference in the main
    metric from the arm without a model. `by_position` and `by_cut` are the F1 of entities by their distance, in
    tokens, from the start of the document and from the nearest cut of their input. `constant` are the labels of every
    prediction, if they are always the same although the true ones differ. `documents_per_seed` is the number of
    documents of the seed that has the most.
    """

    arm: str
    values: dict[str, Any]
    searched: tuple[Searched, ...]
    seeds: tuple[int, ...]
    num_documents: int
    scores: tuple[Score, ...]
    by_seed: tuple[float, ...]
    by_label: tuple[Score, ...] = ()
    by_position: tuple[Score, ...] = ()
    by_cut: tuple[Score, ...] = ()
    differences: tuple[Score, ...] = ()
    num_unpaired: int = 0
    over_tfidf: Score | None = None
    constant: tuple[str, ...] | None = None
    documents_per_seed: int = 0
    cost: TrialCost
    explanations: tuple[Explanation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTask:
    """What was compared: the task, its documents, and the arms' settings; `num_folds` is None without cross-validation.

    `num_documents` counts all documents, `num_set_aside` the records that are none, and `num_untested` the documents
    that are not tested with every seed, since no training document has all of their labels.
    """

    name: str
    kind: TaskKind
    labels: tuple[str, ...]
    is_multilabel: bool
    num_documents: int
    num_set_aside: int
    num_folds: int | None
    arms: dict[str, Arm]
    baseline: str
    num_untested: int = 0

    @property
    def noun(self) -> str:
        """What its records are: documents, or pairs."""
        return noun_of(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamComparison(Artifact):
    """downstream.json: the arms of a task, the best first, and why trials failed, by their names.

    `num_trials` counts finished and failed trials. `length` is the length of an input of the baseline, in tokens; if it
    has none, the shortest of an arm.
    """

    FILE: ClassVar[str] = "downstream.json"

    format: int = 2
    task: ComparedTask
    arms: tuple[ArmResult, ...]
    failed: dict[str, str] = field(default_factory=dict)
    num_trials: int = 0
    length: int = DEFAULT_LENGTH

    @classmethod
    def upgrade(cls, content: Json) -> Json:
        """Returns content of format 1 without the distances from borders that chunks of labelling do not have."""
        return {**content, "arms": [without(arm, "by_border") for arm in content["arms"]]}

    @property
    def arms_without_result(self) -> list[str]:
        """The arms of which a trial has failed and none has finished."""
        with_result = {arm.arm for arm in self.arms}
        failed = {name.partition(",")[0] for name in self.failed}
        return [arm for arm in self.task.arms if arm in failed - with_result]
