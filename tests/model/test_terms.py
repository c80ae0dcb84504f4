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
from tests.support.families import demo_texts, tiny_model, tiny_tokenizer
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, tiny_extension, tiny_folder

TERMS = ("myocarditis", "heart failure", "non-Hodgkin lymphoma", "心肌炎")
BASE = ModelSource(name="base")


def loaded_model(family: str, pad: int, **more: object) -> LoadedModel:
    return LoadedModel(tiny_model(family, pad, **more), tiny_tokenizer(family, pad))


def terms_of(tokenizer: PreTrainedTokenizerBase, folder: Path, lines: str = "\n".join(TERMS)) -> Terms:
    path = folder / "terms.txt"
    path.write_text(lines, encoding="utf-8")
    return read_terms(str(path), tokenizer, BASE)


def pieces_of(tokenizer: PreTrainedTokenizerBase, term: str) -> list[int]:
    """Returns the pieces of a term after a space, unless it is Chinese."""
    ids = tokenizer(term if term == "心肌炎" else f" {term}", add_special_tokens=False)["input_ids"]
    return [one for one in ids if tokenizer.convert_ids_to_tokens(one) not in ("▁", "Ġ")]


@torch.no_grad()
def test_new_rows_are_means_and_nothing_else_of_the_model_changes(any_kind: tuple[str, int], tmp_path: Path) -> None:
    loaded = loaded_model(*any_kind)
    terms, size = terms_of(loaded.tokenizer, tmp_path), len(loaded.tokenizer)
    before = loaded.model.config.to_dict()
    more = with_tokens(loaded, terms.tokens)
    new_ids = [more.tokenizer.convert_tokens_to_ids(token.content) for token in terms.tokens]
    assert new_ids == list(range(size, size + len(TERMS)))
    after = more.model.config.to_dict()
    differing = {key for key in before if before[key] != after.get(key)} - {"architectures", "dtype", "torch_dtype"}
    assert differing == {"vocab_size"} and after["vocab_size"] == size + len(TERMS)
    assert loaded.model.config.vocab_size == len(loaded.tokenizer) == size
    tokens = torch.randint(5, size, (2, NUM_POSITIONS), generator=torch.Generator().manual_seed(0))
    old_logits, logits = (one.model(input_ids=tokens).logits for one in (loaded, more))
    assert torch.allclose(logits[..., :size], old_logits, rtol=0, atol=1e-5)
    assert torch.equal(logits.argmax(-1), old_logits.argmax(-1))
    old, new = (one.model.get_input_embeddings().weight for one in (loaded, more))
    assert torch.equal(new[:size], old)
    for token_id, term in zip(new_ids, TERMS, strict=True):
        pieces = pieces_of(loaded.tokenizer, term)
        assert len(pieces) > 1 or pieces == [loaded.tokenizer.unk_token_id]
        assert torch.allclose(new[token_id], old[pieces].mean(0), atol=1e-6)
        assert torch.allclose(logits[..., token_id], old_logits[..., pieces].mean(-1), rtol=1e-4, atol=1e-4)
    parts, earlier = architecture_of(more.model), architecture_of(loaded.model)
    assert (parts.decoder_weight is new) == (earlier.decoder_weight is old)
    assert more.model.state_dict().keys() == loaded.model.state_dict().keys()
    again = with_tokens_of(loaded, more.tokenizer)  # the base model gets the tokens of the long one
    state, expected = again.model.state_dict(), more.model.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert with_tokens_of(loaded, loaded.tokenizer) is loaded


