"""What would stop a pipeline after hours and is known before its first stage, such as a missing head or licence."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

from longmlm.artifacts.provenance import Extension, ModelSource, read_provenance
from longmlm.artifacts.rows import RowsManifest, check_rows_fit_recipe, read_rows_manifest
from longmlm.batches.sampling import mixture_of, rows_per_step
from longmlm.data.words import segmenter_of
from longmlm.errors import ConfigError, FolderError, ModelError, ReleaseError, UserError
from longmlm.hubs.models import config_of_model
from longmlm.hubs.publish import check_can_publish
from longmlm.hubs.weight_names import weight_names
from longmlm.model.families import (
    check_architecture,
    check_reads_pairs,
    has_head,
    has_pair_head,
    num_usable_positions,
)
from longmlm.processes import num_started_processes
from longmlm.releasable import check_releasable
from longmlm.runtime.launch_command import Launched, check_gpus, launch_command, launched, starts_deepspeed
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline, RunConfig, StageConfig, StageName
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.settings.release import ReleaseConfig, ReleaseRecipe
from longmlm.settings.results import result_of
from longmlm.settings.shipped import bundled_resolved, is_same_path
from longmlm.staleness import is_complete
from longmlm.training.run_folder import continuations_of, list_checkpoints, newest_state

LEAST_FILL, LEAST_TOKENS = 0.8, 3  # of rows of whole sentences on average; of a row: two special tokens and one of text


def check_runnable(config: ResolvedPipeline) -> None:
    """Raises a UserError for settings, a licence or a model with which a stage that has no result yet would fail."""
    _check_training(config)
    if is_to_train(config):
        _check_batch(config)
    model = bundled_resolved(config.model) if config.extend else config.pretrain.start.checkpoint
    release, has_checkpoints = config.release, bool(list_checkpoints(result_of(config.pretrain)))
    if "release" in _stages(config) and not result_of(release).exists():
        check_releasable(config, model)
    if "pretrain" in config.stages and not result_of(config.pretrain).exists():
        _check_start(config)
    if model is not None and not has_checkpoints and not (config.extend and result_of(config.extend).exists()):
        _check_head(config, model)


def check_can_continue(config: ResolvedPipeline) -> None:
    """Raises a UserError if --more-steps is given for a run that has not finished, or whose inputs are gone."""
    if not isinstance(config, RunConfig) or config.more_steps is None:
        return
    if "pretrain" not in config.stages:
        raise ConfigError(
            f"--more-steps adds steps to pretrain, but until = {config.until} ends before pretrain: remove one of them"
        )
    continuations_of(replace(config.pretrain, more_steps=config.more_steps), newest_state(Path(config.pretrain.run)))
    for name in ("extend", "prepare"):
        if name in config.stages and not is_complete(config.stages[name]):
            raise FolderError(
                f"--more-steps continues a run with the same rows and the same extended model, but {name}'s result "
                f"{result_of(config.stages[name])} is gone: restore it, or name another output to start over"
            )


def stages_to_run(config: ResolvedPipeline) -> Iterator[StageConfig]:
    """Yields the stages that have no result yet; with --more-steps, also evaluate, which runs again."""
    is_continued = isinstance(config, RunConfig) and config.more_steps is not None
    for stage in config.stages.values():
        if not result_of(stage).exists() or (is_continued and isinstance(stage, EvaluateConfig)):
            yield stage


def _check_training(config: ResolvedPipeline) -> None:
    runtime = config.pretrain.runtime
    if config.pretrain.dry_run:
        raise ConfigError("pretrain.dry_run trains nothing to go on with: use longmlm pretrain FILE --dry-run")
    if config.pretrain.more_steps is not None:
        raise ConfigError("pretrain.more_steps is for longmlm pretrain: pass --more-steps N to longmlm run instead")
    if runtime.stop_when_recovered and not config.extension:
        raise ConfigError("pretrain.runtime.stop_when_recovered is for a long model, and extension = false: remove it")
    if config.launch is None and runtime.num_processes not in (None, 1):
        raise ConfigError(
            f"pretrain.runtime.num_processes is {runtime.num_processes}, but launch is not set, so one process would "
            'train: remove it, or set launch, such as "ddp"'
        )
    if config.launch is None:
        if isinstance(config, RunConfig) and num_started_processes() > 1:
            raise ConfigError(
                "a launcher's variables are in the environment, such as WORLD_SIZE, but longmlm run starts training by "
                'itself: start it without a launcher and set launch, such as "ddp", or unset them'
            )
        return
    if config.pretrain.recipe.precision == "fp16" and starts_deepspeed(config.launch):
        raise ConfigError(
            f"pretrain.recipe.precision is fp16, which DeepSpeed's backend does not support, and launch = "
            f"{config.launch!r} starts it: set precision to bf16 or no, or launch to ddp"
        )
    started = launched(config.launch).num_processes
    if started is not None and runtime.num_processes not in (None, started):
        raise ConfigError(
            f"pretrain.runtime.num_processes is {runtime.num_processes}, but launch = {config.launch!r} starts "
            f"{started}: make them agree, or remove num_processes"
        )


def is_to_train(config: ResolvedPipeline) -> bool:
    """Returns whether the pipeline has steps to train."""
    adds_steps = isinstance(config, RunConfig) and config.more_steps is not None
    return "pretrain" in config.stages and (adds_steps or not is_complete(config.pretrain))


def check_batch(recipe: PretrainRecipe, manifest: RowsManifest, num_processes: int) -> None:
    """Raises DataError for weights that do not fit the rows, TrainingError if a step has fewer rows than processes."""
    mixture = mixture_of(recipe.weights, manifest.sources("train"))
    mean_fill = manifest.report.train.fill_rate * (mixture.fill if mixture else 1)
    rows_per_step(recipe.batch_tokens, manifest.plan.row_length, mean_fill, num_processes)


def _check_batch(config: ResolvedPipeline) -> None:
    """Checks the batch of a training, with the least that rows can hold if they are not packed yet."""
    recipe, prepare = config.pretrain.recipe, config.prepare.recipe
    num_processes = training_processes(config).num_processes or 1
    if (Path(config.pretrain.rows) / RowsManifest.FILE).is_file():
        manifest = read_rows_manifest(Path(config.pretrain.rows))
        check_batch(recipe, manifest, num_processes)
        check_rows_fit_recipe(manifest, recipe, config.pretrain.rows)
        return
    least_fill = LEAST_FILL if prepare.packing == "full-sentences" else LEAST_TOKENS / prepare.row_length
    rows_per_step(recipe.batch_tokens, prepare.row_length, least_fill, num_processes)


def training_processes(config: ResolvedPipeline) -> Launched:
    """Returns the processes in which training is started, by the launch or in `num_processes` of the settings."""
    started = Launched(num_processes=1) if config.launch is None else launched(config.launch)
    return started._replace(num_processes=config.pretrain.runtime.num_processes or started.num_processes)


def _check_start(config: ResolvedPipeline) -> None:
    """Raises ConfigError if training starts from a checkpoint that was not made from the pipeline's model."""
    name, extend = config.pretrain.start.checkpoint, config.extend
    if name is None or config.model is None:
        return
    if is_same_path(name, extend.output if extend else bundled_resolved(config.model)):
        return
    folder = next(reversed(list_checkpoints(Path(name))), Path(name))
    about = read_provenance(folder)
    source, num_positions = about.source, about.extension.num_positions if about.extension else None
    is_known = source is not None and (source.revision is not None or Path(source.name).is_dir())
    is_other = source is None or (is_known and not is_same_path(source.name, bundled_resolved(config.model)))
    if is_other or (config.extension and num_positions != config.length):
        raise ConfigError(
            f"pretrain.start.checkpoint is {name}, which was not made from model = {config.model} with length = "
            f"{config.length}: remove it, or set model = {name!r} and extension = false to train that model"
        )


