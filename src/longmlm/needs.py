"""What each stage needs before it starts, as a table, and the loop that checks it for a stage, a pipeline and a plan.

Torch and transformers are not needed for it: their imports take seconds. The functions called here are those that the
stages themselves call later, so that each problem has one message.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longmlm.artifacts.evaluation import EVALUATION_FILES, Evaluation, read_evaluation
from longmlm.artifacts.fine_tuned import fine_tuned_folder
from longmlm.artifacts.rows import SPLITS, check_rows_fit_positions, check_rows_fit_recipe
from longmlm.batches.sampling import mixture_of, rows_per_step
from longmlm.data.corpus import check_fields, check_source, check_splits, plan_slices
from longmlm.data.files import COMPRESSED, files_of, kind_of
from longmlm.data.languages import check_language
from longmlm.data.vocabulary import term_lines, tokenizer_folder
from longmlm.data.words import check_unit, segmenter_of
from longmlm.errors import DataError, UserError
from longmlm.folders import check_absent, check_replaceable
from longmlm.hubs.model_files import local_weights
from longmlm.hubs.publish import check_can_publish
from longmlm.model.facts import ModelFacts, facts_of_architecture
from longmlm.model.families import check_can_learn
from longmlm.pipeline_needs import (
    Inputs,
    check_can_continue,
    check_has_rows,
    check_heads,
    check_is_release,
    check_onnx_installed,
    check_releasable,
    check_settings,
    training_processes,
)
from longmlm.processes import check_num_processes, num_started_processes
from longmlm.runtime.launch_command import check_gpus, launch_command
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline, RunConfig, StageConfig
from longmlm.settings.prepare import PrepareConfig, Source
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import result_of
from longmlm.settings.shipped import bundled_resolved
from longmlm.staleness import is_complete
from longmlm.temporary import check_writable
from longmlm.training.run_folder import continuations_of, evaluations_of, list_checkpoints, newest_state
from longmlm.training.tracker import check_installed

TEXT_FIELD = Source.__dataclass_fields__["text_field"].default
QUICKLY_READ_BYTES = 4_000_000  # larger corpora are not read for their splits; this much takes hundredths of a second
MIN_FILL, MIN_TOKENS = 0.8, 3  # mean fill of rows of whole sentences; two special tokens and one of text


@dataclass(frozen=True, slots=True)
class Need:
    """A check that raises a UserError for settings of a class, and whether a plan refuses or only notes that."""

    of: type
    check: Callable[[Any, Inputs], object]
    in_plan: Literal["refused", "noted"] = "refused"


def _check_new(stage: StageConfig) -> None:
    """Raises FolderError if a new result of a stage cannot be written, or its release cannot be replaced."""
    if not (folder := result_of(stage)).is_dir():
        check_writable(folder)
    elif isinstance(stage, ReleaseConfig):
        check_is_release(folder)


def _check_folders(config: ResolvedPipeline) -> None:
    check_writable(Path(config.output))
    for stage in config.stages.values():
        _check_new(stage)


def _check_batch(stage: PretrainConfig, inputs: Inputs) -> None:
    """Checks a global batch with the rows or, if they are not packed yet, with the least that rows can hold."""
    config, recipe = inputs.pipeline, stage.recipe
    num_processes = (training_processes(config).num_processes or 1) if config else num_started_processes()
    if not config:
        check_num_processes(num_processes, stage.runtime.num_processes)
    if manifest := inputs.rows(stage.rows, SPLITS):
        mixture = mixture_of(recipe.weights, manifest.sources("train"))
        mean_fill = manifest.report.train.fill_rate * (mixture.fill if mixture else 1)
        rows_per_step(recipe.batch_tokens, manifest.plan.row_length, mean_fill, num_processes)
        check_rows_fit_recipe(manifest, recipe, stage.rows)
    elif config:
        rows = config.prepare.recipe
        least_fill = MIN_FILL if rows.packing == "full-sentences" else MIN_TOKENS / rows.row_length
        rows_per_step(recipe.batch_tokens, rows.row_length, least_fill, num_processes)


def _check_unit(stage: PretrainConfig, inputs: Inputs) -> None:
    model = bundled_resolved(inputs.pipeline.model) if inputs.pipeline else stage.start.checkpoint
    check_unit(stage.recipe.masking, model or str(stage.start.tokenizer))


def _check_extension(stage: ExtendConfig, inputs: Inputs) -> None:
    """Checks how a model is extended, and that the rows of the pipeline fit the extended model."""
    recipe, base, config = stage.recipe, inputs.model(stage.base, stage.revision), inputs.pipeline
    if recipe.add_tokens is not None:
        term_lines(recipe.add_tokens)
    if base is None or base.num_positions is None:
        return
    base.check_extends(recipe)
    if config:
        num_positions = recipe.num_positions or base.num_positions
        check_rows_fit_positions(config.prepare.recipe.row_length, num_positions, config.pretrain.start.name)


def _start_of(stage: PretrainConfig, inputs: Inputs) -> ModelFacts | None:
    """Returns the facts about the model that a run starts from; None for one that resumes, which no longer needs it."""
    if list_checkpoints(Path(stage.run)):
        return None
    if stage.start.checkpoint is not None:
        return inputs.model(stage.start.checkpoint, stage.start.revision)
    facts = facts_of_architecture(str(stage.start.architecture))
    tokenizer_folder(str(stage.start.tokenizer))
    return facts


def _check_start(stage: PretrainConfig, inputs: Inputs) -> None:
    """Checks that the model supports the recipe, and that the rows fit its positions."""
    start, config = _start_of(stage, inputs), inputs.pipeline
    if start is None or start.config is None:
        return
    check_can_learn(stage.recipe, start.config, start.shown, start.provenance.extension)
    rows = config.prepare.recipe if config else manifest.plan if (manifest := inputs.rows(stage.rows, ())) else None
    if rows and start.num_positions is not None:
        check_rows_fit_positions(rows.row_length, start.num_positions, stage.start.name)


def _check_evaluated(stage: EvaluateConfig, inputs: Inputs) -> None:
    before = inputs.model(stage.long_before)
    if stage.long_after and inputs.is_given(stage.long_after):
        local_weights(stage.long_after)
    if stage.run and not inputs.is_made(stage.run):
        evaluations_of(Path(stage.run))
    manifest = inputs.rows(stage.rows, ["held_out"])
    for long in (before, inputs.model(stage.long_after)):
        if long and manifest and long.num_positions is not None:
            check_rows_fit_positions(manifest.plan.row_length, long.num_positions, long.shown)


def _check_released(stage: ReleaseConfig, inputs: Inputs) -> None:
    if fine_tuned_folder(stage.model) is None:
        if inputs.is_given(stage.model):
            local_weights(stage.model)
        inputs.rows(check_has_rows(stage), ["held_out"])
    if stage.evaluation and not inputs.is_made(stage.evaluation):
        read_evaluation(Path(stage.evaluation) / Evaluation.FILE)


def _check_gpus(_: PretrainConfig, inputs: Inputs) -> None:
    if inputs.launch and not (isinstance(inputs.pipeline, PlanConfig) and inputs.pipeline.gpu):
        check_gpus(inputs.launch)


def _check_packer(stage: PrepareConfig, _: Inputs) -> None:
    """Checks that the segmenter can be used and that, if Ray is to pack slices, its cluster can be reached."""
    if result_of(stage).is_dir():
        return
    segmenter_of(stage.recipe)
    if stage.runtime.executor == "ray":
        from longmlm.data.ray_executor import check_cluster  # imports what only prepare needs

        check_cluster()


def _check_text(stage: PrepareConfig, inputs: Inputs) -> None:
    """Checks the tokenizer and the sources of rows that do not exist yet; of a small corpus on disk also the splits."""
    if result_of(stage).is_dir():
        return
    if not inputs.is_made(stage.recipe.tokenizer):
        tokenizer_folder(stage.recipe.tokenizer)
    for source in stage.recipe.sources:
        check_language(source.language)
        check_source(source, stage.output)
        check_fields(source, _files_with_fields(source))
    sources = stage.recipe.sources
    files = [file for source in sources for file in files_of(source.files)]
    if any(source.dataset for source in sources) or any(file.suffix in COMPRESSED for file in files):
        return
    if sum(file.stat().st_size for file in files) <= QUICKLY_READ_BYTES:
        check_splits(stage.recipe, plan_slices(sources, stage.recipe.slice_bytes))


def _files_with_fields(source: Source) -> list[str]:
    """Returns the files of a source; raises DataError if it names fields and no file has any."""
    files = files_of(source.files)
    named = {"text_fields": source.text_fields, "text_field": source.text_field, "split_field": source.split_field}
    if {kind_of(file) for file in files} == {".txt"}:
        for setting, value in named.items():
            if value not in (None, (), TEXT_FIELD):
                raise DataError(
                    f"{setting} = {value!r} has no effect, since files has only .txt or .md files, whose whole text is "
                    f"a document ({', '.join(source.files)}): remove it"
                )
    return [str(file) for file in files]


# In the order in which they are checked: what is cheap first, and text after the models that it is packed for.
NEEDS = (
    # folders and settings
    Need(ResolvedPipeline, lambda config, _: _check_folders(config)),
    Need(PrepareConfig, lambda stage, _: _check_new(stage)),
    Need(ExtendConfig, lambda stage, _: check_absent(result_of(stage))),
    Need(PretrainConfig, lambda stage, _: check_writable(result_of(stage))),
    Need(EvaluateConfig, lambda stage, _: check_replaceable(result_of(stage), EVALUATION_FILES)),
    Need(ReleaseConfig, lambda stage, _: _check_new(stage)),
    Need(ResolvedPipeline, lambda config, _: check_can_continue(config)),
    Need(ResolvedPipeline, lambda config, _: check_settings(config)),
    Need(PretrainConfig, lambda stage, _: check_installed(stage.tracking.tracker)),
    # this machine
    Need(PretrainConfig, lambda _, inputs: inputs.launch and launch_command(inputs.launch), "noted"),
    Need(PretrainConfig, _check_gpus, "noted"),
    Need(PrepareConfig, _check_packer, "noted"),
    Need(PrepareConfig, lambda stage, _: stage.publish and check_can_publish(stage.target("dataset")), "noted"),
    Need(ReleaseConfig, lambda stage, _: stage.recipe.onnx and check_onnx_installed(), "noted"),
    Need(ReleaseConfig, lambda stage, _: stage.publish and check_can_publish(stage.target()), "noted"),
    # rows, runs and evaluations
    Need(ExtendConfig, lambda stage, inputs: stage.rows and inputs.rows(stage.rows, ["train"])),
    Need(PretrainConfig, _check_batch),
    Need(PretrainConfig, lambda stage, _: continuations_of(stage, newest_state(Path(stage.run)))),
    Need(EvaluateConfig, _check_evaluated),
    Need(ReleaseConfig, _check_released),
    # models
    Need(ResolvedPipeline, check_releasable),
    Need(ResolvedPipeline, check_heads),
    Need(ExtendConfig, _check_extension),
    Need(PretrainConfig, _check_unit),
    Need(PretrainConfig, _check_start),
    Need(EvaluateConfig, lambda stage, inputs: inputs.model(stage.base)),
    # text
    Need(PrepareConfig, _check_text),
)


def check_inputs(config: Any) -> None:
    """Raises a UserError for the first need that is not met, of a stage or of the stages of a pipeline that are to run.

    Contents are read only where that takes no time: a stage may still refuse what these checks accept.
    """
    for need, settings, inputs in _needs(config):
        if need.in_plan == "refused" or not isinstance(config, PlanConfig):
            need.check(settings, inputs)


def machine_errors(config: PlanConfig) -> Iterator[UserError]:
    """Yields the errors that are due to this machine: a missing program, package, GPU or permission."""
    for need, settings, inputs in _needs(config):
        try:
            if need.in_plan == "noted":
                need.check(settings, inputs)
        except UserError as error:
            yield error


def _needs(config: Any) -> Iterator[tuple[Need, Any, Inputs]]:
    """Yields what a stage or a pipeline with its stages needs; a comparison needs nothing, but its trials do."""
    pipeline = config if isinstance(config, ResolvedPipeline) else None
    if pipeline and pipeline.HAS_TRIALS:
        return
    inputs, stages = Inputs(pipeline), list[StageConfig]()
    for need in NEEDS:
        if isinstance(config, need.of):
            yield need, config, inputs
        elif pipeline:
            stages = stages or [*stages_to_run(pipeline)]  # their folders are read once the pipeline's are checked
            yield from ((need, stage, inputs) for stage in stages if isinstance(stage, need.of))


def stages_to_run(config: ResolvedPipeline) -> Iterator[StageConfig]:
    """Yields stages without a result, or that publish it; with --more-steps also pretrain and evaluate, to run again.

    extend is among them even if the pipeline ends before it, since the rows are for the long model.
    """
    is_continued = isinstance(config, RunConfig) and config.more_steps is not None
    ending = {"extend": config.extend} if config.extend else {}
    for stage in (ending | config.stages).values():
        is_done = is_complete(stage) if isinstance(stage, PretrainConfig) else result_of(stage).exists()
        is_done = is_done and not (isinstance(stage, PrepareConfig | ReleaseConfig) and stage.publish)
        if not is_done or (is_continued and isinstance(stage, PretrainConfig | EvaluateConfig)):
            yield stage
