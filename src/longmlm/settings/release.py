"""Settings of the release stage: the export, its model card, and where it is published."""

import re
from dataclasses import dataclass, field
from typing import Literal

from longmlm.settings.publishing import Publishing

LEAST_POSITIONS = 8
SIZE = re.compile(r"[1-9]\d*(KB|MB|GB)")
WeightType = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecipe:
    """What is exported. A change gives another release."""

    __pydantic_config__ = {"extra": "forbid"}

    num_positions: int | None = None
    """Positions of the released model; absent for those trained. Only generated positions allow another number."""
    weights: WeightType = "fp32"
    """Data type of the stored weights."""
    max_shard_size: str | None = None
    """Largest size of a weights file, such as 5GB; absent for a single file, unless it exceeds 50 GB."""
    onnx: bool = False
    """Whether model.onnx is written as well, in fp32; needs the extra onnx."""
    allow_unrecovered: bool = False
    """Whether a long model may be released whose accuracy is below its base model's; the card then says so."""

    def __post_init__(self) -> None:
        if self.num_positions is not None and self.num_positions < LEAST_POSITIONS:
            raise ValueError(f"num_positions must be at least {LEAST_POSITIONS}")
        if self.max_shard_size is not None and not SIZE.fullmatch(self.max_shard_size):
            raise ValueError(f"max_shard_size is no size such as 500MB or 5GB: {self.max_shard_size!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCard:
    """What the model card says in addition to the measurements."""

    __pydantic_config__ = {"extra": "forbid"}

    title: str
    """Title of the card."""
    license: str | None = None
    """Licence of the weights: an identifier known to hubs, such as apache-2.0; absent for that of the base model."""
    description: str = ""
    """A paragraph about the model."""
    languages: tuple[str, ...] = ("en",)
    """ISO 639-1 codes of the text."""
    data: tuple[str, ...] = ()
    """One line per corpus, with its licence; absent for the names of the sources of the rows."""
    hardware: str = ""
    """What the model was trained on, such as one H200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseConfig(Publishing):
    """Exports a trained model to a folder that plain transformers loads, verified, with a model card."""

    __pydantic_config__ = {"extra": "forbid"}

    model: str
    """Run folder, whose best checkpoint is used, or a checkpoint."""
    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION] on the hub: for the comparison of logits and the card."""
    output: str
    """Folder to write."""
    card: ReleaseCard
    """What the card says."""
    evaluation: str | None = None
    """Folder that the evaluate stage wrote for this model; required for a long model."""
    recipe: ReleaseRecipe = field(default_factory=ReleaseRecipe)
    """What is exported."""
    pull_request: bool = False
    """Whether to open a pull request, or update the open one of this title, instead of writing to a branch."""
    checkpoints: bool = False
    """Whether the checkpoints of the run `model` are published too, each as the branch step-N (on ms: as a tag)."""
    follow: str | None = None
    """Folder of a run in training: instead of a release, each new best checkpoint is published until the run ends."""

    def __post_init__(self) -> None:
        Publishing.__post_init__(self)
        if self.publish is None and (self.follow or self.checkpoints):
            raise ValueError("follow and checkpoints need publish")
        if self.follow and (self.checkpoints or self.tag or self.pull_request):
            raise ValueError("follow publishes to a branch: leave checkpoints, tag and pull_request out")
        if self.pull_request and self.hub_scheme is None:
            raise ValueError("pull_request needs publish on a hub")
        if self.pull_request and self.revision:
            raise ValueError("a pull request is opened against the default branch: leave revision out")
        if self.pull_request and self.hub_scheme == "ms":
            raise ValueError("ModelScope takes no pull requests from a client: set tag instead")
