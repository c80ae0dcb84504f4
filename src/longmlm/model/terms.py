"""Domain vocabulary: terms that get a token of their own, whose embedding starts as the mean of their former pieces.

For example, a tokenizer splits myocarditis into m, yo, card and itis. The new token's row in the embedding is the mean
of their four rows, and its row and bias in the decoder are such means too. Its logit is then the mean of their four
logits, which is never the largest of all, so no prediction changes before training.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AddedToken, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts.provenance import AddedTokens, ModelSource
from longmlm.data.vocabulary import UNSPACED, term_lines
from longmlm.errors import ModelError, counted
from longmlm.folders import sha256_of
from longmlm.model.architecture import architecture_of, unused_bias
from longmlm.model.loading import LoadedModel
from longmlm.model.window_attention import use_window, window_of

WORD_STARTS = "Ġ▁ "


@dataclass(frozen=True, slots=True)
class Terms:
    """The new tokens for the terms of a file, in its order, and what longmlm.json records of them."""

    tokens: tuple[AddedToken, ...]
    record: AddedTokens


def read_terms(path: str, tokenizer: PreTrainedTokenizerBase, base: ModelSource) -> Terms:
    """Returns the terms in a file, one per line, that get a new token.

    White space around a term is ignored; white space within it becomes one space. A term is skipped if it is a single
    token already, if it repeats another one (in any case, if the tokenizer lowercases), or if the tokenizer could not
    decode it. Raises ModelError if the file cannot be read or no term is left.
    """
    normalizer = cast(Any, tokenizer).backend_tokenizer.normalizer
    terms = [term for line in term_lines(path) if (term := " ".join(line.split()))]
    candidates: dict[str, AddedToken] = {}
    for term in terms:
        normalized = normalizer.normalize_str(term) if normalizer else term
        if normalized not in candidates and _is_new(token := _token(term), tokenizer):
            candidates[normalized] = token
    trial: Any = copy.deepcopy(tokenizer)
    trial.add_tokens(list(candidates.values()))
    tokens = tuple(token for normalized, token in candidates.items() if _is_decoded(token, normalized, trial))
    if not tokens:
        raise ModelError(f"add_tokens: {path} has no term that needs a new token ({counted(len(terms), 'term')} read)")
    skipped = len(terms) - len(tokens)
    record = AddedTokens(base=base, file_sha256=sha256_of(Path(path)), num_added=len(tokens), num_skipped=skipped)
    return Terms(tokens, record)


def with_tokens(loaded: LoadedModel, tokens: Sequence[AddedToken]) -> LoadedModel:
    """Returns a copy of the model with the tokens added to its tokenizer, each initialised from its former pieces.

    Raises ModelError if the tokenizer would give a new token an id that is in use.
    """
    tokenizer: Any = copy.deepcopy(loaded.tokenizer)
    used = set(tokenizer.get_vocab().values())
    tokenizer.add_tokens(list(tokens))
    ids: list[int] = [tokenizer.convert_tokens_to_ids(token.content) for token in tokens]
    if len(set(ids) - used) < len(tokens):
        raise ModelError("add_tokens: the tokenizer's ids have gaps, so a new token would get an id that is in use")
    pieces = {token_id: _pieces(token, loaded.tokenizer) for token_id, token in zip(ids, tokens, strict=True)}
    model, carried = _with_rows(loaded.model, pieces), loaded.carried.without_vocabulary()
    return replace(loaded, model=model, tokenizer=tokenizer, carried=carried)


def with_tokens_of(loaded: LoadedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """Returns the base model with the tokens that were added to the long model's `tokenizer`."""
    known = loaded.tokenizer.get_vocab()
    decoder: dict[int, AddedToken] = tokenizer.added_tokens_decoder
    added = [token for _, token in sorted(decoder.items()) if token.content not in known and not token.special]
    return with_tokens(loaded, added) if added else loaded


def _token(term: str) -> AddedToken:
    """Returns the token of a term; in scripts with spaces, it matches a whole word with the space before it."""
    is_word = not re.search(f"[{UNSPACED}]", term)
    return AddedToken(term, single_word=is_word, lstrip=is_word, normalized=True)


def _pieces(token: AddedToken, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the ids of a term's pieces within a text, without pieces that are only white space."""
    text = f" {token.content}" if token.lstrip else token.content
    ids: list[int] = tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"]
    return [piece for piece in ids if str(tokenizer.convert_ids_to_tokens(piece)).strip(WORD_STARTS)] or ids


def _is_new(token: AddedToken, tokenizer: PreTrainedTokenizerBase) -> bool:
    pieces = _pieces(token, tokenizer)
    is_single_token = len(pieces) == 1 and pieces[0] != tokenizer.unk_token_id
    return bool(pieces) and not is_single_token and token.content not in tokenizer.get_vocab()


def _is_decoded(token: AddedToken, normalized: str, trial: Any) -> bool:
    """Returns whether the token decodes to its term; byte-level tokenizers garble accented letters of added tokens."""
    decoded, *expected = (
        "".join(text.split())
        for text in (trial.decode([trial.convert_tokens_to_ids(token.content)]), token.content, normalized)
    )
    return decoded in expected


@torch.no_grad()
def _with_rows(model: PreTrainedModel, pieces: dict[int, list[int]]) -> PreTrainedModel:
    """Returns a copy of the model with a row for each new id: the mean of its pieces' rows."""
    parts, config = architecture_of(model), copy.deepcopy(model.config)
    by_token = [model.get_input_embeddings().weight, parts.decoder_weight, parts.decoder_bias]
    by_token += [model.get_parameter(name) for name in unused_bias(model) or ()]
    config.vocab_size = max(config.vocab_size, max(pieces) + 1)

    def grown(weight: Tensor) -> Tensor:
        rows = torch.cat([weight, weight.new_zeros(config.vocab_size - len(weight), *weight.shape[1:])])
        for token_id, piece_ids in pieces.items():
            rows[token_id] = weight[piece_ids].double().mean(0)
        return rows

    state = model.state_dict(keep_vars=True)
    larger = AutoModelForMaskedLM.from_config(config)
    larger.load_state_dict(
        {name: grown(weight) if any(weight is rows for rows in by_token) else weight for name, weight in state.items()}
    )
    larger.tie_weights()
    use_window(larger, window_of(model))
    return larger.train(model.training)