def test_tokenizer_finds_the_terms_as_words_and_keeps_them_when_it_is_saved(
    any_kind: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces and sentences of a text have the tokens of the whole."""
    loaded = loaded_model(*any_kind)
    terms = terms_of(loaded.tokenizer, tmp_path)
    more = with_tokens(loaded, terms.tokens).tokenizer
    more.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    vocabularies = [vocabulary_of_pretrained(one, "x") for one in (more, again, loaded.tokenizer)]
    assert vocabularies[0].fingerprint == vocabularies[1].fingerprint != vocabularies[2].fingerprint
    new = [more.convert_tokens_to_ids(token.content) for token in terms.tokens]
    assert vocabularies[1].maskable.is_maskable[new].all()
    assert set(new) <= set(vocabularies[1].maskable.drawable.tolist()) - set(vocabularies[1].special.all)
    text = "Acute myocarditis, then heart failure. premyocarditis myocarditisx 急性心肌炎症 a non-Hodgkin lymphoma"
    for vocabulary in vocabularies[:2]:
        found = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
        assert [token_id for token_id in found if token_id in new] == [new[0], new[1], new[3], new[2]]
    old = vocabularies[2].tokenizer.encode("Acute rheumatism, then.", add_special_tokens=False).ids
    tokenizer = vocabularies[1].tokenizer
    assert tokenizer.encode("Acute rheumatism, then.", add_special_tokens=False).ids == old
    text = "".join(f"{one[:230]} myocarditis. Heart failure;\n\nheart failure 心肌炎" for one in demo_texts()[:20])
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert sum(token_id >= len(loaded.tokenizer) for token_id in ids) >= 60
    monkeypatch.setattr(encoding, "PIECE_CHARACTERS", 150)
    monkeypatch.setattr(encoding, "CONTEXT_CHARACTERS", 60)
    spaces = [index for index, character in enumerate(text) if character == " "]
    parts = list(encode(tokenizer, text, np.array([0, *spaces[7::9]])))
    assert len(parts) > 50
    assert np.concatenate([part.input_ids for part in parts]).tolist() == ids


def test_extension_with_terms_is_written_with_its_history(tmp_path: Path) -> None:
    """Vocabulary files of the base are not carried beside a new tokenizer."""
    folder = tiny_folder(tmp_path / "base", "bert", 0)
    (folder / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")
    (folder / "LICENSE").write_text("MIT", encoding="utf-8")
    base = load_model(str(folder))
    assert set(base.carried.files) == {"LICENSE", "vocab.txt"}
    terms = terms_of(base.tokenizer, tmp_path, "myocarditis\nmyocarditis\n\nheart failure\n")
    report = write_extension(base, tiny_extension("base"), tmp_path / "long", terms)
    assert report.largest_difference <= 1e-5
    long = load_model(str(tmp_path / "long"))
    assert set(long.carried.files) == {"LICENSE"}
    assert architecture_of(long.model).num_positions == LONG_POSITIONS
    assert len(long.tokenizer) == len(base.tokenizer) + 2 == long.model.config.vocab_size
    about = read_provenance(tmp_path / "long").added_tokens
    assert (about.num_added, about.num_skipped, about.base) == (2, 1, BASE)
    assert about.file_sha256 == sha256_of(tmp_path / "terms.txt")


def test_terms_that_need_no_token_or_would_be_garbled_are_skipped_and_counted(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    known = next(word for word in sorted(tokenizer.get_vocab()) if word.isalpha() and len(word) > 2)
    lines = ["\ufeffMyocarditis\r", "  heart\t \u00a0failure ", "", known, "myocarditis", "[MASK]", known.upper()]
    terms = terms_of(tokenizer, tmp_path, "\n".join([*lines, "heart failure"]))
    assert [token.content for token in terms.tokens] == ["Myocarditis", "heart failure"]
    assert (terms.record.num_added, terms.record.num_skipped) == (2, 5)
    given = ["Röntgenstrahlung", "myocarditis", "心肌炎"]
    for kind, expected in ((("roberta", 1), given[1:]), (("xlm-roberta", 1), given)):  # the first is byte-level
        terms = terms_of(tiny_tokenizer(*kind), tmp_path, "\n".join(given))
        assert [token.content for token in terms.tokens] == expected


def test_a_file_that_cannot_be_read_or_has_no_new_terms_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    for content in ("", "\n \n", "[MASK]\n"):
        with pytest.raises(ModelError, match=r"terms\.txt has no term that needs a new token \(\d terms? read\)"):
            terms_of(tokenizer, tmp_path, content)
    (tmp_path / "latin.txt").write_bytes("Röntgen".encode("latin-1"))
    for name, reason in (
        ("absent", r"cannot be read \(No such file or directory\): name a text file"),
        ("latin", "is not UTF-8"),
    ):
        with pytest.raises(ModelError, match=rf"{name}\.txt {reason}"):
            read_terms(str(tmp_path / f"{name}.txt"), tokenizer, BASE)


def test_rows_that_the_embedding_has_to_spare_are_used_first(tmp_path: Path) -> None:
    size = len(tiny_tokenizer("bert", 0))
    base = loaded_model("bert", 0, vocab_size=size + 3)
    terms = terms_of(base.tokenizer, tmp_path)
    assert with_tokens(base, terms.tokens).model.config.vocab_size == size + 4
    assert len(with_tokens(base, terms.tokens[:2]).model.get_input_embeddings().weight) == size + 3
    write_extension(base, None, tmp_path / "more", terms)
    assert read_provenance(tmp_path / "more").source == BASE


def test_tokenizer_with_gaps_is_refused() -> None:
    tokenizer = tiny_tokenizer("roberta", 1)
    vocabulary = {token: token_id + (token_id > 290) for token, token_id in tokenizer.get_vocab().items()}
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    pairs = [tuple(pair.split() if isinstance(pair, str) else pair) for pair in merges]
    gaps = type(tokenizer)(vocab=vocabulary, merges=pairs)
    base = LoadedModel(tiny_model("roberta", 1, vocab_size=len(vocabulary) + 1), gaps)
    with pytest.raises(ModelError, match="ids have gaps"):
        with_tokens(base, [AddedToken("myocarditis"), AddedToken("heart failure")])
