"""Silence for the libraries that load and save models: what matters of their messages, longmlm says in one line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import transformers.utils.logging as transformers_logging
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppresses progress bars and warnings in the block, and restores both afterwards.

    All loggers, since transformers imports DeepSpeed to save a model, which sets up its own logger and warns at once.
    """
    level, has_bars = logging.root.manager.disable, transformers_logging.is_progress_bar_enabled()
    has_hub_bars = not are_progress_bars_disabled()
    logging.disable(logging.WARNING)
    transformers_logging.disable_progress_bar()  # the hub's bars too
    try:
        yield
    finally:
        logging.disable(level)
        if has_bars:
            transformers_logging.enable_progress_bar()
            if not has_hub_bars:
                disable_progress_bars()
