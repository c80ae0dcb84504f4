import hashlib
import json
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoTokenizer

from longmlm.data.corpus import Document, plan_slices, read_slice
from longmlm.folders import verify
from longmlm.model.architecture import architecture_of
from longmlm.settings.prepare import Source

BUNDLED = Path(__file__).parents[1] / "src" / "longmlm" / "bundled"
MODEL = BUNDLED / "roberta-mini"


def documents(name: str) -> list[dict[str, str]]:
    sources = [Source(files=(str(BUNDLED / "text" / name),), text_field="id")]
    named = [record.text for spans in plan_slices(sources, 1 << 30) for record in read_slice(spans, sources)]
    sources = [Source(files=(str(BUNDLED / "text" / name),))]
    read = [record for spans in plan_slices(sources, 1 << 30) for record in read_slice(spans, sources)]
    assert all(isinstance(record, Document) for record in read)
    return [{"id": key, "text": record.text} for key, record in zip(named, read, strict=True)]


def hashes_of_paragraphs(texts: list[str]) -> set[str]:
    paragraphs = (paragraph.strip() for text in texts for paragraph in text.split("\n\n"))
    return {hashlib.sha256(one.encode()).hexdigest() for one in paragraphs if len(one) > 80}


def test_the_bundled_model_has_seen_neither_the_demo_s_documents_nor_their_books():
    demo, scratch = documents("demo.jsonl"), documents("scratch.jsonl.zst")
    assert len(demo) > 100 and len(scratch) > 300
    novels = [{one["id"].split("/")[0] for one in side} for side in (demo, scratch)]
    assert len(novels[0]) == 9 and len(novels[1]) == 18
    assert not novels[0] & novels[1]
    sides = [{hashlib.sha256(one["text"].encode()).hexdigest() for one in side} for side in (demo, scratch)]
    assert not sides[0] & sides[1]
    paragraphs = [hashes_of_paragraphs([one["text"] for one in side]) for side in (demo, scratch)]
    assert min(map(len, paragraphs)) > 3000
    assert not paragraphs[0] & paragraphs[1]


def test_the_bundled_model_was_trained_on_exactly_the_text_next_to_it():
    trained = json.loads((MODEL / "longmlm.json").read_text())["trained"]
    text = BUNDLED / "text" / "scratch.jsonl.zst"
    assert trained["files_sha256"] == [hashlib.sha256(text.read_bytes()).hexdigest()]


def test_the_bundled_model_is_complete_small_and_loads_with_transformers():
    assert verify(MODEL)["files"]["model.safetensors"]["bytes"] > 10_000_000
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 12_000_000
    model, info = AutoModelForMaskedLM.from_pretrained(MODEL, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert architecture_of(model).num_positions == 128 == AutoTokenizer.from_pretrained(MODEL).model_max_length


def test_the_bundled_model_s_card_states_licences_and_accuracy():
    card = (MODEL / "README.md").read_text()
    assert all(fact in card for fact in ("public domain", "apache-2.0", "37.47 %"))
