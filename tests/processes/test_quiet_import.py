"""Importing longmlm leaves the process as it was: logging, warnings, environment and threads are the notebook's own."""

import json
import os
import subprocess
import sys

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import longmlm

names = ["longmlm", *(module.name for module in pkgutil.walk_packages(longmlm.__path__, "longmlm."))]
names.remove("longmlm.__main__")  # it runs the command
"""
LIBRARIES = """
for name in names:
    importlib.import_module(name)
print(json.dumps(sorted(name for name in sys.modules if not name.startswith(("longmlm", "__m")))))
"""
COMPARE = """
import logging, os, signal, warnings

for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # a part of another module that cannot be imported by itself
import httpx2, numpy, torch, transformers.utils.logging as transformers_logging
from huggingface_hub.utils import _http, are_progress_bars_disabled
from datasets.utils import are_progress_bars_disabled as are_bars_of_datasets_disabled
from accelerate.state import AcceleratorState


def state():
    return {
        "environment": dict(os.environ),
        "warnings": [str(rule) for rule in warnings.filters],
        "loggers": {
            name: (logger.level, logger.disabled, logger.propagate, str(logger.filters), str(logger.handlers))
            for name, logger in [("", logging.root), *logging.root.manager.loggerDict.items()]
            if isinstance(logger, logging.Logger)
        },
        "logging disabled": logging.root.manager.disable,
        "progress bars": (
            transformers_logging.is_progress_bar_enabled(),
            are_progress_bars_disabled(),
            are_bars_of_datasets_disabled(),
        ),
        "client": _http._GLOBAL_CLIENT_FACTORY.__qualname__,
        "torch": (
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            str(torch.get_default_dtype()),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.get_rng_state().tolist(),
        ),
        "numpy": (numpy.geterr(), str(numpy.random.get_state())),
        "accelerate": str(AcceleratorState._shared_state),
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "streams": (str(sys.stdout), str(sys.stderr), str(sys.excepthook), sys.getrecursionlimit()),
    }


before = state()
for name in names:
    importlib.import_module(name)
after = state()
assert len(names) > 80, names
changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
print(json.dumps([changed, len(before["loggers"])]))
"""


def test_importing_all_modules_changes_nothing_but_what_libraries_change_themselves() -> None:
    """The libraries are imported first: what they set is theirs. longmlm's modules must add nothing."""
    libraries = _run(IMPORT_ALL + LIBRARIES)
    assert {"torch", "transformers", "datasets", "huggingface_hub", "accelerate"} <= set(json.loads(libraries))
    changed, num_loggers = json.loads(_run(IMPORT_ALL + COMPARE, libraries))
    assert num_loggers > 50
    assert changed == {}


def _run(code: str, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "TRANSFORMERS_VERBOSITY"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""
