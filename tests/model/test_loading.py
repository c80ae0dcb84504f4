"""Loading models: missing parts are named, dangerous ones are not run."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers.utils.logging as transformers_logging
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import ModelSource, Provenance, TrainingRecord
from longmlm.errors import ModelError, UserError
from longmlm.hubs.model_files import model_sha256
from longmlm.model.architecture import architecture_of
from longmlm.model.families import FAMILIES, NEW_DEBERTA_HEAD
from longmlm.model.loading import load_model
from tests.support.tiny import World, tiny_extension, tiny_folder

WEIGHTS = "model.safetensors"
OF_ENCODER = (
    r"((word|tok)_embeddings|embed_tokens)\.weight$",
    r"(key|k_lin|attn.k|k_proj|key_proj|in_proj|Wqkv)\.weight$",
)


@pytest.fixture
def base(any_kind: tuple[str, int], tmp_path: Path) -> Path:
    """The folder of a model of any family, to damage."""
    return tiny_folder(tmp_path / "base", *any_kind)


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    """A copy of a RoBERTa, to damage."""
    return Path(shutil.copytree(world.base, tmp_path / "copy"))


def keep(folder: Path, is_kept: Callable[[str], bool], into: Path | None = None) -> str:
    """Removes all other weights from the folder's file, or from that of a copy, and returns the folder."""
    weights = load_file(folder / WEIGHTS)
    kept = {name: tensor for name, tensor in weights.items() if is_kept(name)}
    assert 0 < len(kept) < len(weights)
    target = shutil.copytree(folder, into, dirs_exist_ok=True) if into else folder
    save_file(kept, Path(target) / WEIGHTS, {"format": "pt"})
    return str(target)


def encoder_alone(folder: Path) -> str:
    """Replaces the model in the folder by its encoder."""
    encoder = AutoModel.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    encoder.save_pretrained(folder)
    return str(folder)


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_loaded_model_is_the_one_in_the_folder_in_fp32(base: Path) -> None:
    loaded, stock = load_model(str(base)), AutoModelForMaskedLM.from_pretrained(base)
    expected, state = stock.state_dict(), loaded.model.state_dict()
    assert state.keys() == expected.keys() and len(state) > 15
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert loaded.notes == ()
    assert len(loaded.tokenizer) == loaded.model.config.vocab_size
    stock.half().save_pretrained(base)
    assert {tensor.dtype for tensor in load_file(base / WEIGHTS).values()} == {torch.float16}
    assert {tensor.dtype for tensor in load_model(str(base)).model.state_dict().values()} == {torch.float32}


