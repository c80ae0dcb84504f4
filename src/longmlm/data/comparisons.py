"""Records of comparisons in which a fast encoder gave the tokens of `tokenizers`, in the user's cache.

A comparison takes seconds, however short the corpus. The name of its record is the hash of all that decides its result:

    XDG_CACHE_HOME/longmlm/encoders/SHA256
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from tokenizers import Tokenizer

from longmlm.errors import FolderError
from longmlm.temporary import replaced_file


def record_of(tokenizer: Tokenizer, library: str, texts: Sequence[str]) -> Path | None:
    """Returns the path of the record for these texts; None without a home folder, or if the libraries are not known."""
    with suppress(OSError, RuntimeError, metadata.PackageNotFoundError):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "longmlm" / "encoders"
        installed = [metadata.distribution(name) for name in ("tokenizers", library)]
        builds = [(one.version, one.read_text("RECORD")) for one in installed]  # with the hashes of their files
        code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
        return folder / hashlib.sha256(repr((tokenizer.to_str(), builds, code, texts)).encode()).hexdigest()
    return None


def is_recorded(record: Path) -> bool:
    """Returns whether there is a record; a damaged one does not count."""
    with suppress(OSError, ValueError):
        return record.read_text(encoding="utf-8") == record.name
    return False


def write_record(record: Path) -> None:
    """Writes a record, as other processes may at the same time; does nothing if the cache is not writable."""
    with suppress(OSError, FolderError):
        record.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(record, record.parent) as partial:
            partial.write_text(record.name, encoding="utf-8")
