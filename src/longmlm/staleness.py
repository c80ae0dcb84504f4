"""Which results of a pipeline's stages are complete and were made with its present settings and inputs.

OUTPUT/done/STAGE.toml          the settings that a stage's result was made with, written when the stage has finished
OUTPUT/done/base_model.sha256   of the base model, if it is a folder
"""

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import ModelSource, read_provenance
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.artifacts.run import RunSummary
from longmlm.config import read
from longmlm.errors import ArtifactError, DataError, FolderError
from longmlm.folders import MANIFEST, sha256_of, write_text
from longmlm.hubs.models import local_model_sha256, weights_sha256
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import ResolvedPipeline, StageName, recommended
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import LOCATIONS, result_of, result_settings_by_name
from longmlm.settings.shipped import bundled_resolved, is_same_path
from longmlm.settings.tables import table_at
from longmlm.temporary import check_writable
from longmlm.training.run_folder import list_checkpoints

DONE, BASE_MODEL = "done", "base_model.sha256"
MAX_LISTED = 3


def check_results(config: ResolvedPipeline) -> None:
    """Raises FolderError when settings of a finished stage have changed, or the release is of an earlier model."""
    check_writable(Path(config.output) / DONE)
    for name, stage in config.stages.items():
        changed, made = changed_settings(config, name) or [], [result_of(stage)]
        if name in ("prepare", "extend"):
            made.append(result_of(config.pretrain))  # which would otherwise go on from the earlier rows or model
        made = [result for result in made if result.exists()]
        if changed and name not in ("evaluate", "release") and made:  # these stages replace an earlier result
            raise FolderError(
                f"{name}: {made[0]} was made with other settings: {', '.join(changed[:MAX_LISTED])}; set them back, or "
                "name another output"
            )
    released = result_of(config.release)
    if (Path(config.output) / DONE / "release.toml").is_file() and released.exists():
        for name in [name for name in config.stages if name not in ("evaluate", "release")]:
            if not is_made(config, name):
                raise FolderError(f"{name} has to run again, but {released} has its earlier result: remove that first")


def check_inputs(config: ResolvedPipeline) -> None:
    """Raises DataError when finished rows, or added tokens, were made from other text than the files hold now."""
    if "prepare" in config.stages and is_done(config, "prepare"):
        check_text(config.prepare)
    terms = config.extend.recipe.add_tokens if config.extend and is_done(config, "extend") else None
    if config.extend and terms and Path(terms).is_file():
        added = read_provenance(result_of(config.extend)).added_tokens
        if added and added.file_sha256 != sha256_of(Path(terms)):
            raise DataError(_other_text("extend", result_of(config.extend), terms))


def check_text(config: PrepareConfig, is_needed: bool = True) -> None:
    """Raises DataError when the rows of these settings were made from other text than the corpus holds now.

    It raises the error of a corpus that cannot be read only if the text `is_needed`.
    """
    from longmlm.data.engine import plan_rows  # imports datasets, which compare does not need to refuse settings

    rows = result_of(config)
    try:
        now = plan_rows(config.recipe, "", rows)[0].plan
    except DataError:
        if is_needed:
            raise
        return
    hashes = [
        [(source.commit, [file.sha256 for file in source.files]) for source in plan.sources]
        for plan in (now, read_rows_manifest(rows).plan)
    ]
    if hashes[0] != hashes[1]:
        raise DataError(_other_text("prepare", rows, "the corpus"))


def _other_text(stage: str, result: Path, name: str) -> str:
    return f"{stage}: {result} was made from other text than {name} holds now: name another output, or put it back"


def check_base_model(config: ResolvedPipeline) -> None:
    """Raises DataError when results were made from other weights than the folder of the base model holds now."""
    record, now = Path(config.output) / DONE / BASE_MODEL, local_model_sha256(bundled_resolved(config.model))
    if not now:
        return
    is_used = any(result_of(stage).exists() for stage in (config.extend, config.pretrain) if stage)
    if is_used and record.is_file() and not is_recorded_model(config):
        raise DataError(
            f"{config.output} was made from other weights than {config.model} holds now: name another output, or put "
            "the earlier model back"
        )
    record.parent.mkdir(parents=True, exist_ok=True)
    write_text(record, f"{now}\n")


def is_recorded_model(config: ResolvedPipeline) -> bool:
    """Returns whether the folder of the base model holds what the results were made from."""
    record, now = Path(config.output) / DONE / BASE_MODEL, local_model_sha256(bundled_resolved(config.model))
    return bool(now) and record.is_file() and record.read_text(encoding="utf-8").strip() == now


