"""Storage: copies a folder to another folder or a URL, on any file system that fsspec knows."""

import hashlib
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from longmlm.errors import ReleaseError
from longmlm.folders import sha256_of
from longmlm.hubs.transfers import Cause, TransferError, causes, redact, request_error
from longmlm.settings.publishing import Target
from longmlm.temporary import leads_out


def check_ready(target: Target) -> None:
    """Raises ReleaseError if the client for the URL's scheme is not installed."""
    scheme, is_url, _ = target.name.partition("://")
    try:
        fsspec.get_filesystem_class(scheme if is_url else "file")
    except (ImportError, ValueError) as error:
        raise ReleaseError(f"{redact(target.name)}: its client is not installed ({error})") from None


def upload(folder: Path, names: Sequence[str], target: Target, _message: str) -> str:
    """Copies new and changed files in the order given."""
    system, root = fsspec.core.url_to_fs(target.name)
    for name in names:
        path, copy = folder / name, posixpath.join(root, name)
        expected = sha256_of(path)
        if isinstance(system, LocalFileSystem) and leads_out(Path(copy), Path(root)):
            raise ReleaseError(f"{copy} is a link that leaves {root}, so a different file would be replaced: remove it")
        if _sha256(system, copy) == expected:
            continue
        system.makedirs(posixpath.dirname(copy), exist_ok=True)
        system.put_file(str(path), copy)
        if _sha256(system, copy) != expected:
            raise ReleaseError(f"{redact(target.name)}: {path.name} is not what was uploaded: publish again")
    return redact(str(system.unstrip_protocol(root)))


def _sha256(system: Any, path: str) -> str | None:
    """Returns the SHA-256 of a file's bytes; None if there is no such file."""
    if not system.isfile(path):
        return None
    with system.open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def translate(error: Exception) -> TransferError:
    """Returns what an exception of a file system means: they have types of their own, and some carry a status."""
    for cause in causes(error):
        status = next((getattr(cause, name, None) for name in ("status", "code", "status_code")), None)
        message = redact(str(cause)) or type(cause).__name__
        if isinstance(status, int):
            return request_error(status, message)
        if isinstance(cause, ConnectionError | TimeoutError):
            return TransferError(Cause.UNREACHABLE, message)
    return TransferError(Cause.UNUSABLE, redact(str(error)) or type(error).__name__)
