"""Rows of a folder as batches for one's own loop: those of longmlm's loop, in any DataLoader; and as a Dataset."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForPreTraining, PreTrainedModel, PreTrainedTokenizerBase

import longmlm
from longmlm.api.rows import RowBatches
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import Pairing
from longmlm.batches.sampling import global_batch, mixture_of
from longmlm.batches.steps import Recipe, StepBatches
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ArtifactError, DataError, FolderError
from longmlm.settings.masking import Masking
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.support.pairs import FAMILIES, pair_model, pair_rows
from tests.support.tiny import World, tiny_rows

SIZE = 16


@pytest.fixture
def batches(world: World) -> RowBatches:
    return longmlm.read_rows(world.rows, rows_per_batch=SIZE, seed=7)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_batches_are_those_of_the_training_loop(world: World, batches: RowBatches) -> None:
    """In three passes and beyond: also where one of the loop's batches straddles two epochs of the rows."""
    rows, vocabulary = open_rows(world.rows, "train"), load_vocabulary(str(world.base))
    recipe = Recipe(7, SIZE, Masking(), vocabulary.maskable, vocabulary.special.pad)
    loop, num_batches = StepBatches(rows, recipe, 0, 1, SIZE), len(rows) // SIZE
    assert len(batches) == num_batches and len(rows) % SIZE
    run = batches.take(3 * num_batches)
    for index in range(3 * num_batches):
        batches.set_epoch(index // num_batches)
        [expected] = loop[index * SIZE]
        for batch in (batches[index % num_batches], run[index]):
            assert torch.equal(batch["input_ids"], expected.input_ids)
            labels = batch["labels"].flatten()
            assert torch.equal(labels[expected.selected], expected.labels)
            assert (labels != -100).sum() == len(expected.labels)
            is_token = batch["input_ids"] != vocabulary.special.pad
            assert torch.equal(batch["attention_mask"].bool(), is_token)


def test_a_mask_follows_from_seed_epoch_and_row(world: World, tokenizer: PreTrainedTokenizerBase) -> None:
    masking, rows = Masking(selected_fraction=0.4, unit="word"), open_rows(world.rows, "train")
    one = longmlm.read_rows(world.rows, tokenizer, rows_per_batch=1, seed=3, masking=masking)
    maskable = load_vocabulary(str(world.base)).maskable_in("word")
    for epoch in (0, 2):
        one.set_epoch(epoch)
        [row_id] = global_batch(epoch * len(rows), 1, len(rows), 3).row_ids.tolist()
        masked = mask_row(rows[row_id], maskable, masking, 3, epoch, row_id)
        assert np.array_equal(one[0]["input_ids"][0], masked.row.input_ids)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_loader_make_the_same_batches_and_know_the_epoch(batches: RowBatches, persistent: bool) -> None:
    loader = DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=persistent)
    passes = []
    for epoch in (0, 1, 0):
        batches.set_epoch(epoch)
        passes.append(list(loader))
        assert len(passes[-1]) == len(batches)
        assert all(same(batch, batches[index]) for index, batch in enumerate(passes[-1]))
    assert same(passes[0][0], passes[2][0]) and not same(passes[0][0], passes[1][0])


