"""Files that a user names are read if they are files, or a pipe that a shell opened; nothing is waited for."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longmlm import escaping
from longmlm.config import parse
from longmlm.data.vocabulary import term_lines
from longmlm.errors import ConfigError, ModelError, UserError
from longmlm.escaping import read_user_text
from longmlm.hubs.models import read_architecture
from longmlm.settings.pipeline import RunConfig


def read_settings(path: str) -> object:
    return parse(RunConfig, [path])


READERS: dict[Callable[[str], object], type[UserError]] = {
    term_lines: ModelError,
    read_architecture: ModelError,
    read_settings: ConfigError,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, in which what waits for a pipe is interrupted."""
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(60)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def interrupt(*_: object) -> None:
    raise TimeoutError("it waits for a pipe")


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_a_device_and_a_link_to_one_are_refused_in_one_line(reader: Callable[[str], object]) -> None:
    os.mkfifo("pipe.toml")
    Path("link.toml").symlink_to("pipe.toml")
    Path("zero.toml").symlink_to("/dev/zero")
    for name in ("pipe.toml", "link.toml", "zero.toml", "/dev/zero", "/dev/null"):
        with pytest.raises(READERS[reader], match="pipe or a device") as caught:
            reader(name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
def test_more_than_a_text_has_is_not_read(reader: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escaping, "MAX_TEXT_BYTES", 2_000_000)
    Path("large.toml").write_bytes(b"# " * 1_000_001)
    with pytest.raises(READERS[reader], match=r"it has more than 2 MB"):
        reader("large.toml")
    Path("large.toml").write_bytes(b"# " * 1_000_000)
    assert len(read_user_text("large.toml")) == 2_000_000


def test_a_pipe_that_a_shell_opens_is_read() -> None:
    reading, writing = os.pipe()
    text = "She put it in her [MASK].\n" * 10_000  # more than a pipe holds

    def write() -> None:
        with os.fdopen(writing, "w", encoding="utf-8") as file:
            file.write(text)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_user_text(f"/dev/fd/{reading}") == text
    writer.join()
    os.close(reading)