def record_done(config: ResolvedPipeline, name: str) -> None:
    """Records the settings with which a stage's result was made."""
    done = Path(config.output) / DONE
    done.mkdir(exist_ok=True)
    write_text(done / f"{name}.toml", to_toml(config.stages[name]))


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
    before, now = result_settings_by_name(recorded), result_settings_by_name(stage)
    results = result_of(recorded), result_of(stage)
    pairs = {key: (before.get(key), now.get(key)) for key in {**before, **now}}
    return [
        f"{key} was {then}, is {value}"
        for key, (then, value) in pairs.items()
        if then != value and not _is_renamed(config, key, (then, value), results)
    ]


def _is_renamed(config: ResolvedPipeline, key: str, names: tuple[object, object], results: tuple[Path, Path]) -> bool:
    """Returns whether a setting names what it named when the result was made, which has another path or name now."""
    kind = key.rpartition(".")[2]
    if key == "card.title":
        return _are_derived_titles(config, names, results)
    if kind not in LOCATIONS or None in names:
        return False
    then, now = map(str, names)
    has_moved_along = os.path.relpath(then, results[0]) == os.path.relpath(now, results[1])  # with the output folder
    return is_same_path(then, now) or has_moved_along or _holds_the_same(config, kind, (then, now), results[1])


def _holds_the_same(config: ResolvedPipeline, kind: str, names: tuple[str, str], result: Path) -> bool:
    """Returns whether what has another name now has the same content; other text is noticed later, by its hash."""
    then, now = names
    match kind:
        case "files":
            return True
        case "dataset" | "add_tokens":
            return Path(now).exists() and not Path(then).exists()
        case "base" | "tokenizer":
            return is_same_path(now, str(bundled_resolved(config.model))) and is_recorded_model(config)
        case "checkpoint" if checkpoints := list_checkpoints(result):
            started = read_provenance(checkpoints[-1]).started_from
            start = ModelSource(name=now, sha256=local_model_sha256(now) or None)
            return started is not None and started.is_same(start)
    return False


def _are_derived_titles(config: ResolvedPipeline, titles: tuple[object, object], results: tuple[Path, Path]) -> bool:
    """Returns whether the card had and has no title but the one derived from the name of the model or the output."""
    (then, now), (earlier, result) = titles, results
    source = read_provenance(result).source
    names = {earlier.parent.name, Path(source.name).name if source else ""}
    is_derived = now == table_at(recommended(config, {}), "release", "card")["title"]
    return is_derived and then in {f"{name}-{config.length}" for name in names}


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
            return is_recorded and (result / Evaluation.FILE).is_file() and is_evaluated(config, name)
        case ReleaseConfig():
            sources = [result_of(config.pretrain) / RunSummary.FILE]
            sources += [result_of(config.evaluate) / Evaluation.FILE] if config.evaluate else []
            return is_recorded and _is_newer(result / MANIFEST, sources)


def is_extended(stage: ExtendConfig) -> bool:
    """Returns whether the long model's longmlm.json names the base model and the recipe of these settings."""
    about, recipe = read_provenance(result_of(stage)), asdict(stage.recipe)
    base = ModelSource(name=stage.base, revision=stage.revision, sha256=local_model_sha256(stage.base) or None)
    has_terms = about.added_tokens is not None and about.added_tokens.base.is_same(base)
    made = about.extension or about.added_tokens
    if made is None or not made.base.is_same(base):
        return False
    extended = {"num_positions": None} if about.extension is None else asdict(about.extension)
    is_same = all(recipe[key] == value for key, value in extended.items() if key in recipe)
    return is_same and has_terms == (stage.recipe.add_tokens is not None)


def is_evaluated(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether the evaluation is of the models that its record names, and of the run as it is now.

    `longmlm evaluate` may have overwritten it. In a folder that was copied, its time says nothing: its hashes do.
    """
    file, run = result_of(config.stages[name]) / Evaluation.FILE, result_of(config.pretrain)
    evaluation, recorded = read_evaluation(file), read(EvaluateConfig, [Path(config.output) / DONE / f"{name}.toml"])
    if not evaluation.is_of(recorded) or _is_newer(file, [run / RunSummary.FILE]):
        return evaluation.is_of(recorded)
    has_same_curve = evaluation.curve == MetricsFile(run).evaluations()
    return has_same_curve and any(
        weights_sha256(folder) == evaluation.sources.after_sha256 for folder in list_checkpoints(run)
    )


def is_trained(stage: PretrainConfig) -> bool:
    """Returns whether the run has made and evaluated its last step, or has ended because it recovered."""
    with suppress(ArtifactError):
        state = artifact.read(RunSummary, Path(stage.run) / RunSummary.FILE).state
        is_over = stage.runtime.stop_when_recovered and state.recovered_at_step is not None
        return is_over or (state.step >= stage.recipe.num_steps and state.evaluated_at_step == state.step)
    return False


def _is_newer(file: Path, sources: list[Path]) -> bool:
    """Returns whether the file exists and was written after the others."""
    return file.is_file() and all(file.stat().st_mtime >= path.stat().st_mtime for path in sources if path.is_file())
