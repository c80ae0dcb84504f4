"""Held-out rows under frozen masks, and what measures on them."""

from collections.abc import Iterator

import pytest
from accelerate import Accelerator

from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.evaluation.frozen import FrozenRows
from longmlm.settings.masking import HeldOut
from tests.support.once import ground
from tests.support.tiny import held_out, tiny_world, with_fresh_process_state
from tests.support.worlds import World


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Returns the world of RoBERTa, or of the family that a test names."""
    return tiny_world(ground(tmp_path_factory), *getattr(request, "param", ("roberta", 1)))


@pytest.fixture(scope="session")
def vocabulary(world: World) -> Vocabulary:
    return load_vocabulary(str(world.base))


@pytest.fixture(scope="session")
def frozen(world: World, vocabulary: Vocabulary) -> FrozenRows:
    return FrozenRows(held_out(world.rows), HeldOut(), vocabulary.maskable, vocabulary.special)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    with_fresh_process_state()
    yield Accelerator(cpu=True)
    with_fresh_process_state()
