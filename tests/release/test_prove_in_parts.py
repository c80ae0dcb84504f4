"""The proof of a release computes few logits at a time, and finds the same problems as with all logits at once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from longmlm.data.rows import Rows
from longmlm.errors import ReleaseError
from longmlm.model import mlm
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.window import Window
from longmlm.release.export import export
from longmlm.release.onnx_graph import write_graphs
from longmlm.release.proof import prove
from longmlm.release.reload import MLM
from tests.release.test_longformer import windowed
from tests.release.test_prove import last_position
from tests.support.families import SPECIAL_OF_OTHERS
from tests.support.logit_tensors import LogitTensors
from tests.support.tiny import LONG_POSITIONS, World, held_out, prove_in_this_process, tiny_folder, tiny_rows

AT_A_TIME = 20  # positions


@pytest.fixture
def limit_logits(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoadedModel], None]:
    """Returns a function that limits logits to AT_A_TIME positions at a time."""
    prove_in_this_process(monkeypatch)
    return lambda trained: monkeypatch.setattr(mlm, "MAX_LOGITS", AT_A_TIME * trained.model.config.vocab_size)


@pytest.fixture
def rows(world: World) -> Rows:
    return held_out(world.rows)


@pytest.mark.parametrize("window", [None, Window(3, 1)], ids=str)
def test_only_fill_mask_computes_logits_of_more_positions_at_a_time(
    world: World, rows: Rows, window: Window | None, tmp_path: Path, limit_logits: Callable[[LoadedModel], None]
) -> None:
    trained = windowed(("roberta", 1), window) if window else load_model(str(world.trained))
    export(trained, "fp32", tmp_path)
    with LogitTensors(trained.model) as whole:
        expected = prove(trained, "fp32", rows, tmp_path)
    assert max(whole.positions) == 2 * LONG_POSITIONS
    limit_logits(trained)
    with LogitTensors(trained.model) as parts:
        proof = prove(trained, "fp32", rows, tmp_path)
    assert {number for number in parts.positions if number > AT_A_TIME} <= {proof.text_tokens}
    assert AT_A_TIME in parts.positions
    assert replace(proof, largest_difference=0.0) == replace(expected, largest_difference=0.0)
    assert proof.largest_difference == pytest.approx(expected.largest_difference, abs=1e-5)


@pytest.mark.parametrize(("family", "pad"), SPECIAL_OF_OTHERS)
def test_the_encoder_of_every_family_is_compared(
    family: str, pad: int, tmp_path: Path, limit_logits: Callable[[LoadedModel], None]
) -> None:
    folder = tiny_folder(tmp_path / "model", family, pad, LONG_POSITIONS)
    trained, rows = load_model(str(folder)), held_out(tiny_rows(tmp_path, folder))
    export(trained, "fp32", tmp_path / "out")
    limit_logits(trained)
    assert prove(trained, "fp32", rows, tmp_path / "out").largest_difference <= 1e-5


def test_a_position_that_was_changed_is_found(
    world: World, rows: Rows, tmp_path: Path, limit_logits: Callable[[LoadedModel], None]
) -> None:
    trained = load_model(str(world.trained))
    export(trained, "fp32", tmp_path)
    last_position(tmp_path)
    limit_logits(trained)
    with pytest.raises(ReleaseError, match="outputs differ by"):
        prove(trained, "fp32", rows, tmp_path)


def test_a_graph_is_compared_at_its_last_positions_where_few_logits_are(
    world: World, rows: Rows, tmp_path: Path, limit_logits: Callable[[LoadedModel], None]
) -> None:
    trained = load_model(str(world.trained))
    export(trained, "fp32", tmp_path)
    write_graphs(tmp_path)
    limit_logits(trained)
    assert prove(trained, "fp32", rows, tmp_path).onnx is not None
    graph = onnx.load(tmp_path / MLM)
    shape = tuple(trained.model.roberta.embeddings.position_embeddings.weight.shape)
    [table] = [tensor for tensor in graph.graph.initializer if tuple(tensor.dims) == shape]
    positions = numpy_helper.to_array(table).copy()
    positions[-2:] *= -1
    table.CopyFrom(numpy_helper.from_array(positions, table.name))
    onnx.save(graph, tmp_path / MLM)
    with pytest.raises(ReleaseError, match=f"outputs of {MLM} differ"):
        prove(trained, "fp32", rows, tmp_path)
