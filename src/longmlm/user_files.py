"""Text files that a user names: a pipe or a device in their place would be waited for, or read without end."""

import errno
import stat
from pathlib import Path

STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # standard input, and pipes that a shell opens, as by <(...)
MAX_TEXT_BYTES = 64_000_000


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
