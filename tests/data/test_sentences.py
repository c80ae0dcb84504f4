"""Sentence borders: no character lost, white space opens the second sentence, Chinese and Japanese marks."""

import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longmlm.data import sentences as sentences_module
from longmlm.data.sentences import PIECE_CHARACTERS, sentence_starts

LANGUAGES = ["en", "zh", "ja", "de", "fr", "ar", "hi", "xx"]
MARKS = st.sampled_from(
    [*"。！？….?!”’」』）)\"' \t\n\u3000\u2028", "\n\n", "  ", "\r\n", "Mr. Poe", "去公园", "a. B", "😀", "\u0301"]
)
TEXTS = st.one_of(st.text(max_size=80), st.lists(MARKS, max_size=40).map("".join))


def split_sentences(text: str, language: str) -> list[str]:
    ends = [*sentence_starts(text, language)[1:].tolist(), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(deadline=None, max_examples=200)
@given(TEXTS, st.sampled_from(LANGUAGES))
@example("", "en")
@example(" \n ", "zh")
@example("\ufeff。\u2029\u0085。", "ja")
def test_the_sentences_of_any_text_joined_are_the_text_and_none_is_white_space(text: str, language: str) -> None:
    assert "".join(split_sentences(text, language)) == text
    starts = sentence_starts(text, language)
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert (starts < max(1, len(text))).all()
    sentences = split_sentences(text, language)
    assert all(sentence.strip() for sentence in sentences) or len(sentences) == 1, "white space makes no sentence"
    assert not any(sentence[-1].isspace() for sentence in sentences[:-1]), "it stands before the second of two"


def test_a_real_novel_is_cut_into_sentences_of_a_usual_length(english_texts: list[str]) -> None:
    sentences = [sentence for text in english_texts for sentence in split_sentences(text, "en")]
    assert "".join(sentences) == "".join(english_texts)
    assert len(sentences) > 2_000
    assert 8 < np.mean([len(sentence.split()) for sentence in sentences]) < 30
    assert sum(sentence.rstrip("”’)\"' ")[-1:] in ".?!:;—,…" for sentence in sentences) > 0.8 * len(sentences)


def test_every_white_space_of_unicode_may_stand_before_every_mark() -> None:
    spaces = [char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace()]
    assert {"\u3000", "\u2028", "\xa0", "\x85"} < set(spaces)
    for space in spaces:
        text = "".join(f"It rained{space}{mark} B{space}{mark}{space}C{mark} " for mark in ".!?。！？…")
        for language in LANGUAGES:
            sentences = split_sentences(text, language)
            assert "".join(sentences) == text
            assert len(sentences) > 5


def test_a_long_text_has_the_sentences_of_its_parts(
    english_texts: list[str], chinese_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    english, chinese = "\n\n".join(english_texts), chinese_text * 400
    assert len(english) > 30 * PIECE_CHARACTERS
    assert len(chinese) > 6 * PIECE_CHARACTERS
    in_pieces = sentence_starts(english, "en")
    assert len(sentence_starts(chinese, "zh")) == 400 * len(sentence_starts(chinese_text, "zh"))
    monkeypatch.setattr(sentences_module, "PIECE_CHARACTERS", len(english))
    assert in_pieces.tolist() == sentence_starts(english, "en").tolist()


def test_a_quotation_that_is_never_closed_does_not_stop_the_work() -> None:
    text = "“" + "湖水很冷。" * 40_000
    sentences = split_sentences(text, "zh")
    assert "".join(sentences) == text
    assert len(sentences) > 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("boat and 3.14 lake v1.2 " * 4_000, None),
        ("no mark at all " * 4_000, None),
        ("wrapped lines of text\nwithout a mark\n" * 2_000, None),
        ("no_space_at_all" * 4_000, None),
        ("नाव और झील। " * 6_000, "नाव और झील।"),
        ("He saw Mr. Poe, who had wrapped\nthe parcel. " * 1_500, "He saw Mr. Poe, who had wrapped\nthe parcel."),
        ("湖水很冷，他没有回答。" * 3_000, "湖水很冷，他没有回答。"),
    ],
)
def test_a_piece_of_a_long_text_ends_no_sentence(text: str, sentence: str | None) -> None:
    assert len(text) > 3 * PIECE_CHARACTERS
    sentences = {one.strip() for one in split_sentences(text, "zh" if "。" in text else "en")}
    assert sentences == {sentence or text.strip()}


