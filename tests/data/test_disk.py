"""What a pipeline's results take on disk, counted before anything is written."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from longmlm.config import resolved_pipeline
from longmlm.data import disk
from longmlm.data.disk import REMEDY, Sizes, check_disk, result_bytes
from longmlm.errors import FolderError
from longmlm.model.families import FAMILIES, num_parameters
from longmlm.settings.tables import merged

MILLION = Sizes(num_parameters=1_000_000, vocabulary_size=30_000, num_tokens=10_000_000)


def pipeline(**changes: object):
    base = {"model": "owner/base", "corpus": ["a.txt"], "length": 1024, "output": "out"}
    base["extend"] = {"recipe": {"initialisation": "fitted"}}
    return resolved_pipeline(merged(base, changes))


@pytest.fixture(autouse=True)
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The free bytes by the first part of a path; the rest of the disk is real."""
    found = {"out": 100_000_000}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(disk, "free_bytes", lambda folder: found[folder.parts[0]])
    return found


def test_every_result_is_counted() -> None:
    expected = {"prepare": 20e6, "extend": 4e6, "pretrain": 4 * 12e6, "release": 4e6}
    assert result_bytes(pipeline(), MILLION) == expected
    smaller = pipeline(
        release={"recipe": {"weights": "bf16", "onnx": True}}, pretrain={"runtime": {"checkpoints_kept": 3}}
    )
    assert result_bytes(smaller, MILLION) == expected | {"pretrain": 5 * 12e6, "release": 12e6}


def test_an_interrupted_distillation_is_counted_with_the_long_model() -> None:
    """Half of the parameters with two moments each, twice while they are saved: 12 bytes of a parameter."""
    distilled = pipeline(extend={"recipe": {"initialisation": "distilled"}})
    assert result_bytes(distilled, MILLION)["extend"] - result_bytes(pipeline(), MILLION)["extend"] == 12e6


def test_a_disk_that_is_too_small_is_refused_with_all_numbers(free: dict[str, int]) -> None:
    config = pipeline()
    check_disk(config, [*config.stages], MILLION)
    free["out"] = 75_000_000
    with pytest.raises(FolderError) as raised:
        check_disk(config, [*config.stages], MILLION)
    parts = "prepare 0.02, extend 0.00, pretrain 0.05, release 0.00"
    assert str(raised.value) == f"the results in out need about 0.08 GB more ({parts}), 0.07 GB are free: {REMEDY}"
    check_disk(config, ["pretrain", "release"], MILLION)
    check_disk(pipeline(until="prepare"), [*config.stages], MILLION)


def test_what_is_there_already_is_not_needed_again(free: dict[str, int]) -> None:
    free["out"] = 40_000_000
    config = pipeline()
    with pytest.raises(FolderError, match=r"need about 0\.05 GB"):
        check_disk(config, ["pretrain"], MILLION)
    Path("out/run/checkpoints/step-00000001").mkdir(parents=True)
    with Path("out/run/checkpoints/step-00000001/optimizer.pt").open("wb") as file:
        file.truncate(12_000_000)
    check_disk(config, ["pretrain"], MILLION)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_gives_nearly_the_parameters_of_its_model(family: str) -> None:
    config = AutoConfig.for_model(family)
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(config)
    keys = config.to_dict()
    num_positions = config.max_position_embeddings
    assert 0.98 < num_parameters(SimpleNamespace(**keys), num_positions) / model.num_parameters() < 1.01
    del keys["vocab_size"]
    assert num_parameters(SimpleNamespace(**keys), num_positions) is None
