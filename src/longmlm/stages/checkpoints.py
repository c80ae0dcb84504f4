"""The checkpoints stage: lists or verifies a run's checkpoints, or exports one of them."""

from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.errors import CheckpointError
from longmlm.folders import new_folder
from longmlm.reports.checkpoints import checkpoint_table
from longmlm.reports.tables import text_table
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.training.run_folder import best_checkpoint, checkpoint_folder, verify_checkpoint


def checkpoints(config: CheckpointsConfig) -> None:
    """Prints a line for each checkpoint; raises CheckpointError when one is damaged or cannot be exported."""
    if config.action == "export":
        export_checkpoint(config)
        return
    table, problems = checkpoint_table(Path(config.run), is_verified=config.action == "verify")
    print(text_table(table))
    if problems:
        raise CheckpointError(f"{len(problems)} of {len(table.lines)} checkpoints are damaged: {'; '.join(problems)}")


def export_checkpoint(config: CheckpointsConfig) -> None:
    """Writes the weights of one checkpoint, the best where none is named, as a folder that transformers loads."""
    # these import torch, which a list does without
    from longmlm.model.loading import load_model
    from longmlm.release.export import export

    run, output = Path(config.run), Path(str(config.output))
    source = best_checkpoint(run) if config.step is None else checkpoint_folder(run, config.step)
    verify_checkpoint(source)
    with new_folder(output) as partial:
        loaded = load_model(str(source))
        export(loaded, "fp32", partial)
        artifact.write(partial / Provenance.FILE, loaded.provenance)
    print(f"exported {source.name} to {output}, without proof and card: the release stage makes both")
