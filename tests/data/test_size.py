"""The size of a corpus before it is packed, compared with its rows."""

import gzip

import pytest

from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError
from longmlm.planning.size import corpus_size, estimated_rows, rows_size
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.settings.shipped import PACKAGE

TOKENIZER = PACKAGE / "bundled" / "roberta-mini"
TEXT = PACKAGE / "bundled" / "text" / "demo.jsonl"


@pytest.mark.parametrize("row_length", [128, 1536])
def test_estimated_rows_are_near_those_that_are_packed(row_length, tmp_path):
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(TEXT.read_bytes().splitlines(keepends=True)[::3]))
    sources = (Source(files=(str(part),)),)
    recipe = PrepareRecipe(tokenizer=str(TOKENIZER), row_length=row_length, sources=sources, held_out_fraction=0.3)
    corpus = corpus_size(recipe.sources)
    assert corpus.num_files == 1 and corpus.num_bytes == part.stat().st_size
    packed = rows_size(prepare_rows(recipe, load_vocabulary(str(TOKENIZER)), tmp_path / "rows"))
    assert packed.is_exact
    assert corpus.num_tokens == pytest.approx(packed.num_tokens, rel=0.15)
    estimated = estimated_rows([packed.num_tokens], recipe)
    assert not estimated.is_exact
    assert estimated.mean_fill == pytest.approx(packed.mean_fill, abs=0.03)
    packed_rows, rows = (size.train_rows + size.held_out_rows for size in (packed, estimated))
    assert rows == pytest.approx(packed_rows, rel=0.05)


def test_compressed_files_count_as_their_text(tmp_path):
    text = TEXT.read_bytes()
    (tmp_path / "text.jsonl.gz").write_bytes(gzip.compress(text))
    plain, compressed = (
        corpus_size((Source(files=(str(path),)),)).num_tokens for path in (TEXT, tmp_path / "text.jsonl.gz")
    )
    assert compressed == pytest.approx(plain, rel=0.3)


def test_a_dataset_on_a_hub_is_named_and_missing_files_are_refused(tmp_path):
    hub = Source(dataset="someone/books", split="train")
    size = corpus_size((Source(files=(str(TEXT),)), hub))
    assert size.num_files == 1 and size.not_counted == ("someone/books",)
    with pytest.raises(DataError, match="no such file"):
        corpus_size((Source(files=(str(tmp_path / "*.jsonl"),)),))
    with pytest.raises(DataError, match="did you mean 'en'"):
        corpus_size((Source(files=(str(TEXT),), language="english"),))
