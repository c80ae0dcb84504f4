"""Sentence boundaries of a text, by the rules of its language; and the codes of languages.

sentencex finds boundaries. At some the sentence goes on: within numbers, after abbreviations, after a quotation.

en  See Eq. | 4.            de  der 2. | Weltkrieg         ru  романы, т. е. | книги
ja  「はい。」| と答えた。      zh  “走吧。”| 他说。          ar  د. | أحمد
"""

import difflib
import re
from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
import sentencex
from jaxtyping import Int64

from longmlm.data.vocabulary import UNSPACED
from longmlm.errors import DataError

PIECE_CHARACTERS = 8_000  # sentencex is quadratic in the length of quoted text without a space
CONTEXT_CHARACTERS = 300  # on each side of the start of a piece, with which it is a boundary or not
MAX_MARKS = 1_000
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")  # sentencex panics on some of these before a full stop
# sentencex knows few of the closing marks of Chinese and Japanese, and no sequences of them.
CLOSING_MARKS = re.compile(r"(?<=\S)[”’」』）】》〉〕］｝〗)\]]+")
ENDED_LINE = re.compile(r"[.!?…。！？؟۔।][\"'”’»)\]」』）]*\s*\n\s*\Z")

# ISO 639-1, and the other codes for which sentencex has rules or a fallback; it treats unknown codes as English.
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

CONTEXT = 40  # characters on each side that decide
QUOTES = "”’\"'»“」』›"
STOPS = ".．…"
DASHES = "—–- "
FIRST_LETTER = 200  # characters within which a sentence has its first letter

# By language: what a sentence ends with, and how the text goes on if that is no end. Dots stand for any mark.
Rule = tuple[re.Pattern[str], re.Pattern[str]]
LATIN_NUMBER = r"[\dIVXLC(]"
ENGLISH_PARTS = (
    r"(?<!\w)(?:eqs?|eqns?|secs?|sect|refs?|vols?|ch|chs|chap|figs?|tabs?|app|nos?|arts?|pp?|ll?|thm|prop|def|lem|cor|alg"
    r"|ex|pts?|bk|ser|vers?|col|fn|approx|ca|est|min|max|avg|temp)\.$"
)
GERMAN_BEFORE = (
    r"(?<!\w)(?:der|die|das|dem|den|des|im|am|vom|zum|zur|beim|ab|bis|seit|und|oder|ein|(?:ein|jed|sein|ihr|mein|unser|dies)e[mnrs]?"
    r"|nr|bd|s|art|abs|kap) ?\d{1,3}\.$"
)
GERMAN_NOUNS = (
    r"(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jan|Feb|Apr|Aug|Sept?|Okt|Nov"
    r"|Dez|Jh|Jahrhundert|Jahrtausend|Weltkrieg|Auflage|Aufl|Kapitel|Band|Klasse|Stock|Etage|Platz|Tag|Mal|Woche|Jahr"
    r"|Geburtstag|Bundesliga|Liga|Bezirk|Armee|Division|Dynastie|Legislaturperiode|Sinfonie|Symphonie|Semester|Runde"
    r"|Spieltag|Strophe|Vers|Akt|Lebensjahr)(?!\w)"
)
RUSSIAN_TITLES = (
    r"(?<!\w)(?:им|проф|акад|доц|ул|пл|пр|пер|просп|пос|дер|обл|гр|тов|св|г|м|вул|рис|табл|стр|с|см|ср|гл|п|пп|ст|т|тт|кн"
    r"|вып|ч|д|кв|корп|напр)\.$"
)
SPEECH = "说說道问問喊叫嚷答骂罵叹嘆念想讲講吼笑"


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(before, re.IGNORECASE), re.compile(after)) for before, after in pairs)


CHINESE = _rules(
    (r"[”’」』]$", rf"(?!.{{0,12}}[没沒不未无無])[\w·]{{1,12}}?[{SPEECH}](?:道|着|著|了)?[，。：:、；！,]")
)
JAPANESE_PARTICLES = (
    r"って|を|と(?!ても|き|ころ|うと|にかく|りあえ|もか|もに|っさ|っく|なり|もだち|おり|んで|びら)"
    r"|(?:は|が|に|も|で|へ|の|から|まで|より|など|なんて)(?=[\u4e00-\u9fff、，])|(?:です|だ|でした|だった)(?=[。、！？])"
)
JAPANESE = _rules((r"[」』”）]$", JAPANESE_PARTICLES), (r"[？！?!]$", r"って|と(?=[思言聞叫考答尋問感笑呼])"))
RULES: dict[str, tuple[Rule, ...]] = {
    "en": _rules((ENGLISH_PARTS, LATIN_NUMBER)),
    "de": _rules((GERMAN_BEFORE, r"[A-ZÄÖÜ]"), (r"(?<![\w.])\d{1,3}\.$", GERMAN_NOUNS)),
    "ru": _rules((RUSSIAN_TITLES, r"[\dА-ЯЁІЇЄҐ№]")),
    "ar": _rules((r"(?:^|\s)(?:[\u0621-\u064a]|هـ|ص|ج)\.$", r"[\u0621-\u064a\d]")),
    "zh": CHINESE,
    "ja": JAPANESE,
}
RELATED = {
    **dict.fromkeys(("als", "bar", "gsw", "lb", "nds"), "de"),
    **dict.fromkeys(("uk", "be", "bg", "mk", "sr"), "ru"),
    **dict.fromkeys(("arz", "ary", "fa", "ckb", "ur"), "ar"),
    **dict.fromkeys(("yue", "wuu", "lzh", "gan", "hak", "nan"), "zh"),
}


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


