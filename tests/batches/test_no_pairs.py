"""A run on pairs is refused where rows give none, or one label only; an accuracy over one label is none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate import Accelerator

import longmlm
from longmlm.artifacts.rows import SPLITS, check_rows_fit_recipe, read_rows_manifest
from longmlm.batches import pairs
from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.errors import DataError
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import measure_pairs
from longmlm.model.loading import load_for_pairs
from longmlm.model.mlm import MlmObjective
from longmlm.needs import check_inputs
from longmlm.settings.masking import HeldOut, PairKind
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.support.families import demo_texts
from tests.support.pairs import ROW_LENGTH, pair_model, pair_settings

WORDS = [word for text in demo_texts() for word in text.split() if word.isalpha()]


def sentence(begin: int, num_words: int) -> str:
    return f"{' '.join(WORDS[begin : begin + num_words]).capitalize()}."


TEXTS = {  # of ten documents, and how many of them have a row with several sentences
    "documents of one sentence": ([sentence(5 * number, 3) for number in range(10)], 0),
    "text without ends of sentences": ([sentence(90 * number, 80)[:-1] for number in range(10)], 0),
    "sentences that fill a row": ([" ".join(sentence(60 * n + 20 * k, 18) for k in range(3)) for n in range(10)], 0),
    "documents of short sentences": ([" ".join(sentence(9 * n + 3 * k, 2) for k in range(3)) for n in range(10)], 10),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_model(tmp_path_factory.mktemp("model") / "base", "bert")


@pytest.fixture(scope="module")
def vocabulary(base: Path) -> Vocabulary:
    return load_vocabulary(str(base))


def rows_of(texts: dict[str, list[str]], folder: Path, vocabulary: Vocabulary) -> Path:
    """Packs the texts of each split into rows for pairs, and returns their folder."""
    for split, own in texts.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in own)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    sources = [Source(files=(str(folder / f"{split}.jsonl"),), held_out=split == "held_out") for split in texts]
    recipe = PrepareRecipe(
        tokenizer=vocabulary.name,
        row_length=ROW_LENGTH,
        sources=tuple(sources),
        packing="doc-sentences",
        pairs=True,
        held_out_fraction=1e-9,
    )
    prepare_rows(recipe, vocabulary, folder / "rows")
    return folder / "rows"


@pytest.mark.parametrize("kind", ["nsp", "sop"])
@pytest.mark.parametrize("name", TEXTS)
def test_rows_without_a_pair_are_refused(
    tmp_path: Path, base: Path, vocabulary: Vocabulary, name: str, kind: PairKind
) -> None:
    texts, num_documents = TEXTS[name]
    folder = rows_of({"train": texts, "held_out": texts}, tmp_path, vocabulary)
    for split in SPLITS:
        rows = open_rows(folder, split)
        assert rows.num_documents_with_pairs == num_documents
        check_rows_fit_model(rows, vocabulary)
        if num_documents:
            check_rows_fit_model(rows, vocabulary, pairs=kind)
            continue
        with pytest.raises(DataError, match=f"several sentences in a {split} row, but there are only 0: .*remove"):
            check_rows_fit_model(rows, vocabulary, pairs=kind)
        with pytest.raises(DataError, match="but there are only 0"):
            longmlm.read_rows(folder, split=split, rows_per_batch=2).in_pairs(kind)
    if name == "documents of one sentence":
        with pytest.raises(DataError, match="but there are only 0"):
            check_inputs(pair_settings(tmp_path, base, folder, kind))


@pytest.mark.parametrize("one_document", SPLITS)
def test_the_only_document_of_a_split_gives_pairs_in_order_and_swapped_but_no_random_one(
    tmp_path: Path, base: Path, vocabulary: Vocabulary, one_document: str
) -> None:
    many = TEXTS["documents of short sentences"][0]
    texts = {split: [" ".join(many)] if split == one_document else many for split in SPLITS}
    folder = rows_of(texts, tmp_path, vocabulary)
    rows = open_rows(folder, "train" if one_document == "train" else "held_out")
    check_rows_fit_model(rows, vocabulary, pairs="sop")
    with pytest.raises(
        DataError, match=f"needs 2 documents with several sentences in a {one_document} row, but there is only 1"
    ):
        check_rows_fit_model(rows, vocabulary, pairs="nsp")
    recipe = pair_settings(tmp_path, base, folder, "nsp").recipe
    with pytest.raises(DataError, match=f"a {one_document} row, but there is only 1"):
        check_rows_fit_recipe(read_rows_manifest(folder), recipe, str(folder))


@pytest.mark.parametrize("labels", [{0}, {1}, {0, 1}])
def test_pairs_of_one_label_have_no_accuracy(
    tmp_path: Path,
    base: Path,
    vocabulary: Vocabulary,
    labels: set[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn, own_pair = iter([*labels] * 10), pairs.Pairing.pair

    def pair(self: pairs.Pairing, rows: Rows, row_id: int, seed: int, epoch: int) -> pairs.PairedRow:
        return replace(own_pair(self, rows, row_id, seed, epoch), label=next(drawn))

    monkeypatch.setattr(pairs.Pairing, "pair", pair)
    texts = TEXTS["documents of short sentences"][0]
    rows = open_rows(rows_of({"train": texts, "held_out": texts}, tmp_path, vocabulary), "held_out")
    frozen = FrozenRows(rows, HeldOut(max_rows=8), vocabulary.maskable, vocabulary.special, pairs="sop")
    measured = measure_pairs(MlmObjective(load_for_pairs(str(base)).model), frozen, Accelerator(cpu=True))
    said = capsys.readouterr().out
    if len(labels) == 2:
        assert measured is not None and measured.larger_share == 50 and "not measured" not in said
    else:
        assert measured is None and "8 held-out pairs, but not of both labels: pair accuracy is not measured" in said
