"""Which results of a pipeline are current: complete, and made from the settings and the inputs that are expected now.

A result's own artifact records both, so it does not matter whether the pipeline or the stage's command made it.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import OTHER, RELEASED_FROM, Difference, Input, MadeFrom, differences
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile, curve_sha256
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.rows import RowsPlan, read_rows_manifest
from longmlm.artifacts.run import RunSummary, is_finished
from longmlm.errors import ArtifactError, CheckpointError, DataError, FolderError
from longmlm.folders import MANIFEST, read_manifest, sha256_of
from longmlm.hubs.model_files import listed_weights_sha256, local_model_sha256, tokenizer_sha256
from longmlm.hubs.models import config_of_model
from longmlm.hubs.transfers import redact
from longmlm.model.families import num_usable_positions
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import ResolvedPipeline, StageConfig, is_checkpoint_of
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import result_of, result_settings
from longmlm.settings.shipped import is_same_path
from longmlm.settings.tables import leaves
from longmlm.temporary import check_writable
from longmlm.training.run_folder import (
    checkpoint_folder,
    likely_best_checkpoint,
    model_or_best_checkpoint,
    newest_state,
)

REPLACING = ("evaluate", "release")  # stages that replace an earlier result
NOT_RECORDED = ("recipe.new_head", "start.new_head", "start.tokenizer")  # by a long model and a run
MAX_LISTED = 3


def check_results(config: ResolvedPipeline) -> None:
    """Raises what `check_result` does for each stage, and FolderError if there is a release of an earlier result.

    While a run is being continued, its earlier release is allowed: the new one will replace it.
    """
    check_writable(Path(config.output))
    for name in config.stages:
        check_result(config, name)
    released = result_of(config.release)
    for name in config.stages if (released / MANIFEST).is_file() else ():
        if name not in REPLACING and not is_current(config, name) and not _is_continued(config, name):
            raise FolderError(
                f"{name} has to run again, but {released} was made from its earlier result: remove {released} first"
            )


def check_result(config: ResolvedPipeline, name: str) -> None:
    """Raises FolderError or DataError if a stage would go on from a result of other settings or inputs."""
    if name not in REPLACING:
        _refuse(name, result_of(config.stages[name]), differences_of(config, name))


def check_text(config: PrepareConfig) -> None:
    """Raises DataError if the rows are complete but the corpus has changed; does nothing if it cannot be read."""
    try:
        found = differences(*_rows(config, read_rows_manifest(result_of(config)).plan))
    except DataError:
        return
    _refuse("prepare", result_of(config), [difference for difference in found if difference.is_input])


def _refuse(name: str, result: Path, found: list[Difference]) -> None:
    made = f"{name}: {result} was made"
    if settings := [difference.text for difference in found if not difference.is_input]:
        listed, is_longer = ", ".join(settings[:MAX_LISTED]), settings[0].startswith("recipe.num_steps ")
        longer = ", or train a finished run longer with --more-steps" if is_longer else ""
        raise FolderError(f"{made} with other settings: {listed}; set them back, or name another output{longer}")
    if found:
        remedy = f"name another output, move {result} away to make it again, or restore that input"
        raise DataError(f"{made} from {found[0].text}: {remedy}")


def is_done(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether the stage has nothing to do: its result is current, and need not be published."""
    stage = config.stages[name]
    has_to_publish = isinstance(stage, PrepareConfig | ReleaseConfig) and stage.publish is not None
    return is_current(config, name) and not has_to_publish