def test_a_pass_over_held_out_rows_sees_each_once(world: World) -> None:
    held_out = longmlm.read_rows(world.rows, split="held_out", rows_per_batch=SIZE)
    rows = open_rows(world.rows, "held_out")
    lengths = sorted(len(rows[row_id]) for row_id in range(len(rows)))
    seen = [batch["attention_mask"].sum(1) for batch in DataLoader(held_out, batch_size=None)]
    assert sorted(torch.cat(seen).tolist()) == lengths
    assert [len(one) for one in seen] == [SIZE] * (len(rows) // SIZE) + [len(rows) % SIZE]
    assert same(held_out[0], longmlm.read_rows(world.rows, split="held_out", rows_per_batch=SIZE)[0])
    for change in (lambda: held_out.take(3), lambda: held_out.weighted({"a": 1.0})):
        with pytest.raises(ValueError, match="for training rows"):
            change()


def test_a_model_learns_from_the_batches(batches: RowBatches, base: PreTrainedModel) -> None:
    long = longmlm.extend(base, batches.row_length, initialisation="hierarchical").train()
    optimizer, losses = torch.optim.AdamW(long.parameters(), lr=3e-3), []
    for batch in DataLoader(batches.take(60), batch_size=None):
        loss = long(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5


def test_indexes_outside_a_pass_end_it(batches: RowBatches) -> None:
    assert sum(1 for _ in batches) == len(batches)
    for index in (-1, len(batches)):
        with pytest.raises(IndexError, match=f"no batch {index}: the batches of a pass are 0 to {len(batches) - 1}"):
            batches[index]


def test_the_rows_are_a_dataset_without_a_copy(world: World, batches: RowBatches) -> None:
    table, rows = batches.to_dataset(), open_rows(world.rows, "train")
    assert isinstance(table, Dataset) and len(table) == len(rows)
    assert {Path(file["filename"]).parent for file in table.cache_files} == {world.rows / "train"}
    for row_id in (0, 7, len(rows) - 1):
        assert table[row_id]["input_ids"] == rows[row_id].input_ids.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_are_those_of_the_training_loop_and_the_model_takes_them(family: str, tmp_path: Path) -> None:
    model, kind = pair_model(tmp_path / "model", family), FAMILIES[family]
    folder = pair_rows(tmp_path, model)
    pairs = longmlm.read_rows(folder, rows_per_batch=8, seed=5).in_pairs(kind)
    vocabulary = load_vocabulary(str(model))
    pairing = Pairing(kind, vocabulary.special)
    recipe = Recipe(5, 8, Masking(), vocabulary.maskable, vocabulary.special.pad, pairing=pairing)
    rows, label = open_rows(folder, "train"), {"nsp": "next_sentence_label", "sop": "sentence_order_label"}[kind]
    labels = []
    for index, batch in enumerate(pairs):
        [expected] = StepBatches(rows, recipe, 0, 1, 8)[index * 8]
        assert torch.equal(batch["input_ids"], expected.input_ids)
        assert torch.equal(batch["token_type_ids"], expected.token_type_ids)
        assert batch[label][batch[label] != -100].tolist() == expected.pair_labels.tolist()
        labels += batch[label].tolist()
    assert {0, 1} <= set(labels)
    assert AutoModelForPreTraining.from_pretrained(model)(**pairs[0]).loss.isfinite()


def test_weights_are_those_of_the_training_loop(world: World, tmp_path: Path) -> None:
    text = world.rows.parent / "text.jsonl"
    sources = tuple(Source(name=name, files=(str(text),)) for name in ("a", "b"))
    recipe = PrepareRecipe(tokenizer=str(world.base), row_length=40, sources=sources, held_out_fraction=0.25)
    folder = tmp_path / "rows"
    prepare_rows(recipe, load_vocabulary(recipe.tokenizer), folder)
    batches = longmlm.read_rows(folder, rows_per_batch=10).weighted({"a": 3.0})
    rows, vocabulary = open_rows(folder, "train"), load_vocabulary(str(world.base))
    mixture = mixture_of({"a": 3.0}, rows.manifest.sources("train"))
    recipe = Recipe(0, 10, Masking(), vocabulary.maskable, vocabulary.special.pad, mixture)
    assert torch.equal(batches[2]["input_ids"], StepBatches(rows, recipe, 0, 1, 10)[20][0].input_ids)
    with pytest.raises(DataError, match=r"weights\.c names no source"):
        batches.weighted({"c": 1.0})
    with pytest.raises(ValueError, match="must be positive"):
        batches.weighted({"a": 0.0})


def test_what_holds_no_rows_is_refused_with_the_remedy(world: World, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, error, said in (
        (tmp_path / "missing", FolderError, "no such folder: run longmlm prepare first"),
        (tmp_path / "empty", FolderError, "run longmlm prepare"),
        (world.long, DataError, "holds no packed rows: make them with longmlm prepare"),
    ):
        with pytest.raises(error, match=said) as raised:
            longmlm.read_rows(folder)
        assert "\n" not in str(raised.value)
    with pytest.raises(DataError, match="do not record sentences: prepare rows with pairs = true"):
        longmlm.read_rows(world.rows).in_pairs("nsp")
    with pytest.raises(ValueError, match="training rows: set it to"):
        longmlm.read_rows(world.rows, rows_per_batch=10**6)


def test_rows_of_another_format_or_damaged_ones_are_refused(world: World, tmp_path: Path) -> None:
    rows = Path(shutil.copytree(world.rows, tmp_path / "rows"))
    manifest = json.loads((rows / "manifest.json").read_text())
    (rows / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
    with pytest.raises(ArtifactError, match="its format is 0, .*prepare the rows again"):
        longmlm.read_rows(rows)
    (rows / "manifest.json").write_text(json.dumps(manifest))
    shard = next((rows / "train").glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(FolderError, match=shard.name):
        longmlm.read_rows(rows)
    assert len(longmlm.read_rows(rows, split="held_out"))


def test_the_tokenizer_is_that_of_the_rows(world: World, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    base = Path(shutil.copytree(world.base, tmp_path / "base"))
    rows = tiny_rows(tmp_path, base)
    shutil.rmtree(base)
    with pytest.raises(DataError, match="no such folder: .*; or pass the tokenizer of the rows as tokenizer"):
        longmlm.read_rows(rows)
    assert len(longmlm.read_rows(rows, tokenizer))
    tokenizer.add_tokens(["acutemyocarditis"])
    with pytest.raises(DataError, match="the rows were made with another tokenizer"):
        longmlm.read_rows(rows, tokenizer)
