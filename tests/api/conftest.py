"""A base model as a user loads it, its tokenizer, and held-out rows."""

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from longmlm.data.row import Row
from longmlm.data.rows import open_rows
from tests.support.tiny import World
from tests.support.worlds import evaluation, world

__all__ = ["base", "evaluation", "rows", "tokenizer", "world"]


@pytest.fixture
def base(world: World) -> PreTrainedModel:
    return AutoModelForMaskedLM.from_pretrained(world.base)


@pytest.fixture
def tokenizer(world: World) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(world.base)


@pytest.fixture
def rows(world: World) -> list[Row]:
    """The held-out rows that the prepare stage wrote."""
    opened = open_rows(world.rows, "held_out")
    return [opened[row_id] for row_id in range(len(opened))]
