"""What the process shares is changed while some block needs it, and is as before after the last, in whatever order."""

import csv
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx2
import pytest
import torch
import transformers.utils.logging as transformers_logging
from huggingface_hub.utils import _http, are_progress_bars_disabled
from huggingface_hub.utils import logging as hub_logging

from longmlm.api import models
from longmlm.data import delimited
from longmlm.hubs import huggingface, modelscope
from longmlm.model.extension import one_thread
from longmlm.progress import quiet_libraries

State = Callable[[], Any]


def of_client() -> Any:
    return _http._GLOBAL_CLIENT_FACTORY, hub_logging.get_verbosity(), are_progress_bars_disabled()


def of_logging() -> Any:
    return logging.root.manager.disable, transformers_logging.is_progress_bar_enabled()


def of_modelscope() -> Any:
    return logging.getLogger("modelscope_hub").level


CHANGES = {
    "client": (huggingface.bounded_client, of_client),
    "logging": (quiet_libraries, of_logging),
    "ModelScope": (modelscope._silent, of_modelscope),
    "CSV fields": (delimited.long_fields, csv.field_size_limit),
}


@pytest.mark.parametrize(("change", "state"), CHANGES.values(), ids=CHANGES)
def test_blocks_that_overlap_leave_the_process_as_it_was(
    change: Callable[[], AbstractContextManager[None]], state: State
) -> None:
    before = state()
    first, second = change(), change()
    first.__enter__()
    changed = state()
    second.__enter__()
    first.__exit__(None, None, None)
    assert state() == changed != before  # the second block still needs it
    second.__exit__(None, None, None)
    assert state() == before
    with change(), pytest.raises(KeyError), change():
        raise KeyError
    assert state() == before


def test_random_numbers_are_those_of_before_the_first_of_two_overlapping_blocks() -> None:
    before = torch.get_rng_state()
    first, second = models._own_random_numbers(), models._own_random_numbers()
    for step in (first.__enter__, second.__enter__):
        step()
        torch.rand(3)
    for block in (first, second):
        block.__exit__(None, None, None)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_overlapping_block_does_not_close_the_client_that_another_one_uses() -> None:
    with huggingface.bounded_client():
        client = _http.get_session()
        with huggingface.bounded_client():
            assert _http.get_session() is client
        assert not client.is_closed


def test_a_client_factory_that_the_program_sets_meanwhile_is_kept() -> None:
    def of_the_program() -> httpx2.Client:
        return _http.default_client_factory()

    try:
        with huggingface.bounded_client():
            _http.set_client_factory(of_the_program)
        assert _http._GLOBAL_CLIENT_FACTORY is of_the_program
    finally:
        _http.set_client_factory(_http.default_client_factory)


def test_threads_that_compute_with_one_thread_each_leave_the_number_of_threads() -> None:
    before, is_left, seen = torch.get_num_threads(), threading.Event(), []

    def second() -> None:
        with one_thread():
            is_left.wait()
            seen.append(torch.get_num_threads())

    torch.set_num_threads(3)
    other = threading.Thread(target=second)
    try:
        with one_thread():
            other.start()
            other.join(0.2)  # it enters its block now if nothing keeps it from doing so
        is_left.set()
        other.join()
        new = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        new.start()
        new.join()
        assert (seen, torch.get_num_threads()) == ([1, 3], 3)
    finally:
        torch.set_num_threads(before)
