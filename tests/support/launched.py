"""The environment that a launcher such as torchrun gives its processes."""

import pytest

SECOND_OF_TWO = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def launch_as_second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets what a launcher sets for the second of two processes on a machine."""
    for name, value in SECOND_OF_TWO.items():
        monkeypatch.setenv(name, value)