def test_missing_head_is_an_error_and_a_new_one_is_allowed_noted_and_seeded(base: Path, any_kind) -> None:
    """It starts as the identity if it is square, and is drawn otherwise."""
    with pytest.raises(ModelError, match="has an MLM head, so new_head has no effect: remove new_head"):
        load_model(str(base), new_head=True)
    parts = tuple(f"{part}." for part in (*FAMILIES[any_kind[0]].head, NEW_DEBERTA_HEAD))
    keep(base, lambda name: not name.startswith(parts))
    with pytest.raises(ModelError, match=r"no MLM head .* set new_head = true"):
        load_model(str(base))
    once, again, other = (load_model(str(base), new_head=True, seed=seed) for seed in (1, 1, 2))
    assert len(once.notes) == 1 and "new, untrained" in once.notes[0]
    states = [loaded.model.state_dict() for loaded in (once, again)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    heads = [architecture_of(loaded.model) for loaded in (once, other)]
    first, drawn = (head.head_matrix.weight if head.head_matrix else head.decoder_weight for head in heads)
    if first.shape[0] == first.shape[1]:
        assert torch.equal(first, torch.eye(len(first)))
    else:
        assert any_kind[0] in ("albert", "electra", "roformer", "eurobert")
        assert first.std() > 0.1 and not torch.equal(first, drawn)


def test_a_trained_matrix_stays_when_only_other_parts_of_the_head_are_new(world: World, copy: Path) -> None:
    keep(copy, lambda key: key != "lm_head.layer_norm.weight")
    with pytest.raises(ModelError, match=r"only a part of its MLM head, lm_head\.layer_norm\.weight is missing"):
        load_model(str(copy))
    loaded, trained = load_model(str(copy), new_head=True), load_file(world.base / WEIGHTS)["lm_head.dense.weight"]
    assert torch.equal(architecture_of(loaded.model).head_matrix.weight, trained)
    assert "only a part" in loaded.notes[0]


def test_a_head_that_deberta_reads_under_another_name_is_named(tmp_path: Path) -> None:
    copy = tiny_folder(tmp_path / "copy", "deberta", 0)
    change_config(copy, legacy=True)
    with pytest.raises(ModelError, match=r'calls its MLM head lm_predictions, .*"legacy": false.*DeBERTa-v3'):
        load_model(str(copy))
    assert "new, untrained" in load_model(str(copy), new_head=True).notes[0]
    change_config(copy, legacy=False)
    assert load_model(str(copy)).notes == ()


def test_missing_or_undescribed_weights_of_the_encoder_are_errors(base: Path, any_kind, tmp_path: Path) -> None:
    for number, pattern in enumerate(OF_ENCODER):
        folder = keep(base, lambda key, pattern=pattern: not re.search(pattern, key), tmp_path / "without")
        with pytest.raises(ModelError, match="weights of its encoder are missing, .*weight first"):
            load_model(folder, new_head=bool(number))
    weights = load_file(base / WEIGHTS)
    layer = "albert_layer_groups.0." if any_kind[0] == "albert" else r"layers?.1."
    name = min(key for key in weights if re.search(layer, key))
    one = re.search(layer, name)[0]
    more = {name.replace(one, one.replace("1", "2").replace("0", "1")): weights[name].clone()}
    save_file({**weights, **more}, base / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelError, match=r"config\.json .*(layer|groups)\w*\.[12]\."):
        load_model(str(base))


def test_an_undescribed_weight_of_an_encoder_that_was_saved_alone_is_an_error(copy: Path) -> None:
    encoder_alone(copy)
    weights = load_file(copy / WEIGHTS)
    save_file({**weights, "encoder.layer.2.output.dense.bias": torch.zeros(2)}, copy / WEIGHTS)
    with pytest.raises(ModelError, match=r"config\.json does not describe the weight encoder\.layer\.2"):
        load_model(str(copy), new_head=True)


def test_buffers_and_a_pooler_among_the_weights_do_no_harm(copy: Path) -> None:
    names = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
    more = {f"roberta.{name}": torch.zeros(2) for name in names} | {"cls.seq_relationship.bias": torch.zeros(2)}
    save_file({**load_file(copy / WEIGHTS), **more}, copy / WEIGHTS)
    assert load_model(str(copy)).notes == ()


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer*"])
def test_a_folder_without_an_essential_file_is_refused(copy: Path, name: str) -> None:
    for path in copy.glob(name):
        path.unlink()
    with pytest.raises(ModelError, match=f"{copy} has no {name.removesuffix('*')}"):
        load_model(str(copy))
    shutil.rmtree(copy)
    with pytest.raises(ModelError, match=f"{copy}: no such"):
        load_model(str(copy))


def test_a_tokenizer_with_ids_beyond_the_embedding_is_refused(copy: Path) -> None:
    tokenizer = load_model(str(copy)).tokenizer
    num_rows = len(tokenizer)
    tokenizer.add_tokens(["one-more", "and-another"])
    tokenizer.save_pretrained(copy)
    said = f"has token id {num_rows + 1}, its word embedding {num_rows} rows: .*resize_token_embeddings.{num_rows + 2}"
    with pytest.raises(ModelError, match=said):
        load_model(str(copy))
    model = AutoModelForMaskedLM.from_pretrained(copy)
    model.resize_token_embeddings(num_rows + 2)
    model.save_pretrained(copy)
    assert len(load_model(str(copy)).tokenizer) == num_rows + 2


def test_code_in_the_folder_is_never_run(copy: Path, tmp_path: Path) -> None:
    """A model is read as a stock one if that takes its weights."""
    trace = tmp_path / "trace"
    (copy / "own.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Config: ...\nclass Model: ...\n")
    change_config(copy, auto_map={"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model"})
    loaded = load_model(str(copy))
    assert len(loaded.notes) == 1
    assert all(fact in loaded.notes[0] for fact in (str(copy), "not run", "stock roberta"))
    assert not hasattr(loaded.model.config, "auto_map")
    own = {"roberta.encoder.layer.0.gate.weight": torch.zeros(2), "roberta.pooler.dense.bias": torch.zeros(2)}
    save_file(load_file(copy / WEIGHTS) | own, copy / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelError, match=r"roberta\.encoder\.layer\.0\.gate\.weight.* never run"):
        load_model(str(copy))
    change_config(copy, model_type="unheard-of")
    with pytest.raises(ModelError, match=rf"{copy} .*code in a repository is never run"):
        load_model(str(copy))
    assert not trace.exists()


def test_a_run_remembers_the_model_that_it_started_from(copy: Path) -> None:
    of_run = load_model(str(copy)).provenance_of_run(str(copy))
    assert of_run == Provenance(started_from=ModelSource(name=str(copy), sha256=model_sha256(copy)))
    first, second = (TrainingRecord(row_length=9, steps=steps, tokens=30) for steps in (3, 4))
    earlier = Provenance(extension=tiny_extension("base"), trained=second, trained_before=(first,))
    artifact.write(copy / Provenance.FILE, earlier)
    of_run = load_model(str(copy)).provenance_of_run(str(copy))
    assert of_run.extension == earlier.extension
    assert (of_run.trained, of_run.trained_before) == (None, (first, second))
    (copy / Provenance.FILE).write_text((copy / Provenance.FILE).read_text()[:40])
    with pytest.raises(UserError, match=f"{copy / Provenance.FILE} is damaged"):
        load_model(str(copy))


def test_loading_leaves_the_verbosity_of_transformers_as_it_was(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("transformers.modeling_utils")
    for has_bars, level in ((True, logging.INFO), (False, logging.WARNING)):
        (transformers_logging.enable_progress_bar if has_bars else transformers_logging.disable_progress_bar)()
        transformers_logging.set_verbosity(level)
        load_model(str(world.base))
        assert transformers_logging.is_progress_bar_enabled() == has_bars
        assert transformers_logging.get_verbosity() == level
        assert logger.isEnabledFor(level)
    assert capfd.readouterr() == ("", "")
