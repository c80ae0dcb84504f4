"""Loading models: missing or damaged parts are named, dangerous ones are not run."""

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
from longmlm.hubs.models import model_sha256
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import load_model
from tests.support.tiny import World, tiny_extension, tiny_folder

HEADS = {
    "roberta": "lm_head",
    "xlm-roberta": "lm_head",
    "camembert": "lm_head",
    "bert": "cls",
    "albert": "predictions",
    "electra": "generator_",
    "distilbert": "vocab_",
    "modernbert": ("head.", "decoder."),
    "deberta": "lm_predictions",
    "deberta-v2": "cls",
    "mpnet": "lm_head",
    "roformer": "cls",
    "nomic_bert": "cls",
    "eurobert": "lm_head",
}


@pytest.fixture(scope="module")
def kind(any_kind: tuple[str, int]) -> tuple[str, int]:
    return any_kind


@pytest.fixture(scope="module")
def base(kind: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a base model of any family, which no test may change."""
    return tiny_folder(tmp_path_factory.mktemp("base") / "model", *kind)


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "copy"))


def keep(folder: Path, is_kept: Callable[[str], bool]) -> None:
    """Removes all other weights from the folder's file."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if is_kept(name)}
    assert 0 < len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def cut_short(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_loaded_model_is_the_one_in_the_folder(base: Path) -> None:
    loaded = load_model(str(base))
    expected, state = AutoModelForMaskedLM.from_pretrained(base).state_dict(), loaded.model.state_dict()
    assert state.keys() == expected.keys() and len(state) > 15
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert loaded.notes == ()
    assert len(loaded.tokenizer) == loaded.model.config.vocab_size


def test_half_precision_is_loaded_as_fp32(copy: Path) -> None:
    AutoModelForMaskedLM.from_pretrained(copy).half().save_pretrained(copy)
    assert {tensor.dtype for tensor in load_file(copy / "model.safetensors").values()} == {torch.float16}
    model = load_model(str(copy)).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_absent_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such"):
        load_model(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_file_that_was_cut_short_is_refused(copy: Path, name: str) -> None:
    cut_short(copy / name)
    with pytest.raises(ModelError, match=str(copy)):
        load_model(str(copy))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_folder_without_an_essential_file_is_refused(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(ModelError, match=str(copy)):
        load_model(str(copy))


def test_folder_without_a_tokenizer_is_refused(copy: Path) -> None:
    for path in copy.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError, match=f"{copy}.* tokenizer"):
        load_model(str(copy))


def test_a_tokenizer_with_ids_beyond_the_embedding_is_refused(copy: Path, kind: tuple[str, int]) -> None:
    tokenizer = load_model(str(copy)).tokenizer
    num_rows = len(tokenizer)
    tokenizer.add_tokens(["one-more", "and-another"])
    tokenizer.save_pretrained(copy)
    said = f"has token id {num_rows + 1}, its word embedding {num_rows} rows: .*resize_token_embeddings.{num_rows + 2}"
    with pytest.raises(ModelError, match=said):
        load_model(str(copy))
    if kind[0] == "deberta":  # transformers resizes the wrong layer of its head
        return
    model = AutoModelForMaskedLM.from_pretrained(copy)
    model.resize_token_embeddings(num_rows + 2)
    model.save_pretrained(copy)
    assert len(load_model(str(copy)).tokenizer) == num_rows + 2


def test_missing_head_is_an_error_that_names_the_remedy(copy: Path, kind: tuple[str, int]) -> None:
    keep(copy, lambda name: not name.startswith(HEADS[kind[0]]))
    with pytest.raises(ModelError, match=r"no MLM head .* set new_head = true"):
        load_model(str(copy))


def test_a_head_that_deberta_reads_under_another_name_is_named(tmp_path: Path) -> None:
    copy = tiny_folder(tmp_path / "copy", "deberta", 0)
    change_config(copy, legacy=True)
    with pytest.raises(ModelError, match=r'calls its MLM head lm_predictions, .*"legacy": false.*DeBERTa-v3'):
        load_model(str(copy))
    assert "new, untrained" in load_model(str(copy), new_head=True).notes[0]
    change_config(copy, legacy=False)
    assert load_model(str(copy)).notes == ()


def test_a_new_head_for_a_model_that_has_one_is_refused(copy: Path) -> None:
    with pytest.raises(ModelError, match="has an MLM head, so new_head has no effect: remove new_head"):
        load_model(str(copy), new_head=True)


def test_new_head_is_allowed_noted_and_the_same_for_a_seed(copy: Path) -> None:
    encoder = AutoModel.from_pretrained(copy)
    (copy / "model.safetensors").unlink()
    encoder.save_pretrained(copy)
    once, again = (load_model(str(copy), new_head=True, seed=1) for _ in range(2))
    assert len(once.notes) == 1
    assert "new, untrained" in once.notes[0]
    states = [loaded.model.state_dict() for loaded in (once, again)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_new_head_starts_as_the_identity_if_it_is_square_and_is_drawn_otherwise(copy: Path, kind) -> None:
    def first_matrix(seed: int | None) -> torch.Tensor:
        parts = architecture_of(load_model(str(copy), new_head=seed is not None, seed=seed or 0).model)
        return parts.head_matrix.weight if parts.head_matrix else parts.decoder_weight

    trained = first_matrix(None)
    keep(copy, lambda name: not name.startswith(HEADS[kind[0]]))
    first, other = first_matrix(1), first_matrix(2)
    if trained.shape[0] == trained.shape[1]:
        assert torch.equal(first, torch.eye(len(trained)))
    else:
        assert kind[0] in ("albert", "electra", "roformer", "eurobert")
        assert first.std() > 0.1 and not torch.equal(first, other)
    assert not torch.equal(first, trained)


def test_a_trained_matrix_stays_when_only_other_parts_of_the_head_are_new(world: World, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world.base, tmp_path / "copy"))
    trained = architecture_of(load_model(str(copy)).model).head_matrix.weight.clone()
    weights = load_file(copy / "model.safetensors")
    name = "lm_head.layer_norm.weight"
    assert name in weights
    keep(copy, lambda key: key != name)
    assert torch.equal(architecture_of(load_model(str(copy), new_head=True).model).head_matrix.weight, trained)


@pytest.mark.parametrize(
    "name", ["(word|tok)_embeddings|embed_tokens", "key|k_lin|attn.k|k_proj|key_proj|in_proj|Wqkv"]
)
@pytest.mark.parametrize("new_head", [False, True])
def test_missing_weight_of_the_encoder_is_an_error(copy: Path, name: str, new_head: bool) -> None:
    keep(copy, lambda key: not re.search(rf"({name})\.weight$", key))
    with pytest.raises(ModelError, match="weights of its encoder are missing, .*weight first"):
        load_model(str(copy), new_head=new_head)


def test_weights_of_other_shapes_than_the_config_says_are_refused(copy: Path) -> None:
    change_config(copy, vocab_size=400)
    with pytest.raises(ModelError, match=r"(predictions|embed|head|decoder|projector)\S+ does not have the shape"):
        load_model(str(copy))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_file_that_holds_a_list_is_named(copy: Path, name: str) -> None:
    (copy / name).write_text("[1, 2]")
    with pytest.raises(ModelError, match=f"{copy / name} is damaged"):
        load_model(str(copy))


@pytest.mark.parametrize("values", [{"num_attention_heads": 5}, {"hidden_size": "wide"}, {"model_type": "unheard-of"}])
def test_config_of_no_model_is_refused(copy: Path, values: dict[str, object]) -> None:
    change_config(copy, **values)
    with pytest.raises(ModelError, match=str(copy)):
        load_model(str(copy))


def test_a_folder_with_a_decoder_is_refused(copy: Path) -> None:
    change_config(copy, is_decoder=True)
    with pytest.raises(ModelError, match=f"{copy} is a decoder"):
        load_model(str(copy))


@pytest.mark.parametrize("is_alone", [False, True], ids=["with-head", "encoder-alone"])
def test_weights_of_more_layers_than_the_config_says_are_refused(
    copy: Path, kind: tuple[str, int], is_alone: bool
) -> None:
    if is_alone:
        encoder = AutoModel.from_pretrained(copy)
        (copy / "model.safetensors").unlink()
        encoder.save_pretrained(copy)
    weights = load_file(copy / "model.safetensors")
    layer = "albert_layer_groups.0." if kind[0] == "albert" else r"layers?.1."
    name = min(key for key in weights if re.search(layer, key))
    one = re.search(layer, name)[0]
    more = {name.replace(one, one.replace("1", "2").replace("0", "1")): weights[name].clone()}
    save_file({**weights, **more}, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"config\.json .*(layer|groups)\w*\.[12]\."):
        load_model(str(copy), new_head=is_alone)


def test_buffers_and_a_pooler_among_the_weights_do_no_harm(copy: Path) -> None:
    prefix = AutoModelForMaskedLM.from_pretrained(copy).base_model_prefix
    weights = load_file(copy / "model.safetensors")
    names = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
    more = {f"{prefix}.{name}": torch.zeros(2) for name in names}
    save_file({**weights, **more, "cls.seq_relationship.bias": torch.zeros(2)}, copy / "model.safetensors")
    assert load_model(str(copy)).notes == ()


@pytest.mark.parametrize("is_known", [True, False])
def test_code_in_the_folder_is_never_run(copy: Path, kind: tuple[str, int], tmp_path: Path, is_known: bool) -> None:
    trace = tmp_path / "trace"
    (copy / "own.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Config: ...\nclass Model: ...\n")
    change_config(copy, auto_map={"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model"})
    if is_known:
        assert load_model(str(copy)).model.config.model_type == kind[0]
    else:
        change_config(copy, model_type="unheard-of")
        with pytest.raises(ModelError, match=str(copy)):
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


def test_a_damaged_history_is_refused(copy: Path) -> None:
    artifact.write(copy / Provenance.FILE, Provenance())
    cut_short(copy / Provenance.FILE)
    with pytest.raises(UserError, match=f"{copy / Provenance.FILE} is damaged"):
        load_model(str(copy))


def test_loading_leaves_the_verbosity_of_transformers_as_it_was(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("transformers.modeling_utils")
    for has_bars, level in ((True, logging.INFO), (False, logging.WARNING)):
        (transformers_logging.enable_progress_bar if has_bars else transformers_logging.disable_progress_bar)()
        transformers_logging.set_verbosity(level)
        load_model(str(base))
        assert transformers_logging.is_progress_bar_enabled() == has_bars
        assert transformers_logging.get_verbosity() == level
        assert logger.isEnabledFor(level)
    assert capfd.readouterr() == ("", "")
