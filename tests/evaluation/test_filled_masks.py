"""Examples are the full model's predictions near the end of long rows, decoded as running text."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel, Metaspace, WordPiece
from tokenizers.models import WordLevel
from transformers import AutoModelForMaskedLM, AutoTokenizer

from longmlm.artifacts.accuracy import FilledMask
from longmlm.data.vocabulary import as_written
from longmlm.evaluation.filled_masks import filled_masks
from longmlm.evaluation.frozen import FrozenRows
from longmlm.model.mlm import MlmObjective
from longmlm.settings.masking import HeldOut, Masking
from tests.support.tiny import LONG_POSITIONS, World

NUM_EXAMPLES = 6
both_families = pytest.mark.parametrize("world", [("roberta", 1), ("bert", 0)], indirect=True, ids=["roberta", "bert"])


@pytest.fixture(scope="module")
def tokenizer(world: World):
    return AutoTokenizer.from_pretrained(world.trained)


@pytest.mark.parametrize(
    ("decoder", "decoded", "text"),
    [
        (WordPiece(), "天 下 大 势 ， 分 久 必 合 。", "天下大势，分久必合。"),
        (WordPiece(), "これは GPU と 言 う", "これは GPU と言う"),
        (WordPiece(), "它 有 3 个 words in it", "它有 3 个 words in it"),
        (WordPiece(), "나는 학교에 간다", "나는 학교에 간다"),  # Korean has spaces
        (Metaspace(), "天 下", "天 下"),  # the text has this space
        (ByteLevel(), "天 下", "天 下"),
    ],
)
def test_no_space_is_shown_that_the_text_does_not_have(decoder: object, decoded: str, text: str) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, "[UNK]"))
    tokenizer.decoder = decoder
    assert as_written(tokenizer, decoded) == text


@pytest.fixture(scope="module")
def filled(world: World, frozen: FrozenRows, tokenizer) -> list[FilledMask]:
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.trained))
    found = filled_masks(objective, tokenizer, frozen, NUM_EXAMPLES)
    assert len(found) == NUM_EXAMPLES
    return found


@both_families
def test_positions_are_the_last_masked_ones_of_long_rows_spread_evenly(
    frozen: FrozenRows, filled: list[FilledMask]
) -> None:
    borders = [number * len(frozen.rows) // NUM_EXAMPLES for number in range(NUM_EXAMPLES + 1)]
    assert all(begin <= one.row_id < end for one, (begin, end) in zip(filled, pairwise(borders), strict=True))
    for one in filled:
        masked = frozen.masked(one.row_id)
        assert len(masked.row) >= 0.9 * LONG_POSITIONS
        assert 0.9 * len(masked.row) <= one.position < len(masked.row) - 1
        hidden = [position for position in masked.selected if masked.row.input_ids[position] == frozen.special.mask]
        assert one.position == hidden[-1]


@both_families
def test_guesses_are_those_of_the_full_model_on_the_whole_row(
    world: World, frozen: FrozenRows, tokenizer, filled: list[FilledMask]
) -> None:
    model = AutoModelForMaskedLM.from_pretrained(world.trained).eval()
    for one in filled:
        seen = torch.from_numpy(frozen.masked(one.row_id).row.input_ids).unsqueeze(0)
        with torch.no_grad():
            likeliest = model(input_ids=seen).logits[0, one.position].softmax(-1).topk(3)
        assert [probability for _, probability in one.guesses] == pytest.approx(likeliest.values.tolist(), abs=1e-5)
        pieces = [tokenizer.decode([token_id]) for token_id in likeliest.indices.tolist()]
        guessed = [text for text, _ in one.guesses]
        assert [piece.strip().removeprefix("##") for piece in pieces] == [text.strip() for text in guessed]


@both_families
def test_context_and_truth_are_running_text(frozen: FrozenRows, tokenizer, filled: list[FilledMask]) -> None:
    for one in filled:
        tokens = frozen.rows[one.row_id].input_ids
        row = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        passage = one.before + one.truth + one.after
        assert passage in row
        assert len(passage) > 30 or len(tokens) < LONG_POSITIONS
        assert len(one.before) <= 120
        assert len(one.after) <= 60
        special = {tokenizer.decode([token_id]) for token_id in frozen.special.all if token_id != frozen.special.unk}
        assert not any(text in passage for text in special)


def test_a_guess_that_is_right_is_the_truth_to_the_letter(world: World, frozen: FrozenRows, tokenizer) -> None:
    """The model of this test answers the truth of the first example everywhere."""
    model = AutoModelForMaskedLM.from_pretrained(world.trained)
    (first,) = filled_masks(MlmObjective(model), tokenizer, frozen, 1)
    answer = int(frozen.rows[first.row_id].input_ids[first.position])
    with torch.no_grad():
        model.get_output_embeddings().bias[answer] = 1_000.0
    (example,) = filled_masks(MlmObjective(model), tokenizer, frozen, 1)
    assert example.guesses[0] == (example.truth, pytest.approx(1.0))


@pytest.mark.parametrize("is_training", [True, False])
def test_training_mode_is_restored(world: World, frozen: FrozenRows, tokenizer, is_training: bool) -> None:
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.trained)).train(is_training)
    one, two = (filled_masks(objective, tokenizer, frozen, 2) for _ in range(2))
    assert one == two != []
    assert objective.training is objective.model.training is is_training


def test_rows_without_a_mask_token_give_no_example(world: World, frozen: FrozenRows, tokenizer) -> None:
    shown = replace(frozen, settings=HeldOut(masking=Masking(masked_share=0.0, random_share=0.0)))
    model = AutoModelForMaskedLM.from_pretrained(world.trained)
    assert filled_masks(MlmObjective(model), tokenizer, shown, 3) == []
    few = replace(frozen, settings=HeldOut(max_rows=2))
    assert len(filled_masks(MlmObjective(model), tokenizer, few, 5)) <= 2