def is_current(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether the stage's result is complete, and was made with the settings and inputs expected now."""
    return is_complete(config.stages[name]) and not differences_of(config, name)


def is_complete(stage: StageConfig) -> bool:
    """Returns whether the stage has written its whole result, whatever it was made with."""
    if isinstance(stage, PretrainConfig):
        return is_trained(stage)
    return (result_of(stage) / (Evaluation.FILE if isinstance(stage, EvaluateConfig) else MANIFEST)).is_file()


def is_trained(stage: PretrainConfig) -> bool:
    """Returns whether the run has made and evaluated its last step, or has ended because it recovered."""
    with suppress(ArtifactError):
        state, saved = artifact.read(RunSummary, Path(stage.run) / RunSummary.FILE).state, newest_state(Path(stage.run))
        continuations = saved.continuations if saved else ()
        return is_finished(state, stage.recipe, continuations, stage.runtime.stop_when_recovered)
    return False


def _is_continued(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether a stage is the training of a run to which steps were added."""
    saved = newest_state(Path(config.pretrain.run)) if name == "pretrain" else None
    return saved is not None and bool(saved.continuations) and not differences_of(config, name)


def differences_of(config: ResolvedPipeline, name: str) -> list[Difference]:
    """Returns the settings and inputs in which a complete result, or a run so far, differs from what is expected."""
    stage = config.stages[name]
    result = result_of(stage)
    match stage:
        case PretrainConfig():
            return _differences_of_run(config)
        case _ if not is_complete(stage):
            return []
        case PrepareConfig():
            return differences(*_rows(stage, read_rows_manifest(result).plan))
        case ExtendConfig():
            return differences(*_extension(stage, result))
        case EvaluateConfig():
            recorded = read_evaluation(result / Evaluation.FILE).made_from
            recorded = recorded if stage.run else recorded.without("run")
        case ReleaseConfig():
            recorded = MadeFrom.read(read_manifest(result).get(RELEASED_FROM))
    return differences(recorded, made_from(stage, recorded))


def made_from(stage: StageConfig, recorded: MadeFrom | None = None, skipped: Collection[str] = ()) -> MadeFrom:
    """Returns what the result of a stage would be made from now: its settings, and the content of inputs.

    The corpus is left out, since the rows identify it, and so are the paths in `skipped`. Files of checkpoints are read
    only if the weights in question are not those `recorded`: the best checkpoint may be damaged.
    """
    settings, inputs = dict(leaves(result_settings(stage))), dict[str, Input]()
    revision = settings.pop("revision", None) or settings.pop("start.revision", None)
    left_out = {os.path.realpath(path) for path in (result_of(stage), *skipped)}
    for name, value in settings.items():
        key = name.rpartition(".")[2]
        if key in OTHER and isinstance(value, str) and os.path.realpath(value) not in left_out:
            is_named = revision is not None and key in ("base", "checkpoint")
            content = _content(key, value, recorded.inputs.get(name, Input()).content if recorded else "")
            inputs[name] = Input(f"{value}@{revision}" if is_named else value, content)
    return MadeFrom.of(settings, inputs)


def _content(key: str, name: str, recorded: str) -> str:
    """Returns the hash of what a setting names; an empty text if it is on a hub, or not there."""
    path, content = Path(name), None
    match key:
        case _ if path.is_file():
            content = sha256_of(path)
        case "rows" if (path / MANIFEST).is_file():
            content = read_rows_manifest(path).sha256
        case "evaluation" if (path / Evaluation.FILE).is_file():
            content = read_evaluation(path / Evaluation.FILE).sha256
        case "run":
            content = curve_sha256(MetricsFile(path).evaluations())
        case "tokenizer":
            content = tokenizer_sha256(name)
        case "base" | "checkpoint":
            content = local_model_sha256(str(_best(name)) if key == "checkpoint" else name)
        case "long_before" | "long_after" | "model":
            content = _weights(name, recorded)
    return content or ""


def _rows(config: PrepareConfig, recorded: RowsPlan) -> tuple[MadeFrom, MadeFrom]:
    """Returns what rows were made from, as their manifest or a run trained on them records it, and what is expected.

    Text that is not there counts as unchanged.
    """
    from longmlm.data.rows_plan import plan_rows  # it imports datasets: settings are refused without it

    planned = plan_rows(config.recipe, recorded.tokenizer_fingerprint, recorded, is_made=True)
    return recorded.made_from, planned.plan.made_from


def _extension(stage: ExtendConfig, folder: Path) -> tuple[MadeFrom, MadeFrom]:
    """Returns what a long model, or a run that started from it, records of its extension, and what is expected."""
    about, expected = read_provenance(folder), made_from(stage).without(*NOT_RECORDED)
    if about.extension is None:  # only tokens were added
        asked = stage.recipe.num_positions
        config = config_of_model(str(folder)) if asked else None
        if asked == (num_usable_positions(config) if config else None):
            expected = replace(expected, settings={})
    return about.made_from, expected


def _differences_of_run(config: ResolvedPipeline) -> list[Difference]:
    """Returns how a run differs from what is expected, judged by its newest readable checkpoint, as training does.

    The checkpoint records what the pipeline's long model and rows were made from, so these need not exist any more.
    """
    stage, extend = config.pretrain, config.extend
    run, start = Path(stage.run), stage.start.name
    if (saved := newest_state(run)) is None:
        return []
    about = read_provenance(checkpoint := checkpoint_folder(run, saved.state.step))
    before, found = about.started_from, differences(*saved.compared(stage.recipe))
    is_same_start = before is not None and is_checkpoint_of(before.name, start)
    if extend and is_same_path(start, extend.output) and about.is_extended and not about.trained_before:
        is_same_start = True
        found += differences(*(one.within("extend") for one in _extension(extend, checkpoint)))
    if saved.rows_plan:
        found += differences(*(one.within("prepare") for one in _rows(config.prepare, saved.rows_plan)))
    own = {"start.checkpoint": before.as_input} if before and not is_same_start else {}
    expected = made_from(stage, skipped=[start] if is_same_start else []).without(*NOT_RECORDED)
    return [*found, *differences(MadeFrom(inputs=saved.inputs | own), replace(expected, settings={}))]


def absent_text(config: PrepareConfig) -> str:
    """Returns a note if text of complete rows is not there, which counts as unchanged; otherwise an empty string."""
    from longmlm.data.rows_plan import plan_rows  # as in _rows

    plan = read_rows_manifest(result_of(config)).plan if is_complete(config) else None
    names = plan_rows(config.recipe, plan.tokenizer_fingerprint, plan, is_made=True).absent if plan else ()
    return f"note: {', '.join(map(redact, names))}: not there, so not checked for changes" if names else ""


def _best(name: str) -> Path:
    """Returns the path of a model; for a run, that of its best checkpoint, or the run itself if it has none yet."""
    with suppress(CheckpointError):
        return Path(likely_best_checkpoint(name))
    return Path(name)


def _weights(name: str, recorded: str) -> str:
    """Returns the hash of a model's weights or, for a run, of its best intact checkpoint; empty if there are none."""
    best = _best(name)
    with suppress(FolderError):
        if recorded and listed_weights_sha256(best) == recorded:
            return recorded
    with suppress(CheckpointError, ArtifactError):
        best = Path(model_or_best_checkpoint(name))
    return listed_weights_sha256(best) or ""
