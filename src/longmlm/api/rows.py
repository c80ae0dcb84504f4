"""The Python API for rows: pack texts into rows, mask rows, read the rows of a folder as batches for training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, get_args

import torch
from datasets import Dataset as ArrowDataset
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from longmlm.api import arguments
from longmlm.artifacts.rows import SPLITS, Split, check_has_pairs
from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import NO_PAIR, Pairing
from longmlm.batches.sampling import mixture_of
from longmlm.batches.steps import Recipe, StepBatches, check_rows_fit_model
from longmlm.data.corpus import Document, document_of
from longmlm.data.encoding import tokenized
from longmlm.data.packing import TokenizedDocument
from longmlm.data.packing import pack as packed
from longmlm.data.row import Row, SpecialTokens
from longmlm.data.rows import Rows, open_named_rows, pin_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, ModelError, counted
from longmlm.settings.masking import Masking, PairKind
from longmlm.settings.prepare import PackingMode
from longmlm.settings.pretrain import PretrainRecipe, Weight

IGNORED = -100  # the label that the losses of transformers leave out
PAIR_LABELS: dict[PairKind, str] = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}


def pack(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    row_length: int,
    *,
    language: str = "en",
    packing: PackingMode = "full-sentences",
) -> list[Row]:
    """Returns the texts as rows of at most `row_length` tokens, special tokens included: those of the prepare stage.

    Rows hold whole sentences, in order; only a sentence longer than a row is cut. `language` is the ISO 639-1 code of
    the texts, by whose rules they are split. A row goes on with the next text after a separator; with "doc-sentences",
    each text begins a new row. A text of white space gives nothing.

    Raises DataError for texts, a tokenizer or a language that cannot be used, ValueError for a `row_length` below 3.

    >>> rows = longmlm.pack(["One sentence. And another.", "A second text."], tokenizer, 16)
    >>> [tokenizer.decode(row.input_ids) for row in rows]
    ['<s>One sentence. And another.</s>A second text.</s>']
    """
    given = arguments.checked_texts(texts)
    vocabulary, _ = arguments.checked_vocabulary(tokenizer)
    length = arguments.checked_number("row_length", row_length, 3)
    arguments.checked_choice("packing", packing, ("full-sentences", "doc-sentences"))
    arguments.check_language(language)
    records = (document_of(text, f"text {number}", 0) for number, text in enumerate(given))
    documents = (record for record in records if isinstance(record, Document))
    sentences = (TokenizedDocument(tokens, 0) for _, tokens in tokenized(vocabulary, [language], documents))
    rows = packed(sentences, length, vocabulary.special, packing, vocabulary.is_within_character)
    return [arguments.PackedRow.of(row, vocabulary) for row in rows]


def mask(
    rows: Sequence[Row],
    row_ids: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    *,
    epoch: int = 0,
    seed: int = 0,
    masking: Masking | None = None,
) -> BatchEncoding:
    """Returns the rows at these indices, masked, as a batch for a transformers model: `model(**batch).loss`.

    The batch has `input_ids`, `attention_mask` and `labels`, padded on the right; labels are -100 except at selected
    tokens. A row's mask depends on seed, epoch and row id only: pass the epoch, for a new mask in each. By default 15 %
    of a row's tokens are selected; of these, 80 % become the mask token, 10 % a random one, and 10 % stay as they are.
    `masking`, a longmlm.settings.masking.Masking, changes that; its `unit` masks whole words or spans.

    Raises DataError for rows of another tokenizer, or one that cannot be used, IndexError for a row id that does not
    exist, ValueError for another argument that is out of range.

    >>> batch = longmlm.mask(rows, [0], tokenizer, epoch=1)
    >>> tokenizer.decode(batch["input_ids"][0])
    '<s>One sentence. And another.</s>A<mask><mask>.</s>'
    >>> tokenizer.decode(batch["labels"][batch["labels"] != -100])
    ' second text'
    """
    vocabulary, maskable = arguments.checked_vocabulary(tokenizer)
    settings = arguments.settings_or_default(Masking, masking, "masking")
    if settings.unit != "token":
        maskable = vocabulary.maskable_in(settings.unit)
    of_masks = arguments.checked_number("seed", seed, 0), arguments.checked_number("epoch", epoch, 0)
    chosen = arguments.chosen_rows(rows, row_ids, vocabulary)
    masked = [mask_row(row, maskable, settings, *of_masks, row_id) for row_id, row in chosen]
    return _for_transformers(collate(masked, vocabulary.special.pad))


def _epoch_in_shared_memory() -> Tensor:
    return torch.zeros((), dtype=torch.int64).share_memory_()


@dataclass(frozen=True, slots=True)
class RowBatches(Dataset[BatchEncoding]):
    """Packed rows as masked batches: a map-style dataset for torch's DataLoader, made by `read_rows`.

    Item i has `rows_per_batch` rows, as a batch for a transformers model: `input_ids`, `attention_mask` and `labels`,
    each of shape [rows, tokens], padded on the right; labels are -100 except at selected tokens. Rows and masks are
    those of longmlm's own training loop, in a run that starts from a base model. Pass batch_size=None to the
    DataLoader, since an item is a batch already.
    """

    rows: Rows
    recipe: Recipe
    special: SpecialTokens
    num_batches: int | None = None
    shared_epoch: Tensor = field(default_factory=_epoch_in_shared_memory, init=False)

    def __len__(self) -> int:
        """Returns the number of batches in a pass; a last batch that is not full counts for held-out rows only."""
        if self.num_batches is not None:
            return self.num_batches
        num_batches, rest = divmod(len(self.rows), self.recipe.rows_per_step)
        return num_batches if self.rows.split == "train" else num_batches + bool(rest)

    def __getitem__(self, index: int) -> BatchEncoding:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no batch {index}: the batches of a pass are 0 to {len(self) - 1}")
        num_rows, epoch = self.recipe.rows_per_step, int(self.shared_epoch)
        first, recipe = index * num_rows, self.recipe
        if self.rows.split == "train":
            first += epoch * len(self) * num_rows
        else:
            recipe = replace(recipe, rows_per_step=min(num_rows, len(self.rows) - first))
            first += epoch * len(self.rows)
        [batch] = StepBatches(self.rows, recipe, 0, 1, num_rows)[first]
        return _for_transformers(batch, recipe.pairing.kind if recipe.pairing else None)

    @property
    def row_length(self) -> int:
        """Tokens of a full row."""
        return self.rows.row_length

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of passes made before, so that this pass has new batches and new masks.

        A pass over training rows continues where the previous one ended: no row is left out. Worker processes of a
        DataLoader see the new number too. Accelerate calls this method, and so does transformers' Trainer. Raises
        ValueError for anything but a whole number.
        """
        self.shared_epoch.fill_(arguments.checked_number("epoch", epoch, 0, 2**31))

    def take(self, num_batches: int) -> Self:
        """Returns the batches of training rows with `num_batches` in a pass, such as all that a run needs.

        After the last row, all rows follow again in another order and with other masks, as in longmlm's own loop.
        Raises ValueError for a number below 1, and for held-out rows.
        """
        self._check_training("take")
        return replace(self, num_batches=arguments.checked_number("num_batches", num_batches, 1, 2**31))

    def in_pairs(self, kind: PairKind) -> Self:
        """Returns the batches with each row as a pair of segments, for AutoModelForPreTraining of BERT or ALBERT.

        They have `token_type_ids`, and a label for each row: `next_sentence_label` for "nsp", `sentence_order_label`
        for "sop", -100 for a row of a single sentence. Raises DataError for rows that do not record sentences, or
        that give no pairs.
        """
        arguments.checked_choice("kind", kind, get_args(PairKind))
        if not self.rows.manifest.plan.pairs:
            raise DataError(
                'these rows do not record sentences: prepare rows with pairs = true and packing = "doc-sentences"'
            )
        check_has_pairs(self.rows.num_documents_with_pairs, kind, self.rows.split)
        return replace(self, recipe=replace(self.recipe, pairing=Pairing(kind, self.special)))

    def weighted(self, weights: Mapping[str, Weight]) -> Self:
        """Returns batches of training rows that draw from each source, by its name, according to `weights`.

        A weight is a number, or {"share": a number}, as in [pretrain.recipe.weights]. Raises DataError for a name that
        is no source, ValueError for a wrong weight and for held-out rows.
        """
        self._check_training("weighted")
        needed = {"num_steps": 1, "batch_tokens": 1, "learning_rate": 1.0}
        checked = arguments.checked_settings(PretrainRecipe, **needed, weights=weights).weights
        mixture = mixture_of(checked, self.rows.manifest.sources("train"))
        return replace(self, recipe=replace(self.recipe, mixture=mixture))

    def to_dataset(self) -> ArrowDataset:
        """Returns the rows, without masks, as a datasets.Dataset, memory-mapped from the same Arrow files."""
        return self.rows.table.with_format(None)

    def _check_training(self, method: str) -> None:
        if self.rows.split != "train":
            raise ValueError(f"{method} is for training rows only: a pass over held-out rows reads each row once")


