"""Settings of the predict command: the models, the text, the word to mask and the number of tokens to show."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from longmlm.settings.pipeline import PipelineReader, ResolvedPipeline
from longmlm.settings.results import result_of
from longmlm.settings.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictConfig(PipelineReader):
    """Prints the likeliest tokens at the masks of a text, as predicted by one model or by several side by side.

    For example: longmlm predict out/mine/release "She put the letter in her [MASK]." If a pipeline
    file is named in place of models, they are its base model and its trained model.
    """

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("model", "text")

    model: tuple[str, ...] = ()
    """Models, each a folder, a name on the hub or a run folder, whose best checkpoint is used. On the command
    line, the last argument without an option name is the text, and those before it are models."""
    text: str = ""
    """Text with [MASK] or <mask> in place of each token to predict, for any model; or the path of a text file."""
    mask: str | None = None
    """Word of the text to mask. All of its tokens are masked, and each has its own table. It must be a whole word,
    except in scripts without spaces."""
    occurrence: Annotated[int, Ge(1)] = 1
    """Which occurrence of the word in `mask` to mask, counted from 1. The others stay visible."""
    top_k: Annotated[int, Ge(1)] = 5
    """How many of the likeliest tokens to show at each mask."""

    def __post_init__(self) -> None:
        if not self.model or not self.text.strip():
            missing = "a text" if self.model else "a model and a text"
            raise ValueError(f'name {missing}, as in: longmlm predict MODEL "She put it in her [MASK]."')
        if len(set(self.model)) < len(self.model):
            raise ValueError("model names one model twice: name each once")
        if self.mask is not None and not self.mask.strip():
            raise ValueError("mask must be a word of the text")
        if self.mask is None and self.occurrence != 1:
            raise ValueError("occurrence has no effect without mask: remove it")

    @staticmethod
    def of_pipeline(pipeline: ResolvedPipeline, own: Table) -> dict[str, Any]:
        """Returns the models of a pipeline: the base model, if there is one, and the run of the trained one."""
        if own.get("model"):
            return {}
        return {"model": [*([pipeline.model] if pipeline.model else []), str(result_of(pipeline.pretrain))]}
