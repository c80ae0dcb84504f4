"""The Python API for models: extend one, measure its accuracy, export it as a stock model.

The functions leave their arguments and the process (random numbers, log levels, progress bars) as they were. Each
example continues the previous one, with the model that longmlm ships; FacebookAI/roberta-base works as well.

>>> import json
>>> from importlib.resources import files
>>> import longmlm
>>> from transformers import AutoModelForMaskedLM, AutoTokenizer
>>> bundled = files("longmlm") / "bundled"
>>> base = AutoModelForMaskedLM.from_pretrained(bundled / "roberta-mini", dtype="float32")
>>> tokenizer = AutoTokenizer.from_pretrained(bundled / "roberta-mini")
>>> texts = [json.loads(line)["text"] for line in (bundled / "text/demo.jsonl").read_text("utf-8").splitlines()[:3]]
"""

import copy
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.api import arguments
from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.provenance import ModelSource, Provenance, read_provenance
from longmlm.data.row import LooseRows, Row
from longmlm.errors import DataError, ModelError, PositionsError
from longmlm.evaluation.frozen import FrozenRows, RowView, viewer_of
from longmlm.evaluation.measure import measure
from longmlm.folders import new_folder
from longmlm.model.architecture import architecture_of
from longmlm.model.carried import Carried
from longmlm.model.extension import check_finite, long_table
from longmlm.model.families import planned_extension
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of, replace_positions
from longmlm.model.window import Window
from longmlm.model.window_attention import attending_within
from longmlm.processes import overlapping
from longmlm.release.export import export as write_stock
from longmlm.runtime.launch import resolved_precision
from longmlm.settings.evaluate import EvaluateRecipe
from longmlm.settings.extend import SMOOTH_TERMS, ExtendRecipe, Initialisation
from longmlm.settings.release import ReleaseRecipe, WeightType

ORIGIN = "longmlm_origin"  # the attribute of an extended model that holds its Origin


@dataclass(frozen=True, slots=True)
class Origin:
    """What a model does not know itself: its history, and the parts of its checkpoint outside encoder and MLM head."""

    provenance: Provenance
    carried: Carried = field(default_factory=Carried)


def extend(
    model: str | Path | PreTrainedModel,
    num_positions: int,
    *,
    initialisation: Initialisation = "fitted",
    alpha: float = 0.4,
    smooth_terms: int = SMOOTH_TERMS,
    revision: str | None = None,
) -> PreTrainedModel:
    """Returns a masked language model that reads `num_positions` tokens, special tokens included.

    `model` is one that transformers has loaded, of which a copy is extended (load it with dtype="float32" to train it),
    or a folder or hub name (at `revision`), loaded in fp32. Only from a name are pooler, NSP head and the modules of
    sentence-transformers carried over, untrained, into what `export` writes; a warning lists them.

    The new position embeddings are a start for training. "fitted" makes positions attend to their neighbours as trained
    ones do, and changes the n trained embeddings too. "hierarchical" keeps them, so that texts of up to n tokens get
    the same logits as before; that of position i*n + j is p[j] + alpha / (1 - alpha) * (p[i] - p[0]). "tile" keeps
    and repeats them. "distilled" needs packed rows, so only the command and pipelines have it. The documentation (The
    method) has the details. `alpha` applies to "hierarchical", `smooth_terms` to "fitted".

    Raises ModelError for a model that cannot be extended or has no MLM head, PositionsError for a length that cannot be
    reached or a long model that was not trained at its length, ValueError for a setting that is out of range or that
    the initialisation does not have.

    >>> model = longmlm.extend(base, 3 * 128)
    >>> [one.config.max_position_embeddings for one in (base, model)]  # RoBERTa reserves two
    [130, 386]
    """
    recipe = arguments.checked_settings(
        ExtendRecipe,
        num_positions=num_positions,
        initialisation=initialisation,
        alpha=alpha,
        smooth_terms=smooth_terms,
    )
    if initialisation == "distilled":
        raise PositionsError("initialisation='distilled' needs rows: use longmlm extend or a pipeline, which read them")
    base, source, origin = _base(model, revision)
    num_base = len(position_table_of(base, source.name).usable_rows)
    extension = planned_extension(recipe, source, origin.provenance, base.config, num_base)
    assert extension is not None  # no tokens are added
    check_finite(base, source.name)
    table = long_table(base, extension)
    long = copy.deepcopy(base) if base is model else base
    replace_positions(long, table)
    provenance = Provenance(extension=extension, added_tokens=origin.provenance.added_tokens)
    setattr(long, ORIGIN, Origin(provenance, origin.carried.with_length(extension.num_positions)))
    return long


