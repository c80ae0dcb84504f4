"""Demo text and tiny tokenizers, one of each kind that pretrained models use."""

import gzip
import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from longmlm.artifacts.rows import RowsManifest
from longmlm.data import encoding
from longmlm.data.engine import prepare_rows
from longmlm.data.fast_encoding import hostile_texts
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.settings.prepare import PrepareRecipe, Source

DEMO = Path(__file__).parents[2] / "src" / "longmlm" / "bundled" / "text" / "demo.jsonl"
CHINESE = (
    "清晨的雾气还没有散去，老渔夫已经把船推进了湖里。他说：“今天的风从北边来，鱼会游得很深。”"
    "孙子问他为什么，他笑了笑，没有回答！湖水像一面镜子，映着远处的山和天上的云。"
    "“爷爷，我们什么时候回家？”孩子又问。老人指着东方的太阳：等它升到树梢上，我们就回去吃早饭……"
    "村里的人都认识这条船，因为船头画着一只红色的眼睛，据说能看见水底的石头。"
)
RULES = ("=" * 64 + " " * 64) * 20  # makes tokens of many characters, which can be out of step
SPELT = "She wrote <s> and <mask> and </s> into her letter. "
KINDS = ("byte_level_trimmed", "byte_level_whole", "word_piece", "unigram")


@pytest.fixture(scope="session")
def english_texts() -> list[str]:
    with DEMO.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line, _ in zip(lines, range(24), strict=False)]


@pytest.fixture(scope="session")
def chinese_text() -> str:
    return CHINESE


@pytest.fixture(scope="session")
def tokenizers_by_kind(english_texts: list[str]) -> dict[str, Tokenizer]:
    texts = [*(text[:8_000] for text in english_texts), *[CHINESE] * 3, RULES]
    byte_level = {trims: _byte_level(texts, trims) for trims in (True, False)}
    return dict(zip(KINDS, (byte_level[True], byte_level[False], _word_piece(texts), _unigram(texts)), strict=True))


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tokenizers_by_kind: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers_by_kind[request.param]


@pytest.fixture(scope="session")
def vocabulary(tokenizers_by_kind: dict[str, Tokenizer]) -> Vocabulary:
    return vocabulary_of(tokenizers_by_kind["byte_level_trimmed"], "tiny byte-level BPE")


def _byte_level(texts: list[str], trims: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trims)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trims, add_prefix_space=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1_000,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _word_piece(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=1_000, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return Tokenizer.from_str(tokenizer.to_str())  # as one that was saved: scores lose their last digit in JSON


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, english_texts: list[str], chinese_text: str) -> tuple[Source, ...]:
    """Two sources of several slices, with records that are not documents among them."""
    folder = tmp_path_factory.mktemp("corpus")
    english = [SPELT + text[begin : begin + 1_500] for text in english_texts[:12] for begin in (0, 1_500, 3_000)]
    lines = [json.dumps({"text": text}) for text in english]
    lines[7:7] = ["broken", '{"text": ""}', '{"txt": "x"}']
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    chinese = "".join(json.dumps({"body": f"第{number}章。{chinese_text}"}) + "\n" for number in range(30))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(f"{chinese}broken\n".encode()))
    return (
        Source(files=(str(folder / "a.jsonl"),)),
        Source(files=(f"{folder}/b*",), text_field="body", language="zh"),
    )


@pytest.fixture(scope="session")
def recipe(corpus: tuple[Source, ...]) -> PrepareRecipe:
    return PrepareRecipe(tokenizer="tiny", row_length=64, sources=corpus, held_out_fraction=0.2, slice_bytes=20_000)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, a folder of each test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def short_hostile_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "hostile_texts", lambda: [text[:1_000] for text in hostile_texts()])


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "rows"


@pytest.fixture(scope="session")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, recipe: PrepareRecipe, vocabulary: Vocabulary
) -> tuple[Path, RowsManifest]:
    """Returns the folder that an undisturbed run of one worker wrote, and its manifest."""
    folder = tmp_path_factory.mktemp("prepared") / "rows"
    return folder, prepare_rows(recipe, vocabulary, folder)
