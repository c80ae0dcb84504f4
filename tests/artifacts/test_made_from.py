"""The differences between what a result was made from and what is expected, as users read them."""

import pytest

from longmlm.artifacts.artifact import Difference, Input, MadeFrom, differences
from longmlm.artifacts.provenance import ModelSource

COMMIT, OTHER_COMMIT = "c" * 40, "d" * 40
HUB = ModelSource(name="owner/base", revision=COMMIT).as_input
AT_V1 = ModelSource(name="owner/base", revision=COMMIT, requested="v1").as_input


@pytest.mark.parametrize(
    ("recorded", "expected", "difference"),
    [
        (Input("base", "1"), Input("moved/base", "1"), ""),
        (Input("base", "1"), Input("./base", "2"), "other weights than ./base holds now"),
        (Input("base", "1"), Input("other", "2"), "base was base, is other"),
        (Input("base", "1"), Input("base"), ""),
        (Input("base", "1"), Input("other"), "base was base, is other"),
        (Input(content="1"), Input("moved"), ""),
        (Input(content="1"), None, "base was another one, is None"),
        (HUB, Input("owner/base"), ""),
        (HUB, Input(f"owner/base@{COMMIT}"), ""),
        (HUB, Input(f"owner/base@{OTHER_COMMIT}"), f"base was owner/base, is owner/base@{OTHER_COMMIT}"),
        (AT_V1, Input("owner/base@v1"), ""),
        (AT_V1, Input("owner/base"), "base was owner/base@v1, is owner/base"),
    ],
)
def test_an_input_is_compared_by_content_and_else_by_name(
    recorded: Input, expected: Input | None, difference: str
) -> None:
    found = differences(MadeFrom.of({}, {"base": recorded}), MadeFrom.of({}, {"base": expected}))
    assert found == ([Difference(difference, difference.startswith("other"))] if difference else [])


def test_settings_are_compared_by_name_but_for_those_of_locations() -> None:
    one = MadeFrom.of({"recipe": {"seed": 1, "languages": ("en",)}, "output": "a"}, {}).within("extend")
    other = MadeFrom.of({"recipe": {"seed": 2, "languages": ("en",)}, "output": "b"}, {}).within("extend")
    assert differences(one, other) == [Difference("extend.recipe.seed was 1, is 2")]
    assert one.key != other.key == other.without("output").key
    for damaged in (None, [], {}, {"settings": {}, "inputs": {"model": 1}}):
        assert MadeFrom.read(damaged) == MadeFrom()


@pytest.mark.parametrize("source", ["files", "trial", "model", "v1.rows"])
def test_a_weight_is_a_setting_whatever_its_source_is_called(source: str) -> None:
    one, two = (MadeFrom.of({"recipe": {"weights": {source: weight}}}, {}) for weight in (1.0, 3.0))
    assert differences(one, two) == [Difference(f"recipe.weights.{source} was 1.0, is 3.0")]
