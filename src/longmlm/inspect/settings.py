"""Settings of the inspect command: which rows are shown, under which masks, and whose predictions."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Interval, MinLen

from longmlm.settings.masking import HeldOut, Masking, PairKind, Seed, pair_kind
from longmlm.settings.pipeline import PipelineReader, ResolvedPipeline
from longmlm.settings.pretrain import PretrainRecipe, Weight
from longmlm.settings.tables import Table, Unused

RowView = Literal["whole", "cut", "chunks"]
Index = Annotated[int, Interval(ge=0, lt=2**63)]


def masks_of(recipe: PretrainRecipe, held_out: HeldOut, split: str) -> dict[str, Any]:
    """Returns the seed and the settings of the masks and pairs that a split has in training, or in evaluation."""
    if split == "held_out":
        return {"seed": held_out.mask_seed, "masking": held_out.masking}
    own = {"seed": recipe.seed, "masking": recipe.masking, "weights": recipe.weights}
    return own | {"pairs": pair_kind(recipe.pairs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig(PipelineReader):
    """Shows rows as a person reads them: their text, documents and masks, and what models predict at the masks.

    It prints them, or writes a page.
    """

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("rows",)

    rows: str
    """Folder of packed rows, hf:OWNER/NAME[@REVISION], or a run folder, for the rows and the masks of that run."""
    split: Literal["train", "held_out"] = "train"
    """Split to show rows of."""
    row: tuple[Index, ...] = ()
    """Numbers of the rows to show, counted from 0; by default the first ones of the split."""
    find: str | None = None
    """Show rows whose text contains this, ignoring case; all rows of the split are read."""
    max_rows: Annotated[int, Ge(1)] = 3
    """How many rows to show at most, unless `row` names them."""
    epochs: Annotated[tuple[Index, ...], MinLen(1)] = (0,)
    """Epochs whose masks to show, on a page side by side: 0 is the first time that the run reads a row."""
    views: Annotated[tuple[RowView, ...], MinLen(1)] = ("whole",)
    """What evaluation gives models of a held-out row: all of it, its start cut to the base model's length, or all of it
    in chunks of that length."""
    base: str | None = None
    """Base model whose number of positions is the length of a cut row and of a chunk; only its config.json is read."""
    model: tuple[str, ...] = ()
    """Models whose predictions to show, such as the ones before and after training; of a run folder, the best
    checkpoint is used."""
    num_guesses: Annotated[int, Ge(1)] = 3
    """How many of the likeliest tokens to show at each selected position."""
    tokenizer: str | None = None
    """Tokenizer of the rows, if it no longer lies where it was when they were prepared."""
    seed: Seed | None = None
    """Seed of the masks; by default 42, as in training, or for held-out rows 1789, as in evaluation. A pipeline file
    or a run folder gives its own."""
    masking: Masking | None = None
    pairs: PairKind | None = None
    """Kind of the pairs of segments that training draws from the rows in each epoch, if it does. A pipeline file or a
    run folder gives its own."""
    run: str | None = None
    """Run folder whose checkpoints record at which epoch the run began; without it or a checkpoint, `start` decides. A
    pipeline file gives its own."""
    start: str | None = None
    """Model that the run starts from: if longmlm trained it, the run draws masks that its training did not use. A
    pipeline file or a run folder gives its own."""
    weights: dict[str, Weight] = field(default_factory=dict)
    """Weights of the sources in training, from which follows how often the model of `start` has read each row. A
    pipeline file or a run folder gives its own."""
    page: str | None = None
    """HTML file to write instead of printing the rows."""

    def __post_init__(self) -> None:
        if self.row and self.find is not None:
            raise ValueError("row and find both say which rows to show: set one of them")
        if self.find is not None and not self.find.strip():
            raise ValueError("find must be a text that is not blank")
        if len(set(self.model)) < len(self.model):
            raise ValueError("model names one model twice: name each once")
        is_held_out, is_whole = self.split == "held_out", self.views == ("whole",)
        if not is_whole and not is_held_out:
            raise ValueError("views are those of evaluation, which reads held-out rows: set split = held_out")
        if not is_whole and self.base is None:
            raise ValueError("views cut and chunks need base, the model whose length they use")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if self.row:
            yield ("max_rows",), "with row, which names the rows: remove it"
        if self.split == "held_out":
            masks = ("masking.mask_patterns", "masking.unit") if self.masking else ()
            reason = "with split = held_out, whose rows have one mask of single tokens each: remove it"
            yield ("epochs", "pairs", "run", "start", "weights", *masks), reason
        elif not (self.run or self.start):
            yield ("weights",), "without run or start: remove it, or set one of them"
        if self.views == ("whole",):
            yield ("base",), "without views cut or chunks: remove it"
        if not self.model:
            yield ("num_guesses",), "without model: remove it, or set model"

    @staticmethod
    def of_pipeline(pipeline: ResolvedPipeline, own: Table) -> Table:
        """Returns what follows from a pipeline beside these settings: the rows, and the masks of their split."""
        recipe, evaluate = pipeline.pretrain.recipe, pipeline.evaluate
        held_out = evaluate.recipe.held_out if evaluate else recipe.held_out
        masks = masks_of(recipe, held_out, own.get("split", "train"))
        base = {"base": evaluate.base} if evaluate and tuple(own.get("views", ())) not in ((), ("whole",)) else {}
        training = {} if own.get("split") == "held_out" else _beginning(pipeline)
        return {"rows": pipeline.prepare.output, **base, **training, **masks, "masking": asdict(masks["masking"])}


def _beginning(pipeline: ResolvedPipeline) -> Table:
    """Returns the run of a pipeline, and what it starts from unless the pipeline extends that: it was not trained."""
    start, extend = pipeline.pretrain.start.checkpoint, pipeline.extend
    is_new = start is None or (extend is not None and start == extend.output)
    return {"run": pipeline.pretrain.run} | ({} if is_new else {"start": start})
