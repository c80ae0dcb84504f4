"""How many threads torch uses in tests, once one imports it."""

import os

from tests.support.changed_imports import change_on_import


def limit() -> None:
    """One thread in a worker of xdist, beside which others run; two in a process that runs alone."""
    number = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
    change_on_import("torch", lambda torch: torch.set_num_threads(number))
