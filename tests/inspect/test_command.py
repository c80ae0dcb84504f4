"""longmlm inspect: which rows are shown, under which masks, and what is refused."""

import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from transformers import BertTokenizer

from longmlm.artifacts.artifact import present, to_toml
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import Pairing
from longmlm.config import parse
from longmlm.data.row import LooseRows, Row
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import decode, load_vocabulary, vocabulary_of_pretrained
from longmlm.inspect.command import PAIR_LABELS, rows_with
from longmlm.inspect.drawing import PAGE_HEADER, rows_text
from longmlm.inspect.reading import Reader
from longmlm.inspect.settings import InspectConfig
from longmlm.settings.masking import HeldOut, Masking
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, Start
from tests.support.families import NUM_POSITIONS
from tests.support.hub import Hub
from tests.support.hub_rows import NAME
from tests.support.tiny import LONG_POSITIONS, PIPELINE, World, tiny_rows

MASKING = Masking(selected_fraction=0.4, masked_share=0.5)
RECIPE = PretrainRecipe(num_steps=2, batch_tokens=100, learning_rate=1e-4, seed=7, masking=MASKING)


@pytest.fixture(scope="module")
def training(world: World) -> Rows:
    return open_rows(world.rows, "train")


@pytest.fixture
def expected(vocabulary):
    """What is printed for the rows of a split, under a mask of each epoch."""

    def text(rows: Rows, numbers: list[int], seed: int, masking: Masking, epochs: tuple[int, ...] = (0,)) -> str:
        reader, titled = Reader(vocabulary, rows.manifest.plan.sources), {}
        for number in numbers:
            maskable = vocabulary.maskable_in(masking.unit)
            masked = [mask_row(rows[number], maskable, masking, seed, epoch, number) for epoch in epochs]
            names = [f"epoch {epoch}" for epoch in epochs] if rows.split == "train" else ["whole row"]
            title = f"row {number}: {len(rows[number])} tokens, 1 document"
            titled[title] = [reader.read(name, one) for name, one in zip(names, masked, strict=True)]
        return rows_text(titled, False) + "\n"

    return text


def test_the_first_rows_are_shown_under_the_masks_of_training(
    world: World, training: Rows, inspected, expected
) -> None:
    finding, _, text = inspected(world.rows).partition("\n")
    assert text == expected(training, [0, 1, 2], 42, Masking())
    assert f"3 of {len(training)} training rows" in finding


def test_rows_and_epochs_are_chosen_by_number(world: World, training: Rows, inspected, expected) -> None:
    _, _, text = inspected(world.rows, "--row", 17, 3, 17, "--epochs", 0, 5, "--seed", 1).partition("\n")
    assert text == expected(training, [17, 3], 1, Masking(), (0, 5))


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_and_spans_are_selected_as_in_training(
    world: World, training: Rows, inspected, expected, refused, unit: str
) -> None:
    _, _, text = inspected(world.rows, "--row", 3, "--epochs", 2, "--masking.unit", unit).partition("\n")
    assert text == expected(training, [3], 42, Masking(unit=unit), (2,))
    assert "one mask of single tokens" in refused(world.rows, "--split", "held_out", "--masking.unit", unit)


def test_pairs_are_those_of_training(world: World, inspected, refused, tmp_path) -> None:
    paired = tiny_rows(tmp_path / "paired", world.base, packing="doc-sentences", pairs=True)
    rows = open_rows(paired, "train")
    number = next(number for number in range(len(rows)) if len(rows[number].sentence_starts) > 1)
    special = load_vocabulary(str(world.base)).special
    labels = [Pairing("sop", special).pair(rows, number, 42, epoch).label for epoch in range(8)]
    shown = inspected(paired, "--row", number, "--pairs", "sop", "--epochs", *range(8))
    assert re.findall(r"^epoch \d, (.*?):", shown, re.MULTILINE) == [PAIR_LABELS[label] for label in labels]
    assert {*labels} == {0, 1}
    assert "without pairs = true" in refused(world.rows, "--pairs", "nsp")


def test_held_out_rows_have_the_frozen_masks(world: World, rows: Rows, inspected, expected) -> None:
    _, _, text = inspected(world.rows, "--split", "held_out", "--row", 5).partition("\n")
    assert text == expected(rows, [5], HeldOut().mask_seed, Masking())