def _check_head(config: ResolvedPipeline, model: str) -> None:
    """Raises ModelError if the model to extend or to train has no MLM head or pair head, and none is to be made."""
    start, revision = config.pretrain.start, config.revision if config.extend else config.pretrain.start.revision
    is_new = config.extend.recipe.new_head if config.extend else start.new_head
    has_pairs = config.pretrain.recipe.pairs is not None
    if (is_new and not has_pairs) or not (
        config.extend or (Path(model) / "config.json").is_file() or not Path(model).exists()
    ):
        return  # or it is a run, whose checkpoints have heads
    described = config_of_model(model, revision, needs_weights=False)
    names = weight_names(model, revision)
    if described is not None and has_pairs:
        _check_pairs(config, described, names, model)
    if described is None or names is None or is_new or has_head(described, names):
        return
    if config.extend is None:
        raise ModelError(
            f"{model} has no MLM head: take a checkpoint that has one, or add the lines [pretrain.start] and new_head "
            "= true, to train a new head first"
        )
    raise ModelError(
        f"{model} has no MLM head, and only a model with a trained one can be made long: take a checkpoint that has "
        f"one, or train a head first, in a pipeline of its own with the lines extension = false, length = "
        f"{num_usable_positions(described)}, [pretrain.start] and new_head = true, and set model to its release"
    )


