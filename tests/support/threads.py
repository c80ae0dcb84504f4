"""One thread for torch in tests, once one imports it: tiny models are slower with more, and others use the cores."""

from types import ModuleType

from tests.support.changed_imports import change_on_import


def limit() -> None:
    """Makes torch use one thread, also where a stage would take its share of the cores."""
    change_on_import("torch", lambda torch: torch.set_num_threads(1))
    change_on_import("longmlm.runtime.launch", _take_one)


def _take_one(module: ModuleType) -> None:
    module._fair_share_of_cores = lambda: 1
