"""Settings of a pipeline, and of the plan of one: a few base keys, from which the settings of every stage follow."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.prepare import PrepareConfig, source_names
from longmlm.settings.pretrain import PretrainConfig, weights_problem
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.shipped import BUNDLED, bundled_resolved, is_same_path
from longmlm.settings.tables import Table, Unused, merged, nested, table_at, with_arrays, without

FOLDERS = ("rows", "long", "run", "evaluation", "release")  # in the output folder of a pipeline
NUM_STEPS, ROWS_PER_STEP = 3000, 64
StageName = Literal["extend", "prepare", "pretrain", "evaluate", "release"]
StageConfig = PrepareConfig | ExtendConfig | PretrainConfig | EvaluateConfig | ReleaseConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """From text and a model to a released long model: the settings of every stage follow from a few keys."""

    model: str | None = None
    """The base model: a folder, OWNER/NAME on the Hugging Face Hub, ms:OWNER/NAME on ModelScope, or a run folder, whose
    best checkpoint is used. Leave it out to train a new one, described in [pretrain.start]."""
    corpus: tuple[str, ...] = ()
    """Paths, URLs or globs of the text; for datasets or several sources, use [[prepare.recipe.sources]] instead."""
    length: Annotated[int, Ge(3)]  # two special tokens and one token of text
    """Positions of the long model, and tokens per row."""
    output: str
    """Folder for all results."""
    rows: str | None = None
    """Folder for the rows, which pipelines with the same rows may share; by default `rows` in the output folder."""
    revision: str | None = None
    """Branch, tag or commit of a base model on the hub."""
    language: str = "en"
    """ISO 639-1 code of the corpus's language, also for sources that do not name their own."""
    text_field: str = "text"
    """Field or column of the corpus that holds the text, also for sources that do not name their own."""
    text_fields: tuple[str, ...] = ()
    """Several fields instead, their texts joined by a blank line, also for sources that do not name their own."""
    extension: bool = True
    """Extend the model before training. If false, pretraining continues at a length that the model already has, and the
    extend stage runs only to add tokens (add_tokens in [extend.recipe])."""
    launch: str | None = None
    """How training is started in several processes: ddp, zero-2 or another launch that comes with longmlm, with options
    of accelerate launch after it, as in "zero-2 --num_processes 4"; or a command, such as accelerate launch."""
    until: StageName = "release"
    """The last stage to run."""

    def __post_init__(self) -> None:
        if self.extension and self.model is None:
            raise ValueError("model is missing: name the model to extend, or set extension = false to train a new one")
        if self.text_fields and self.text_field != "text":
            raise ValueError("text_field and text_fields both name the text: set one of them")
        if self.revision is not None and self.model is None:
            raise ValueError("revision needs model: name the model, or remove revision")
        if self.rows is not None:
            is_here = self.rows and ":" not in self.rows.partition("/")[0]  # no address such as hf:OWNER/NAME
            if not is_here or any(is_same_path(self.rows, f"{self.output}/{name}") for name in ("", *FOLDERS[1:])):
                raise ValueError("rows must be a folder of its own on this machine, where prepare writes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPipeline(Pipeline):
    """The settings of every stage of a pipeline."""

    HAS_TRIALS: ClassVar[bool] = False  # whether it is run as trials, made from `tables`, that publish nothing

    prepare: PrepareConfig
    pretrain: PretrainConfig
    release: ReleaseConfig
    extend: ExtendConfig | None = None
    evaluate: EvaluateConfig | None = None

    def __post_init__(self) -> None:
        if contradictions := "; ".join(self._contradictions()):
            raise ValueError(contradictions)

    def _contradictions(self) -> Iterator[str]:
        """Yields a line for each setting of a stage that contradicts a base key, or one of another stage."""
        sources, recipe, start = self.prepare.recipe.sources, self.pretrain.recipe, self.pretrain.start
        if self.corpus and tuple(bundled_resolved(self.corpus)) not in [source.files for source in sources]:
            yield (
                "corpus and prepare.recipe.sources both name the text, and only the latter would be read: remove one "
                "of them (corpus = [] removes that of an earlier file), or list the corpus as one of the sources"
            )
        if self.extend and self.evaluate and self.extend.recipe.new_head:
            yield (
                "extend.recipe.new_head leaves no base model to evaluate: train the head at the model's own length "
                "first, with extension = false and new_head = true under [pretrain.start]"
            )
        if self.model is not None and start.architecture is not None:
            yield "model and pretrain.start.architecture both say what is trained: remove one of them"
        trained = [name for name, one in zip(source_names(sources), sources, strict=True) if not one.held_out]
        if recipe.weights and (problem := weights_problem(recipe.weights, trained)):
            yield f"pretrain.recipe.{problem}"
        if recipe.pairs and not self.prepare.recipe.pairs:
            yield (
                "pretrain.recipe.pairs needs rows that record sentences, but prepare.recipe.pairs is false: set it to "
                'true, with prepare.recipe.packing = "doc-sentences", or remove [pretrain.recipe.pairs]'
            )

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if (packing := self.prepare.recipe.packing) != "full-sentences":
            reason = f"with prepare.recipe.packing = {packing}, since every row has one document: remove it"
            yield ("pretrain.recipe.isolate_documents",), reason

    @property
    def stages(self) -> dict[str, StageConfig]:
        """The settings of the stages in running order.

        extend comes first, unless it distils on rows: it takes seconds, may add tokens, and refuses what cannot work.
        """
        first = {"prepare": self.prepare} if self.extend and self.extend.rows is not None else {}
        stages = first | {"extend": self.extend, "prepare": self.prepare, "pretrain": self.pretrain}
        stages |= {"evaluate": self.evaluate, "release": self.release}
        names = [*stages][: [*stages].index(self.until) + 1]
        return {name: config for name in names if (config := stages[name]) is not None}


def stage_tables(base: Pipeline, given: Mapping[str, Any]) -> dict[str, Table]:
    """Returns the settings of each stage, as TOML tables: `given`, over what is recommended and follows from `base`."""
    absent = absent_stages(base, given)
    text: Table = {"prepare.recipe.sources": [{"files": [*base.corpus]}] if base.corpus else []}
    if "sources" not in table_at(given, "prepare", "recipe"):  # those have languages of their own
        text["release.card.languages"] = [base.language]
    chosen = merged(nested(text), merged(recommended(base, given), given))
    derived = {name: value for name, value in derived_settings(base, chosen).items() if value is not None}
    tables = _with_languages(base, merged(nested(derived), chosen))
    return {stage: bundled_resolved(table) for stage, table in tables.items() if stage not in absent}


def derived_settings(base: Pipeline, chosen: Mapping[str, Any]) -> dict[str, object]:
    """Returns the stage settings that are derived from the base keys, by dotted name; None for one that is left unset.

    A stage reads what earlier ones write. `chosen` has the other settings.
    """
    rows, long, run, evaluation, release = (str(Path(base.output) / name) for name in FOLDERS)
    rows = base.rows or rows
    absent = absent_stages(base, chosen)
    start = table_at(chosen, "pretrain", "start")
    is_distilled = table_at(chosen, "extend", "recipe").get("initialisation") == "distilled"
    trained, revision = (base.model, base.revision) if "extend" in absent else (long, None)
    tokenizer = f"{base.model}@{base.revision}" if base.revision else base.model or start.get("tokenizer")
    return {
        "prepare.output": rows,
        "prepare.recipe.tokenizer": long if _adds_tokens(chosen) else tokenizer,
        "prepare.recipe.row_length": base.length,
        "extend.base": base.model,
        "extend.revision": base.revision,
        "extend.rows": rows if base.extension and is_distilled else None,
        "extend.output": long,
        "extend.recipe.num_positions": base.length if base.extension else None,
        "pretrain.rows": rows,
        "pretrain.run": run,
        "pretrain.start.checkpoint": None if "architecture" in start else trained,
        "pretrain.start.revision": None if {"architecture", "checkpoint"} & start.keys() else revision,
        "evaluate.rows": rows,
        "evaluate.base": base.model,
        "evaluate.long_before": long if base.extension else None,
        "evaluate.long_after": run,
        "evaluate.run": run,
        "evaluate.output": evaluation,
        "release.rows": rows,
        "release.model": run,
        "release.evaluation": None if "evaluate" in absent else evaluation,
        "release.output": release,
    }


def _with_languages(base: Pipeline, tables: Table) -> Table:
    """Returns the tables of the stages, in which each source has the language and text fields that it does not name."""
    sources = with_arrays(table_at(tables, "prepare", "recipe").get("sources"))
    if not isinstance(sources, list) or not all(isinstance(source, dict) for source in sources):
        return tables  # the error is reported on validation
    text = {"text_fields": [*base.text_fields]} if base.text_fields else {"text_field": base.text_field}
    texts = [{} if {"text_field", "text_fields"} & source.keys() else text for source in sources]
    sources = [{"language": base.language, **text, **source} for text, source in zip(texts, sources, strict=True)]
    return merged(tables, {"prepare": {"recipe": {"sources": sources}}})


def recommended(base: Pipeline, given: Mapping[str, Any]) -> dict[str, Table]:
    """Returns the recommended settings of the stages; warm-up and intervals follow from num_steps."""
    num_steps = table_at(given, "pretrain", "recipe").get("num_steps", NUM_STEPS)
    num_steps = num_steps if isinstance(num_steps, int) else NUM_STEPS  # the error is reported on validation
    every = max(1, num_steps // 12)
    title = _name_of(base.model or base.output)
    tables: dict[str, Table] = {
        "prepare": {"recipe": {"held_out_fraction": 0.05}},
        "extend": {"recipe": _extension(base, given)},
        "pretrain": {
            "recipe": {
                "num_steps": num_steps,
                "batch_tokens": ROWS_PER_STEP * base.length,
                "learning_rate": 5e-5,
                "warmup_steps": num_steps // 20,
                "masking": {"selected_fraction": 0.3},
                "held_out": {"max_rows": 200},
            },
            "runtime": {"evaluate_every_steps": every, "save_every_steps": every},
        },
        "evaluate": {"recipe": {"precision": "auto", "held_out": {"max_rows": 1000}}},
        "release": {"card": {"title": f"{title.removeprefix(BUNDLED)}-{base.length}"}},
    }
    return {name: table for name, table in tables.items() if name not in absent_stages(base, given)}


def _name_of(model: str) -> str:
    """Returns the last part of a model's name; a result of another pipeline is named by that pipeline's folder."""
    path = Path(model)
    path = path.parents[1] if path.parent.name == "checkpoints" else path
    return (path.parent.name if path.name in FOLDERS else "") or path.name


def _extension(base: Pipeline, given: Mapping[str, Any]) -> Table:
    """Returns the recommended initialisation: distilled, where possible.

    add_tokens: fitted, since rows have none of the added tokens. attention_window: tile, since two tokens within it
    never have the same position. local_layers: no global tokens, since the upper layers see the whole row.
    """
    recipe = table_at(given, "extend", "recipe")
    window, mode = recipe.get("attention_window"), recipe.get("mode")
    if mode == "generated":
        return {"initialisation": "hierarchical"}
    if window is None:
        return {"initialisation": "distilled" if base.extension and not _adds_tokens(given) else "fitted"}
    is_local = bool(recipe.get("local_layers")) and isinstance(window, int) and window < base.length
    return {"initialisation": "tile", **({"num_global_tokens": 0} if is_local else {})}


def is_checkpoint_of(name: str, run: str) -> bool:
    """Returns whether a path is that of a checkpoint in this run folder, whether or not it still exists."""
    return Path(name).parent.name == "checkpoints" and is_same_path(run, Path(name).parents[1])


def absent_stages(base: Pipeline, given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the stages that the pipeline does not have, with the reason."""
    reasons = {}
    if not (base.extension or _adds_tokens(given)):
        reasons["extend"] = "extension = false, and no add_tokens"
    has_pairs = bool(table_at(given, "pretrain", "recipe", "pairs"))
    if base.model is None:
        reasons["evaluate"] = "there is no base model to compare with"
    elif table_at(given, "pretrain", "start").get("new_head") and not (base.extension and has_pairs):
        reasons["evaluate"] = "new_head is set, so there may be no base model with an MLM head to compare with"
    return reasons


def _adds_tokens(given: Mapping[str, Any]) -> bool:
    return table_at(given, "extend", "recipe").get("add_tokens") is not None


class PipelineReader(ABC):
    """Settings of a command that is not a stage, but reads what the stages of a pipeline have written.

    ARGUMENTS names settings that may be given among the TOML files: the last word sets the last one, others the first.
    """

    __slots__ = ()
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    @abstractmethod
    def of_pipeline(pipeline: ResolvedPipeline, own: Table) -> Table:
        """Returns the settings that follow from a pipeline, if the command's own settings are these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(ResolvedPipeline):
    """Runs the stages of a pipeline: skips those that are done, resumes the one that was interrupted."""

    more_steps: Annotated[int, Ge(1)] | None = None
    """Steps to add to a finished run, with new rows and masks; then evaluate and release run again. For the command
    line only, since a file would add them each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig(ResolvedPipeline):
    """Reports tokens, epochs, memory, disk and hours of a pipeline before anything runs."""

    gpu: str | None = None
    """GPU to plan for, such as H100, "A100 40GB" or "RTX 4090"; by default this machine."""


PLACEHOLDER = Pipeline(model="MODEL", corpus=("TEXT",), length=1536, output="OUTPUT")  # for base keys with errors
DERIVED = frozenset(derived_settings(PLACEHOLDER, {}))


def written_settings(config: Any) -> Table:
    """Returns the settings that a file has: of a pipeline, all but those that follow from the base keys."""
    return reduce(without, DERIVED, asdict(config))
