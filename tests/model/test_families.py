"""A config.json gives the same number of positions as the loaded model."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from longmlm.model.architecture import architecture_of
from longmlm.model.families import FAMILIES, has_head, num_usable_positions
from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS, tiny_model
from tests.support.tiny import NUM_POSITIONS


def stored_config(folder: Path, kind: tuple[str, int]) -> dict[str, object]:
    tiny_model(*kind).config.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def test_every_family_is_tested() -> None:
    assert {family for family, _ in SPECIAL | SPECIAL_OF_OTHERS} == set(FAMILIES)


def test_a_config_gives_the_positions_of_the_loaded_model(any_kind: tuple[str, int], tmp_path: Path) -> None:
    config = stored_config(tmp_path, any_kind)
    assert num_usable_positions(SimpleNamespace(**config)) == architecture_of(tiny_model(*any_kind)).num_positions
    assert num_usable_positions(SimpleNamespace(**config)) == NUM_POSITIONS


@pytest.mark.parametrize("key", ["max_position_embeddings", "pad_token_id"])
def test_the_number_is_none_where_a_key_is_missing(any_kind: tuple[str, int], key: str, tmp_path: Path) -> None:
    config = {name: value for name, value in stored_config(tmp_path, any_kind).items() if name != key}
    is_needed = key == "max_position_embeddings" or any_kind[0] in ("roberta", "xlm-roberta", "camembert")
    assert num_usable_positions(SimpleNamespace(**config)) == (None if is_needed else NUM_POSITIONS)


def test_a_head_is_known_by_the_names_of_its_weights(any_kind: tuple[str, int]) -> None:
    """Of a family whose head may be the word embedding alone, the names do not say it."""
    model = tiny_model(*any_kind)
    assert has_head(model.config, model.state_dict())
    encoder = [
        *model.base_model.state_dict(),
        *(f"{model.base_model_prefix}.{name}" for name in model.base_model.state_dict()),
    ]
    assert has_head(model.config, encoder) == (any_kind[0] == "eurobert")
