"""Unknown tokens: counted by source, and named with what to do where they are many."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, read_rows_manifest
from longmlm.artifacts.unfinished_rows import SliceReport
from longmlm.data.corpus import plan_slices
from longmlm.data.engine import prepare_rows
from longmlm.data.notes import MAX_UNKNOWN_SHARE, unknown_notes
from longmlm.data.rows import open_rows
from longmlm.data.slices import SliceJob, pack_slice
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.reports.packing import packing_report, sources_table
from longmlm.settings.prepare import PrepareRecipe, Source

THAI = "ทะเลสาบสงบ ชาวประมงแก่พายเรือออกไป"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = {"lake": "湖水像一面镜子很平静。", "quotes": "“湖水像一面镜子很平”。", "thai": THAI}


@pytest.fixture(scope="module")
def chinese() -> Vocabulary:
    """Returns a tokenizer of single characters that has neither curly quotation marks nor Thai letters."""
    words = [*SPECIAL, *dict.fromkeys(TEXTS["lake"])]
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return vocabulary_of(tokenizer, "tiny Chinese")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> PrepareRecipe:
    folder, sources = tmp_path_factory.mktemp("corpus"), []
    for name, text in TEXTS.items():
        lines = [json.dumps({"text": text + "。" * (number % 3)}) for number in range(24)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        sources.append(Source(files=(f"{folder}/{name}.jsonl",), language="zh"))
    return PrepareRecipe(
        tokenizer="tiny", row_length=32, sources=tuple(sources), held_out_fraction=0.4, slice_bytes=3_000
    )


@pytest.fixture(scope="module")
def rows(recipe: PrepareRecipe, chinese: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "rows"
    prepare_rows(recipe, chinese, folder)
    return folder


def test_unknown_tokens_are_counted_by_source(rows: Path, chinese: Vocabulary) -> None:
    manifest = read_rows_manifest(rows)
    unknown, tokens = Counter[int](), Counter[int]()
    for split in SPLITS:
        found = Counter[int]()
        for row in (open_rows(rows, split)[number] for number in range(manifest.report.of(split).rows)):
            starts = [*row.document_starts, len(row) - 1]
            for number, begin, end in zip(row.document_sources.tolist(), starts, starts[1:], strict=False):
                found[number] += int(np.count_nonzero(row.input_ids[begin:end] == chinese.special.unk))
        assert manifest.report.of(split).unknown_per_source == tuple(found[number] for number in range(3))
        unknown += found
        tokens += Counter(dict(enumerate(manifest.report.of(split).tokens_per_source)))
    shares = manifest.report.unknown_shares
    assert shares == tuple(unknown[number] / tokens[number] for number in range(3))
    assert shares[0] == 0 and 0.1 < shares[1] < 0.2 and 0.3 < shares[2] <= 1


def test_report_and_page_show_the_shares(rows: Path) -> None:
    manifest = read_rows_manifest(rows)
    shares = manifest.report.unknown_shares
    assert f"unknown tokens: 0.00% of lake.jsonl, {shares[1]:.2%} of quotes.jsonl" in packing_report(manifest)
    assert [line[-1] for line in sources_table(manifest).lines] == [f"{share:.2%}" for share in shares]


def test_a_slice_of_another_format_is_packed_again(
    rows: Path, recipe: PrepareRecipe, chinese: Vocabulary, tmp_path: Path
) -> None:
    whole = read_rows_manifest(rows)
    slices = dict(enumerate(plan_slices(recipe.sources, recipe.slice_bytes)))
    job = SliceJob(recipe, chinese, slices, tmp_path / "rows.partial")
    with pytest.raises(KeyboardInterrupt):
        prepare_rows(recipe, chinese, tmp_path / "rows", _interrupted_after_one_slice)
    report = job.report_path(0)
    assert job.is_finished(0)
    earlier = artifact.dump(artifact.read(SliceReport, report)) | {"format": 2}
    report.write_text(json.dumps(earlier), encoding="utf-8")
    assert not job.is_finished(0)
    manifest = prepare_rows(recipe, chinese, tmp_path / "rows")
    assert manifest.sha256 == whole.sha256
    assert manifest.report.unknown_shares == whole.report.unknown_shares


def _interrupted_after_one_slice(job: SliceJob, numbers: Sequence[int]) -> None:
    pack_slice(job, numbers[0])
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_known", [True, False])
def test_many_unknown_tokens_are_named_with_what_to_do(
    recipe: PrepareRecipe, chinese: Vocabulary, vocabulary: Vocabulary, is_known: bool
) -> None:
    shares = (MAX_UNKNOWN_SHARE, 0.17, 1.0) if is_known else None
    quotes, thai = unknown_notes(recipe.sources, chinese, shares)
    assert "quotes.jsonl" in quotes and "tiny Chinese" in quotes and "“ ”" in quotes and "add_tokens" in quotes
    assert "thai.jsonl" in thai and "ทะเลสาบ"[:3] in thai
    assert ("about" in quotes) == (not is_known)
    assert ("17.0%" in quotes) == is_known
    assert not list(unknown_notes(recipe.sources, vocabulary, None)), "it knows every byte"


def test_a_dataset_on_a_hub_is_named_without_reading_it(chinese: Vocabulary) -> None:
    source = Source(dataset="owner/thai", split="train")
    assert not list(unknown_notes([source], chinese, None))
    [note] = unknown_notes([source], chinese, (0.5,))
    assert "50.0% of the tokens of owner/thai, train" in note
