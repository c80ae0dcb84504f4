"""The Python API gives what the stages give, in memory, and leaves everything as it was."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import longmlm
from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.evaluation import Evaluation
from longmlm.artifacts.provenance import Provenance
from longmlm.batches.collate import collate
from longmlm.batches.masking import mask_row
from longmlm.data.corpus import split_of, text_hash
from longmlm.data.row import Row
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, FolderError, ModelError, PositionsError
from longmlm.folders import sha256_of, verify
from longmlm.model.extension import long_table
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of
from longmlm.settings.evaluate import EvaluateRecipe
from longmlm.settings.masking import HeldOut, Masking, MaskingUnit
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, demo_texts, tiny_extension, tiny_folder


def test_exporting_an_extended_model_gives_the_folder_of_the_stage(
    world: World, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    for folder, model in (("loaded", base), ("named", str(world.base)), ("path", world.base)):
        long = longmlm.extend(model, LONG_POSITIONS, initialisation="hierarchical")
        longmlm.export(long, tokenizer, tmp_path / folder)
        assert verify(tmp_path / folder)
        assert sha256_of(tmp_path / folder / "model.safetensors") == sha256_of(world.long / "model.safetensors")
        provenance = [artifact.read(Provenance, one / Provenance.FILE) for one in (tmp_path / folder, world.long)]
        assert provenance[0] == provenance[1]
        assert AutoTokenizer.from_pretrained(tmp_path / folder).model_max_length == LONG_POSITIONS
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert tokenizer.model_max_length == NUM_POSITIONS


@torch.no_grad()
def test_an_extended_model_computes_what_the_base_model_does(base: PreTrainedModel) -> None:
    long = longmlm.extend(base.eval(), LONG_POSITIONS, initialisation="hierarchical").eval()
    input_ids = torch.arange(10, 10 + NUM_POSITIONS).unsqueeze(0)
    assert torch.equal(long(input_ids).logits, base(input_ids).logits)
    assert long(input_ids.repeat(1, 2)).logits.isfinite().all()


@pytest.mark.parametrize("initialisation", ["fitted", "tile"])
def test_a_model_in_half_precision_stays_so(base: PreTrainedModel, initialisation: str) -> None:
    long = longmlm.extend(base.to(torch.bfloat16), LONG_POSITIONS, initialisation=initialisation)
    assert {parameter.dtype for parameter in long.parameters()} == {torch.bfloat16}


def test_smooth_terms_reach_the_table(base: PreTrainedModel) -> None:
    for smooth_terms in (2, 4):
        table = long_table(base, tiny_extension("base", initialisation="fitted", smooth_terms=smooth_terms))
        long = longmlm.extend(base, LONG_POSITIONS, initialisation="fitted", smooth_terms=smooth_terms)
        assert torch.equal(position_table_of(long).usable_rows, table)


def test_what_cannot_be_extended_is_refused(world: World, base: PreTrainedModel) -> None:
    long = longmlm.extend(base, LONG_POSITIONS)
    with pytest.raises(PositionsError, match=f"was extended to {LONG_POSITIONS} positions and has not been trained"):
        longmlm.extend(long, 2 * LONG_POSITIONS)
    with pytest.raises(PositionsError, match="has not been trained"):
        longmlm.extend(AutoModelForMaskedLM.from_pretrained(world.long), 2 * LONG_POSITIONS)
    next(base.parameters()).data[0] = torch.nan
    with pytest.raises(ModelError, match="NaN"):
        longmlm.extend(base, LONG_POSITIONS)


def test_notes_about_a_named_model_are_warnings(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "old")
    torch.save(AutoModelForMaskedLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match="has no safetensors file"):
        longmlm.extend(folder, LONG_POSITIONS)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_packed_rows_are_those_of_the_prepare_stage(
    world: World, tokenizer: PreTrainedTokenizerBase, split: str
) -> None:
    opened = open_rows(world.rows, split)
    texts = [text for text in demo_texts() if split_of(text_hash(text), 0.25) == split]
    packed = longmlm.pack(["", *texts, " \n"], tokenizer, LONG_POSITIONS)
    assert len(packed) == len(opened) > 20
    for row_id, row in enumerate(packed):
        assert np.array_equal(row.input_ids, opened[row_id].input_ids)
        assert np.array_equal(row.document_starts, opened[row_id].document_starts)


def test_texts_are_split_by_the_rules_of_their_language_and_packing(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["Het is b.v. zo. En zo.", "Kort."]
    joined, separate = (longmlm.pack(texts, tokenizer, 200, packing=one) for one in ("full-sentences", "doc-sentences"))
    assert [len(rows) for rows in (joined, separate)] == [1, 2]
    with pytest.raises(DataError, match="not an ISO 639 code"):
        longmlm.pack(texts, tokenizer, 200, language="dutch")


@pytest.mark.parametrize("unit", get_args(MaskingUnit))
def test_masked_rows_are_those_of_the_pretrain_stage(
    world: World, rows: list[Row], tokenizer: PreTrainedTokenizerBase, unit: MaskingUnit
) -> None:
    vocabulary = load_vocabulary(str(world.base))
    row_ids, settings = [5, 2, len(rows) - 1], Masking(selected_fraction=0.3, unit=unit)
    batch = longmlm.mask(rows, row_ids, tokenizer, epoch=3, seed=7, masking=settings)
    maskable = vocabulary.maskable_in(unit)
    masked = [mask_row(rows[row_id], maskable, settings, 7, 3, row_id) for row_id in row_ids]
    expected = collate(masked, vocabulary.special.pad)
    assert torch.equal(batch["input_ids"], expected.input_ids)
    assert expected.attention_mask is not None
    assert torch.equal(batch["attention_mask"].bool(), expected.attention_mask)
    assert torch.equal(batch["labels"].flatten()[expected.selected], expected.labels)
    assert int((batch["labels"] != -100).sum()) == len(expected.labels)


def test_a_mask_depends_on_seed_epoch_and_row_only(rows: list[Row], tokenizer: PreTrainedTokenizerBase) -> None:
    one, same = (longmlm.mask(rows, ids, tokenizer, epoch=1)["labels"][-1] for ids in ([4], [9, 4]))
    assert torch.equal(one[: len(rows[4])], same[: len(rows[4])])
    for changed in ({"epoch": 2}, {"epoch": 1, "seed": 1}):
        assert not torch.equal(one, longmlm.mask(rows, [4], tokenizer, **changed)["labels"][0])
    static = Masking(mask_patterns=1)
    first, second = (longmlm.mask(rows, [4], tokenizer, epoch=n, masking=static)["input_ids"] for n in (0, 5))
    assert torch.equal(first, second)


def test_a_tokenizer_that_gets_a_token_is_seen_anew(rows: list[Row], tokenizer: PreTrainedTokenizerBase) -> None:
    longmlm.mask(rows, [0], tokenizer)
    tokenizer.add_tokens(["Zarathustra"])
    (row,) = longmlm.pack(["Zarathustra"], tokenizer, 16)
    assert len(row) == 3


@torch.no_grad()
def test_the_loss_of_a_batch_is_that_of_training(
    base: PreTrainedModel, rows: list[Row], tokenizer: PreTrainedTokenizerBase, world: World
) -> None:
    long = longmlm.extend(base, LONG_POSITIONS, initialisation="hierarchical").eval()
    vocabulary = load_vocabulary(str(world.base))
    masked = [mask_row(rows[row_id], vocabulary.maskable, Masking(), 0, 0, row_id) for row_id in range(4)]
    output = MlmObjective(long)(collate(masked, vocabulary.special.pad))["mlm"]
    batch = longmlm.mask(rows, range(4), tokenizer)
    num_selected = int((batch["labels"] != -100).sum())
    assert float(long(**batch).loss) == pytest.approx(float(output.loss_sum) / num_selected, rel=1e-5)


def test_accuracies_are_those_of_the_evaluate_stage(
    world: World, evaluation: Path, base: PreTrainedModel, rows: list[Row], tokenizer: PreTrainedTokenizerBase
) -> None:
    stage = artifact.read(Evaluation, evaluation / Evaluation.FILE).measured
    trained = AutoModelForMaskedLM.from_pretrained(world.trained)
    long = longmlm.extend(base, LONG_POSITIONS, initialisation="hierarchical")
    for name, measured in {
        "base_cut": longmlm.evaluate(base, rows, tokenizer, view="cut"),
        "base_chunks": longmlm.evaluate(base, rows, tokenizer, view="chunks"),
        "long_before": longmlm.evaluate(long, iter(rows), tokenizer),
        "long_after": longmlm.evaluate(trained, rows, tokenizer),
        "long_after_cut": longmlm.evaluate(trained, rows, tokenizer, view="cut"),
    }.items():
        assert _numbers(measured) == pytest.approx(_numbers(stage[name]), rel=1e-5), name
        assert len(measured.blocks) == -(-LONG_POSITIONS // NUM_POSITIONS)


def _numbers(measured: Measured) -> list[float]:
    counted = [part for part in (measured.whole, *measured.blocks) if part.num_selected]
    return [number for part in counted for number in (part.accuracy, part.standard_error, part.loss, part.num_selected)]


def test_an_evaluation_follows_its_recipe_and_its_block_length(
    base: PreTrainedModel, rows: list[Row], tokenizer: PreTrainedTokenizerBase
) -> None:
    long = longmlm.extend(base, LONG_POSITIONS)
    some = longmlm.evaluate(
        long, rows, tokenizer, base_positions=20, recipe=EvaluateRecipe(held_out=HeldOut(max_rows=5))
    )
    assert len(some.blocks) == 2
    everything = longmlm.evaluate(long, rows, tokenizer)
    assert some.whole.num_selected < everything.whole.num_selected
    reloaded = longmlm.evaluate(AutoModelForMaskedLM.from_config(long.config), rows, tokenizer)
    assert len(reloaded.blocks) == 1  # nobody knows what it was extended from


def test_a_refusal_says_what_to_pass(
    base: PreTrainedModel, rows: list[Row], tokenizer: PreTrainedTokenizerBase, world: World
) -> None:
    with pytest.raises(DataError, match="pass a list of texts"):
        longmlm.pack("one", tokenizer, LONG_POSITIONS)
    with pytest.raises(DataError, match="extend it, or pass view='cut'"):
        longmlm.evaluate(base, rows, tokenizer)
    with pytest.raises(ModelError, match="load it with AutoModelForMaskedLM"):
        longmlm.extend(AutoModel.from_pretrained(world.base), LONG_POSITIONS)


def test_an_existing_folder_is_not_overwritten(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(FolderError, match="already exists"):
        longmlm.export(base, tokenizer, tmp_path / "mine")
    longmlm.export(base, tokenizer, tmp_path / "new", weights="bf16", max_shard_size="20KB")
    assert len(list((tmp_path / "new").glob("model-*.safetensors"))) > 1
    assert not (tmp_path / "new" / Provenance.FILE).exists()
    again, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert again.dtype == torch.bfloat16 and not info["missing_keys"] and not info["unexpected_keys"]
