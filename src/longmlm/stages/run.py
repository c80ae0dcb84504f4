"""The run command: runs each stage of a pipeline as a process, skips finished ones and resumes interrupted ones.

OUTPUT/
    pipeline.toml               the resolved settings, from which every stage is started
    done/STAGE.toml             the settings that a stage's result was made with, written when the stage has finished
    done/base_model.sha256      of the base model, if it is a folder
    rows/ long/ run/ evaluation/ release/
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import get_args

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile, TrainingMetrics
from longmlm.artifacts.provenance import ModelSource, Provenance, read_provenance
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.artifacts.run import RunSummary
from longmlm.config import read, to_toml
from longmlm.data.engine import plan_rows
from longmlm.errors import ArtifactError, ConfigError, DataError, FolderError, ReleaseError
from longmlm.folders import MANIFEST, sha256_of, write_text
from longmlm.hubs.models import local_model_sha256
from longmlm.ownership import check_own_file
from longmlm.processes import exclusive_lock
from longmlm.progress import is_terminal
from longmlm.reports.model_card import licence_of
from longmlm.reports.outcome import summary
from longmlm.runtime.children import run_child
from longmlm.runtime.launch_command import launch_command, search_path
from longmlm.runtime.signals import stopped_by
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import ResolvedPipeline, StageName
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import result_of, result_settings
from longmlm.settings.secrets import secret_of
from longmlm.settings.tables import leaves

PIPELINE, HEADER, DONE, BASE_MODEL = "pipeline.toml", "# longmlm run pipeline.toml\n", "done", "base_model.sha256"
MAX_LISTED = 3
USER_ERROR = 2  # exit code of a stage whose settings or data are wrong
STOPPED = 143  # exit code of a stage that SIGTERM stopped


def run_pipeline(config: ResolvedPipeline) -> None:
    """Runs the stages in order and prints the accuracies reached; exits with the code of a stage that fails.

    Raises ConfigError for settings that cannot be run, FolderError when a result was made with other settings, or
    another process writes to the output folder, and DataError when the corpus or the terms have changed.
    """
    output, started = Path(config.output), time.monotonic()
    check_runnable(config)
    with exclusive_lock(output):
        check_own_file(output / PIPELINE, HEADER)
        check_results(config)
        check_inputs(config)
        check_base_model(config)
        write_text(output / PIPELINE, f"{HEADER}{to_toml(config)}")
        for number, (name, stage) in enumerate(config.stages.items(), start=1):
            label = f"[{number}/{len(config.stages)}] {name}:"
            ended = "already done"
            if not is_done(config, name):
                if not result_of(stage).exists():
                    forget_stages_after(config, name)
                since = time.monotonic()
                print(f"{label} started, {_duration(since - started)} so far", flush=True)
                run_stage(config, name, label)
                ended = f"finished in {_duration(time.monotonic() - since)}"
            (output / DONE).mkdir(exist_ok=True)
            write_text(output / DONE / f"{name}.toml", to_toml(stage))
            print(f"{label} {ended}, {result_of(stage)}", flush=True)
        print(summary(config))


def check_runnable(config: ResolvedPipeline) -> None:
    """Raises ConfigError for what would fail later: a launch that cannot be started, a dry run, a missing licence."""
    if config.pretrain.dry_run:
        raise ConfigError("pretrain.dry_run trains nothing to go on with: use longmlm pretrain FILE --dry-run")
    if config.pretrain.runtime.stop_when_recovered and not config.extension:
        raise ConfigError("pretrain.runtime.stop_when_recovered is for a long model, and extension = false: remove it")
    if "release" in config.stages:
        check_licence(config)
    if config.launch is not None:
        launch_command(config.launch)


def check_licence(config: ResolvedPipeline) -> None:
    """Raises ConfigError when a release would find no licence: neither a setting nor the card of a base in a folder."""
    is_local = config.model is not None and Path(config.model).is_dir()
    if config.release.card.license is None and (is_local or config.pretrain.start.architecture):
        source = ModelSource(name=config.model) if config.model and is_local else None
        try:
            licence_of(None, Provenance(started_from=source))
        except ReleaseError as error:
            raise ConfigError(f'{error} in [release.card], or until = "pretrain"') from None


def check_results(config: ResolvedPipeline) -> None:
    """Raises FolderError when settings of a finished stage have changed, or the release is of an earlier model."""
    for name, stage in config.stages.items():
        changed, made = changed_settings(config, name) or [], [result_of(stage)]
        if name in ("prepare", "extend"):
            made.append(result_of(config.pretrain))  # which would otherwise go on from the earlier rows or model
        made = [result for result in made if result.exists()]
        if changed and name != "evaluate" and made:
            raise FolderError(
                f"{name}: {made[0]} was made with other settings: {', '.join(changed[:MAX_LISTED])}; set them back, "
                f"name another output, or remove {' and '.join(map(str, made))} to make it again"
            )
    released = result_of(config.release)
    if (Path(config.output) / DONE / "release.toml").is_file() and released.exists():
        for name in [name for name in config.stages if name not in ("evaluate", "release")]:
            if not is_made(config, name):
                raise FolderError(f"{name} has to run again, but {released} has its earlier result: remove that first")


def check_inputs(config: ResolvedPipeline) -> None:
    """Raises DataError when finished rows, or added tokens, were made from other text than the files hold now."""
    changed = []
    if "prepare" in config.stages and is_done(config, "prepare"):
        before = read_rows_manifest(result_of(config.prepare)).plan
        recipe, fingerprint = config.prepare.recipe, str(before.tokenizer_fingerprint)
        if plan_rows(recipe, fingerprint, result_of(config.prepare))[0].plan != before:
            changed.append(("prepare", result_of(config.prepare), "the corpus holds"))
    terms = config.extend.recipe.add_tokens if config.extend and is_done(config, "extend") else None
    if config.extend and terms and Path(terms).is_file():
        added = read_provenance(result_of(config.extend)).added_tokens
        if added and added.file_sha256 != sha256_of(Path(terms)):
            changed.append(("extend", result_of(config.extend), f"{terms} holds"))
    for name, result, now in changed:
        raise DataError(
            f"{name}: {result} was made from other text than {now} now: name another output, or remove "
            f"{config.output} to start over"
        )


def check_base_model(config: ResolvedPipeline) -> None:
    """Raises DataError when results were made from other weights than the folder of the base model holds now."""
    record, now = Path(config.output) / DONE / BASE_MODEL, local_model_sha256(config.model)
    if not now:
        return
    is_used = any(result_of(stage).exists() for stage in (config.extend, config.pretrain) if stage)
    if is_used and record.is_file() and record.read_text(encoding="utf-8").strip() != now:
        raise DataError(
            f"{config.output} was made from other weights than {config.model} holds now: name another output, or "
            f"remove {config.output} to start over"
        )
    record.parent.mkdir(parents=True, exist_ok=True)
    write_text(record, f"{now}\n")


def forget_stages_after(config: ResolvedPipeline, name: str) -> None:
    """Removes the records of later stages, also those after `until`: the result that they were made from is replaced.

    Each then compares its own result with the one that is made again.
    """
    names = get_args(StageName)
    for later in names[names.index(name) + 1 :]:
        (Path(config.output) / DONE / f"{later}.toml").unlink(missing_ok=True)


def changed_settings(config: ResolvedPipeline, name: str) -> list[str] | None:
    """Returns the settings that have changed since the stage finished, empty if none; None if it has not finished."""
    record = Path(config.output) / DONE / f"{name}.toml"
    if not record.is_file():
        return None
    stage = config.stages[name]
    recorded = read(type(stage), [record])
    before, now = dict(leaves(result_settings(recorded))), dict(leaves(result_settings(stage)))
    return [f"{key} was {before.get(key)}, is {now[key]}" for key in now if before.get(key) != now[key]]


def is_done(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether the stage has nothing to do: its result is made, and need not be published."""
    stage = config.stages[name]
    has_to_publish = isinstance(stage, PrepareConfig | ReleaseConfig) and stage.publish is not None
    return is_made(config, name) and not has_to_publish


