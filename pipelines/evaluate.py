"""Models and held-out rows to accuracies, a picture and a page."""

from functools import partial
from pathlib import Path

from longmlm.config import run_stage
from longmlm.evaluation.config import EvaluateConfig


def evaluate(config: EvaluateConfig) -> None:
    """Measures the models on the same frozen masks, writes the results and prints their table."""
    from longmlm.data.rows import open_rows
    from longmlm.data.vocabulary import vocabulary_of
    from longmlm.evaluation.held_out import FrozenRows, Measured, cut, measure, whole, windows
    from longmlm.evaluation.report import as_json, cells, write_evaluation
    from longmlm.model.architecture import architecture_of
    from longmlm.model.batches import refuse_unreadable
    from longmlm.model.loading import load_model, weights_sha256
    from longmlm.model.mlm import MlmObjective
    from longmlm.pages import text_table
    from longmlm.runtime import launch
    from longmlm.training import tracking
    from longmlm.training.checkpoint import model_folder

    accelerator = launch(config.precision)
    rows = open_rows(Path(config.rows), "held_out")
    base = load_model(config.base)
    vocabulary = vocabulary_of(base.tokenizer.backend_tokenizer, config.base)
    num_positions = architecture_of(base.model).num_positions
    refuse_unreadable(rows, vocabulary)
    frozen = FrozenRows(rows, config.held_out, vocabulary.maskable, vocabulary.special)
    shorter = {"num_positions": num_positions, "special": vocabulary.special}
    views = {"cut": partial(cut, **shorter), "windows": partial(windows, **shorter), "whole": whole}

    measured: dict[str, Measured] = {}
    wanted = {
        "base": (config.base, {"base_cut": "cut", "base_windows": "windows"}),
        "before": (config.long_before, {"long_before": "whole"}),
        "after": (config.long_after, {"long_after": "whole", "long_after_cut": "cut"}),
    }
    for name, named_views in wanted.values():
        if name is None:
            continue
        loaded = base if name == config.base else load_model(str(model_folder(name)))
        if loaded is not base:
            refuse_unreadable(rows, vocabulary_of(loaded.tokenizer.backend_tokenizer, name), loaded.model)
        objective = MlmObjective(loaded.model.to(accelerator.device))
        for result, view in named_views.items():
            measured[result] = measure(objective, frozen, views[view], num_positions, accelerator, result)
    curve = [line for line in tracking.read(Path(config.run)) if "held_out" in line] if config.run else []
    sources = {"rows": config.rows, **{key: name for key, (name, _) in wanted.items() if name is not None}}
    if config.long_after is not None:
        sources["after_sha256"] = weights_sha256(model_folder(config.long_after))
    if accelerator.is_main_process:
        evaluation = as_json(measured, frozen, num_positions, sources, curve)
        write_evaluation(evaluation, Path(config.output))
        print(text_table(cells(evaluation)))
        print(f"page: {Path(config.output) / 'index.html'}")


def main() -> None:
    """Runs the stage from the command line."""
    run_stage(EvaluateConfig, evaluate)


if __name__ == "__main__":
    main()
