"""The evaluate stage: base model and long model, before and after training, on the same held-out rows."""

from pathlib import Path

from longmlm.artifacts.evaluation import EvaluationSources
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.config import to_toml
from longmlm.data.rows import folder_of_rows, open_named_rows, pin_rows
from longmlm.errors import CheckpointError
from longmlm.evaluation.comparison import compare, load_models
from longmlm.evaluation.frozen import FrozenRows
from longmlm.model.loading import weights_sha256
from longmlm.reports.evaluation import accuracy_table, check_output, write_evaluation
from longmlm.reports.pages import PAGE_FILE
from longmlm.reports.tables import text_table
from longmlm.runtime.collectives import broadcast_from_main, local_main_first
from longmlm.runtime.launch import launch
from longmlm.runtime.precision import resolved_precision
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.training.run_folder import model_folder


def evaluate(config: EvaluateConfig) -> None:
    """Measures the models under the same frozen masks, writes the results and prints their table."""
    output = Path(config.output)
    check_output(output)
    curve = recovery_curve(Path(config.run)) if config.run else ()
    before, after = model_folder(config.long_before), config.long_after and model_folder(config.long_after)
    after_sha256 = weights_sha256(after) if after else None
    precision = resolved_precision(config.recipe.precision)
    accelerator = launch()
    rows_name = broadcast_from_main(accelerator, lambda: pin_rows(config.rows))
    local_main_first(accelerator, lambda: folder_of_rows(rows_name, ["held_out"]))
    rows = open_named_rows(rows_name, "held_out")
    models = load_models(rows, config.base, [name for name in (before, after) if name])
    for note in models.notes:
        accelerator.print(note)
    sources = EvaluationSources(
        rows=rows_name,
        rows_sha256=rows.sha256,
        base=config.base,
        base_revision=models.base.revision,
        before=config.long_before,
        before_revision=models.long[0].revision,
        after=config.long_after,
        after_sha256=after_sha256,
    )
    vocabulary, batch = models.vocabulary, config.runtime.rows_per_batch
    frozen = FrozenRows(rows, config.recipe.held_out, vocabulary.maskable, vocabulary.special, batch)
    evaluation = compare(models, frozen, sources, curve, precision, accelerator)
    if accelerator.is_main_process:
        write_evaluation(evaluation, output, f"# longmlm evaluate settings.toml\n{to_toml(config)}")
        print(text_table(accuracy_table(evaluation)))
        print(f"page: {output / PAGE_FILE}")


def recovery_curve(run: Path) -> tuple[EvaluationMetrics, ...]:
    """Returns the evaluations of a run without their examples; raises CheckpointError when there are none."""
    curve = MetricsFile(run).evaluations()
    if not curve:
        raise CheckpointError(f"{run} holds no evaluations of a run: name the folder that pretrain.py wrote")
    return curve