def test_views_are_those_of_the_evaluation(world: World, inspected) -> None:
    views = ("--views", "whole", "cut", "chunks", "--base", world.base)
    text = inspected(world.rows, "--split", "held_out", "--row", 5, *views)
    lengths = [int(number) for number in re.findall(r"^row 5: (\d+) tokens", text, re.MULTILINE)]
    num_chunks = -(-(lengths[0] - 2) // (NUM_POSITIONS - 2))
    assert len(re.findall("^(whole row|cut to 16 tokens|chunk \\d of \\d):", text, re.MULTILINE)) == 2 + num_chunks
    whole, cut, *chunks = re.findall(r"(\d+) tokens? selected", text)
    assert sum(map(int, chunks)) == int(whole) >= int(cut) > 0


def test_a_pipeline_file_gives_rows_and_masks(
    world: World, training: Rows, rows: Rows, inspected, expected, tmp_path
) -> None:
    more = "[pretrain.recipe.masking]\nselected_fraction = 0.4\nmasked_share = 0.5\n"
    pipeline = PIPELINE.replace('precision = "no"', 'precision = "no"\nseed = 7').replace("base", str(world.base))
    (tmp_path / "mine.toml").write_text(f'rows = "{world.rows}"\n{pipeline}{more}', encoding="utf-8")
    assert inspected("mine.toml").partition("\n")[2] == expected(training, [0, 1, 2], 7, MASKING)
    text = inspected("mine.toml", "--split", "held_out", "--row", 2).partition("\n")[2]
    assert text == expected(rows, [2], HeldOut().mask_seed, Masking())
    changed = inspected("mine.toml", "--seed", 8, "--masking.random-share", 0.5, "--max-rows", 1).partition("\n")[2]
    assert changed == expected(training, [0], 8, replace(MASKING, random_share=0.5))
    assert parse(InspectConfig, ["mine.toml", "--split", "held_out", "--views", "cut"]).base == str(world.base)


def test_a_run_folder_gives_rows_and_masks(
    world: World, training: Rows, inspected, expected, refused, tmp_path
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    config = PretrainConfig(run="run", rows=str(world.rows), start=Start(checkpoint=str(world.long)), recipe=RECIPE)
    (tmp_path / "run" / "settings.toml").write_text(to_toml(config), encoding="utf-8")
    assert inspected("run").partition("\n")[2] == expected(training, [0, 1, 2], 7, MASKING)
    assert "masks of its own" in refused("run", "--seed", 1)
    assert "masks of its own" in refused("run", "--masking.random-share", 0.05)


def test_a_run_folder_is_a_model(world: World, run_folder: Path, inspected) -> None:
    shown = inspected(world.rows, "--split", "held_out", "--row", 5, "--model", world.long, run_folder)
    assert "long predicts " in shown and "run predicts " in shown
    [header] = [line for line in shown.splitlines() if line.startswith("position")]
    assert header.split() == ["position", "token", "shown", "as", "long", "run"]
    best = inspected(world.rows, "--split", "held_out", "--row", 5, "--model", world.trained)
    counts = [re.search(r"(?:run|trained) predicts (\d+)", text)[1] for text in (shown, best)]
    assert counts[0] == counts[1]  # the best checkpoint has the weights of the trained model


def test_rows_are_found_by_their_text(world: World, training: Rows, vocabulary, inspected, refused) -> None:
    texts = [
        " ".join(decode(vocabulary, training[number].input_ids).split()).lower() for number in range(len(training))
    ]
    found = [number for number, text in enumerate(texts) if " she " in text]
    assert len(found) > 3
    finding, _, shown = inspected(world.rows, "--find", " SHE \n").partition("\n")
    assert f"{len([text for text in texts if 'she' in text])} of {len(training)} training rows" in finding
    assert shown.count("\nrow ") == 3 and "the first 3 of them" in finding
    [line] = refused(world.rows, "--find", "no such words").splitlines()
    assert "no training row contains 'no such words'" in line


@pytest.mark.parametrize(
    ("text", "is_found"), [("GPU的温度", True), ("天下大势，分久", True), ("Café", True), ("天上", False)]
)
def test_a_text_is_found_as_the_tokenizer_writes_it(monkeypatch: pytest.MonkeyPatch, text: str, is_found: bool) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"天下大势，分久上的温度", "gpu", "cafe"]
    pretrained = BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    vocabulary = vocabulary_of_pretrained(pretrained, "tiny")
    ids = pretrained("天下大势，分久 GPU 的温度 café")["input_ids"]
    assert vocabulary.special.unk not in ids
    rows = LooseRows((Row(np.array(ids), np.array([1]), np.array([0])),))
    assert list(rows_with(text, rows, vocabulary)) == [0] * is_found


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--row", 9999), "there is no training row 9999: the rows of this split are 0 to "),
        (("--row", -1), "at least 0"),
        (("--row", 1, "--find", "a"), "set one of them"),
        (("--row", 1, "--max-rows", 2), "max_rows: it has no effect with row"),
        (("--views", "cut"), "split = held_out"),
        (("--split", "held_out", "--views", "cut"), "need base"),
        (("--split", "held_out", "--epochs", 3), "epochs: it has no effect with split = held_out"),
        (("--split", "held_out", "--masking.mask-patterns", 3), "masking.mask_patterns: it has no effect"),
        (("--base", "x"), "base: it has no effect without views"),
        (("--num-guesses", 5), "num_guesses: it has no effect without model"),
        (("--find", " "), "not blank"),
        (("--model", "a", "a"), "names one model twice"),
        (("--page", "absent/rows.html"), "absent: no such folder"),
        (("other",), "are both rows: name one"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(world: World, refused, options: tuple, named: str) -> None:
    assert named in refused(world.rows, *options)


def test_a_model_that_is_too_short_is_refused_with_the_remedy(world: World, refused, inspected) -> None:
    line = refused(world.rows, "--model", world.base)
    assert f"{world.base} reads {NUM_POSITIONS} tokens, and the rows have {LONG_POSITIONS}" in line
    remedy = line.partition("of held-out rows: ")[2].split()
    assert "base predicts" in inspected(world.rows, *remedy, "--model", world.base, "--max-rows", 1)


def test_another_tokenizer_is_refused_and_one_that_moved_can_be_named(
    world: World, refused, inspected, tmp_path
) -> None:
    rows = Path(shutil.copytree(world.rows, tmp_path / "rows"))
    manifest = rows / "manifest.json"
    gone = manifest.read_text(encoding="utf-8").replace(str(world.base), str(tmp_path / "gone"))
    manifest.write_text(gone, encoding="utf-8")
    assert "--tokenizer" in refused(rows)
    assert inspected(rows, "--tokenizer", world.base) == inspected(world.rows)
    assert "another tokenizer" in refused(
        rows, "--tokenizer", Path(__file__).parents[2] / "src/longmlm/bundled/roberta-mini"
    )


def test_rows_of_the_hub_are_those_of_the_folder(hub: Hub, inputs: Path, inspected) -> None:
    of_hub = inspected(f"hf:{NAME}", "--tokenizer", inputs / "tokenizer", "--split", "held_out")
    assert of_hub == inspected(inputs / "rows", "--split", "held_out")
    assert not [path for path, *_ in hub.sent if "/train/" in path]


def test_a_damaged_shard_is_named(world: World, refused, tmp_path) -> None:
    rows = Path(shutil.copytree(world.rows, tmp_path / "rows"))
    [shard, *_] = sorted(rows.glob("train/*.arrow"))
    shard.write_bytes(shard.read_bytes()[:200])
    assert f"{shard} is damaged" in refused(rows)


def test_a_page_replaces_an_earlier_one_but_no_other_file(world: World, inspected, refused, tmp_path) -> None:
    page = tmp_path / "rows.html"
    for number in (1, 2):
        assert inspected(world.rows, "--row", number, "--page", page).splitlines()[-1] == f"page: {page}"
        text = page.read_text(encoding="utf-8")
        assert text.startswith(PAGE_HEADER) and f"<h2>row {number}: " in text
    settings = re.search(r"settings.toml\n(.*?)</pre>", text, re.DOTALL)[1]
    assert f'rows = "{world.rows.name}"' in settings.replace("&#34;", '"') and str(tmp_path) not in text
    (tmp_path / "notes.html").write_text("<!doctype html>\n<p>mine</p>", encoding="utf-8")
    assert "not written by longmlm" in refused(world.rows, "--page", tmp_path / "notes.html")
    config = InspectConfig(rows=str(world.rows), row=(1,), page=str(page))
    (tmp_path / "again.toml").write_text(tomli_w.dumps(present(asdict(config))), encoding="utf-8")
    assert parse(InspectConfig, [str(tmp_path / "again.toml")]) == config
