"""Domain vocabulary: terms become tokens that start as the mean of their pieces, and nothing else changes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase

from longmlm.artifacts.provenance import ModelSource, read_provenance
from longmlm.data import encoding
from longmlm.data.encoding import encode
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import ModelError
from longmlm.folders import sha256_of
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import write_extension
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.terms import Terms, read_terms, with_tokens, with_tokens_of
from tests.support.families import demo_texts, tiny_config, tiny_model, tiny_tokenizer
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, tiny_extension, tiny_folder

TERMS = ("myocarditis", "heart failure", "non-Hodgkin lymphoma", "心肌炎")
BASE = ModelSource(name="base")


@pytest.fixture
def loaded(any_kind: tuple[str, int]) -> LoadedModel:
    return LoadedModel(tiny_model(*any_kind), tiny_tokenizer(*any_kind))


def terms_of(tokenizer: PreTrainedTokenizerBase, folder: Path, lines: str = "\n".join(TERMS)) -> Terms:
    path = folder / "terms.txt"
    path.write_text(lines, encoding="utf-8")
    return read_terms(str(path), tokenizer, BASE)


def ids_of(loaded: LoadedModel, terms: Terms) -> list[int]:
    return [loaded.tokenizer.convert_tokens_to_ids(token.content) for token in terms.tokens]


def pieces_of(tokenizer: PreTrainedTokenizerBase, term: str) -> list[int]:
    """Returns the pieces of a term after a space, unless it is Chinese."""
    ids = tokenizer(term if term == "心肌炎" else f" {term}", add_special_tokens=False)["input_ids"]
    return [one for one in ids if tokenizer.convert_ids_to_tokens(one) not in ("▁", "Ġ")]


@torch.no_grad()
def test_new_rows_are_means_and_the_logits_of_all_other_tokens_stay(loaded: LoadedModel, tmp_path: Path) -> None:
    terms = terms_of(loaded.tokenizer, tmp_path)
    more, size = with_tokens(loaded, terms.tokens), len(loaded.tokenizer)
    assert ids_of(more, terms) == list(range(size, size + len(TERMS)))
    assert more.model.config.vocab_size == size + len(TERMS) == loaded.model.config.vocab_size + len(TERMS)
    tokens = torch.randint(5, size, (2, NUM_POSITIONS), generator=torch.Generator().manual_seed(0))
    before, after = (one.model(input_ids=tokens).logits for one in (loaded, more))
    assert torch.allclose(after[..., :size], before, rtol=0, atol=1e-5)
    assert torch.equal(after.argmax(-1), before.argmax(-1))
    old, new = (one.model.get_input_embeddings().weight for one in (loaded, more))
    assert torch.equal(new[:size], old)
    for token_id, term in zip(ids_of(more, terms), TERMS, strict=True):
        pieces = pieces_of(loaded.tokenizer, term)
        assert len(pieces) > 1 or pieces == [loaded.tokenizer.unk_token_id]
        assert torch.allclose(new[token_id], old[pieces].mean(0), atol=1e-6)
        assert torch.allclose(after[..., token_id], before[..., pieces].mean(-1), rtol=1e-4, atol=1e-4)
    assert loaded.model.config.vocab_size == size and len(loaded.tokenizer) == size


def test_the_decoder_stays_tied_as_it_was(loaded: LoadedModel, tmp_path: Path) -> None:
    more = with_tokens(loaded, terms_of(loaded.tokenizer, tmp_path).tokens)
    parts, earlier = architecture_of(more.model), architecture_of(loaded.model)
    is_tied = parts.decoder_weight is more.model.get_input_embeddings().weight
    assert is_tied == (earlier.decoder_weight is loaded.model.get_input_embeddings().weight)
    assert len(parts.decoder_weight) == more.model.config.vocab_size
    assert more.model.state_dict().keys() == loaded.model.state_dict().keys()


def test_tokenizer_finds_the_terms_as_words_and_keeps_them_when_it_is_saved(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    terms = terms_of(loaded.tokenizer, tmp_path)
    more = with_tokens(loaded, terms.tokens)
    more.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    vocabularies = [vocabulary_of_pretrained(one, "x") for one in (more.tokenizer, again, loaded.tokenizer)]
    assert vocabularies[0].fingerprint == vocabularies[1].fingerprint != vocabularies[2].fingerprint
    new = ids_of(more, terms)
    assert vocabularies[1].maskable.is_maskable[new].all()
    assert set(new) <= set(vocabularies[1].maskable.drawable.tolist())
    assert not set(new) & set(vocabularies[1].special.all)
    text = "Acute myocarditis, then heart failure. premyocarditis myocarditisx 急性心肌炎症 a non-Hodgkin lymphoma"
    for vocabulary in vocabularies[:2]:
        found = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
        assert [token_id for token_id in found if token_id in new] == [new[0], new[1], new[3], new[2]]
    old = vocabularies[2].tokenizer.encode("Acute rheumatism, then.", add_special_tokens=False).ids
    assert vocabularies[1].tokenizer.encode("Acute rheumatism, then.", add_special_tokens=False).ids == old


def test_pieces_and_sentences_of_a_text_have_the_tokens_of_the_whole(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = with_tokens(loaded, terms_of(loaded.tokenizer, tmp_path).tokens)
    tokenizer = vocabulary_of_pretrained(more.tokenizer, "x").tokenizer
    text = "".join(f"{one[:230]} myocarditis. Heart failure;\n\nheart failure 心肌炎" for one in demo_texts()[:20])
    whole = tokenizer.encode(text, add_special_tokens=False)
    assert sum(token_id >= len(loaded.tokenizer) for token_id in whole.ids) >= 60
    monkeypatch.setattr(encoding, "PIECE_CHARACTERS", 150)
    monkeypatch.setattr(encoding, "CONTEXT_CHARACTERS", 60)
    spaces = [index for index, character in enumerate(text) if character == " "]
    starts = np.array([0, *spaces[7::9]])
    parts = list(encode(tokenizer, text, starts))
    assert len(parts) > 50
    assert np.concatenate([part.input_ids for part in parts]).tolist() == whole.ids


def test_extension_with_terms_is_written_with_its_history(kind: tuple[str, int], tmp_path: Path) -> None:
    base = LoadedModel(tiny_model(*kind), tiny_tokenizer(*kind))
    terms = terms_of(base.tokenizer, tmp_path, "myocarditis\nmyocarditis\n\nheart failure\n")
    report = write_extension(base, tiny_extension("base"), tmp_path / "long", terms)
    assert report.largest_difference <= 1e-5
    long = load_model(str(tmp_path / "long"))
    assert architecture_of(long.model).num_positions == LONG_POSITIONS
    assert len(long.tokenizer) == len(base.tokenizer) + 2 == long.model.config.vocab_size
    about = read_provenance(tmp_path / "long").added_tokens
    assert (about.num_added, about.num_skipped, about.base) == (2, 1, BASE)
    assert about.file_sha256 == sha256_of(tmp_path / "terms.txt")


def test_vocabulary_files_of_the_base_are_not_carried_beside_a_new_tokenizer(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "base", "bert", 0)
    (tmp_path / "base" / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")
    (tmp_path / "base" / "LICENSE").write_text("MIT", encoding="utf-8")
    loaded = load_model(str(tmp_path / "base"))
    assert set(loaded.carried.files) == {"LICENSE", "vocab.txt"}
    terms = terms_of(loaded.tokenizer, tmp_path)
    assert set(with_tokens(loaded, terms.tokens).carried.files) == {"LICENSE"}


def test_base_model_gets_the_tokens_of_the_long_one(loaded: LoadedModel, tmp_path: Path) -> None:
    more = with_tokens(loaded, terms_of(loaded.tokenizer, tmp_path).tokens)
    more.tokenizer.save_pretrained(tmp_path / "tokenizer")
    again = with_tokens_of(loaded, AutoTokenizer.from_pretrained(tmp_path / "tokenizer"))
    state, expected = again.model.state_dict(), more.model.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    fingerprints = {vocabulary_of_pretrained(one.tokenizer, "x").fingerprint for one in (again, more)}
    assert len(fingerprints) == 1
    assert with_tokens_of(loaded, loaded.tokenizer) is loaded


def test_terms_that_need_no_token_are_skipped_and_counted(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    known = next(word for word in sorted(tokenizer.get_vocab()) if word.isalpha() and len(word) > 2)
    lines = [
        "\ufeffMyocarditis\r",
        "  heart\t \u00a0failure ",
        "",
        known,
        "myocarditis",
        "[MASK]",
        known.upper(),
        "heart failure",
    ]
    terms = terms_of(tokenizer, tmp_path, "\n".join(lines))
    assert [token.content for token in terms.tokens] == ["Myocarditis", "heart failure"]
    assert (terms.record.num_added, terms.record.num_skipped) == (2, 5)


def test_terms_that_a_byte_level_tokenizer_would_garble_are_skipped(tmp_path: Path) -> None:
    terms = terms_of(tiny_tokenizer("roberta", 1), tmp_path, "Röntgenstrahlung\nmyocarditis\n心肌炎")
    assert [token.content for token in terms.tokens] == ["myocarditis", "心肌炎"]
    terms = terms_of(tiny_tokenizer("xlm-roberta", 1), tmp_path, "Röntgenstrahlung\nmyocarditis\n心肌炎")
    assert len(terms.tokens) == 3


@pytest.mark.parametrize("content", ["", "\n \n", "[MASK]\n"])
def test_file_without_new_terms_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ModelError, match=r"terms\.txt has no term that needs a new token \(\d terms? read\)"):
        terms_of(tiny_tokenizer("bert", 0), tmp_path, content)


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    with pytest.raises(ModelError, match=r"absent\.txt cannot be read: name a text file"):
        read_terms(str(tmp_path / "absent.txt"), tokenizer, BASE)
    (tmp_path / "latin.txt").write_bytes("Röntgen".encode("latin-1"))
    with pytest.raises(ModelError, match=r"latin\.txt is not UTF-8"):
        read_terms(str(tmp_path / "latin.txt"), tokenizer, BASE)


def test_rows_that_the_embedding_has_to_spare_are_used_first(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    model = tiny_model("bert", 0, vocab_size=len(tokenizer) + 3)
    terms = terms_of(tokenizer, tmp_path)
    base = LoadedModel(model, tokenizer)
    more = with_tokens(base, terms.tokens)
    assert more.model.config.vocab_size == len(tokenizer) + 4
    assert len(with_tokens(base, terms.tokens[:2]).model.get_input_embeddings().weight) == len(tokenizer) + 3
    write_extension(base, None, tmp_path / "more", terms)
    assert read_provenance(tmp_path / "more").source == BASE


def test_tokenizer_with_gaps_is_refused() -> None:
    tokenizer = tiny_tokenizer("roberta", 1)
    vocabulary = {token: token_id + (token_id > 290) for token, token_id in tokenizer.get_vocab().items()}
    merges = [tuple(pair.split()) for pair in _merges(tokenizer)]
    gaps = type(tokenizer)(vocab=vocabulary, merges=merges)
    base = LoadedModel(tiny_model("roberta", 1, vocab_size=len(vocabulary) + 1), gaps)
    with pytest.raises(ModelError, match="ids have gaps"):
        with_tokens(base, [AddedToken("myocarditis"), AddedToken("heart failure")])


def _merges(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]


def test_config_keeps_everything_but_the_size_of_the_vocabulary(any_kind: tuple[str, int], tmp_path: Path) -> None:
    loaded = LoadedModel(tiny_model(*any_kind), tiny_tokenizer(*any_kind))
    more = with_tokens(loaded, terms_of(loaded.tokenizer, tmp_path).tokens).model.config.to_dict()
    before = tiny_config(*any_kind).to_dict()
    differing = {key for key in before if before[key] != more.get(key)} - {"architectures", "dtype", "torch_dtype"}
    assert differing == {"vocab_size"}
