"""Released folders to what each way of loading makes of them: a script that knows no longmlm.

python loaders.py FOLDER ... prints a JSON object: folder, then loader, to "ok" or what is wrong.
"""

import json
import logging
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

WORDS = "It was the best of times, it was the worst of times "
NEW = ("pooler", "classifier", "score")  # what a checkpoint of a masked language model has not
KNOWN = (
    "LOAD REPORT",
    "loaded in torch.bfloat16 on CPU",
    *("newly initialized", "Device set to use", "No sentence-transformers model found"),  # of earlier versions
)
HEADS = ("lm_head", "cls", "predictions", "generator_predictions", "generator_lm_head", "vocab_")


class _Records(logging.Handler):
    """Keeps what libraries warn of, but for speed and the list of new and unused weights, looked at apart."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not any(known in record.getMessage() for known in KNOWN):
            self.said.append(record.getMessage())


@torch.no_grad()
def _load(kind, folder: str) -> tuple:
    """Returns model, tokenizer and ids of a text that fills it, once every weight has found its place."""
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    wrong = [key for key in info["missing_keys"] if kind is AutoModelForMaskedLM or not any(one in key for one in NEW)]
    wrong += [key for key in info["unexpected_keys"] if kind is AutoModelForMaskedLM or not key.startswith(HEADS)]
    assert not wrong, f"weights missing or not used: {wrong}"
    assert not info["mismatched_keys"], info["mismatched_keys"]
    ids = tokenizer((WORDS * 50).strip(), truncation=True, return_tensors="pt")
    length = tokenizer.model_max_length
    assert ids["input_ids"].shape == (1, length), f"a text of {ids['input_ids'].shape[1]} tokens for {length}"
    answer = model.eval()(**ids)[0]
    assert answer.isfinite().all(), "what it computes is not finite"
    return model, tokenizer, ids, answer


def masked_lm(folder: str) -> None:
    """Fails unless the folder is a masked language model, its decoder tied, with all its weights."""
    model, tokenizer, _, logits = _load(AutoModelForMaskedLM, folder)
    assert logits.shape == (1, tokenizer.model_max_length, model.config.vocab_size)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight, "the decoder is not tied"


def encoder(folder: str) -> None:
    """Fails unless the folder is an encoder, with its own weights but for a pooler."""
    model, tokenizer, _, hidden = _load(AutoModel, folder)
    assert hidden.shape == (1, tokenizer.model_max_length, model.config.hidden_size)


def sequence_classification(folder: str) -> None:
    """Fails unless the folder is a classifier, with its own weights but for the head."""
    *_, logits = _load(AutoModelForSequenceClassification, folder)
    assert logits.shape == (1, 2)


def fill_mask(folder: str) -> None:
    """Fails unless the pipeline tells a masked word at the end of a text as long as the model reads."""
    fill = pipeline("fill-mask", model=folder)
    mask, longest = fill.tokenizer.mask_token, fill.tokenizer.model_max_length
    assert longest <= fill.model.config.max_position_embeddings, f"model_max_length is {longest}"
    texts = [f"{'It ' * words}{mask}." for words in range(longest, 0, -1)]
    text = next(text for text in texts if len(fill.tokenizer(text, verbose=False)["input_ids"]) <= longest)
    assert len(fill.tokenizer(text)["input_ids"]) > longest - 3
    answers = fill(text)
    assert len(answers) == 5
    assert all(answer["token_str"] and 0 < answer["score"] <= 1 for answer in answers), answers


def sentence_transformers(folder: str) -> None:
    """Fails unless a sentence encoder, made of the folder by mean pooling, reads all positions."""
    encoder = import_module("sentence_transformers").SentenceTransformer(folder)  # no dependency of ours
    _, tokenizer, ids, _ = _load(AutoModel, folder)
    assert encoder.max_seq_length == tokenizer.model_max_length, f"max_seq_length is {encoder.max_seq_length}"
    found = torch.as_tensor(encoder.encode((WORDS * 50).strip())).float()
    with torch.no_grad():
        expected = encoder[0].auto_model(**ids)[0].float().mean(1)[0]
    assert found.isfinite().all(), "what it computes is not finite"
    assert torch.allclose(found, expected, atol=2e-2 * float(expected.abs().max())), "it is no mean of the tokens"


def judge(loader: Callable[[str], None], folder: str) -> str:
    """Returns "ok", or why the loader does not take the folder as it is."""
    records = _Records()
    logging.getLogger().addHandler(records)
    for name in ("transformers", "sentence_transformers"):
        logging.getLogger(name).addHandler(records)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader(folder)
    except Exception as error:  # noqa: BLE001 - libraries raise types of their own
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    finally:
        for name in (None, "transformers", "sentence_transformers"):
            logging.getLogger(name).removeHandler(records)
    return "ok" if not records.said else f"warns: {records.said[0]}"


LOADERS = (masked_lm, encoder, sequence_classification, fill_mask, sentence_transformers)

if __name__ == "__main__":
    assert not find_spec("longmlm"), "this is to run where longmlm is not installed"
    folders = sys.argv[1:]
    print(json.dumps({folder: {loader.__name__: judge(loader, folder) for loader in LOADERS} for folder in folders}))
