"""Special tokens that a text spells out, with tokenizers whose words end at white space."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from longmlm.data.encoding import encode
from longmlm.data.vocabulary import Vocabulary, decode, vocabulary_of

SPELT = "He wrote <s> and [PAD] [UNK] or x[MASK] y, [CLS] [SEP][PAD] [UNK] and [MASK]"
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = {token: number for number, token in enumerate([*SPECIALS, *pre_tokenizers.ByteLevel.alphabet()])}
CONTINUED = {f"##{letter}": len(LETTERS) + number for number, letter in enumerate("[]ACEKLMPSU")}
MERGED = {"[M": len(LETTERS), "[MA": len(LETTERS) + 1, "K]": len(LETTERS) + 2, "SK]": len(LETTERS) + 3}
MATCHING = {  # models that find a special token in a text whose words end at white space
    "WordLevel": models.WordLevel(LETTERS, unk_token="[UNK]"),
    "WordPiece": models.WordPiece(LETTERS | CONTINUED, unk_token="[UNK]"),
    "BPE of whole words": models.BPE(LETTERS, [], ignore_merges=True),
    "BPE": models.BPE(LETTERS | MERGED, [("[", "M"), ("[M", "A"), ("K", "]"), ("S", "K]"), ("[MA", "SK]")]),
}


def encoded(vocabulary: Vocabulary, text: str) -> list[int]:
    sentences = encode(vocabulary.tokenizer, text, np.zeros(1, dtype=np.int64))
    return [token_id for sentence in sentences for token_id in sentence.input_ids.tolist()]


@pytest.mark.parametrize("model", MATCHING)
def test_special_tokens_that_are_words_of_a_text_are_plain_text(model: str) -> None:
    matching = Tokenizer(MATCHING[model])
    matching.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain = "a b c"
    before = matching.encode(plain).ids
    matching.add_special_tokens([*SPECIALS])
    matching.encode_special_tokens = True
    assert LETTERS["[MASK]"] in matching.encode(SPELT).ids, "it would be found"
    vocabulary = vocabulary_of(matching, "tiny")
    known = encoded(vocabulary, SPELT)
    assert set(known) & set(vocabulary.special.all) <= {vocabulary.special.unk}
    assert encoded(vocabulary, plain) == before
    assert [vocabulary.special.mask, vocabulary.special.pad] == [LETTERS["[MASK]"], LETTERS["[PAD]"]]
    assert vocabulary.size == vocabulary_of(Tokenizer.from_str(matching.to_str()), "again").size
    row = np.array([LETTERS["[CLS]"], *before, LETTERS["[MASK]"], LETTERS["[SEP]"]])
    assert decode(vocabulary, row).split() == ["[CLS]", "a", "b", "c", "[MASK]", "[SEP]"]


def test_a_vocabulary_without_an_unknown_token_is_loaded() -> None:
    known = {token: number for number, token in enumerate(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "a"])}
    tokenizer = Tokenizer(models.WordPiece(known))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    vocabulary = vocabulary_of(tokenizer, "tiny")
    assert encoded(vocabulary, "a a") == [4, 4]
    assert vocabulary.special.unk is None
