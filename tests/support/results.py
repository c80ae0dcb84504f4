"""The results of a pipeline's stages as their artifacts record them, without training; the rows alone are real."""

from dataclasses import asdict, replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import RELEASED_FROM, Input, MadeFrom
from longmlm.artifacts.evaluation import Evaluation, EvaluationSources
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import AddedTokens, Extension, ModelSource, Provenance, read_provenance
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.artifacts.run import CheckpointState, Continuation, RunSummary, TrainState
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.folders import new_folder, sha256_of
from longmlm.hubs.model_files import listed_weights_sha256, local_model_sha256
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.results import result_of
from longmlm.training.run_folder import checkpoint_folder, likely_best_checkpoint
from tests.support.evaluations import FULL


def write_results(config: ResolvedPipeline) -> None:
    for name, stage in config.stages.items():
        if not result_of(stage).exists():
            write_result(config, name)


def write_result(config: ResolvedPipeline, name: str) -> None:
    match name:
        case "extend":
            _write_long(config)
        case "prepare":
            prepare_rows(config.prepare.recipe, load_vocabulary("base"), result_of(config.prepare))
        case "pretrain":
            write_run(config)
        case "evaluate":
            _write_evaluation(config)
        case "release":
            _write_release(config)


def source_of(name: str | None) -> ModelSource:
    return ModelSource(name=str(name), sha256=local_model_sha256(name) or None)


def _write_long(config: ResolvedPipeline) -> None:
    stage, base = config.extend, source_of(config.extend.base)
    terms = stage.recipe.add_tokens
    with new_folder(result_of(stage)) as partial:
        about = Provenance(
            extension=Extension.of(stage.recipe, base, 16) if stage.recipe.num_positions else None,
            added_tokens=terms
            and AddedTokens(base=base, file_sha256=sha256_of(Path(terms)), num_added=1, num_skipped=0),
        )
        artifact.write(partial / Provenance.FILE, about)
        (partial / "model.safetensors").write_text(str(about), encoding="utf-8")


def write_run(config: ResolvedPipeline, step: int | None = None, added: tuple[Continuation, ...] = ()) -> None:
    stage, rows = config.pretrain, read_rows_manifest(result_of(config.prepare))
    step = step or stage.recipe.num_steps
    state = TrainState(step=step, accuracy=40.0, evaluated_at_step=step)
    saved = CheckpointState(state=state, recipe=stage.recipe, rows_sha256=rows.sha256, rows_plan=rows.plan)
    saved = replace(saved, continuations=added)
    start = str(stage.start.checkpoint)
    with new_folder(checkpoint_folder(result_of(stage), step)) as partial:
        artifact.write(partial / CheckpointState.FILE, saved)
        artifact.write(partial / Provenance.FILE, read_provenance(start).of_run(source_of(start)))
        (partial / "model.safetensors").write_text(str(saved), encoding="utf-8")
    summary = RunSummary(state=state, train_tokens_per_second=1.0, num_processes=1, peak_memory_bytes=1)
    artifact.write(result_of(stage) / RunSummary.FILE, summary)


def trained_model(config: ResolvedPipeline) -> Path:
    return Path(likely_best_checkpoint(str(result_of(config.pretrain))))


def _write_evaluation(config: ResolvedPipeline) -> None:
    stage = config.evaluate
    sources = EvaluationSources(
        rows=stage.rows,
        rows_sha256=read_rows_manifest(Path(stage.rows)).sha256,
        base=stage.base,
        before=stage.long_before,
        after=stage.long_after,
        base_sha256=source_of(stage.base).sha256,
        before_sha256=stage.long_before and listed_weights_sha256(Path(stage.long_before)),
        after_sha256=listed_weights_sha256(trained_model(config)),
    )
    curve = MetricsFile(Path(stage.run)).evaluations()
    evaluation = replace(FULL, recipe=stage.recipe, sources=sources, curve=curve)
    result_of(stage).mkdir(parents=True)
    artifact.write(result_of(stage) / Evaluation.FILE, evaluation.signed())


def _write_release(config: ResolvedPipeline) -> None:
    stage, model = config.release, trained_model(config)
    contents = {
        "model": listed_weights_sha256(model),
        "rows": read_rows_manifest(Path(stage.rows)).sha256,
        "evaluation": artifact.read(Evaluation, Path(stage.evaluation) / Evaluation.FILE).sha256,
    }
    tables = {"recipe": asdict(stage.recipe), "card": asdict(stage.card)}
    made_from = MadeFrom.of(tables, {name: Input(content=content) for name, content in contents.items()})
    with new_folder(result_of(stage), {RELEASED_FROM: asdict(made_from)}):
        pass
