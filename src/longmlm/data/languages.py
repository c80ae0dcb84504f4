"""Languages: which codes are known, how many bytes of text give a token, and whether a text has spaces."""

import re

from longmlm.data.sentences import NAMED
from longmlm.data.vocabulary import UNSPACED
from longmlm.errors import DataError

# The languages of ISO 639-1, and others in use, that sentences.toml does not name.
WITHOUT_RULES = """
aa ae ak am as bi bn bo br ch cr cy dv dz ee eo ff fj ga gd gu gv ha he ho hz ia id ie ig ik io iu jv ka kg ki kj km
kn kr kw la lg lo lt lu lv mh mi ml ms my na nd ng nr nv ny oj om or pa pi rn rw si sm sn so sq ss st su sw ta te th
ti tl tn to ts tw ve vi vo wo xh yi yo zu abs ace aln avk ban bbc bdr bew bjn blk bpy btm bug dtp gor hif iba kaa kge
kjp ksw ljp ltg mad min mnw mui nia nyo sgs tcy ttj vep vmw xmf zh-cn zh-hans zh-hant zh-hk zh-tw
"""
CODES = frozenset({*NAMED, *WITHOUT_RULES.split()} - {"und"})
IDEOGRAPHIC = ("zh", "ja", "yue", "wuu", "lzh", "gan", "hak", "nan")


def bytes_per_token(language: str) -> int:
    """Returns about how many bytes of UTF-8 text give one token with a tokenizer of the language.

    Measured: 4.2 to 4.7 for English (RoBERTa, BERT), 2.9 to 3.0 for Chinese (BERT).
    """
    return 3 if language.partition("-")[0] in IDEOGRAPHIC else 4


def has_spaces(text: str) -> bool:
    """Returns whether most letters are of scripts that put spaces between words."""
    return 2 * len(re.findall(f"[{UNSPACED}]", text)) <= len(re.findall(r"\w", text))


def check_language(code: str) -> None:
    """Raises DataError for an unknown code."""
    if code not in CODES:
        raise DataError(f"language {code!r} is not an ISO 639 code in small letters, such as 'en', 'zh' or 'de'")
