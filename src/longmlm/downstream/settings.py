"""Settings of the downstream command: a labelled task, and the ways to read long documents that are compared on it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from annotated_types import Ge, Interval, MinLen

from longmlm.settings.arms import check_arm_name, check_is_arm, check_seeds
from longmlm.settings.masking import Seed
from longmlm.settings.prepare import Quoting, check_delimiter
from longmlm.settings.pretrain import Positive, Precision, Tracker
from longmlm.settings.tables import Unused

TaskKind = Literal["classification", "labelling"]
Reading = Literal["first", "last", "chunks"]
SpanUnit = Literal["characters", "words"]
Pooling = Literal["mean", "cnn", "lstm", "attention"]
Fraction = Annotated[float, Interval(gt=0, lt=1)]
Rates = Annotated[tuple[Positive, ...], MinLen(1)]
Epochs = Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledData:
    """Labelled documents: records of files, or of a dataset on the hub, and the names of their fields."""

    files: tuple[str, ...] = ()
    """Paths, URLs or globs of .jsonl, .json, .csv, .tsv or .parquet files, one document per record; all but Parquet
    may be compressed."""
    dev_files: tuple[str, ...] = ()
    """Files of the development documents; by default some of the training documents are used."""
    test_files: tuple[str, ...] = ()
    """Files of the test documents; without them, `num_folds`, `split_field` or else `test_fraction` decides."""
    dataset: str | None = None
    """Instead of files: a dataset on the Hugging Face Hub, OWNER/NAME, or the folder of one."""
    subset: str | None = None
    """Subset (configuration) of the dataset, if it has several."""
    revision: str | None = None
    """Branch, tag or commit of the dataset."""
    train_split: str = "train"
    """Split of the dataset to train on."""
    dev_split: str | None = None
    """Split of the dataset with development documents."""
    test_split: str | None = None
    """Split of the dataset to test on."""
    delimiter: str | None = None
    """Character between the fields of .csv and .tsv files; by default a comma in .csv, a tab in .tsv files."""
    quoting: Quoting | None = None
    """How .csv and .tsv files use quotes: double (fields may be in double quotes; a quote inside is doubled) or none
    (quotes are text). By default double if the delimiter is a comma or semicolon, else detected in each file."""
    id_field: str = "id"
    """Field with the document's name; a document without one is named by file and record."""
    text_field: str = "text"
    """Field with the text."""
    label_field: str = "label"
    """Field with the label, or a list of labels."""
    spans_field: str = "spans"
    """Field with the labelled spans, for labelling: a list of {start, end, label}; `end` is one past the last."""
    tags_field: str | None = None
    """Field with a tag for each word, such as B-PER (BIO, BIOES or BILOU), instead of spans; the text field then holds
    the words."""
    span_unit: SpanUnit = "characters"
    """What start and end of a span count: characters, or words between white space; both from 0."""
    split_field: str | None = None
    """Field that says train, dev (or validation) or test."""
    group_field: str | None = None
    """Field whose documents with the same value, such as an author, are never in both training and test."""

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.dataset):
            raise ValueError("set either `files`, with at least one path, or `dataset`")
        if self.dataset and (self.dev_files or self.test_files or self.delimiter or self.quoting):
            raise ValueError("dev_files, test_files, delimiter and quoting need `files`, but data has a `dataset`")
        given = (*self.dev_files, *self.test_files, self.dev_split, self.test_split)
        if self.split_field and any(given):
            raise ValueError("split_field replaces dev_files, test_files, dev_split and test_split: set it or those")
        check_delimiter(self.delimiter)
        if not self.dataset and (self.subset or self.revision or self.dev_split or self.test_split):
            raise ValueError("subset, revision, dev_split and test_split need a `dataset`, but data has `files`")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if self.dataset is None:
            yield ("train_split",), "without dataset: remove it"
        if self.tags_field is not None:
            yield ("spans_field", "span_unit"), "with tags_field, which replaces spans: remove it, or tags_field"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTask:
    """What is predicted, from which documents, and which of them are tested."""

    kind: TaskKind
    """classification (one label or several) or labelling (labels of spans)."""
    data: LabelledData
    num_folds: Annotated[int, Ge(2)] | None = None
    """Cross-validation with this number of folds over all documents: each is tested once for every seed."""
    dev_fraction: Fraction = 0.1
    """Share of the training documents that choose the rate and the number of epochs, unless there are dev documents."""
    test_fraction: Fraction = 0.2
    """Share of the documents to test on, unless the data say which, or `num_folds` is set."""

    def __post_init__(self) -> None:
        data = self.data
        if data.tags_field and self.kind != "labelling":
            raise ValueError("data.tags_field needs kind = labelling")
        if self.num_folds is not None and (data.split_field or data.test_files or data.test_split):
            raise ValueError("num_folds tests all documents: leave out split_field, test_files and test_split")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        where, data = f"with kind = {self.kind}", self.data
        if self.kind == "labelling":
            yield ("data.label_field",), f"{where}, whose labels are in spans_field or tags_field: remove it"
        else:
            yield ("data.spans_field", "data.span_unit"), f"{where}, only with labelling: remove it"
        if data.dev_files or data.dev_split:
            yield ("dev_fraction",), "with dev_files or dev_split, which have the development documents: remove it"
        if data.test_files or data.test_split or data.split_field or self.num_folds:
            decides = "test_files, test_split, split_field or num_folds, which decides what is tested"
            yield ("test_fraction",), f"with {decides}: remove it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm of the comparison: a model, and how it reads a document."""

    model: str | None = None
    """Folder or hub name of the encoder, or a run folder, whose best checkpoint is used; without one, the arm is TF-IDF
    with logistic regression."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    reads: Reading = "first"
    """Part of the document: the first or last `length` tokens, or all of it in chunks of `length` tokens."""
    length: Annotated[int, Ge(8)] | None = None
    """Tokens of one input, special tokens included; by default as many as the model has positions."""
    pooling: Pooling = "mean"
    """How chunk vectors become a document's: their mean, or a CNN, BiLSTM or self-attention over them."""
    frozen: bool = False
    """Train only the head, on the vectors of the encoder as it is."""

    def __post_init__(self) -> None:
        if self.model is None and (self.frozen or self.revision or self.reads != "first"):
            raise ValueError("frozen, revision and reads need a model; TF-IDF reads the first `length` words, or all")
        if self.pooling != "mean" and self.reads != "chunks":
            raise ValueError(f"pooling = {self.pooling} needs reads = chunks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How a trial is fine-tuned, in addition to its rate and number of epochs."""

    documents_per_step: Annotated[int, Ge(1)] = 16
    """Documents of a global batch: the same for every arm, however much it reads of each."""
    patience: Annotated[int, Ge(1)] = 2
    """Epochs without a better development score after which training ends, once half of the epochs are over."""
    precision: Precision = "auto"
    """Autocast precision: no (fp32), bf16, auto (bf16 if supported) or fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneRecipe(Tuning):
    """How every arm is fine-tuned. All combinations of rates and epochs are tried with the first seed and fold."""

    learning_rate: Rates = (2e-5, 5e-5)
    """Learning rates to choose from, by the score on the development documents."""
    num_epochs: Epochs = (4,)
    """Numbers of epochs to choose from; the rate decays to zero over them."""
    frozen_learning_rate: Rates = (1e-3, 5e-3)
    """Learning rates of frozen arms, which train only a head."""
    frozen_num_epochs: Epochs = (30,)
    """Numbers of epochs of frozen arms."""
    seeds: tuple[Seed, ...] = (42,)
    """Random seeds; each draws its own splits, order, new heads and dropout."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "frozen_learning_rate", "num_epochs", "frozen_num_epochs"):
            values = getattr(self, name)
            if repeated := [value for value in values if values.count(value) > 1]:
                raise ValueError(f"{name} must be different numbers: {repeated[0]} is repeated")
        check_seeds(self.seeds)

    @property
    def tuning(self) -> Tuning:
        """What is the same for all trials."""
        return Tuning(**{item.name: getattr(self, item.name) for item in fields(Tuning)})


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneRuntime:
    """Speed and memory of every trial; changes results by rounding only."""

    documents_per_micro_batch: Annotated[int, Ge(1)] = 4
    """Documents per forward and backward pass, at most; lower it if memory runs out."""
    num_threads: Annotated[int, Ge(1)] | None = None
    """CPU threads; by default OMP_NUM_THREADS if it is exported or, without a GPU, all cores."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: a third more computation, a fraction of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamConfig:
    """Fine-tunes and measures models on a labelled task, in several ways of reading long documents; resumes.

    Each arm is a table [arms.NAME] in the TOML file, with any of model, revision, reads, length, pooling and frozen.
    """

    output: str
    """Folder in which downstream/ receives trials, downstream.json and the page; it may be that of a pipeline."""
    task: LabelledTask
    arms: dict[str, Arm]
    """One table per arm, [arms.NAME]."""
    recipe: FinetuneRecipe = field(default_factory=FinetuneRecipe)
    runtime: FinetuneRuntime = field(default_factory=FinetuneRuntime)
    tracking: Tracker = field(default_factory=Tracker)
    baseline: str | None = None
    """Arm that the others are compared with; by default the first."""
    keep_weights: bool = False
    """Keep the model of every trial; by default only the best trial of each arm keeps its own."""

    def __post_init__(self) -> None:
        if not self.arms:
            raise ValueError("set arms under [arms.NAME]")
        check_is_arm("baseline", self.baseline, self.arms)
        for name, arm in self.arms.items():
            check_arm_name(name)
            if self.task.kind == "classification":
                continue
            if arm.model is None or arm.frozen:
                problem = "has no model" if arm.model is None else "is frozen"
                raise ValueError(f"arms.{name} {problem}, but labelling trains a model in every arm")
            if arm.pooling != "mean" or arm.reads == "last":
                raise ValueError(f"arms.{name}: labelling reads the first tokens, or chunks that are not pooled")

    @property
    def reference(self) -> str:
        """The baseline as given, or the first arm."""
        return self.baseline or next(iter(self.arms))

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        models = [arm for arm in self.arms.values() if arm.model is not None]
        if not any(arm.frozen for arm in models):
            names = ("recipe.frozen_learning_rate", "recipe.frozen_num_epochs")
            yield names, "without an arm that has frozen = true: remove it"
        if all(arm.frozen for arm in models):
            names = ("recipe.learning_rate", "recipe.num_epochs")
            yield names, "without an arm whose model is tuned (frozen = false): remove it"
        if not models:
            recipe = [f"recipe.{item.name}" for item in fields(Tuning)]
            runtime = [f"runtime.{item.name}" for item in fields(FinetuneRuntime)]
            names = (*recipe, *runtime, "tracking.tracker", "keep_weights")
            yield names, "without an arm that has a model: remove it"
