"""Trains a byte-level BPE tokenizer with RoBERTa's special tokens: train_tokenizer.py TEXT SIZE LENGTH FOLDER."""

import json
import sys
from typing import Any

from tokenizers import AddedToken, ByteLevelBPETokenizer
from transformers import RobertaTokenizer

from longmlm.data.corpus import Document, plan_slices, read_slice
from longmlm.settings.prepare import Source

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def train_tokenizer(text: str, vocabulary_size: int, max_length: int) -> RobertaTokenizer:
    """Returns a tokenizer trained on the documents of the file `text`."""
    sources = [Source(files=(text,))]
    records = (record for spans in plan_slices(sources, 1 << 30) for record in read_slice(spans, sources))
    documents = (record.text for record in records if isinstance(record, Document))
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(documents, vocab_size=vocabulary_size, min_frequency=2, special_tokens=SPECIAL)
    model = json.loads(trained.to_str())["model"]
    mask: Any = AddedToken("<mask>", lstrip=True, special=True)
    merges: Any = [tuple(pair) for pair in model["merges"]]
    return RobertaTokenizer(vocab=model["vocab"], merges=merges, mask_token=mask, model_max_length=max_length)


if __name__ == "__main__":
    text, vocabulary_size, max_length, folder = sys.argv[1:]
    train_tokenizer(text, int(vocabulary_size), int(max_length)).save_pretrained(folder)
