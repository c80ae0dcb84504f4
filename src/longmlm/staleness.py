"""Which results of a pipeline are current: complete, and made with the settings and the inputs that are expected now.

A result's own artifact records both, an input by its hash: under another name it is the same, and a stage that was
started by its own command is made like any other. An input that is not there counts as unchanged.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import ModelSource, read_provenance
from longmlm.artifacts.released import RELEASED_FROM, ReleasedFrom
from longmlm.artifacts.rows import RowsPlan, read_rows_manifest
from longmlm.artifacts.run import RunSummary, is_finished
from longmlm.errors import ArtifactError, CheckpointError, DataError, FolderError
from longmlm.folders import MANIFEST, read_manifest, sha256_of
from longmlm.hubs.model_files import listed_weights_sha256, local_model_sha256
from longmlm.hubs.models import config_of_model
from longmlm.hubs.transfers import redact
from longmlm.model.families import num_usable_positions
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import ResolvedPipeline, StageConfig, is_checkpoint_of
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.results import result_of
from longmlm.settings.shipped import is_same_path
from longmlm.settings.tables import Pair, pairs
from longmlm.temporary import check_writable
from longmlm.training.run_folder import (
    checkpoint_folder,
    likely_best_checkpoint,
    model_or_best_checkpoint,
    newest_state,
)

REPLACING = ("evaluate", "release")  # stages that replace an earlier result
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
        _refuse(name, result_of(config.stages[name]), differences(config, name))


def check_text(config: PrepareConfig) -> None:
    """Raises DataError if the rows are complete but the corpus has changed; does nothing if it cannot be read."""
    try:
        found = list(_rows(config.recipe, read_rows_manifest(result_of(config)).plan, result_of(config)))
    except DataError:
        return
    _refuse("prepare", result_of(config), [pair for pair in found if pair.place and not pair.is_same])


def _refuse(name: str, result: Path, found: list[Pair]) -> None:
    made = f"{name}: {result} was made"
    if settings := [pair for pair in found if not pair.place]:
        listed, is_longer = ", ".join(map(str, settings[:MAX_LISTED])), settings[0].name == "recipe.num_steps"
        longer = ", or train a finished run longer with --more-steps" if is_longer else ""
        raise FolderError(f"{made} with other settings: {listed}; set them back, or name another output{longer}")
    for pair in found:
        remedy = f"name another output, move {result} away to make it again, or restore that input"
        raise DataError(f"{made} from {pair.name} than {pair.place} holds now: {remedy}")


def is_done(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether the stage has nothing to do: its result is current, and need not be published."""
    stage = config.stages[name]
    has_to_publish = isinstance(stage, PrepareConfig | ReleaseConfig) and stage.publish is not None
    return is_current(config, name) and not has_to_publish


def is_current(config: ResolvedPipeline, name: str) -> bool:
    """Returns whether the stage's result is complete, and was made with the settings and inputs expected now."""
    return is_complete(config.stages[name]) and not differences(config, name)


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
    return saved is not None and bool(saved.continuations) and not differences(config, name)


def differences(config: ResolvedPipeline, name: str) -> list[Pair]:
    """Returns the settings and inputs in which a complete result, or a run so far, differs from what is expected."""
    stage = config.stages[name]
    result = result_of(stage)
    match stage:
        case PretrainConfig():
            found = _run(config)
        case _ if not is_complete(stage):
            return []
        case PrepareConfig():
            found = _rows(stage.recipe, read_rows_manifest(result).plan, result)
        case ExtendConfig():
            found = _extension(stage, result)
        case EvaluateConfig():
            found = _evaluation(stage, read_evaluation(result / Evaluation.FILE))
        case ReleaseConfig():
            found = _release(stage, read_manifest(result).get(RELEASED_FROM))
    return [pair for pair in found if not pair.is_same]


