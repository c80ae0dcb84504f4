"""Languages: which codes are known, how many bytes of text give a token, and whether a text has spaces."""

import difflib
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
NAMES = {
    "arabic": "ar", "chinese": "zh", "czech": "cs", "dutch": "nl", "english": "en", "french": "fr", "german": "de",
    "hindi": "hi", "italian": "it", "japanese": "ja", "korean": "ko", "polish": "pl", "portuguese": "pt",
    "russian": "ru", "spanish": "es", "swedish": "sv", "turkish": "tr", "ukrainian": "uk", "vietnamese": "vi",
}  # fmt: skip
# What is often written in place of a code: ISO 639-2 codes that do not begin with it, and countries.
OTHER_CODES = {
    "chi": "zh", "zho": "zh", "cmn": "zh", "jpn": "ja", "ger": "de", "spa": "es", "por": "pt", "pol": "pl", "swe": "sv",
    "cze": "cs", "ces": "cs", "nld": "nl", "dut": "nl", "tur": "tr", "est": "et", "slk": "sk", "slo": "sk", "bos": "bs",
    "ben": "bn", "kan": "kn", "gle": "ga", "ell": "el", "gre": "el", "per": "fa", "rum": "ro", "ind": "id", "mal": "ml",
    "mar": "mr", "mon": "mn", "srp": "sr", "cn": "zh", "jp": "ja", "cz": "cs", "dk": "da", "ua": "uk", "vn": "vi",
    "gr": "el", "us": "en", "gb": "en", "mx": "es", "ir": "fa", "il": "he", "iw": "he", "hk": "zh", "at": "de",
    "eg": "ar", "rs": "sr", "md": "ro",
}  # fmt: skip

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
    """Raises DataError for an unknown code, with the one that was probably meant."""
    if code in CODES:
        return
    meant = code.lower().replace("_", "-")
    name = next(iter(difflib.get_close_matches(meant, NAMES, n=1, cutoff=0.75)), "")
    main = meant.split("-")[0]
    short = meant[:2] if len(meant) == len("eng") else ""
    candidates = (meant, NAMES.get(name), main, OTHER_CODES.get(main), short)
    near = next((candidate for candidate in candidates if candidate in CODES), None)
    hint = f"did you mean {near!r}?" if near else "for example 'en', 'zh' or 'de'"
    raise DataError(f"language {code!r} is not an ISO 639 code: {hint}")