CLOSING = ("”", "’", "’”", "”’", "」", "』", "』」", "）", "】", "》", ")", "〕")
CLOSED = tuple(
    f"湖水很冷{end}{closing}|他没有回答{end}{closing}|走吧{end}" for closing in CLOSING for end in ("。", "！", "？")
)
GOES_ON = {  # the boundary is at |, and only there
    **dict.fromkeys(("xx", "klingon", "", "zh-Hant-TW", "EN"), ("It rained.| She went out.",)),
    "en": (
        *("  It rained.|  She went out.|\n\nNobody saw her. \n", "Then Mr. Smith came in.| Everybody rose."),
        *("Then Mrs. Dalloway and Prof. Moriarty came in.| Dr. Watson went to St. James.",),
        *(
            "See Eq. 4 for details.| Then stop.",
            "The temp. was 5 degrees.| It rose.",
            "It costs approx. 5 dollars.| Fine.",
        ),
        *(
            "Vol. 3 is long.| Refs. 4 and 5 too.",
            "“Stop!” he cried.| “Why?” she asked.",
            "Version 3.14 came.| It left.",
        ),
        *(
            "it rained.| she left.| the end.",
            "It rained.|\n\nsmall letters begin a paragraph.",
            "It grew… and grew.| Then no.",
        ),
    ),
    "de": (
        *("Der 2. Weltkrieg begann 1939.| Es war Krieg.", "Im 19. Jahrhundert war es so.| Dann nicht."),
        *("Er kam am 5. Mai an.| Sie ging.", "Er ist 19.| Dann ging er.", "Es geschah 1945.| Danach war Ruhe."),
    ),
    "ru": (
        *(
            "Он любит книги, т. е. романы.| Она нет.",
            "Проф. Иванов пришёл.| Он сел.",
            "— Стой! — крикнул он.| Все встали.",
        ),
        *("Города Москва и др. города.| Конец.",),
    ),
    "uk": ("Вул. Шевченка довга.| Він пішов.",),
    "fr": ("« Oui ! » dit-il.| Elle partit.",),
    "ar": (
        "قال د. أحمد كلمة.| ثم ذهب.",
        "النسبة ٣.١٤ صحيحة.| نعم.",
        "أ. د. محمد علي جاء.| ثم ذهب.",
        "هل جئت؟| نعم، جئت.",
    ),
    "zh": (
        *CLOSED,
        *(f"我们去公园了{end}|你来吗？|好。" for end in ("。", "！", "？", "？！", "！！", "……。")),
        "清晨的雾气没有散去。|他说：“今天的风从北边来，鱼会游得很深。”|“爷爷，我们什么时候回家？”孩子又问。|老人指着太阳。",
        *(
            "“今天很冷。”他说。|“走吧。”",
            "“你来吗？”老人问道，“我等你。”",
            "「好。」他說。|走吧。",
            "圆周率是３．１４。|完了。",
        ),
        *("他问：“谁？”|没有人回答。", "他说：“好。走吧。”|然后离开了。", "“好。”|\n\n他说。"),
    ),
    "ja": (
        *CLOSED,
        "朝の湖は静かだった。|「もう帰ろうか？」と彼は言った。|『まだだ！』|鳥が一羽、水の上を飛んでいった。",
        *(
            "「もう帰ろう。」と彼は言った。|次の日。",
            "「まだだ！」って言った。",
            "『そうだ。』という声がした。",
            "「何？」|「いや。」",
        ),
        *(
            "えっ？と思った。",
            "３．１４は円周率だ。|終わり。",
            "「はい。」|とても良い。",
            "「行くよ。」の一言。|終わり。",
        ),
    ),
}


@pytest.mark.parametrize("language", GOES_ON)
def test_a_sentence_ends_and_goes_on_where_its_language_says_so(language: str) -> None:
    for text in GOES_ON[language]:
        assert split_sentences(text.replace("|", ""), language) == text.split("|")