def absent_text(config: PrepareConfig) -> str:
    """Returns a note if text of complete rows is not there, which then counts as unchanged; an empty text else."""
    from longmlm.data.rows_plan import plan_rows  # as in _rows

    plan = read_rows_manifest(result_of(config)).plan if is_complete(config) else None
    names = plan_rows(config.recipe, plan.tokenizer_fingerprint, plan, result_of(config)).absent if plan else ()
    return f"note: {', '.join(map(redact, names))}: not there, so not checked for changes" if names else ""


def _rows(recipe: PrepareRecipe, recorded: RowsPlan, folder: Path) -> Iterator[Pair]:
    """Yields what the manifest of the rows in a folder records, or a run that was trained on them.

    Text that is not there counts as unchanged.
    """
    from longmlm.data.rows_plan import plan_rows, write_stamps  # it imports datasets: settings are refused without it

    planned = plan_rows(recipe, recorded.tokenizer_fingerprint, recorded, folder)
    plan = planned.work.plan
    if plan.text == recorded.text and (folder / MANIFEST).is_file():
        write_stamps(folder, planned)
    plan = replace(plan, segmenter=recorded.segmenter)  # an upgrade of its library asks for no new rows
    tokenizers = (ModelSource(name=one.tokenizer, sha256=one.tokenizer_sha256) for one in (recorded, plan))
    yield from pairs("recipe.", recorded.settings, plan.settings)
    yield _model("recipe.tokenizer", "another tokenizer", *tokenizers)
    yield Pair("other terms", recorded.terms_sha256, plan.terms_sha256, recipe.terms or "recipe.terms")
    yield Pair("other text", recorded.text, plan.text, "the corpus")


def _extension(stage: ExtendConfig, folder: Path) -> Iterator[Pair]:
    """Yields what longmlm.json records of an extension: that of a long model, or of a run that started from it."""
    about, recipe = read_provenance(folder), stage.recipe
    extension, added, base = about.extension, about.added_tokens, about.source
    yield _model("base", "other weights", base, _local(stage.base))
    if base is None:
        return
    yield _revision("revision", base, stage.revision)
    recorded = asdict(extension) if extension else {}
    if (distilled := extension.distilled if extension else None) and stage.rows:
        yield Pair("other rows", distilled.rows_sha256, _rows_sha256(stage.rows) or distilled.rows_sha256, stage.rows)
    if extension is None and recipe.num_positions:  # only tokens were added
        config = config_of_model(str(folder))
        recorded["num_positions"] = num_usable_positions(config) if config else None
    yield from (
        Pair(f"recipe.{name}", recorded[name], value) for name, value in asdict(recipe).items() if name in recorded
    )
    terms = added.file_sha256 if added and added.base == base else None  # else they are the base model's own
    if terms is None or recipe.add_tokens is None:
        yield Pair("recipe.add_tokens", terms and "another file", recipe.add_tokens)
    elif Path(recipe.add_tokens).is_file():
        yield Pair("other text", terms, sha256_of(Path(recipe.add_tokens)), recipe.add_tokens)


def _run(config: ResolvedPipeline) -> Iterator[Pair]:
    """Yields what a run records in its newest checkpoint that can be read: training skips damaged ones too."""
    stage = config.pretrain
    if (saved := newest_state(Path(stage.run))) is None:
        return
    checkpoint = checkpoint_folder(Path(stage.run), saved.state.step)
    about = read_provenance(checkpoint)
    yield from saved.compared(stage.recipe)
    start, extend, before = stage.start, config.extend, about.started_from
    if start.checkpoint is None:
        yield Pair("start.checkpoint", before and before.name, None)
        then, file = saved.architecture_sha256, Path(start.name)
        yield Pair("another architecture", then, sha256_of(file) if file.is_file() else then, start.name)
    elif extend and is_same_path(start.checkpoint, extend.output) and about.is_extended and not about.trained_before:
        yield from _of_stage("extend", _extension(extend, checkpoint))
    elif before is None or not is_checkpoint_of(before.name, start.checkpoint):
        yield _model("start.checkpoint", "other weights", before, _local(str(_best(start.checkpoint))))
        if before:
            yield _revision("start.revision", before, start.revision)
    if saved.rows_plan:
        yield from _of_stage("prepare", _rows(config.prepare.recipe, saved.rows_plan, result_of(config.prepare)))
    yield Pair("other rows", saved.rows_sha256, _rows_sha256(stage.rows) or saved.rows_sha256, stage.rows)


