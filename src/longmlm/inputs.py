"""Checks a command's settings and the inputs that they name, before torch and transformers are imported.

Those imports take seconds. The functions called here are those that the stages themselves call later, so that each
problem has one message.
"""

import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from longmlm.artifacts.evaluation import EVALUATION_FILES, Evaluation, read_evaluation
from longmlm.artifacts.fine_tuned import fine_tuned_folder
from longmlm.artifacts.provenance import ModelSource, read_provenance
from longmlm.artifacts.rows import (
    SPLITS,
    RowsManifest,
    Split,
    check_rows_fit_positions,
    check_rows_fit_recipe,
    read_rows_manifest,
    shards_of,
)
from longmlm.data.corpus import check_fields, check_source, check_splits, plan_slices
from longmlm.data.files import COMPRESSED, files_of, kind_of
from longmlm.data.languages import check_language
from longmlm.data.vocabulary import term_lines, tokenizer_folder
from longmlm.data.words import check_unit
from longmlm.errors import DataError
from longmlm.folders import check_absent, check_replaceable
from longmlm.hubs.datasets import rows_on_hub
from longmlm.hubs.model_files import local_weights
from longmlm.hubs.models import check_model, config_of_model, is_folder, read_architecture
from longmlm.hubs.publish import check_can_publish
from longmlm.model.families import (
    check_architecture,
    check_can_learn,
    num_usable_positions,
    planned_extension,
)
from longmlm.processes import check_num_processes, num_started_processes
from longmlm.releasable import check_is_release
from longmlm.runnable import (
    check_batch,
    check_can_continue,
    check_can_pack,
    check_has_rows,
    check_onnx_installed,
    check_runnable,
    machine_errors,
    stages_to_run,
)
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline, StageConfig
from longmlm.settings.prepare import PrepareConfig, Source
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import result_of
from longmlm.settings.shipped import bundled_resolved
from longmlm.temporary import check_writable
from longmlm.training.run_folder import (
    CHECKPOINTS,
    continuations_of,
    evaluations_of,
    list_checkpoints,
    newest_state,
)
from longmlm.training.tracker import check_installed

TEXT_FIELD = Source.__dataclass_fields__["text_field"].default
QUICKLY_READ_BYTES = 4_000_000  # larger corpora are not read for their splits; this much takes hundredths of a second


def check_inputs(config: Any) -> None:
    """Raises a UserError for the first setting that names something unusable or asks for something impossible.

    Contents are read only where that takes no time: a stage may still refuse what these checks accept.
    """
    match config:
        case PrepareConfig():
            if config.publish:
                check_can_publish(config.target("dataset"))
            _check_new(config)
            if not Path(config.output).is_dir():
                _check_corpus(config)
                check_can_pack(config)
                _check_splits(config)
        case ExtendConfig():
            _check_extend(config)
            if config.rows is not None:
                _check_rows(config.rows, ["train"])
        case PretrainConfig():
            _check_pretrain(config)
        case EvaluateConfig():
            _check_evaluate(config)
        case ReleaseConfig():
            _check_release(config)
        case ResolvedPipeline() if not config.HAS_TRIALS:  # each trial is checked before it starts
            _check_pipeline(config)


def _check_pipeline(config: ResolvedPipeline) -> None:
    """Checks the inputs that no stage of the pipeline makes, for the stages that have no result yet."""
    check_writable(Path(config.output))
    check_can_continue(config)
    for stage in config.stages.values():
        _check_new(stage)
    check_runnable(config)
    made = {os.path.realpath(result_of(stage)) for stage in config.stages.values()}
    needs_all = not isinstance(config, PlanConfig)  # a plan needs no weights, and may be for another machine
    if needs_all and (error := next(machine_errors(config), None)):
        raise error
    num_positions: int | None = None
    if config.extend and not result_of(config.extend).exists():
        num_positions = _check_extend(config.extend, needs_all)  # first, since the rows are for the long model
    for stage in stages_to_run(config):
        match stage:
            case PrepareConfig():
                _check_corpus(stage, made)
                _check_splits(stage)
            case PretrainConfig():
                check_installed(stage.tracking.tracker)
                check_unit(stage.recipe.masking, bundled_resolved(config.model) or str(stage.start.tokenizer))
                num_positions = _positions_of_start(stage, made, needs_all) or num_positions
            case EvaluateConfig():
                _check_model(stage.base, made, needs_all)
    if num_positions is not None:
        check_rows_fit_positions(config.prepare.recipe.row_length, num_positions, config.pretrain.start.name)


def _check_new(stage: StageConfig) -> None:
    """Raises FolderError if the result of a stage that has none yet cannot be written, or a release not replaced."""
    if not (folder := result_of(stage)).is_dir():
        check_writable(folder)
    elif isinstance(stage, ReleaseConfig):
        check_is_release(folder)


def _check_corpus(config: PrepareConfig, made: Collection[str] = ()) -> None:
    if os.path.realpath(config.recipe.tokenizer) not in made:
        tokenizer_folder(config.recipe.tokenizer)
    for source in config.recipe.sources:
        check_language(source.language)
        check_source(source, config.output)
        files = files_of(source.files)
        named = {"text_fields": source.text_fields, "text_field": source.text_field, "split_field": source.split_field}
        if {kind_of(file) for file in files} == {".txt"}:
            for setting in (setting for setting, value in named.items() if value not in (None, (), TEXT_FIELD)):
                raise DataError(
                    f"{setting} = {named[setting]!r} has no effect, since files has only .txt or .md files, whose "
                    f"whole text is a document ({', '.join(source.files)}): remove it"
                )
        check_fields(source, [str(file) for file in files])


