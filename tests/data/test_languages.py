"""Languages: an unknown code is refused, and disk space is estimated by language."""

from pathlib import Path

import pytest

from longmlm.data.engine import prepare_rows
from longmlm.data.languages import CODES, WITHOUT_RULES, bytes_per_token, check_language
from longmlm.data.sentences import NAMED
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.settings.prepare import PrepareRecipe, Source


def test_every_code_is_known_and_named_once() -> None:
    codes = [*NAMED, *WITHOUT_RULES.split()]
    assert len(codes) == len(set(codes)) == len(CODES) + 1 > 350
    assert {"en", "zh", "ja", "de", "sv", "yue", "pt-br", "zh-hant"} < CODES
    for code in CODES:
        check_language(code)


@pytest.mark.parametrize("code", ["", "EN", "english", "eng", "pt_BR", "cn", "qx", "12"])
def test_an_unknown_code_is_refused_with_examples(code: str) -> None:
    with pytest.raises(DataError, match=f"'{code}'.*'en', 'zh' or 'de'"):
        check_language(code)


def test_prepare_refuses_an_unknown_language_before_it_reads(vocabulary: Vocabulary) -> None:
    source = Source(files=("absent.txt",), language="klingon")
    with pytest.raises(DataError, match="language 'klingon'"):
        prepare_rows(PrepareRecipe(tokenizer="tiny", row_length=9, sources=(source,)), vocabulary, Path("absent"))


def test_chinese_and_japanese_give_more_tokens_per_byte() -> None:
    assert bytes_per_token("en") == bytes_per_token("de") == bytes_per_token("fr")
    for code in ("zh", "zh-hant", "ja", "yue"):
        assert bytes_per_token(code) < bytes_per_token("en")
