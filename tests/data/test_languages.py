"""Languages: an unknown code is refused with the nearest one, and disk space is estimated by language."""

from pathlib import Path

import pytest

from longmlm.data.engine import prepare_rows
from longmlm.data.languages import CODES, NAMES, WITHOUT_RULES, bytes_per_token, check_language
from longmlm.data.sentences import NAMED
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.settings.prepare import PrepareRecipe, Source


def test_every_code_is_known_and_named_once() -> None:
    codes = [*NAMED, *WITHOUT_RULES.split()]
    assert len(codes) == len(set(codes)) == len(CODES) + 1 > 350
    assert {"en", "zh", "ja", "de", "sv", "yue", "pt-br", "zh-hant"} | set(NAMES.values()) < CODES
    for code in CODES:
        check_language(code)


NEAR = """
EN=en english=en Chinese=zh zh-Hant=zh-hant pt_BR=pt-br de-DE=de eng=en germna=de cn=zh
cn-Hans=zh jp=ja jpn=ja chi=zh swe=sv est=et vn=vi
"""


@pytest.mark.parametrize(("code", "near"), [pair.split("=") for pair in NEAR.split()])
def test_an_unknown_code_is_refused_with_the_nearest(code: str, near: str) -> None:
    with pytest.raises(DataError, match=f"'{code}'.*did you mean '{near}'"):
        check_language(code)


@pytest.mark.parametrize("code", ["", "qqqq", "12", "qx", "xx", "zz-ZZ"])
def test_what_resembles_no_code_is_refused_with_examples(code: str) -> None:
    with pytest.raises(DataError, match="'en', 'zh' or 'de'"):
        check_language(code)


def test_prepare_refuses_an_unknown_language_before_it_reads(vocabulary: Vocabulary) -> None:
    source = Source(files=("absent.txt",), language="klingon")
    with pytest.raises(DataError, match="language 'klingon'"):
        prepare_rows(PrepareRecipe(tokenizer="tiny", row_length=9, sources=(source,)), vocabulary, Path("absent"))


def test_chinese_and_japanese_give_more_tokens_per_byte() -> None:
    assert bytes_per_token("en") == bytes_per_token("de") == bytes_per_token("fr")
    for code in ("zh", "zh-hant", "ja", "yue"):
        assert bytes_per_token(code) < bytes_per_token("en")