def read_rows(
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    split: Split = "train",
    rows_per_batch: int = 8,
    seed: int = 0,
    masking: Masking | None = None,
) -> RowBatches:
    """Returns the rows of a folder that the prepare stage wrote, as masked batches for your own training loop.

    `folder` may also be hf:OWNER/NAME[@REVISION], rows on the Hugging Face Hub. `tokenizer` is that of the rows; by
    default it is loaded from where the prepare stage found it. `split` is "train" or "held_out". The order of the rows
    follows from `seed`, and each mask from seed, epoch and row, as in longmlm's own loop. `masking`, a
    longmlm.settings.masking.Masking, says how many tokens are selected, and in which units.

    Raises FolderError for a folder that is incomplete or damaged, DataError for one that holds no rows, or rows of
    another tokenizer, ArtifactError for rows of another format, and ValueError for an argument that is out of range.

    >>> batches = longmlm.read_rows("demo/rows", rows_per_batch=4)  # made by longmlm.run("demo", output="demo")
    >>> batches.set_epoch(1)  # before the second pass
    >>> len(batches), batches[0]["labels"].shape  # DataLoader(batches, batch_size=None) makes them in workers
    (310, torch.Size([4, 380]))
    >>> batches.to_dataset().column_names
    ['input_ids', 'document_starts', 'document_sources']
    """
    name = arguments.checked_path("folder", folder)
    arguments.checked_choice("split", split, SPLITS)
    num_rows = arguments.checked_number("rows_per_batch", rows_per_batch, 1)
    order = arguments.checked_number("seed", seed, 0)
    settings = arguments.settings_or_default(Masking, masking, "masking")
    rows = open_named_rows(pin_rows(str(name)), split)
    if split == "train" and num_rows > len(rows):
        held = counted(len(rows), "training row")
        raise ValueError(f"rows_per_batch is {num_rows}, but {name} has {held}: set it to at most {len(rows)}")
    if tokenizer is None:
        vocabulary = _own_vocabulary(rows)
    else:
        vocabulary, _ = arguments.checked_vocabulary(tokenizer)
        check_rows_fit_model(rows, vocabulary)
    special = vocabulary.special
    recipe = Recipe(order, num_rows, settings, vocabulary.maskable_in(settings.unit), special.pad)
    return RowBatches(rows, recipe, special)