def _evaluation(stage: EvaluateConfig, recorded: Evaluation) -> Iterator[Pair]:
    sources = recorded.sources
    yield from pairs("recipe.", asdict(recorded.recipe), asdict(stage.recipe))
    yield Pair("other rows", sources.rows_sha256, _rows_sha256(stage.rows) or sources.rows_sha256, stage.rows)
    yield _model("base", "other weights", _source(sources.base, sources.base_sha256), _local(stage.base))
    for name, sha256, now in (
        (sources.before, sources.before_sha256, stage.long_before),
        (sources.after, sources.after_sha256, stage.long_after),
    ):
        expected = _source(now, now and _weights(now, sha256)[1])
        yield _model("long model", "other weights", _source(name, sha256), expected)
    if stage.run:
        yield Pair("another curve", recorded.curve, MetricsFile(Path(stage.run)).evaluations(), stage.run)


def _release(stage: ReleaseConfig, recorded: object) -> Iterator[Pair]:
    content = recorded if isinstance(recorded, dict) else {}
    model, model_sha256 = _weights(stage.model, content.get("model_sha256"))
    evaluation = Path(stage.evaluation or "") / Evaluation.FILE
    base = read_provenance(model).source
    expected = ReleasedFrom(
        recipe=stage.recipe,
        card=stage.card,
        model_sha256=model_sha256 or "",
        rows_sha256=_rows_sha256(stage.rows) or "",
        base=base and base.published(),
        evaluation_sha256=read_evaluation(evaluation).sha256 if stage.evaluation and evaluation.is_file() else None,
    )
    yield from pairs("", content, expected.content)


def _model(name: str, content: str, recorded: ModelSource | None, expected: ModelSource | None) -> Pair:
    """Returns the pair of a model: an input if its content is another one under the same name, else a setting."""
    if recorded is None or expected is None:
        return Pair(name, recorded and recorded.name, expected and expected.name)
    if recorded.is_same(expected):
        return Pair(name, expected.name, expected.name)
    if is_same_path(recorded.name, expected.name):
        return Pair(content, recorded.sha256, expected.sha256, expected.name)
    return Pair(name, recorded.name, expected.name)


def _revision(name: str, recorded: ModelSource, revision: str | None) -> Pair:
    return Pair(name, revision if revision == recorded.revision else recorded.requested, revision)


def _rows_sha256(rows: str | None) -> str | None:
    return read_rows_manifest(Path(rows)).sha256 if rows and (Path(rows) / MANIFEST).is_file() else None


def _of_stage(name: str, found: Iterator[Pair]) -> Iterator[Pair]:
    for pair in found:
        yield pair if pair.place else replace(pair, name=f"{name}.{pair.name}")


def _source(name: str | None, sha256: str | None) -> ModelSource | None:
    return ModelSource(name=name, sha256=sha256) if name else None


def _local(name: str) -> ModelSource:
    return ModelSource(name=name, sha256=local_model_sha256(name) or None)


def _best(name: str) -> Path:
    """Returns a model, of a run its best checkpoint, or the run itself before it has one."""
    with suppress(CheckpointError):
        return Path(likely_best_checkpoint(name))
    return Path(name)


def _weights(name: str, recorded: str | None) -> tuple[Path, str | None]:
    """Returns a model, of a run its best checkpoint, and the SHA-256 of its weights; None without weights.

    The files of checkpoints are read only if the weights are not those `recorded`: the best one may be damaged.
    """
    with suppress(FolderError):
        model = _best(name)
        if (sha256 := listed_weights_sha256(model)) == recorded:
            return model, sha256
    with suppress(CheckpointError, ArtifactError):
        model = Path(model_or_best_checkpoint(name))
    return model, listed_weights_sha256(model)
