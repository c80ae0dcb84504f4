"""What the results of a pipeline's stages take on disk, and whether so much is free. Imports no torch."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from longmlm.artifacts.run import SAVED_BYTES
from longmlm.data.rows import token_bytes
from longmlm.errors import FolderError
from longmlm.folders import GB, bytes_in, free_bytes
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.results import result_of

WEIGHT_BYTES = 4  # of a parameter in fp32
DISTILLED_BYTES = 12  # of a parameter: half of them with two moments each, and a second copy while they are saved
RELEASED_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
REMEDY = "free some space, lower pretrain.runtime.checkpoints_kept, or name an output on another disk"
ONNX_BYTES = 10  # of a parameter: encoder and MLM model, each in fp32 and int8


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the sizes of results follow from; `num_tokens` are those of the corpus, 0 if they are not known."""

    num_parameters: int
    vocabulary_size: int
    num_tokens: int


def result_bytes(config: ResolvedPipeline, sizes: Sizes) -> dict[str, float]:
    """Returns the bytes of the result of each stage that writes weights or rows."""
    release, pretrain = config.release.recipe, config.pretrain
    per_parameter = {
        "extend": (WEIGHT_BYTES + DISTILLED_BYTES * (config.extend.rows is not None)) if config.extend else 0,
        "pretrain": SAVED_BYTES * pretrain.runtime.num_checkpoints(pretrain.recipe.num_steps),
        "release": RELEASED_BYTES[release.weights] + ONNX_BYTES * release.onnx,
    }
    found = {name: float(sizes.num_parameters * size) for name, size in per_parameter.items()}
    return {"prepare": float(sizes.num_tokens * token_bytes(sizes.vocabulary_size)), **found}


def check_disk(config: ResolvedPipeline, stages: Collection[str], sizes: Sizes) -> None:
    """Raises FolderError if the results that these stages are to make take more than is free; see `shortage`."""
    if problem := shortage(config, stages, sizes):
        raise FolderError(f"{problem}: {REMEDY}")


def shortage(config: ResolvedPipeline, stages: Collection[str], sizes: Sizes) -> str:
    """Returns how much the results of these stages take, and how much is free, if that is less; else nothing.

    What an interrupted stage has written counts as taken already.
    """
    disks: dict[int, tuple[Path, dict[str, float]]] = {}
    for name, num_bytes in result_bytes(config, sizes).items():
        if name in stages and name in config.stages:
            folder = result_of(config.stages[name])
            existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
            _, needs = disks.setdefault(existing.stat().st_dev, (folder, {}))
            needs[name] = max(0.0, num_bytes - bytes_in(folder))
    for folder, needs in disks.values():
        needed, free = sum(needs.values()) / GB, free_bytes(folder) / GB
        if needed > free:
            parts = ", ".join(f"{name} {num_bytes / GB:.2f}" for name, num_bytes in needs.items() if num_bytes)
            return f"the results in {folder.parent} need about {needed:.2f} GB more ({parts}), {free:.2f} GB are free"
    return ""
