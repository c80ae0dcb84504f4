"""A checkpoint of a run, as far as a release reads it."""

import json
import shutil
from functools import cache
from pathlib import Path

from longmlm.artifacts.artifact import write
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.folders import new_folder
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.run_folder import checkpoint_folder
from tests.support.tiny import LONG_POSITIONS, World, accuracy_of, measured_on

BASE_CUT = 1.0


def checkpoint(run: Path, step: int, world: World, accuracy: float | None) -> Path:
    """Writes a checkpoint with the trained model, by whose accuracy a run chooses its best.

    Unless that is below the base model's, its longmlm.json records the accuracy that the model really has.
    """
    folder = checkpoint_folder(run, step)
    about = json.loads((world.trained / "longmlm.json").read_text())
    recorded = reached(world) if accuracy and accuracy >= BASE_CUT else accuracy
    trained = {"row_length": LONG_POSITIONS, "steps": step, "tokens": 100 * step, "accuracy": recorded}
    measured = measured_on(world.rows)
    state = TrainState(
        step=step, accuracy=accuracy, evaluated_at_step=step, base_cut=BASE_CUT, training_seconds=7_200.0
    )
    recipe = PretrainRecipe(num_steps=100, batch_tokens=100, learning_rate=1e-4)
    saved = CheckpointState(state=state, recipe=recipe, rows_sha256=measured["rows_sha256"], precision="no")
    with new_folder(folder) as partial:
        for name in ("optimizer.pt", "rng-00000.pt"):
            (partial / name).touch()
        for path in world.trained.iterdir():
            shutil.copy(path, partial)
        (partial / "longmlm.json").write_text(json.dumps({**about, "trained": {**trained, **measured}}))
        write(partial / CheckpointState.FILE, saved)
        (partial / "settings.toml").write_text(
            "[recipe]\nlearning_rate = 1e-4\n[recipe.masking]\nselected_fraction = 0.2\n"
        )
    return folder


@cache
def reached(world: World) -> float:
    """Returns the held-out accuracy of the trained model, in percent."""
    return accuracy_of(world.trained, world.rows)
