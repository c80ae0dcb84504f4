"""The ONNX file of a release: the same logits in a different runtime, no paths of this machine, or a refusal."""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import torch

from longmlm import pipeline_needs
from longmlm.artifacts.provenance import read_provenance
from longmlm.data.rows import open_rows
from longmlm.errors import ReleaseError
from longmlm.hubs.licences import Licence
from longmlm.model.loading import LoadedModel, load_model
from longmlm.release import onnx_graph, reload
from longmlm.release.export import export
from longmlm.release.onnx_graph import INPUTS, write_graphs
from longmlm.release.proof import INT8_SIMILARITY, ONNX_TOLERANCE, OnnxProof, prove
from longmlm.release.reload import ENCODER, ENCODER_INT8, MLM, MLM_INT8
from longmlm.reports.card_code import Address, LoadingCode
from longmlm.reports.model_card import CardFacts, Training, model_card
from longmlm.settings.release import ReleaseCard
from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS
from tests.support.tiny import (
    LONG_POSITIONS,
    NUM_POSITIONS,
    World,
    held_out,
    prove_in_this_process,
    tiny_folder,
    tiny_long,
)

FILES = (ENCODER, ENCODER_INT8, MLM, MLM_INT8)
SHAPES = ((1, 1), (1, 2), (2, 1), (1, NUM_POSITIONS), (1, LONG_POSITIONS), (3, LONG_POSITIONS))
WRITE = """
import sys
from pathlib import Path
from longmlm.release.onnx_graph import write_graphs
write_graphs(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def exported(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model with its ONNX file; not to be changed."""
    folder = tmp_path_factory.mktemp("onnx") / "tiny"
    export(load_model(str(world.trained)), "fp32", folder)
    write_graphs(folder)
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(exported, tmp_path / "tiny"))


def difference(folder: Path, trained: LoadedModel, shape: tuple[int, int]) -> float:
    """Returns by how much the ONNX file's logits of random ids, padded from the second row on, differ."""
    input_ids = torch.randint(5, 290, shape, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(input_ids)
    for row in range(1, shape[0]):
        mask[row, shape[1] // (row + 1) :] = 0
        mask[row, 0] = 1
    input_ids[mask == 0] = trained.model.config.pad_token_id
    with torch.no_grad():
        expected = trained.model.eval()(input_ids=input_ids, attention_mask=mask).logits[mask == 1]
    session = onnxruntime.InferenceSession(folder / MLM)
    [logits] = session.run(["logits"], dict(zip(INPUTS, (input_ids.numpy(), mask.numpy()), strict=True)))
    assert logits.shape == (*shape, trained.model.config.vocab_size)
    assert logits.dtype == np.float32
    assert expected.std() > 0.1
    return float((torch.from_numpy(logits)[mask == 1] - expected).abs().max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_onnxruntime_gives_the_trained_logits_for_any_batch_and_length(
    exported: Path, world: World, shape: tuple[int, int]
) -> None:
    assert difference(exported, load_model(str(world.trained)), shape) < 5e-5


def test_longer_text_than_there_are_positions_is_an_error(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported / MLM)
    ones = np.ones((1, LONG_POSITIONS + 1), dtype=np.int64)
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.run(["logits"], {"input_ids": 5 * ones, "attention_mask": ones})


def test_file_holds_nothing_of_this_machine(exported: Path) -> None:
    for file in FILES:
        content = (exported / file).read_bytes()
        assert len(content) > 30_000
        for path in (sys.prefix, str(Path(__file__).parents[2]), str(exported), "site-packages", "modeling_", "/tmp"):
            assert path.encode() not in content


def test_fresh_process_runs_the_file_and_what_the_card_says_of_it(world: World, folder: Path) -> None:
    provenance = read_provenance(world.trained)
    rows = held_out(world.rows)
    facts = CardFacts(
        Address(folder.name), provenance, None, rows.manifest, Training(), Licence("mit"), NUM_POSITIONS, has_onnx=True
    )
    card = model_card(ReleaseCard(title="Tiny"), facts)
    (folder / "README.md").write_text(card)
    assert card.count("```python") == 2
    proof = prove(load_model(str(world.trained)), "fp32", rows, folder, codes=facts.codes)
    assert proof.onnx is not None
    assert 0 < proof.onnx.logits_difference < 5e-5
    assert 0 < proof.onnx.encoder_difference < 5e-5
    assert proof.onnx.int8_selected > 300
    assert INT8_SIMILARITY < proof.onnx.int8_similarity < 1
    with pytest.raises(Exception, match="answers"):
        reload.run_codes(str(folder), [LoadingCode("load_onnx.md").runnable.replace('["logits"]', '["answers"]')])


def test_model_above_the_limit_of_a_file_is_refused_in_a_line(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_needs, "MAX_ONNX_BYTES", 1000)
    monkeypatch.setattr(onnx_graph, "_program", None)
    with pytest.raises(ReleaseError, match=r"onnx/mlm\.onnx .*recipe\.onnx"):
        write_graphs(exported)


def test_model_that_cannot_be_traced_is_refused_in_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **settings: object) -> None:
        warnings.warn("pages of it", UserWarning, stacklevel=1)
        raise RuntimeError("no such operator\nand more")

    shutil.rmtree(folder / "onnx")
    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ReleaseError, match=r"model\.onnx .*no such operator$"):
        write_graphs(folder)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["bf16", "fp16"])
