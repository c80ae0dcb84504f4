"""A run's checkpoints: listed, verified, one of them exported."""

from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.errors import CheckpointError
from longmlm.folders import new_folder
from longmlm.model.loading import load_model
from longmlm.release.export import export
from longmlm.reports.checkpoints import list_checkpoints
from longmlm.reports.tables import text_table
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.training import checkpoint


def checkpoints(config: CheckpointsConfig) -> None:
    """Prints a line for each checkpoint; raises CheckpointError when one does not verify, or cannot be exported."""
    run = Path(config.run)
    if config.action == "export":
        export_checkpoint(config)
        return
    table, problems = list_checkpoints(run, is_verified=config.action == "verify")
    print(text_table(table))
    if problems:
        raise CheckpointError(f"{len(problems)} of {len(table.lines)} checkpoints are unsound: {'; '.join(problems)}")


def export_checkpoint(config: CheckpointsConfig) -> None:
    """Writes the weights of one checkpoint, the best where none is named, as a folder that transformers loads."""
    run, output = Path(config.run), Path(str(config.output))
    source = checkpoint.best(run) if config.step is None else checkpoint.folder_of(run, config.step)
    checkpoint.check_sound(source)
    with new_folder(output) as partial:
        loaded = load_model(str(source))
        export(loaded, "fp32", partial)
        artifact.write(partial / Provenance.FILE, loaded.provenance)
    print(f"exported {source.name} to {output}: unproved and without a card; pipelines.release makes both")
