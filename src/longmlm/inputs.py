"""Checks that what a command's settings name exists, before torch and transformers are imported, which takes seconds.

The functions called here are those that the stages themselves call later, so that each problem has one message.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from longmlm.artifacts.downstream import DownstreamTrial
from longmlm.artifacts.evaluation import evaluation_in
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.data.files import files_of
from longmlm.data.sentences import check_language
from longmlm.data.vocabulary import term_lines, tokenizer_folder
from longmlm.errors import FolderError
from longmlm.folders import check_absent
from longmlm.hubs.datasets import rows_on_hub
from longmlm.hubs.models import check_model, local_weights, read_architecture
from longmlm.hubs.publish import check_can_publish
from longmlm.model.tfidf import check_sklearn_installed
from longmlm.reports.evaluation import check_output
from longmlm.settings.downstream import DownstreamConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import result_of
from longmlm.training.run_folder import CHECKPOINTS, evaluations_of, list_checkpoints
from longmlm.training.tracker import check_installed


def check_inputs(config: Any) -> None:
    """Raises a UserError for the first path, model or run in a command's settings that is missing or cannot be used.

    Contents are read only where that takes no time: a stage may still refuse what these checks accept.
    """
    match config:
        case PrepareConfig():
            if config.publish:
                check_can_publish(config.target("dataset"))
            _check_corpus(config)
        case ExtendConfig():
            _check_extend(config)
        case PretrainConfig():
            check_installed(config.tracking.tracker)
            _check_rows(config.rows)
            if not list_checkpoints(Path(config.run)):  # a run that resumes no longer needs what it started from
                _check_start(config.start)
        case EvaluateConfig():
            _check_evaluate(config)
        case ReleaseConfig():
            _check_release(config)
        case DownstreamConfig():
            _check_downstream(config)
        case ResolvedPipeline():
            _check_pipeline(config)


def _check_pipeline(config: ResolvedPipeline) -> None:
    """Checks the inputs that no stage of the pipeline makes, for the stages that have no result yet."""
    made = {str(result_of(stage)) for stage in config.stages.values()}
    for stage in (stage for stage in config.stages.values() if not result_of(stage).exists()):
        match stage:
            case PrepareConfig():
                _check_corpus(stage, made)
            case ExtendConfig():
                _check_extend(stage)
            case PretrainConfig():
                check_installed(stage.tracking.tracker)
                _check_start(stage.start, made)
            case EvaluateConfig():
                _check_models([stage.base], made)
            case ReleaseConfig():
                pass  # it reads what the other stages make


def _check_corpus(config: PrepareConfig, made: Collection[str] = ()) -> None:
    if str(Path(config.recipe.tokenizer)) not in made:
        tokenizer_folder(config.recipe.tokenizer)
    for source in config.recipe.sources:
        check_language(source.language)
        files_of(source.files)


def _check_extend(config: ExtendConfig) -> None:
    check_absent(Path(config.output))
    check_model(config.base, config.revision)
    if config.recipe.add_tokens is not None:
        term_lines(config.recipe.add_tokens)


def _check_downstream(config: DownstreamConfig) -> None:
    if Path(config.output).is_file():
        raise FolderError(f"{config.output} is a file: remove it or name another output")
    check_installed(config.tracking.tracker)
    data = config.task.data
    files_of([*data.files, *data.dev_files, *data.test_files])
    for arm in config.arms.values():
        if arm.model is None:
            check_sklearn_installed()
        else:
            _check_models([arm.model], revision=arm.revision)


def _check_rows(name: str) -> None:
    if rows_on_hub(name) is None:
        read_rows_manifest(Path(name))


def _check_start(start: Start, made: Collection[str] = ()) -> None:
    if start.architecture is not None:
        read_architecture(start.architecture)
        tokenizer_folder(str(start.tokenizer))
    _check_models([start.checkpoint], made, start.revision)


def _check_evaluate(config: EvaluateConfig) -> None:
    check_output(Path(config.output))
    if config.run:
        evaluations_of(Path(config.run))
    if config.long_after and not _is_run(config.long_after):
        local_weights(config.long_after)
    _check_rows(config.rows)
    _check_models([config.base, config.long_before])


def _check_release(config: ReleaseConfig) -> None:
    if config.publish:
        check_can_publish(config.target())
    is_trial = (Path(config.model) / DownstreamTrial.FILE).is_file()
    if not config.follow and not is_trial and not _is_run(config.model):
        local_weights(config.model)
    if config.rows:
        _check_rows(config.rows)
    if config.evaluation and not config.follow:
        evaluation_in(Path(config.evaluation))


def _check_models(names: Collection[str | None], made: Collection[str] = (), revision: str | None = None) -> None:
    for name in names:
        if name is not None and str(Path(name)) not in made and not _is_run(name):
            check_model(name, revision)


def _is_run(name: str) -> bool:
    """Returns whether a model is named by its run folder, whose checkpoints take long to verify."""
    return (Path(name) / CHECKPOINTS).is_dir()