def sentence_starts(text: str, language: str) -> Int64[np.ndarray, " sentences"]:
    """Returns the character offset at which each sentence of `text` starts; the first is 0.

    A sentence extends to the start of the next, so no character is lost: white space between two sentences belongs to
    the second, closing marks belong to the first. The rules are those of sentencex, which falls back to a related
    language or to English where it has none.
    """
    return np.fromiter(_starts(text, language), dtype=np.int64)


def _starts(text: str, language: str) -> Iterator[int]:
    yield 0
    waiting = None  # held back, since the end of the last sentence starts no other
    for previous, start in pairwise(chain([0], _boundaries(text, language), [len(text)])):
        between = text[previous:start]
        if between.strip():
            if waiting is not None:
                yield waiting
            waiting = previous + len(between.rstrip())


def _boundaries(text: str, language: str) -> Iterator[int]:
    """Yields the offsets after 0 at which sencentex starts a sentence that does not continue the one before it."""
    sentence = 0
    for begin, end in pairwise(chain([0], _cuts(text))):
        for index, start in enumerate(_found(text, begin, end, language)):
            if index == 0 and (begin == 0 or not _is_found(text, start, language)):
                continue  # a piece starts there, but no sentence
            if not _continues(text, sentence, start, language):
                yield start
                sentence = start


def _found(text: str, begin: int, end: int, language: str) -> Iterator[int]:
    """Yields the offsets at which sencentex starts a sentence of text[begin:end], moved past closing marks."""
    for boundary in sentencex.get_sentence_boundaries(language, WIDE_SPACE.sub(" ", text[begin:end])):
        start = begin + boundary["start_index"]
        before = max(0, start - 1)
        closed = CLOSING_MARKS.match(text[before : start + MAX_MARKS], start - before)
        yield before + closed.end() if closed else start


def _is_found(text: str, start: int, language: str) -> bool:
    """Returns whether a sentence starts where a piece does: after a line that ends one, or where sencentex finds it.

    sencentex is given the text on both sides; white space does not count.
    """
    if ENDED_LINE.search(text[max(0, start - MAX_MARKS) : start]):
        return True
    begin = max(0, start - CONTEXT_CHARACTERS)
    starts = _found(text, begin, min(start + CONTEXT_CHARACTERS, len(text)), language)
    return any(begin < found and not text[min(found, start) : max(found, start)].strip() for found in starts)


def _cuts(text: str) -> Iterator[int]:
    """Yields the ends of the pieces that sencentex is given: after a line, else a sentence, else a word."""
    end = 0
    while end < len(text):
        least = end + PIECE_CHARACTERS
        window = text[least : least + PIECE_CHARACTERS]
        line = window.find("\n") + 1
        mark = max(window.rfind(mark) for mark in ("。", "！", "？", ". ", "! ", "? ")) + 1
        space = window.rfind(" ") + 1
        end = min(least + (line or mark or space or PIECE_CHARACTERS), len(text))
        yield end


def _continues(text: str, sentence: int, boundary: int, language: str) -> bool:
    """Returns whether the sentence that starts at `sentence` goes on at a boundary.

    It does within a number such as 3.14; where a full stop or a quotation comes before a small letter, in a sentence
    that starts with a capital one; and by the rules of the language. It does not go on in another paragraph.
    """
    before, after = text[max(sentence, boundary - CONTEXT) : boundary], text[boundary : boundary + CONTEXT]
    left, right = before.rstrip(), after.lstrip()
    gap = before[len(left) :] + after[: len(after) - len(right)]
    if not left or not right or gap.count("\n") > 1:
        return False
    if not gap and left[-1] in STOPS and left[-2:-1].isdigit() and right[0].isdigit():
        return True
    unquoted = left.rstrip(QUOTES)
    small = right.lstrip(DASHES)[:1].islower()
    if small and unquoted and (unquoted[-1] in STOPS or unquoted != left or right[0] in DASHES):
        return _starts_with_capital(text[sentence : sentence + FIRST_LETTER])
    base = language.partition("-")[0]
    rules = RULES.get(RELATED.get(base, base), ())
    return any(going_on.match(right) and ending.search(left) for ending, going_on in rules)


def _starts_with_capital(sentence: str) -> bool:
    letter = next((character for character in sentence if character.isalpha()), "")
    return letter.isupper()
