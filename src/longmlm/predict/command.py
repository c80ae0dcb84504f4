"""The predict command: prints what one or several models predict at the masks of a text."""

from pathlib import Path

from tokenizers import Tokenizer

from longmlm.data.pretrained import CONFIG_FILE, SPECIAL_FILE, TOKENIZER_FILE
from longmlm.data.vocabulary import ROLES, tokenizer_folder
from longmlm.errors import DataError, ModelError
from longmlm.folders import parse_json
from longmlm.model.facts import facts_of
from longmlm.predict.drawing import Prediction, tables
from longmlm.predict.masks import masked_text
from longmlm.predict.settings import PredictConfig
from longmlm.reports.pages import public_path
from longmlm.settings.shipped import bundled_name, bundled_resolved
from longmlm.training.run_folder import likely_best_checkpoint


def predict(config: PredictConfig) -> None:
    """Prints the likeliest tokens at each mask of the text, a column for each model.

    Raises a UserError, before torch is imported, for a model that predicts no tokens and for a text without a mask.
    """
    names = [str(bundled_resolved(name)) for name in config.model]
    mask_tokens = {token for name in names for token in [checked_mask_token(likely_best_checkpoint(name))] if token}
    masked = masked_text(config.text, config.mask, config.occurrence, mask_tokens)
    from longmlm.predict.predictions import predictions_of  # it imports torch

    short = [public_path(name) for name in names]
    shown = short if len(set(short)) == len(short) else [bundled_name(name) for name in names]
    found, notes = dict[str, list[Prediction]](), [masked.note] if masked.note else []
    for name, title in zip(names, shown, strict=True):
        found[title], own = predictions_of(name, title, masked, config.top_k)
        notes += own
    print(*tables(masked, found, config.top_k), *notes, sep="\n")


def checked_mask_token(name: str) -> str | None:
    """Returns the mask token of a model, or None if it is known only after loading; reads no weights.

    Raises a UserError for a model that does not exist or has no MLM head, and for a tokenizer without a mask token.
    """
    facts = facts_of(name)
    facts.check_weights()
    if facts.has_head is False:
        raise ModelError(
            f"{facts.shown} has no MLM head, so it predicts no tokens: name a checkpoint that has one, or first train "
            "a head with the pipeline file that longmlm init prints for this model"
        )
    folder = tokenizer_folder(name)
    if not (folder / TOKENIZER_FILE).is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        declared = [_declared(folder / file) for file in (CONFIG_FILE, SPECIAL_FILE)]
    except Exception:  # noqa: BLE001 - tokenizers raises nothing narrower; loading says what is wrong
        return None
    for token in (*declared, *ROLES["mask"][1:]):
        if token and tokenizer.token_to_id(token) is not None:
            return token
    raise DataError(f"{facts.shown}: the tokenizer has no mask token; masked language models need one")


def _declared(path: Path) -> str | None:
    """Returns the mask token that a file beside tokenizer.json names."""
    token = parse_json(path.read_text(encoding="utf-8")).get("mask_token") if path.is_file() else None
    return token.get("content") if isinstance(token, dict) else token
