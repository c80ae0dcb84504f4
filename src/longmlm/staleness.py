"""Which results of a pipeline's stages are complete and were made with its present settings and inputs.

OUTPUT/done/STAGE.toml          the settings that a stage's result was made with, written when the stage has finished
OUTPUT/done/base_model.sha256   of the base model, if it is a folder
"""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.artifacts.run import RunSummary
from longmlm.config import read, to_toml
from longmlm.data.engine import plan_rows
from longmlm.errors import ArtifactError, DataError, FolderError
from longmlm.folders import MANIFEST, sha256_of, write_text
from longmlm.hubs.models import local_model_sha256
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import ResolvedPipeline, StageName
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import result_of, result_settings
from longmlm.settings.tables import leaves

DONE, BASE_MODEL = "done", "base_model.sha256"
MAX_LISTED = 3


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


def _is_newer(file: Path, sources: list[Path]) -> bool:
    """Returns whether the file exists and was written after the others."""
    return file.is_file() and all(file.stat().st_mtime >= path.stat().st_mtime for path in sources if path.is_file())
