"""A checkpoint of a run: the parts that a release reads."""

import json
import shutil
from functools import cache
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.folders import new_folder
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.run_folder import checkpoint_folder
from tests.support.tiny import LONG_POSITIONS, World, accuracy_of, measured_on

BASE_CUT = 1.0


def checkpoint(run: Path, step: int, world: World, accuracy: float | None) -> Path:
    """Writes a checkpoint with the trained model, whose state.json holds the given accuracy.

    Unless that is below the base model's, longmlm.json records the accuracy that the model really has.
    """
    folder, measured = checkpoint_folder(run, step), measured_on(world.rows)
    recorded = actual_accuracy(world) if accuracy and accuracy >= BASE_CUT else accuracy
    provenance = artifact.dump(read_provenance(world.trained))
    provenance["trained"] |= {"row_length": LONG_POSITIONS, "steps": step, "tokens": 100 * step, "accuracy": recorded}
    provenance["trained"] |= measured
    state = TrainState(
        step=step, accuracy=accuracy, evaluated_at_step=step, base_cut=BASE_CUT, training_seconds=7_200.0
    )
    recipe = PretrainRecipe(num_steps=100, batch_tokens=100, learning_rate=1e-4)
    saved = CheckpointState(state=state, recipe=recipe, rows_sha256=measured["rows_sha256"], precision="no")
    with new_folder(folder) as partial:
        for name in ("optimizer.pt", "rng-00000.pt", "settings.toml"):
            (partial / name).touch()
        for path in world.trained.iterdir():
            shutil.copy(path, partial)
        (partial / Provenance.FILE).write_text(json.dumps(provenance))
        artifact.write(partial / CheckpointState.FILE, saved)
    return folder


@cache
def actual_accuracy(world: World) -> float:
    """Returns the held-out accuracy of the trained model, in percent."""
    return accuracy_of(world.trained, world.rows)
