"""The evaluate stage: base model and long model, before and after training, on the same held-out rows."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from accelerate import Accelerator

from longmlm.artifacts.artifact import PAGE_FILE, present
from longmlm.artifacts.evaluation import EVALUATION_FILES, Evaluation, EvaluationSources
from longmlm.data.rows import folder_of_rows, open_named_rows, pin_rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.evaluation.comparison import compare, load_models
from longmlm.evaluation.frozen import FrozenRows
from longmlm.folders import replaced_folder
from longmlm.hubs.model_files import local_model_sha256, weights_sha256
from longmlm.reports.context import context_finding
from longmlm.reports.evaluation import accuracy_table, sources_table, write_evaluation
from longmlm.reports.pages import made_with
from longmlm.reports.tables import text_table
from longmlm.runtime.collectives import broadcast_from_main, local_main_first
from longmlm.runtime.launch import launch, resolved_precision
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.training.run_folder import evaluations_of, list_checkpoints, model_or_best_checkpoint


def evaluate(config: EvaluateConfig) -> None:
    """Measures the models under the same frozen masks, writes the results and prints their table."""
    output = Path(config.output)
    accelerator = launch(resolved_precision(config.recipe.precision))
    with ExitStack() as stack:  # the folder is locked before the models are loaded
        replaced = replaced_folder(output, EVALUATION_FILES)
        folder = broadcast_from_main(accelerator, lambda: stack.enter_context(replaced))
        evaluation = measured(config, accelerator)
        if accelerator.is_main_process:
            write_evaluation(evaluation, folder, made_with("evaluate", present(asdict(config))))
    if accelerator.is_main_process:
        tables = [accuracy_table(evaluation), sources_table(evaluation)]
        texts = [text_table(table) for table in tables if table.lines]
        pairs = [f"pair accuracy: {evaluation.pairs}"] if evaluation.pairs else []
        worth = [line] if (line := context_finding(evaluation)) else []
        print(*texts, *pairs, f"page: {output / PAGE_FILE}", *worth, sep="\n")


def measured(config: EvaluateConfig, accelerator: Accelerator) -> Evaluation:
    """Returns the evaluation of the models that the settings name."""
    curve = evaluations_of(Path(config.run)) if config.run else ()
    (base, *names), hashes = broadcast_from_main(accelerator, lambda: evaluated_models(config))
    rows_name = broadcast_from_main(accelerator, lambda: pin_rows(config.rows))
    local_main_first(accelerator, lambda: folder_of_rows(rows_name, ["held_out"]))
    rows = open_named_rows(rows_name, "held_out")
    models = load_models(rows, base, names)
    for note in (note for loaded in models for note in loaded.notes):
        accelerator.print(note)
    sources = EvaluationSources(
        rows=rows_name,
        rows_sha256=rows.sha256,
        base=config.base,
        base_revision=models[0].revision,
        before=config.long_before,
        before_revision=models[1].revision if config.long_before else None,
        after=config.long_after,
        **hashes,
    )
    vocabulary, held_out = vocabulary_of_pretrained(models[0].tokenizer, config.base), config.recipe.held_out
    pairs, rows_per_batch = models[-1].provenance.pairs if config.long_after else None, config.runtime.rows_per_batch
    if pairs and not rows.manifest.plan.pairs:
        accelerator.print("these rows do not record sentences: the accuracy on pairs is not measured")
        pairs = None
    masks, isolates = (held_out, vocabulary.maskable, vocabulary.special), models[-1].provenance.isolates_documents
    frozen = FrozenRows(rows, *masks, rows_per_batch, pairs, isolates)
    return compare(models, frozen, sources, curve, config.recipe, accelerator)


def evaluated_models(config: EvaluateConfig) -> tuple[list[str], dict[str, str | None]]:
    """Returns the base model and the long ones, a run as its best checkpoint, and the hashes in EvaluationSources."""
    given = (config.base, config.long_before, config.long_after)
    base, before, after = (model_or_best_checkpoint(name) if name else None for name in given)
    if after and after != config.long_after and (last := list_checkpoints(Path(after).parents[1])[-1]) != Path(after):
        print(f"long_after is {after}, the best intact checkpoint of the run; the last one is {last.name}")
    hashes = {
        "base_sha256": local_model_sha256(base) or None,
        "before_sha256": weights_sha256(before) if before and Path(before).is_dir() else None,
        "after_sha256": weights_sha256(after) if after else None,
    }
    return [name for name in (base, before, after) if name], hashes