def test_file_is_fp32_of_the_rounded_weights(world: World, tmp_path: Path, weights: str) -> None:
    trained = load_model(str(world.trained))
    export(trained, weights, tmp_path)
    write_graphs(tmp_path)
    kinds = {tensor.dtype for tensor in onnx_ir.load(tmp_path / MLM).graph.initializers.values()}
    assert onnx_ir.DataType.FLOAT in kinds
    assert not kinds & {onnx_ir.DataType.BFLOAT16, onnx_ir.DataType.FLOAT16}
    assert difference(tmp_path, load_model(str(tmp_path)), (3, LONG_POSITIONS)) < 5e-5
    assert difference(tmp_path, trained, (3, LONG_POSITIONS)) > 5e-5
    assert prove(trained, weights, held_out(world.rows), tmp_path).onnx.logits_difference < 5e-5


@pytest.mark.slow
@pytest.mark.parametrize(("family", "pad"), [kind for kind in (*SPECIAL, *SPECIAL_OF_OTHERS) if kind[0] != "roberta"])
def test_every_family_has_one(family: str, pad: int, tmp_path: Path) -> None:
    folder, is_extended = tiny_folder(tmp_path / "base", family, pad), (family, pad) in SPECIAL
    folder = tiny_long(tmp_path / "long", folder) if is_extended else folder
    write_graphs(folder)
    for shape in SHAPES if is_extended else ((1, 1), (2, 5), (3, NUM_POSITIONS)):
        assert difference(folder, load_model(str(folder)), shape) < 5e-5


@pytest.mark.slow
def test_file_is_the_same_in_another_process(exported: Path, folder: Path) -> None:
    shutil.rmtree((folder / MLM).parent)
    command = [sys.executable, "-c", WRITE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert all((folder / file).read_bytes() == (exported / file).read_bytes() for file in FILES)


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({}, None),
        ({"int8_lost": 12, "int8_gained": 4}, None),
        ({"int8_lost": 40, "int8_gained": 39}, None),  # as many gained as lost: chance
        (
            {"int8_lost": 45, "int8_gained": 5},
            "mlm_int8.onnx loses 45 correct predictions on 1,000 tokens and gains only 5",
        ),
        ({"int8_similarity": INT8_SIMILARITY - 0.001}, "cosine similarity of token vectors of onnx/model_int8.onnx"),
        ({"int8_similarity": float("nan")}, "cosine similarity"),
        ({"encoder_difference": 2 * ONNX_TOLERANCE}, "outputs of onnx/model.onnx differ by 2.00e-03"),
        ({"logits_difference": float("nan")}, "outputs of onnx/mlm.onnx differ by nan"),
    ],
)
def test_int8_may_lose_a_percent_of_the_tokens_and_chance(numbers: dict[str, float], problem: str | None) -> None:
    faithful = {"logits_difference": 1e-5, "encoder_difference": 1e-5, "int8_selected": 1_000, "int8_lost": 0}
    found = OnnxProof(**{**faithful, "int8_gained": 0, "int8_similarity": 0.999, **numbers}).problems
    assert len(found) == (problem is not None)
    assert not problem or problem in found[0]


OTHER_WEIGHTS = {  # a weight, how it is changed, and what is found
    MLM: ("lm_head.layer_norm.bias", lambda bias: bias + 2 * ONNX_TOLERANCE, "outputs of onnx/mlm.onnx differ by"),
    MLM_INT8: ("lm_head.decoder.bias", lambda bias: np.roll(bias, 1), "onnx/mlm_int8.onnx loses"),
}


@pytest.mark.parametrize("file", OTHER_WEIGHTS)
def test_file_of_other_weights_is_refused(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    tensor, change, problem = OTHER_WEIGHTS[file]
    prove_in_this_process(monkeypatch)
    graph = onnx_ir.load(folder / file)
    [name] = [name for name in graph.graph.initializers if name.endswith(tensor)]
    value = graph.graph.initializers[name]
    value.const_value = onnx_ir.tensor(change(value.const_value.numpy()), name=name)
    onnx_ir.save(graph, folder / file)
    with pytest.raises(ReleaseError, match=problem):
        prove(load_model(str(world.trained)), "fp32", open_rows(world.rows, "train"), folder)  # which are more


def run(graph: Path, output: str, *inputs: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(graph)
    arrays = [tensor.numpy() for tensor in inputs]
    return torch.from_numpy(session.run([output], dict(zip(INPUTS, arrays, strict=True)))[0])


def test_encoder_gives_the_hidden_states_and_their_mean(exported: Path, world: World) -> None:
    model = load_model(str(world.trained)).model.eval()
    input_ids = torch.randint(5, 290, (3, 20), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(20) < torch.tensor([[20], [7], [1]])).long()
    input_ids[mask == 0] = model.config.pad_token_id
    with torch.no_grad():
        hidden = model.base_model(input_ids=input_ids, attention_mask=mask).last_hidden_state
    actual = run(exported / ENCODER, "last_hidden_state", input_ids, mask)
    assert (actual - hidden)[mask == 1].abs().max() < 5e-5
    expected = torch.stack([row[: int(length)].mean(0) for row, length in zip(hidden, mask.sum(1), strict=True)])
    assert (run(exported / ENCODER, "sentence_embedding", input_ids, mask) - expected).abs().max() < 5e-5
    int8 = run(exported / ENCODER_INT8, "last_hidden_state", input_ids, mask)
    assert 1e-3 < (int8 - hidden)[mask == 1].abs().max() < 2
    sizes = [(exported / file).stat().st_size for file in FILES]
    assert sizes[1] < sizes[0]
    assert sizes[3] < sizes[2]
