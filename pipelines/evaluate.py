"""Models and held-out rows to accuracies, a picture and a page."""

from functools import partial
from pathlib import Path
from typing import Any

from longmlm.config import run_stage
from longmlm.evaluation.config import EvaluateConfig


def evaluate(config: EvaluateConfig) -> None:
    """Measures the models on the same frozen masks, writes the results and prints their table."""
    from longmlm.data.rows import open_rows
    from longmlm.data.vocabulary import vocabulary_of_pretrained
    from longmlm.evaluation.held_out import FrozenRows, Measured, cut, measure, whole, windows
    from longmlm.evaluation.report import as_json, cells, write_evaluation
    from longmlm.model.architecture import architecture_of
    from longmlm.model.batches import refuse_unreadable
    from longmlm.model.loading import load_model
    from longmlm.model.mlm import MlmObjective
    from longmlm.pages import text_table
    from longmlm.runtime import launch
    from longmlm.training.checkpoint import model_folder

    curve = curve_of(config.run)
    before, after = model_folder(config.long_before), config.long_after and model_folder(config.long_after)
    rows = open_rows(Path(config.rows), "held_out")
    sources = sources_of(config, after)
    accelerator = launch(config.precision)
    base = load_model(config.base)
    vocabulary = vocabulary_of_pretrained(base.tokenizer, config.base)
    num_positions = architecture_of(base.model).num_positions
    refuse_unreadable(rows, vocabulary)
    frozen = FrozenRows(rows, config.held_out, vocabulary.maskable, vocabulary.special)
    shorter = {"num_positions": num_positions, "special": vocabulary.special}
    views = {"cut": partial(cut, **shorter), "windows": partial(windows, **shorter), "whole": whole}

    measured: dict[str, Measured] = {}
    wanted = [
        (config.base, {"base_cut": "cut", "base_windows": "windows"}),
        (before, {"long_before": "whole"}),
        *([(after, {"long_after": "whole", "long_after_cut": "cut"})] if after else []),
    ]
    for name, named_views in wanted:
        loaded = base if name == config.base else load_model(str(name))
        if "whole" in named_views.values():
            refuse_unreadable(rows, vocabulary_of_pretrained(loaded.tokenizer, str(name)), loaded.model)
        if loaded.notes and accelerator.is_main_process:
            print("\n".join(loaded.notes))
        objective = MlmObjective(loaded.model.to(accelerator.device))
        for result, view in named_views.items():
            measured[result] = measure(objective, frozen, views[view], num_positions, accelerator, result)
    if accelerator.is_main_process:
        evaluation = as_json(measured, frozen, num_positions, sources, curve)
        write_evaluation(evaluation, Path(config.output))
        print(text_table(cells(evaluation)))
        print(f"page: {Path(config.output) / 'index.html'}")


def sources_of(config: EvaluateConfig, after: str | Path | None) -> dict[str, str]:
    """Returns where rows and models lie, with hashes by which a release knows that it is about them."""
    from longmlm.folders import MANIFEST, sha256_of
    from longmlm.model.loading import weights_sha256

    sources = {"rows": config.rows, "base": config.base, "before": config.long_before}
    sources["rows_sha256"] = sha256_of(Path(config.rows) / MANIFEST)
    return sources | ({"after": str(config.long_after), "after_sha256": weights_sha256(after)} if after else {})


def curve_of(run: str | None) -> list[dict[str, Any]]:
    """Returns the evaluations that a run wrote down; raises CheckpointError when the folder holds none."""
    from longmlm.errors import CheckpointError
    from longmlm.training import tracking

    if run is None:
        return []
    curve = [line for line in tracking.read(Path(run)) if "held_out" in line]
    if not curve:
        raise CheckpointError(f"{run} holds no evaluations of a run: name the folder that pretrain.py wrote")
    return curve


def main() -> None:
    """Runs the stage from the command line."""
    run_stage(EvaluateConfig, evaluate)


if __name__ == "__main__":
    main()
