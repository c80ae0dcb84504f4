"""Longformers made of models with a window compute the same, and what they cannot express is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

import longmlm
from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.batches.collate import MlmBatch
from longmlm.errors import ModelError, ReleaseError
from longmlm.model.architecture import architecture_of, dropout_of, parts_of, set_dropout
from longmlm.model.carried import Carried
from longmlm.model.families import longformer_problem
from longmlm.model.loading import LoadedModel, load_encoder, load_model, meta_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window
from longmlm.release.export import as_longformer, carried_by, check_exportable, export
from longmlm.release.reload import global_mask
from longmlm.settings.release import ReleaseRecipe
from tests.support.families import tiny_config, tiny_model, tiny_tokenizer
from tests.support.tiny import LONG_POSITIONS, tiny_extension

KINDS = [("roberta", 1), ("roberta", 3), ("bert", 0), ("xlm-roberta", 1), ("camembert", 1)]


def windowed(kind: tuple[str, int], window: Window, carried: Carried | None = None) -> LoadedModel:
    """Returns a model of LONG_POSITIONS positions that attends within the window."""
    model = tiny_model(*kind, num_positions=LONG_POSITIONS)
    use_window(model, window)
    attention = {"attention_window": window.each_side, "num_global_tokens": window.num_global}
    extension = tiny_extension("base", **attention, local_layers=window.num_layers)
    tokenizer = tiny_tokenizer(*kind, num_positions=LONG_POSITIONS)
    return LoadedModel(model, tokenizer, provenance=Provenance(extension=extension), carried=carried or Carried())


def inputs_of(kind: tuple[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(10, 290, (2, LONG_POSITIONS), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, 25:] = 0
    tokens[mask == 0] = kind[1]
    return tokens, mask


@pytest.mark.parametrize(
    ("kind", "window"),
    [*((kind, Window(3, 1)) for kind in KINDS), (("roberta", 3), Window(2, 0)), (("bert", 0), Window(5, 3))]
    + [(kind, Window(3, 0, 1)) for kind in KINDS]
    + [(("bert", 0), Window(5, 2, 1))],
    ids=str,
)
@torch.no_grad()
def test_a_longformer_loaded_by_transformers_computes_the_same_logits(
    kind: tuple[str, int], window: Window, tmp_path: Path
) -> None:
    trained = windowed(kind, window)
    export(trained, "fp32", tmp_path / "out")
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    width = 2 * window.each_side
    above = width if window.num_layers is None else {6: 84, 10: 80}[width]  # 40 tokens on each side
    assert stock.config.attention_window == [width, above]
    assert stock.config.num_global_tokens == window.num_global
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == LONG_POSITIONS
    assert stock.lm_head.decoder.weight is stock.longformer.embeddings.word_embeddings.weight
    tokens, mask = inputs_of(kind)
    expected = trained.model(tokens, attention_mask=mask).logits[mask == 1]
    logits = stock(tokens, attention_mask=mask, **global_mask(stock, tokens)).logits[mask == 1]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    without = stock(tokens, attention_mask=mask).logits[mask == 1]
    assert ((without - expected).abs().max() > 0.1) == bool(window.num_global)


@pytest.mark.parametrize(("kind", "num_global"), [(kind, 2) for kind in KINDS] + [(KINDS[0], 0)], ids=str)
@torch.no_grad()
def test_the_objective_of_a_longformer_computes_the_logits_of_the_model_it_was_made_of(
    kind: tuple[str, int], num_global: int
) -> None:
    trained, (tokens, mask) = windowed(kind, Window(3, num_global)), inputs_of(kind)
    stock = as_longformer(trained.model, Window(3, num_global))
    selected = torch.tensor([0, 7, 24])
    own, exported = parts_of(trained.model), parts_of(stock)
    assert (exported.num_positions, exported.position_offset) == (own.num_positions, kind[1] + 1)
    assert exported.decoder_weight is stock.get_input_embeddings().weight
    whole = MlmBatch(input_ids=tokens[:1], attention_mask=None, selected=selected, labels=tokens[0, selected])
    for batch in (whole, replace(whole, input_ids=tokens.flip(0), attention_mask=mask.flip(0) == 1)):
        logits = [MlmObjective(model).logits(batch) for model in (stock, trained.model)]
        torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_a_window_that_covers_every_row_is_exported_as_the_stock_model_of_its_family(tmp_path: Path) -> None:
    export(windowed(("bert", 0), Window(LONG_POSITIONS, 1)), "fp32", tmp_path / "out")
    assert AutoConfig.from_pretrained(tmp_path / "out").model_type == "bert"


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        *(((family, 0), {}, f"no {family} layers") for family in ("albert", "electra", "distilbert")),
        (("bert", 0), {"hidden_act": "gelu_new"}, "this model's uses gelu_new"),
    ],
)
def test_what_a_longformer_cannot_compute_is_refused_in_one_line(
    kind: tuple[str, int], more: dict[str, str], reason: str, tmp_path: Path
) -> None:
    model = tiny_model(*kind, **more)
    use_window(model, Window(2, 1))
    with pytest.raises(ReleaseError, match=f"{reason}.* attention_window") as refused:
        as_longformer(model, Window(2, 1))
    assert "\n" not in str(refused.value)
    assert reason in str(longformer_problem(tiny_config(*kind, **more)))
    assert longformer_problem(tiny_config("roberta", 1, hidden_act="gelu_new")) is None  # its head computes gelu


def test_a_pooler_gets_its_name_in_longformer_and_modules_are_left_out_by_name(tmp_path: Path) -> None:
    pooler = {"roberta.pooler.dense.weight": torch.ones(32, 32), "roberta.pooler.dense.bias": torch.ones(32)}
    files = {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "LICENSE": b"MIT"}
    trained = windowed(("roberta", 1), Window(3, 1), Carried(pooler, files))
    carried = carried_by(trained)
    assert sorted(carried.files) == ["LICENSE"]
    assert "not carried over: modules.json, 1_Pooling/" in carried.lines
    assert carried_by(windowed(("roberta", 1), Window(3, 0), Carried(pooler, files))).files == files
    export(trained, "fp32", tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(stored["longformer.pooler.dense.weight"], pooler["roberta.pooler.dense.weight"])
    assert not any(name.startswith("roberta.") for name in stored)


def test_files_that_cannot_have_a_window_are_refused() -> None:
    trained = windowed(("roberta", 1), Window(3, 1))
    with pytest.raises(ReleaseError, match=r"remove recipe\.onnx"):
        check_exportable(trained, ReleaseRecipe(onnx=True))
    with pytest.raises(ReleaseError, match="num_global_tokens = 0"):
        check_exportable(trained, ReleaseRecipe(sentence_transformer="mean"))
    check_exportable(windowed(("roberta", 1), Window(3, 0)), ReleaseRecipe(sentence_transformer="mean"))
    check_exportable(replace(trained, provenance=Provenance()), ReleaseRecipe(onnx=True))


@pytest.mark.parametrize(
    ("auto_class", "num_global"), [(AutoModelForSequenceClassification, 1), (AutoModelForTokenClassification, 0)]
)
def test_an_exported_folder_is_loaded_for_a_task_with_the_global_tokens_of_its_class(
    auto_class: type, num_global: int, tmp_path: Path
) -> None:
    for before in (0, 1):
        folder = tmp_path / str(before)
        trained = windowed(("bert", 0), Window(3, before))
        export(trained, "fp32", folder)
        artifact.write(folder / Provenance.FILE, trained.provenance)
        loaded = load_encoder(str(folder), auto_class, head_seed=0)
        assert (loaded.model.config.model_type, loaded.model.config.num_global_tokens) == ("longformer", num_global)
        assert any("was trained with" in note for note in loaded.notes) == (before != num_global)
        assert dropout_of(loaded.model)
        set_dropout(loaded.model, 0.0)
        assert not dropout_of(loaded.model)
        tokens, mask = inputs_of(("bert", 0))
        first, second = (loaded.model.train()(tokens, attention_mask=mask).logits for _ in range(2))
        assert torch.equal(first, second), "without dropout, passes in training mode are equal"


def test_an_exported_longformer_is_not_extended_trained_or_measured_further(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(windowed(("roberta", 1), Window(3, 1)), "fp32", folder)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = longmlm.pack(["A sentence."], tokenizer, LONG_POSITIONS)
    for refused in (
        lambda: load_model(str(folder)),
        lambda: meta_model(str(folder)),
        lambda: architecture_of(model),
        lambda: longmlm.extend(folder, 2 * LONG_POSITIONS),
        lambda: longmlm.extend(model, 2 * LONG_POSITIONS),
        lambda: longmlm.evaluate(model, rows, tokenizer),
        lambda: longmlm.export(model, tokenizer, tmp_path / "again"),
    ):
        with pytest.raises(ModelError, match="longformer.* checkpoint"):
            refused()