def _check_splits(config: PrepareConfig) -> None:
    """Checks that a small corpus on disk has documents for both splits."""
    sources = config.recipe.sources
    files = [file for source in sources for file in files_of(source.files)]
    if any(source.dataset for source in sources) or any(file.suffix in COMPRESSED for file in files):
        return
    if sum(file.stat().st_size for file in files) <= QUICKLY_READ_BYTES:
        check_splits(config.recipe, plan_slices(sources, config.recipe.slice_bytes))


def _check_extend(config: ExtendConfig, needs_weights: bool = True) -> int | None:
    """Checks an extension; returns the positions of the extended model, or None if only loading can tell."""
    check_absent(Path(config.output))
    described, base = config_of_model(config.base, config.revision, needs_weights), ModelSource(name=config.base)
    if config.recipe.add_tokens is not None:
        term_lines(config.recipe.add_tokens)
    if (num_positions := positions_of(described, config.base)) is None:
        return None
    planned_extension(config.recipe, base, read_provenance(config.base), described, num_positions)
    return config.recipe.num_positions or num_positions


def _check_rows(name: str, splits: Collection[Split]) -> RowsManifest | None:
    """Checks that these splits have rows, and returns the manifest; None for rows on a hub, which are not checked."""
    if rows_on_hub(name) is not None:
        return None
    manifest = read_rows_manifest(Path(name))
    for split in splits:
        shards_of(manifest, split, Path(name))
    return manifest


def _check_pretrain(config: PretrainConfig) -> None:
    check_writable(Path(config.run))
    check_installed(config.tracking.tracker)
    check_num_processes(num_started_processes(), config.runtime.num_processes)
    manifest = _check_rows(config.rows, SPLITS)
    if manifest:
        check_batch(config.recipe, manifest, num_started_processes())
        check_rows_fit_recipe(manifest, config.recipe, config.rows)
    check_unit(config.recipe.masking, config.start.checkpoint or str(config.start.tokenizer))
    continuations_of(config, newest_state(Path(config.run)))
    if list_checkpoints(Path(config.run)):
        return  # a run that resumes no longer needs what it started from
    num_positions = _positions_of_start(config)
    if manifest and num_positions is not None:
        check_rows_fit_positions(manifest.plan.row_length, num_positions, config.start.name)


def _positions_of_start(stage: PretrainConfig, made: Collection[str] = (), needs_weights: bool = True) -> int | None:
    """Checks the model that training starts from, and returns its usable positions; None if only loading can tell."""
    start = stage.start
    if start.checkpoint is None:
        name = str(start.architecture)
        config = SimpleNamespace(**read_architecture(name))
        tokenizer_folder(str(start.tokenizer))
        config.pad_token_id = None  # training takes it from the tokenizer
    elif os.path.realpath(name := start.checkpoint) in made or _is_run(name):
        return None
    else:
        config = config_of_model(name, start.revision, needs_weights)
    num_positions = positions_of(config, name)
    if config is not None and hasattr(config, "model_type"):
        check_can_learn(stage.recipe, config, name, read_provenance(name).extension)
    return num_positions


def positions_of(config: SimpleNamespace | None, name: str) -> int | None:
    """Returns the usable positions of a supported model with this config; None if only loading can tell."""
    if config is None or not hasattr(config, "model_type"):
        return None
    check_architecture(config, name)
    return num_usable_positions(config)


def _check_evaluate(config: EvaluateConfig) -> None:
    check_replaceable(Path(config.output), EVALUATION_FILES)
    if config.long_before:
        is_folder(config.long_before)
    if config.run:
        evaluations_of(Path(config.run))
    if config.long_after and not _is_run(config.long_after):
        local_weights(config.long_after)
    manifest = _check_rows(config.rows, ["held_out"])
    _check_model(config.base)
    for name in (config.long_before, config.long_after):
        if name and not _is_run(name):
            num_positions = positions_of(config_of_model(name), name)
            if manifest and num_positions is not None:
                check_rows_fit_positions(manifest.plan.row_length, num_positions, name)


def _check_release(config: ReleaseConfig) -> None:
    _check_new(config)
    if config.publish:
        check_can_publish(config.target())
    if config.recipe.onnx:
        check_onnx_installed()
    if fine_tuned_folder(config.model) is None:
        if not _is_run(config.model):
            local_weights(config.model)
        _check_rows(check_has_rows(config), ["held_out"])
    if config.evaluation:
        read_evaluation(Path(config.evaluation) / Evaluation.FILE)


def _check_model(name: str, made: Collection[str] = (), needs_weights: bool = True) -> None:
    if os.path.realpath(name) not in made and not _is_run(name):
        check_model(name, None, needs_weights)


def _is_run(name: str) -> bool:
    """Returns whether a model is named by its run folder, whose checkpoints take long to verify."""
    return (Path(name) / CHECKPOINTS).is_dir()
