"""An error in a base key is reported by itself: what contradicts its stand-in is no error of the user's."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from longmlm.config import parse
from longmlm.errors import ConfigError
from longmlm.settings.pipeline import RunConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from tests.support.prepare_settings import written

SOURCES = {"prepare": {"recipe": {"sources": [{"files": ["a.jsonl"]}]}}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (SOURCES | {"language": 3}, "language: a string is needed, not 3"),
        (SOURCES | {"length": "long"}, 'length: an integer is needed, not "long"'),
        (SOURCES | {"until": "train"}, "until: "),
        (SOURCES | {"length": 2}, "length must be at least 3"),
        ({"length": 8192.0, "extend": {"recipe": {"attention_window": 2048}}}, "length: an integer is needed"),
        ({"extension": "no", "extend": {"recipe": {"new_head": True}}}, 'extension: true or false is needed, not "no"'),
        ({"extension": 1, "pretrain": {"recipe": {"isolate_documents": True}}}, "extension: true or false is needed"),
    ],
)
@pytest.mark.parametrize("kind", [RunConfig, PrepareConfig, PretrainConfig])
def test_an_error_in_a_base_key_is_not_taken_for_a_contradiction(
    tmp_path: Path, kind: type, given: dict[str, Any], message: str
) -> None:
    base = {"model": "m", "length": 40, "output": "out", **({} if "prepare" in given else {"corpus": ["b.jsonl"]})}
    path = written(tmp_path, "wrong.toml", tomli_w.dumps({**base, **given}))
    with pytest.raises(ConfigError) as caught:
        parse(kind, [path])
    assert str(caught.value).removeprefix(f"{path}: ").startswith(message)
    assert "; " not in str(caught.value)


def test_errors_beside_one_in_a_base_key_are_reported_with_it(tmp_path: Path) -> None:
    lines = "length = 'x'\noutptu = 'y'\n[pretrain.recipe]\nnum_steps = 'many'\nnum_step = 3"
    with pytest.raises(ConfigError) as caught:
        parse(RunConfig, [written(tmp_path, "wrong.toml", lines)])
    for part in (
        "unknown key outptu",
        "unknown key pretrain.recipe.num_step,",
        "length: an integer",
        "num_steps: an int",
    ):
        assert part in str(caught.value)
