"""What is released, and what its card says: the settings of the release stage."""

import re
from dataclasses import dataclass
from typing import Literal

LEAST_POSITIONS = 8
PLACES = ("model", "rows", "output", "evaluation")
PUBLISHING = ("publish", "public", "revision", "tag", "pull_request", "checkpoints", "follow")
HUBS = ("hf", "ms")
TARGET = re.compile(r"(hf|ms):[\w.-]+/[\w.-]+|folder:.+|[a-z][a-z0-9+]*://.+")
SIZE = re.compile(r"[1-9]\d*(KB|MB|GB)")
WeightType = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseConfig:
    """A trained model to a folder that plain transformers loads, verified, with a model card."""

    __pydantic_config__ = {"extra": "forbid"}

    model: str
    """Run folder, whose best checkpoint is taken, or a checkpoint."""
    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION] of the hub: for the comparison of logits and the card."""
    output: str
    """Folder to write."""
    title: str
    """Title of the model card."""
    license: str | None = None
    """Licence of the weights, an identifier as hubs use it, such as apache-2.0; absent for that of the base model."""
    evaluation: str | None = None
    """Folder that pipelines.evaluate wrote for this model; needed for a long model."""
    description: str = ""
    """A paragraph for the card."""
    languages: tuple[str, ...] = ("en",)
    """ISO 639-1 codes of the text."""
    data: tuple[str, ...] = ()
    """A line for each corpus, with its licence; absent for the names of the sources that the rows were made of."""
    hardware: str = ""
    """What the model was trained on, for the card, such as one H200."""
    num_positions: int | None = None
    """Positions of the released model; absent for as many as were trained. Only generated positions can have others."""
    weights: WeightType = "fp32"
    """Type of the stored weights."""
    max_shard_size: str | None = None
    """Size that a file of weights may have, such as 5GB; absent for a single file, unless it passes 50 GB."""
    onnx: bool = False
    """Whether model.onnx is written as well, in fp32; needs the extra onnx."""
    allow_unrecovered: bool = False
    """Whether a long model may be released that tells fewer tokens than its base; the card then says so."""
    publish: str | None = None
    """Where to publish it: hf:OWNER/NAME, ms:OWNER/NAME (ModelScope), folder:PATH, or a URL for fsspec: s3://bucket/name."""
    public: bool = False
    """Whether anybody may see a repository that is made for it; without, one that is public already is refused."""
    revision: str | None = None
    """Branch of the repository, made where it lacks; absent for its default one."""
    tag: str | None = None
    """Tag to set on what was published."""
    pull_request: bool = False
    """Whether to open a pull request, or to go on with the open one of this title, instead of writing to a branch."""
    checkpoints: bool = False
    """Whether the checkpoints of the run `model` are published too, each as the branch step-N, with ms as a tag."""
    follow: str | None = None
    """Folder of a run in training: instead of a release, each new best checkpoint is published until the run ends."""

    def __post_init__(self) -> None:
        if self.num_positions is not None and self.num_positions < LEAST_POSITIONS:
            raise ValueError(f"num_positions must be at least {LEAST_POSITIONS}")
        if self.max_shard_size is not None and not SIZE.fullmatch(self.max_shard_size):
            raise ValueError(f"max_shard_size is no size such as 500MB or 5GB: {self.max_shard_size!r}")
        if self.publish is not None and not TARGET.fullmatch(self.publish):
            raise ValueError(f"publish is no hf:OWNER/NAME, ms:OWNER/NAME, folder:PATH or URL: {self.publish!r}")
        if self.publish is None and (self.follow or self.checkpoints or self.public):
            raise ValueError("follow, checkpoints and public need publish")
        if self.follow and (self.checkpoints or self.tag or self.pull_request):
            raise ValueError("follow publishes to a branch: leave checkpoints, tag and pull_request out")
        if self.hub is None and (self.revision or self.tag or self.pull_request):
            raise ValueError("revision, tag and pull_request need publish on a hub")
        if self.pull_request and self.revision:
            raise ValueError("a pull request is opened against the default branch: leave revision out")
        if (self.publish or "").startswith("ms:") and (self.pull_request or self.revision):
            raise ValueError("ModelScope takes neither pull requests nor new branches from a client: set tag instead")

    @property
    def hub(self) -> str | None:
        """OWNER/NAME where publish names the hub."""
        scheme, _, name = (self.publish or "").partition(":")
        return name if scheme in HUBS else None
