"""Boundaries of sentencex at which a sentence goes on: within numbers, after abbreviations, after a quotation.

en  See Eq. | 4.            de  der 2. | Weltkrieg         ru  романы, т. е. | книги
ja  「はい。」| と答えた。      zh  “走吧。”| 他说。          ar  د. | أحمد
"""

import re

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


def continues(text: str, sentence: int, boundary: int, language: str) -> bool:
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
