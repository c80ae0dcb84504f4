"""Text from outside: files that a user names are read, text is escaped for terminals, Markdown, string literals.

A base model, a corpus, a hub, a file name or the environment may hold any text: line breaks, code, markup, control
sequences. HTML is escaped by Jinja; YAML and TOML files by their libraries. What is escaped has the type Markup, which
templates insert as it is.
"""

import errno
import json
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from markupsafe import Markup

STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # standard input, and pipes that a shell opens, as by <(...)
MAX_TEXT_BYTES = 64_000_000

# Control characters except tab and line feed, line separators, bidirectional overrides, surrogates, and tags.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")
BAR_CONTROLS = re.compile("(\r|\x1b\\[A)")  # with which tqdm moves the cursor of a terminal
# Punctuation with a meaning in Markdown or HTML; underscores within words have none, nor colons outside addresses.
INLINE = re.compile(r"([\\`*\[\]<>&|~$@!]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.)", re.IGNORECASE)
BLOCK_START = re.compile(r"\A(#{1,6}|[-+]|=+|--+|\d{1,9}[.)])(?=\s|\Z)")  # of a heading, list, rule
BACKTICKS = re.compile("`+")


def printable(text: str) -> str:
    r"""Returns the text with invisible characters as escapes, such as \u001b; tabs and line feeds stay."""
    return INVISIBLE.sub(_escape, text)


def single_line(text: str) -> str:
    """Returns the text as one printable line, in which white space is single spaces."""
    return printable(" ".join(text.split()))


def markdown(text: str) -> Markup:
    """Returns the text as one line of Markdown, also for a cell of a table, that shows the text as it is."""
    line = INLINE.sub(r"\\\1", single_line(text))
    return markup(BLOCK_START.sub(lambda start: f"{start[1][:-1]}\\{start[1][-1]}", line))


def markdown_code(text: str) -> Markup:
    """Returns the text as one line of code in Markdown; its delimiters are longer than the backticks within it."""
    line = single_line(text)
    delimiter = "`" * (1 + max(map(len, BACKTICKS.findall(line)), default=0))
    space = " " if "`" in line or not line else ""
    return markup(f"{delimiter}{space}{line}{space}{delimiter}")


def quoted(text: str) -> Markup:
    """Returns the text as a string literal that Python, TOML, YAML and JSON read alike, for a block of code."""
    return markup(printable(json.dumps(text, ensure_ascii=False)))


def author_markdown(text: str) -> Markup:
    """Returns Markdown that the author of a card wrote in the settings."""
    return markup(printable(text))


def markup(text: str) -> Markup:
    """Marks a text as escaped: as the result of a template or a library, or of this module."""
    return Markup(text)  # noqa: S704 - the only place


class PrintableStream:
    """A text stream that writes invisible characters as escapes; those of progress bars pass if `has_bars`."""

    def __init__(self, stream: Any, has_bars: bool = False) -> None:
        self.stream, self.has_bars = stream, has_bars

    def write(self, text: str) -> int:
        """Writes the text, escaped, and returns how many characters it had."""
        parts = BAR_CONTROLS.split(text) if self.has_bars else [text]
        self.stream.write("".join(part if index % 2 else printable(part) for index, part in enumerate(parts)))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printable_output() -> Iterator[None]:
    """Escapes what is written to standard output and standard error, so that no text controls the terminal."""
    out: Any = PrintableStream(sys.stdout)
    error: Any = PrintableStream(sys.stderr, has_bars=True)
    with redirect_stdout(out), redirect_stderr(error):
        yield


def print_escaped(text: Markup) -> None:
    """Prints a text whose colours are to reach the terminal; all else in it is escaped already."""
    print(text, file=sys.stdout.stream if isinstance(sys.stdout, PrintableStream) else sys.stdout)


def _escape(character: re.Match[str]) -> str:
    number = ord(character[0])
    return f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"


def read_user_text(path: str | Path, encoding: str = "utf-8") -> str:
    """Returns the text of a file, or of a pipe in STREAMS.

    Raises OSError for anything else with a path, such as a named pipe, and for more than MAX_TEXT_BYTES;
    UnicodeDecodeError for what is not in the encoding.
    """
    if not stat.S_ISREG(Path(path).stat().st_mode) and not (str(path).startswith(STREAMS) and not Path(path).is_dir()):
        kind = "a folder" if Path(path).is_dir() else "a pipe or a device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    with Path(path).open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise OSError(errno.EINVAL, f"it has more than {MAX_TEXT_BYTES // 10**6} MB", str(path))
    return content.decode(encoding)