def is_made(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether the stage's result is complete and was made with its settings.

    A result of a single command, which leaves no done/STAGE.toml, counts only if it records these settings itself.
    """
    stage = config.stages[name]
    result, is_recorded = result_of(stage), changed_settings(config, name) == []
    match stage:
        case PrepareConfig():
            return is_recorded and (result / MANIFEST).is_file()
        case ExtendConfig():
            return (result / MANIFEST).is_file() and (is_recorded or is_extended(stage))
        case PretrainConfig():
            return is_recorded and is_trained(stage)
        case EvaluateConfig():
            is_new = _is_newer(result / Evaluation.FILE, [result_of(config.pretrain) / RunSummary.FILE])
            return is_recorded and is_new and read_evaluation(result / Evaluation.FILE).is_of(stage)
        case ReleaseConfig():
            sources = [result_of(config.pretrain) / RunSummary.FILE]
            sources += [result_of(config.evaluate) / Evaluation.FILE] if config.evaluate else []
            return is_recorded and _is_newer(result / MANIFEST, sources)


def is_extended(stage: ExtendConfig) -> bool:
    """Returns whether the long model's longmlm.json names the base model and the recipe of these settings."""
    about, recipe = read_provenance(result_of(stage)), asdict(stage.recipe)
    has_terms = about.added_tokens is not None and about.added_tokens.base.name == stage.base
    made = about.extension or about.added_tokens
    if made is None or made.base.name != stage.base or stage.revision not in (None, made.base.revision):
        return False
    extended = {"num_positions": None} if about.extension is None else asdict(about.extension)
    is_same = all(recipe[key] == value for key, value in extended.items() if key in recipe)
    return is_same and has_terms == (stage.recipe.add_tokens is not None)


def is_trained(stage: PretrainConfig) -> bool:
    """Returns whether the run has made and evaluated its last step, or has ended because it recovered."""
    with suppress(ArtifactError):
        state = artifact.read(RunSummary, Path(stage.run) / RunSummary.FILE).state
        is_over = stage.runtime.stop_when_recovered and state.recovered_at_step is not None
        return is_over or (state.step >= stage.recipe.num_steps and state.evaluated_at_step == state.step)
    return False


def run_stage(config: ResolvedPipeline, name: str, label: str) -> None:
    """Runs a stage to its end; exits with its code if it fails, and with 128 + the signal that stopped it."""
    command = [sys.executable, "-P", "-m", "longmlm", name]  # -P: no module comes from the current folder
    if name == "pretrain" and config.launch is not None:
        command = [*launch_command(config.launch), "-m", "longmlm.stages.pretrain"]
    environment = {**os.environ, "PATH": search_path(), **secret_of(config.stages[name])}
    lines = time_left_lines(config, name, label)
    code, signal_name = run_child([*command, str(Path(config.output) / PIPELINE)], environment, lines)
    if signal_name:
        print(f"{label} {stopped_by(signal_name)}: the same command resumes from there", file=sys.stderr)
        sys.exit(128 + signal.Signals[signal_name])
    if code == 0 and name == "pretrain" and not is_trained(config.pretrain):
        print(f"{label} ended before its last evaluation: the same command resumes from there", file=sys.stderr)
        sys.exit(STOPPED)
    if code:
        first = "fix that, then " if code == USER_ERROR else ""
        print(f"{label} failed (exit code {code}): {first}the same command resumes from this stage", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)


def time_left_lines(config: ResolvedPipeline, name: str, label: str) -> Iterator[str]:
    """Yields an estimate of the training time left once the speed is known, and empty lines before that.

    Nothing on a terminal, where the stage draws a bar with the time left.
    """
    if name != "pretrain" or is_terminal():
        return
    num_steps, run = config.pretrain.recipe.num_steps, Path(config.pretrain.run)
    if not _training_lines(run):
        yield f"{label} the time left will be known once the first steps are logged"
    while not (lines := _training_lines(run)):
        yield ""
    tokens_left, speed = lines[-1].tokens / lines[-1].step * (num_steps - lines[-1].step), lines[-1].tokens_per_second
    yield f"{label} about {_duration(tokens_left / speed)} left at {speed:,.0f} tokens/s, without evaluations"


def _training_lines(run: Path) -> list[TrainingMetrics]:
    with suppress(ArtifactError):  # training reports it
        return [line for line in MetricsFile(run).lines() if isinstance(line, TrainingMetrics)]
    return []


def _is_newer(file: Path, sources: list[Path]) -> bool:
    """Returns whether the file exists and was written after the others."""
    return file.is_file() and all(file.stat().st_mtime >= path.stat().st_mtime for path in sources if path.is_file())


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
