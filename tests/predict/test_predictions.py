"""Predictions at masks are those of transformers' fill-mask pipeline; of a long text, a model reads the part around."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

from longmlm.data.vocabulary import Vocabulary, decode, load_vocabulary
from longmlm.errors import DataError
from longmlm.predict.drawing import Prediction
from longmlm.predict.masks import masked_text
from longmlm.predict.predictions import encoded_text, predictions_of, window
from tests.support.families import NUM_POSITIONS, SPECIAL, SPECIAL_OF_OTHERS, demo_texts
from tests.support.tiny import LONG_POSITIONS, World, tiny_folder

TEXTS = ("It was a [MASK] day.", "It was <mask>, and the <mask> said so", "[MASK] it was", "It was the [MASK]")
CHINESE = "天下大勢，分久必合，合久必分。周末七國分爭，并入於秦。"


def predictions(folder: Path, text: str, word: str | None = None, top_k: int = 4) -> list[Prediction]:
    return predictions_of(str(folder), "model", masked_text(text, word, 1, ()), top_k)[0]


@pytest.mark.parametrize("family", [*SPECIAL, *SPECIAL_OF_OTHERS], ids=str)
def test_they_are_those_of_transformers(family: tuple[str, int], tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, *family, num_positions=LONG_POSITIONS)
    fill = pipeline("fill-mask", model=str(folder), top_k=4)
    for text in TEXTS:
        own = masked_text(text, None, 1, ()).with_masks(fill.tokenizer.mask_token)
        expected = fill(own)
        expected = expected if isinstance(expected[0], list) else [expected]
        found = predictions(folder, text)
        assert [one.span for one in found] == list(range(len(expected)))
        for one, guesses in zip(found, expected, strict=True):
            values = [guess["score"] for guess in guesses]
            assert [candidate.probability for candidate in one.candidates] == pytest.approx(values, rel=1e-4)
            assert one.token is None and not any(candidate.is_original for candidate in one.candidates)


def test_all_tokens_of_a_word_are_masked_and_ranked(world: World) -> None:
    words = demo_texts()[0].split()[:6]
    text, word = " ".join(words), max(words, key=len)
    found = predictions(world.long, text, word, 300)
    vocabulary, tokenizer = load_vocabulary(str(world.long)), AutoTokenizer.from_pretrained(world.long)
    encoded = encoded_text(masked_text(text, word, 1, ()), tokenizer, vocabulary)
    [positions] = encoded.masks
    assert len(found) == len(positions) > 1, "the vocabulary is too small for the word"
    assert decode(vocabulary, encoded.original_ids[positions]).strip() == word
    assert set(encoded.input_ids[positions]) == {tokenizer.mask_token_id}
    with torch.inference_mode():
        model = AutoModelForMaskedLM.from_pretrained(world.long)
        expected = model(torch.tensor(encoded.input_ids)[None]).logits[0, positions].softmax(-1)
    for one, true_id, row in zip(found, encoded.original_ids[positions], expected, strict=True):
        assert one.probability == pytest.approx(float(row[true_id]), rel=1e-4)
        assert one.rank == 1 + int((row > row[true_id]).sum())
        assert [number for number, candidate in enumerate(one.candidates, 1) if candidate.is_original] == [one.rank]


def test_a_short_model_reads_the_part_with_the_mask(world: World) -> None:
    text = " ".join(demo_texts()[0].split()[:40]) + " <mask> " + " ".join(demo_texts()[1].split()[:40])
    masked = masked_text(text, None, 1, ())
    [short], notes = predictions_of(str(world.base), "base", masked, 3)
    encoded = encoded_text(masked, AutoTokenizer.from_pretrained(world.base), load_vocabulary(str(world.base)))
    length, position = len(encoded.input_ids), int(encoded.masks[0][0])
    assert notes == [f"base reads {NUM_POSITIONS} of the {length} tokens of the text: those around the mask"]
    inside = encoded.input_ids[position - 7 : position + 7]
    ids = [encoded.input_ids[0], *inside, encoded.input_ids[-1]]
    assert len(ids) == NUM_POSITIONS
    with torch.inference_mode():
        logits = AutoModelForMaskedLM.from_pretrained(world.base)(torch.tensor([ids])).logits[0, 8]
    assert [one.probability for one in short.candidates] == pytest.approx(
        logits.softmax(-1).topk(3)[0].tolist(), rel=1e-4
    )


@pytest.mark.parametrize(("position", "first"), [(1, 1), (2, 1), (4, 2), (6, 4), (7, 4)])
def test_the_window_has_the_mask_in_the_middle_unless_the_text_ends(position: int, first: int, world: World) -> None:
    special = load_vocabulary(str(world.base)).special
    ids = np.array([special.cls, *range(101, 108), special.sep])
    ids[position] = special.mask
    masked = window(ids, np.array([position]), 6, special)
    assert masked.row.input_ids.tolist() == [special.cls, *ids[first : first + 4], special.sep]
    assert masked.row.input_ids[masked.selected].tolist() == [special.mask]
    assert window(ids, np.array([position]), 9, special).row.input_ids.tolist() == ids.tolist()


def test_more_masked_tokens_than_a_model_reads_are_refused(world: World) -> None:
    text = " ".join(demo_texts()[0].split())[:200]
    with pytest.raises(DataError, match=f"model reads {NUM_POSITIONS} tokens, but the masked word has more"):
        predictions(world.base, text, text)


def test_chinese_guesses_have_no_spaces_and_continuations_are_marked(tmp_path: Path, bert: Vocabulary) -> None:
    folder = Path(bert.name)
    [found] = predictions(folder, "天下大[MASK]，分久必合", top_k=300)
    texts = [candidate.text for candidate in found.candidates]
    assert {"勢", "##勢", "天"} <= set(texts)
    assert not any(" " in text for text in texts)
    words = predictions(folder, "天下大勢，分久必合", "大勢", top_k=1)
    assert [one.token for one in words] == ["大", "勢"]


@pytest.fixture
def bert(tmp_path: Path) -> Vocabulary:
    """A tiny BERT with a vocabulary of Chinese characters."""
    folder = tiny_folder(tmp_path / "bert", "bert", 0, LONG_POSITIONS)
    characters = sorted(set(CHINESE))
    pieces = [*SPECIAL["bert", 0], *characters, *(f"##{one}" for one in characters)]
    for file in folder.glob("tokenizer*"):
        file.unlink()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', encoding="utf-8")
    return load_vocabulary(str(folder))