def evaluate(
    model: PreTrainedModel,
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    view: RowView = "whole",
    base_positions: int | None = None,
    recipe: EvaluateRecipe | None = None,
) -> Measured:
    """Returns the model's masked-token accuracy on held-out rows, computed on its device.

    `whole` is over all selected tokens; `blocks` are over consecutive blocks of `base_positions` positions, by default
    as many as the model had before it was extended. Each has `accuracy` and `standard_error` in percent, `loss` in nats
    and `num_selected`. A row has the same mask in every evaluation, so models can be compared. A model that reads less
    than a row needs a view: "cut" shows it the first `base_positions` tokens, "chunks" all of them, piece by piece.
    What the base model reaches with "chunks" is the accuracy to recover. A model whose longmlm.json records a window
    attends within it, and one that was trained with isolate_documents reads each document of a row by itself. `recipe`,
    a longmlm.settings.evaluate.EvaluateRecipe, sets number of rows, masks and precision.

    Raises DataError without rows, for rows of another tokenizer or longer than the model reads, ModelError for a model
    without an MLM head or too few embeddings for the tokenizer, ValueError for a setting that is out of range.

    >>> held_out = longmlm.pack(texts, tokenizer, 3 * 128)
    >>> base_chunks = longmlm.evaluate(base, held_out, tokenizer, view="chunks").whole
    >>> before = longmlm.evaluate(model, held_out, tokenizer)
    >>> print(f"to recover: {base_chunks.accuracy:.0f} %, now: {before.whole.accuracy:.0f} %")
    to recover: 35 %, now: 34 %
    >>> [block.num_selected for block in before.blocks]
    [645, 599, 514]
    """
    vocabulary, maskable = arguments.checked_vocabulary(tokenizer, arguments.checked_model(model))
    arguments.checked_choice("view", view, get_args(RowView))
    settings = arguments.settings_or_default(EvaluateRecipe, recipe, "recipe")
    held_out = LooseRows(arguments.checked_rows(rows, vocabulary))
    if not len(held_out):
        raise DataError("there are no rows to evaluate on")
    num_positions, provenance = architecture_of(model).num_positions, _origin(model).provenance
    extension = provenance.extension
    block = extension.base_positions if extension else num_positions
    if base_positions is not None:  # two special tokens and one token of text
        block = arguments.checked_number("base_positions", base_positions, 3)
    shown = held_out.row_length if view == "whole" else min(block, held_out.row_length)
    if shown > num_positions:
        raise DataError(
            f"the model reads {num_positions} tokens, and the rows show it up to {shown}: extend it, or pass "
            f"view='cut' or 'chunks' and at most {num_positions} base_positions"
        )
    frozen = FrozenRows(held_out, settings.held_out, maskable, vocabulary.special)
    objective = MlmObjective(model, resolved_precision(settings.precision), provenance.isolates_documents)
    viewer = viewer_of(view, block, vocabulary.special)
    with attending_within(model, Window.of(extension)):
        return measure(objective, frozen, viewer, block, accelerator=None)


def export(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    weights: WeightType = "fp32",
    max_shard_size: str | None = None,
) -> None:
    """Writes a stock folder with model and tokenizer, which transformers loads without longmlm and without remote code.

    `weights` is the type they are stored in, `max_shard_size` the largest file, such as "5GB". The tokenizer's
    model_max_length is the number of positions. longmlm.json records the extension, as the extend stage does; it does
    not know of training by your own loop, so that the folder is not extended again.

    Raises FolderError if `folder` exists, ModelError for a model without an MLM head or too few embeddings for the
    tokenizer, ValueError for other weights or sizes.

    >>> longmlm.export(model, tokenizer, "long-model")
    >>> AutoTokenizer.from_pretrained("long-model").model_max_length
    384
    """
    arguments.checked_vocabulary(tokenizer, arguments.checked_model(model))
    stored = arguments.checked_settings(ReleaseRecipe, weights=weights, max_shard_size=max_shard_size)
    origin = _origin(model)
    loaded = LoadedModel(model, copy.deepcopy(tokenizer), provenance=origin.provenance, carried=origin.carried)
    with new_folder(arguments.checked_path("folder", folder)) as partial_folder, _own_random_numbers():
        write_stock(loaded, stored.weights, partial_folder, stored.max_shard_size)
        if (about := origin.provenance) != Provenance():
            trained = about.trained and replace(about.trained, pairs=None, pair_accuracy=None)  # it has no pair head
            artifact.write(partial_folder / Provenance.FILE, replace(about, trained=trained))


@overlapping
def _own_random_numbers() -> AbstractContextManager[None]:
    """Leaves the random numbers of the program as they were."""
    return torch.random.fork_rng(devices=())


def _base(model: Any, revision: Any) -> tuple[PreTrainedModel, ModelSource, Origin]:
    """Returns the model, loaded if it is a name, and where it comes from."""
    arguments.check_revision(revision)
    if isinstance(model, str | Path) and str(model):
        with _own_random_numbers():
            loaded = load_model(str(model), revision)
        for note in (*loaded.notes, *loaded.carried.lines):
            warnings.warn(f"{model}: {note}", stacklevel=3)
        return (
            loaded.model,
            ModelSource(name=str(model), revision=loaded.revision),
            Origin(loaded.provenance, loaded.carried),
        )
    loaded_by_user = arguments.checked_model(model)
    if revision is not None:
        raise ModelError("revision needs the name of a model: pass it to from_pretrained for a model that you load")
    commit = getattr(loaded_by_user.config, "_commit_hash", None)
    source = ModelSource(name=arguments.model_name(loaded_by_user), revision=commit)
    return loaded_by_user, source, _origin(loaded_by_user)


def _origin(model: PreTrainedModel) -> Origin:
    """Returns what `extend` knew of the model, else what the folder says that it was loaded from."""
    if isinstance(origin := getattr(model, ORIGIN, None), Origin):
        return origin
    return Origin(read_provenance(model.name_or_path) if model.name_or_path else Provenance())
