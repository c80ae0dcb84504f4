"""Predictions of a model at the masks of a text; of a long text, the model reads the part around each mask."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row, SpecialTokens
from longmlm.data.vocabulary import Vocabulary, continuation, decode, vocabulary_of_pretrained
from longmlm.errors import DataError, counted
from longmlm.evaluation.measure import inference, row_logits
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.predict.drawing import Candidate, Prediction
from longmlm.predict.masks import SPACED_LETTER, MaskedText
from longmlm.reports.pages import visible
from longmlm.training.run_folder import model_or_best_checkpoint

Tokens = Int64[np.ndarray, " tokens"]
Positions = Int64[np.ndarray, "_"]
CONTEXT_TOKENS = 8  # tokens decoded before a token, to know whether white space precedes it
CONTINUATION_PREFIX = "##"  # WordPiece's prefix of a token that continues a word


@dataclass(frozen=True, slots=True)
class Encoded:
    """The token ids of a text with masks, and the original ones.

    `masks` has the positions of the mask tokens for each masked part of the text.
    """

    input_ids: Tokens
    original_ids: Tokens
    masks: tuple[Positions, ...]


def predictions_of(name: str, shown: str, masked: MaskedText, top_k: int) -> tuple[list[Prediction], list[str]]:
    """Returns what a model predicts at each mask, and notes on its loading and on the part of the text that it reads.

    Raises ModelError for a model that cannot be loaded. Raises DataError if its tokenizer finds another number of masks
    in the text, or if a masked word has more tokens than the model reads.
    """
    loaded = load_model(model_or_best_checkpoint(name))
    vocabulary = vocabulary_of_pretrained(loaded.tokenizer, name)
    objective = MlmObjective(loaded.model, isolates_documents=loaded.provenance.isolates_documents)
    encoded, num_positions = encoded_text(masked, loaded.tokenizer, vocabulary), objective.parts.num_positions
    notes, length = [*loaded.notes], len(encoded.input_ids)
    if length > num_positions:
        where = "around each mask" if len(encoded.masks) > 1 else "around the mask"
        notes.append(f"{shown} reads {num_positions:,} of the {counted(length, 'token')} of the text: those {where}")
    if max(map(len, encoded.masks)) > num_positions - 2:
        raise DataError(
            f"{shown} reads {counted(num_positions, 'token')}, but the masked word has more: mask a shorter word"
        )
    found: list[Prediction] = []
    with inference(objective):
        for span, positions in enumerate(encoded.masks):
            row = window(encoded.input_ids, positions, num_positions, vocabulary.special)
            probabilities = row_logits(objective, row, vocabulary.special.pad).softmax(-1)
            for position, own in zip(positions.tolist(), probabilities, strict=True):
                found.append(_prediction(span, position, own, top_k, TokenFormatter(vocabulary, encoded, masked.word)))
    return found, notes


def encoded_text(masked: MaskedText, pretrained: Any, vocabulary: Vocabulary) -> Encoded:
    """Returns the tokens of a text, special tokens included.

    A text with written masks is encoded as by the fill-mask pipeline of transformers. If a word is masked, the whole
    text is encoded as for training, then the tokens of the word are masked. Raises DataError if the tokenizer finds
    another number of masks, or no token of the word.
    """
    special, tokenizer = vocabulary.special, pretrained.backend_tokenizer
    if masked.word is None:
        mask_token = tokenizer.id_to_token(special.mask)
        ids = tokenizer.encode(masked.with_masks(mask_token), add_special_tokens=False).ids
        input_ids = np.array([special.cls, *ids, special.sep])
        positions = np.flatnonzero(input_ids == special.mask)
        if len(positions) != len(masked.spans):
            raise DataError(
                f"{vocabulary.name}: its tokenizer finds {counted(len(positions), 'mask')} in the text instead of "
                f"{len(masked.spans)}: put spaces around each"
            )
        return Encoded(input_ids, input_ids, tuple(np.split(positions, len(positions))))
    tokenizer = vocabulary.tokenizer
    tokenizer.encode_special_tokens = True  # a special token that the text spells out is text
    encoding, [(start, end)] = tokenizer.encode(masked.text, add_special_tokens=False), masked.spans
    inside = [at for at, (first, following) in enumerate(encoding.offsets, 1) if first < end and following > start]
    if not inside:
        raise DataError(f"{vocabulary.name}: its tokenizer has no token for {masked.word!r}: mask another word")
    original = np.array([special.cls, *encoding.ids, special.sep])
    input_ids, positions = original.copy(), np.array(inside)
    input_ids[positions] = special.mask
    return Encoded(input_ids, original, (positions,))


def window(input_ids: Tokens, positions: Positions, num_positions: int, special: SpecialTokens) -> MaskedRow:
    """Returns the row that a model of `num_positions` reads: the whole text, or the part with the masks in the middle.

    With 6 positions, of [CLS] a b c d e [MASK] g h [SEP], it reads [CLS] d e [MASK] g [SEP].
    """
    row, begin = Row(input_ids, np.array([1]), np.array([0])), 0
    if len(row) > num_positions:
        room, end = num_positions - 2, len(row) - 1
        centre = int(positions[0] + positions[-1] + 1) // 2
        begin = min(max(1, centre - room // 2), end - room)
        row, begin = row.window(begin, begin + room, special), begin - 1
    return MaskedRow(row, positions - begin, np.zeros_like(positions))


@dataclass(frozen=True, slots=True)
class TokenFormatter:
    """Converts predicted token ids to the text that is shown."""

    vocabulary: Vocabulary
    encoded: Encoded
    word: str | None

    def text(self, position: int, token_id: int) -> str:
        """Returns the text of a token, with ## before it if it continues a word."""
        earlier = self.encoded.input_ids[max(0, position - CONTEXT_TOKENS) : position].tolist()
        text = continuation(self._decoded, earlier, [token_id])
        is_part = (self.vocabulary.tokenizer.id_to_token(token_id) or "").startswith(CONTINUATION_PREFIX)
        is_joined = re.match(SPACED_LETTER, text) and re.search(f"{SPACED_LETTER}$", self._decoded(earlier))
        return f"{CONTINUATION_PREFIX}{visible(text)}" if is_part or is_joined else visible(text)

    def _decoded(self, ids: list[int]) -> str:
        return decode(self.vocabulary, np.array(ids, int))


def _prediction(span: int, position: int, probabilities: Tensor, top_k: int, formatter: TokenFormatter) -> Prediction:
    true_id = None if formatter.word is None else int(formatter.encoded.original_ids[position])
    likeliest = probabilities.topk(min(top_k, len(probabilities)))
    candidates = tuple(
        Candidate(formatter.text(position, token_id), probability, token_id == true_id)
        for probability, token_id in zip(*(part.tolist() for part in likeliest), strict=True)
    )
    if true_id is None:
        return Prediction(span, candidates)
    rank = 1 + int((probabilities > probabilities[true_id]).sum())
    return Prediction(span, candidates, formatter.text(position, true_id), rank, float(probabilities[true_id]))
