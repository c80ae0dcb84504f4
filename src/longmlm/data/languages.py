"""Languages: which codes are known, how many bytes of text give a token, and whether a text has spaces."""

import difflib
import re

from longmlm.data.vocabulary import UNSPACED
from longmlm.errors import DataError

# ISO 639-1, and other codes in use; `related` in sentences.toml says which of these languages share rules.
ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo es
et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj
kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv
ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti
tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
OTHERS = """
aae abs ace acm ady aeb aln als alt ami anp apc arn arq ary arz ast atj avk awa azb ban bar bbc bcc bci bdr bew bgn bjn
blk bpy bqi btm bug bxr cdo cpx crh csb dsb dtp dty dua egl eml ext fit fon frc frp frr fur gag gan gcf gcr gld glk gom
gor gsw guc hak hif hke hrx hsb hsn hyw iba inh jut kaa kab kbd kbp kea kge khw kiu kjh kjp koi krc krl ksh ksw kum lad
lbe lez lij liv ljp lki lld lmo lrc ltg lua luz lzh lzz mad mag mai mdf mhr min mnw mrj mui mwl myv mzn nah nan nap nds
nia nrm nyo olo pcd pdc pdt pfl pms pnt pwn qug rgn rmy rsk rue rup ruq rut sah scn sdc sdh ses sgs shi shy sjd skr sli
sma smn srn sro stq sty szl szy tay tcy tet trv ttj tyv udm vec vep vls vmf vmw vot vro wls wuu xal xmf yue
be-tarask de-at de-ch nds-nl pt-br sr-cyrl sr-latn zh-cn zh-hans zh-hant zh-hk zh-tw
"""
CODES = (*ISO_639_1.split(), *OTHERS.split())
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
