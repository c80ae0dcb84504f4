"""What a release needs, checked before torch is imported."""

from importlib.util import find_spec
from pathlib import Path

from longmlm.artifacts.downstream import DownstreamTrial
from longmlm.errors import ReleaseError
from longmlm.settings.release import ReleaseConfig, ReleaseRecipe

ONNX_PACKAGES = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")


def check_onnx_installed() -> None:
    """Raises ReleaseError unless the packages that write and run ONNX are installed."""
    if missing := [name for name in ONNX_PACKAGES if not find_spec(name)]:
        raise ReleaseError(
            f"recipe.onnx = true needs {missing[0]}, which is not installed: pip install 'longmlm[onnx]'"
        )


def sentences_note(recipe: ReleaseRecipe) -> str:
    """Returns a note if the sentence-transformers model of a release cannot be run here; else an empty text."""
    if recipe.sentence_transformer is None or find_spec("sentence_transformers"):
        return ""
    return (
        f"recipe.sentence_transformer = {recipe.sentence_transformer}: sentence-transformers is not installed, so the "
        "release is written without running the code for it on its card: pip install 'longmlm[sentence-transformers]'"
    )


def trial_folder(name: str) -> Path | None:
    """Returns the downstream trial that a name means, its folder or its model's; None for anything else."""
    candidates = (Path(name), Path(name).parent)
    return next((folder for folder in candidates if (folder / DownstreamTrial.FILE).is_file()), None)


def check_has_rows(config: ReleaseConfig) -> str:
    """Returns the rows that a masked language model is released with; raises ReleaseError if none are named."""
    if config.rows is None:
        raise ReleaseError("rows is missing: name the folder of rows that the model was trained on")
    return config.rows
