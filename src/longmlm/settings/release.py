"""Settings of the release stage: the exported model, its model card, and where it is published."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from longmlm.settings.publishing import Publishing

SIZE = re.compile(r"[1-9]\d*(KB|MB|GB)")
WeightType = Literal["fp32", "bf16", "fp16"]
SentencePooling = Literal["mean", "cls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecipe:
    """What is exported; changing it makes a different release."""

    num_positions: Annotated[int, Ge(8)] | None = None
    """Positions of the released model, by default those trained; only generated positions allow a different number."""
    weights: WeightType = "fp32"
    """Data type of the stored weights."""
    max_shard_size: str | None = None
    """Maximum size of a weights file, such as 5GB; by default weights are split above 50 GB."""
    onnx: bool = False
    """Also write the encoder and the MLM model as ONNX files, in fp32 and int8; needs the extra onnx."""
    sentence_transformer: SentencePooling | None = None
    """Also write the files of a sentence-transformers model with mean pooling, or cls pooling (the first token);
    by default neither."""
    allow_unrecovered: bool = False
    """Release a long model even if it has not recovered (documentation: The method); the card then says so."""
    allow_worse_short_texts: bool = False
    """Release a long model even if it lost accuracy on short texts, beyond two standard errors; the card says so."""

    def __post_init__(self) -> None:
        if self.max_shard_size is not None and not SIZE.fullmatch(self.max_shard_size):
            raise ValueError(f"max_shard_size must be a size such as 500MB or 5GB, not {self.max_shard_size!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCard:
    """What the model card says in addition to the measured results."""

    title: str
    """Title of the card."""
    license: str | None = None
    """Licence of the weights, as an identifier known to hubs, such as apache-2.0; by default the base model's. Only
    a hub needs one: the card of a release that has none says so."""
    description: str = ""
    """A paragraph about the model."""
    languages: tuple[str, ...] = ()
    """ISO 639-1 codes of the languages of the text; by default those of the rows, and none for a fine-tuned model."""
    data: tuple[str, ...] = ()
    """One line per corpus, with its licence; by default the names of the sources of the rows."""
    hardware: str = ""
    """Hardware that the model was trained on, such as one H200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseConfig(Publishing):
    """Exports a trained model, with a model card, to a folder that plain transformers loads, and verifies it."""

    model: str
    """Run folder, whose best checkpoint is used, or one of its checkpoints; or the folder of a downstream trial."""
    rows: str | None = None
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION], used to compare logits and for the card; required for a
    masked language model."""
    output: str
    """Folder for the release."""
    card: ReleaseCard
    evaluation: str | None = None
    """Output of the evaluate stage for this model; required for a long model."""
    recipe: ReleaseRecipe = field(default_factory=ReleaseRecipe)
