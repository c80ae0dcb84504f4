"""Settings of a pipeline that name one thing twice: where they disagree, one of them would be ignored."""

from collections.abc import Iterator
from pathlib import Path

from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.shipped import bundled_resolved, is_same_path

NamedPair = tuple[str, object, str, object]  # two settings, each by its dotted name with its value


def disagreements(pipeline: ResolvedPipeline) -> Iterator[str]:
    """Yields a line for each setting of a stage that contradicts the setting of the pipeline from which it follows."""
    for name, value, own_name, own_value in _pairs(pipeline):
        if not _agree(value, own_value):
            shown = "not set" if value is None else value
            yield f"{name} is {shown}, but {own_name} is {own_value}: set {name} alone, which all stages follow"
    start, extend = pipeline.pretrain.start, pipeline.extend
    if pipeline.model is not None and start.architecture is not None:
        yield "model and pretrain.start.architecture both say what is trained: remove one of them"
    if extend and not pipeline.extension and extend.recipe.num_positions is not None:
        yield "extension is false, but extend.recipe.num_positions extends the model: remove one of them"


def _agree(value: object, own_value: object) -> bool:
    if isinstance(value, str) and isinstance(own_value, str):
        return is_same_path(value, own_value) or is_checkpoint_of(own_value, value)
    return value == own_value


def is_checkpoint_of(name: str, run: str) -> bool:
    """Returns whether a path is that of a checkpoint in this run folder, whether or not it still exists."""
    return Path(name).parent.name == "checkpoints" and is_same_path(run, Path(name).parents[1])


def _pairs(pipeline: ResolvedPipeline) -> Iterator[NamedPair]:
    """Yields a setting, and one of a stage that follows from it."""
    prepare, extend, pretrain, evaluate = pipeline.prepare, pipeline.extend, pipeline.pretrain, pipeline.evaluate
    model, revision, start = bundled_resolved(pipeline.model), pipeline.revision, pretrain.start
    name, tokenizer = "pretrain.start.tokenizer", start.tokenizer
    if model is not None:
        name, tokenizer = "model", f"{model}@{revision}" if revision else model
    yield "length", pipeline.length, "prepare.recipe.row_length", prepare.recipe.row_length
    if extend:
        yield "model", model, "extend.base", extend.base
        yield "revision", revision, "extend.revision", extend.revision
        if pipeline.extension:
            yield "length", pipeline.length, "extend.recipe.num_positions", extend.recipe.num_positions
        if extend.recipe.add_tokens is not None:
            name, tokenizer = "extend.output", extend.output
    elif start.checkpoint == model:
        yield "revision", revision, "pretrain.start.revision", start.revision
    yield name, tokenizer, "prepare.recipe.tokenizer", prepare.recipe.tokenizer
    readers = {"pretrain": pretrain.rows, "release": pipeline.release.rows}
    if evaluate:
        readers["evaluate"] = evaluate.rows
        yield "model", model, "evaluate.base", evaluate.base
        if extend and pipeline.extension:
            yield "extend.output", extend.output, "evaluate.long_before", evaluate.long_before
        yield "pretrain.run", pretrain.run, "evaluate.long_after", evaluate.long_after
        yield "pretrain.run", pretrain.run, "evaluate.run", evaluate.run
        yield "evaluate.output", evaluate.output, "release.evaluation", pipeline.release.evaluation
    yield "pretrain.run", pretrain.run, "release.model", pipeline.release.model
    for stage, rows in readers.items():
        yield "prepare.output", prepare.output, f"{stage}.rows", rows
