"""A checkpoint of a run, as far as a release reads it."""

import json
import shutil
from dataclasses import asdict
from functools import cache
from pathlib import Path

from longmlm.folders import new_folder
from longmlm.settings.held_out import HeldOut
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import PretrainRecipe
from tests.support.tiny import LONG_POSITIONS, World, accuracy_of, measured_on

BASE_CUT = 1.0
RECIPE = PretrainRecipe(num_steps=99, batch_tokens=100, learning_rate=1e-4, masking=Masking(selected_fraction=0.2))
DEPENDS_ON = {
    "recipe": {key: value for key, value in asdict(RECIPE).items() if key != "held_out"},
    "held_out": asdict(HeldOut()),
    "rows": {"sha256": "0" * 64},
}


def checkpoint(run: Path, step: int, world: World, accuracy: float | None) -> Path:
    """Writes a checkpoint with the trained model, by whose accuracy a run chooses its best.

    Unless that is below the base model's, its longmlm.json reports the accuracy that the model reaches.
    """
    folder = run / "checkpoints" / f"step-{step:08d}"
    provenance = json.loads((world.trained / "longmlm.json").read_text())
    reported = reached(world) if accuracy and accuracy >= BASE_CUT else accuracy
    trained = {"row_length": LONG_POSITIONS, "steps": step, "tokens": 100 * step, "accuracy": reported}
    state = {"step": step, "accuracy": accuracy, "evaluated_at_step": step, "base_cut": BASE_CUT}
    with new_folder(folder) as partial:
        for name in ("optimizer.pt", "rng-00000.pt", "settings.toml"):
            (partial / name).touch()
        for path in world.trained.iterdir():
            shutil.copy(path, partial)
        (partial / "longmlm.json").write_text(
            json.dumps({**provenance, "trained": {**trained, **measured_on(world.rows)}})
        )
        (partial / "state.json").write_text(
            json.dumps({"state": {**state, "training_seconds": 7_200.0}, "depends_on": DEPENDS_ON})
        )
    return folder


@cache
def reached(world: World) -> float:
    """Returns the held-out accuracy of the trained model, in percent."""
    return accuracy_of(world.trained, world.rows)