def _check_pairs(
    config: ResolvedPipeline, described: SimpleNamespace, names: Collection[str] | None, model: str
) -> None:
    """Raises ModelError if the model cannot learn pairs, or has no pair head and none is to be made."""
    check_architecture(described, model)
    extension = Extension.of(config.extend.recipe, ModelSource(name=model), 0) if config.extend else None
    check_reads_pairs(described, model, extension)
    has_pair, is_new = names is None or has_pair_head(described, names), config.pretrain.start.new_head
    if names and has_pair and is_new and has_head(described, names):
        raise ModelError(f"{model} has an MLM head and a pair head, so new_head has no effect: remove new_head")
    if not has_pair and not is_new:
        raise ModelError(
            f"{model} has no pair head: take a checkpoint that has one, add the lines [pretrain.start] and new_head = "
            "true, to train a new one, or remove [pretrain.recipe.pairs]"
        )


def machine_errors(config: ResolvedPipeline) -> Iterator[UserError]:
    """Yields the errors of stages that have no result yet where this machine has no program, package or access."""
    missing = {name for name, stage in _stages(config).items() if not result_of(stage).exists()}
    prepare, release = config.prepare, config.release
    checks: list[Callable[[], object]] = []
    if config.launch is not None and "pretrain" in config.stages:
        checks.append(lambda: launch_command(str(config.launch)))
        if is_to_train(config) and not (isinstance(config, PlanConfig) and config.gpu):
            checks.append(lambda: check_gpus(str(config.launch)))
    if "prepare" in missing:
        checks.append(lambda: check_can_pack(prepare))
    if prepare.publish and "prepare" in missing:
        checks.append(lambda: check_can_publish(prepare.target("dataset")))
    if "release" in missing and release.recipe.onnx:
        checks.append(check_onnx_installed)
    if "release" in missing and release.publish:
        checks.append(lambda: check_can_publish(release.target()))
    for check in checks:
        try:
            check()
        except UserError as error:
            yield error


def machine_notes(config: PlanConfig) -> list[str]:
    """Returns a line for each thing that this machine cannot do, or not check, and that the pipeline needs."""
    notes = [f"longmlm run would stop on this machine: {error}" for error in machine_errors(config)]
    notes += [sentences_note(config.release.recipe)] if "release" in _stages(config) else []
    return [*filter(None, notes), *unread_notes(config)]


def unread_notes(config: ResolvedPipeline) -> Iterator[str]:
    """Yields a line for each thing that prepare stores in rows and that training then does not read.

    Other runs may read it, so it is no error.
    """
    rows, training = config.prepare.recipe, config.pretrain.recipe
    if "pretrain" not in config.stages:
        return
    if rows.pairs and training.pairs is None:
        yield "note: rows are prepared for pairs, but none are trained: set kind in [pretrain.recipe.pairs] to do so"
    if rows.words and training.masking.unit == "token":
        yield f"note: words = {rows.words} has no effect on masks of single tokens: set unit = word or span to use it"


def _stages(config: ResolvedPipeline) -> dict[str, StageConfig]:
    """Returns the settings of the stages; a comparison releases nothing."""
    last = "evaluate" if config.HAS_TRIALS else "release"
    return {name: stage for name, stage in config.stages.items() if name in (*get_args(StageName)[:-1], last)}


ONNX_PACKAGES = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")


def check_can_pack(prepare: PrepareConfig) -> None:
    """Raises a UserError if Ray is to pack slices and no cluster can be reached, or the segmenter cannot be used."""
    segmenter_of(prepare.recipe)
    if prepare.runtime.executor == "ray":
        from longmlm.data.ray_executor import check_cluster  # imports what only prepare needs

        check_cluster()


def check_onnx_installed() -> None:
    """Raises ReleaseError unless the packages that write and run ONNX are installed."""
    if missing := [name for name in ONNX_PACKAGES if not find_spec(name)]:
        raise ReleaseError(
            f"recipe.onnx = true needs {missing[0]}, which is not installed: pip install 'longmlm[onnx]'"
        )


def sentences_note(recipe: ReleaseRecipe) -> str:
    """Returns a note if the sentence-transformers model of a release cannot be run here; else an empty text."""
    if recipe.sentence_transformer is None or find_spec("sentence_transformers"):
        return ""
    return (
        f"recipe.sentence_transformer = {recipe.sentence_transformer}: sentence-transformers is not installed, so the "
        "release is written without running the code for it on its card: pip install 'longmlm[sentence-transformers]'"
    )


def check_has_rows(config: ReleaseConfig) -> str:
    """Returns the rows that a masked language model is released with; raises ReleaseError if none are named."""
    if config.rows is None:
        raise ReleaseError("rows is missing: name the folder of rows that the model was trained on")
    return config.rows