def _own_vocabulary(rows: Rows) -> Any:
    """Returns the vocabulary that the rows were made with; raises DataError if its tokenizer cannot be loaded."""
    name = rows.manifest.plan.tokenizer
    try:
        vocabulary = load_vocabulary(name)
        check_rows_fit_model(rows, vocabulary)
    except (DataError, ModelError) as error:
        raise DataError(f"{error}; or pass the tokenizer of the rows as tokenizer") from None
    return vocabulary


def _for_transformers(batch: MlmBatch, pairs: PairKind | None = None) -> BatchEncoding:
    """Returns a padded batch as the arguments of a transformers model."""
    is_token = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask.long()
    labels = torch.full_like(batch.input_ids, IGNORED)
    labels.view(-1)[batch.selected] = batch.labels
    named = {"input_ids": batch.input_ids, "attention_mask": is_token, "labels": labels}
    if pairs and batch.token_type_ids is not None:
        assert batch.pair_starts is not None
        assert batch.pair_labels is not None
        of_rows = torch.full((len(batch.input_ids),), NO_PAIR)
        of_rows[batch.pair_starts // batch.input_ids.shape[1]] = batch.pair_labels
        named |= {"token_type_ids": batch.token_type_ids, PAIR_LABELS[pairs]: of_rows}
    return BatchEncoding(named)
