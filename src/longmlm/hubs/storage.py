"""Storage: folders are copied to it and files are read from it, on any file system that fsspec knows."""

import copy
import hashlib
import io
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import fsspec
from fsspec.core import has_magic
from fsspec.implementations.local import LocalFileSystem
from upath import UPath

from longmlm.errors import AbsentError, DataError, ReleaseError, UserError
from longmlm.folders import sha256_of
from longmlm.hubs import huggingface
from longmlm.hubs.transfers import Cause, TransferError, causes, redact, request_error, user_error
from longmlm.settings.publishing import Target
from longmlm.temporary import leads_out

AnyPath = Path | UPath  # a file on this machine, or one that a URL names
READ_BYTES = 8 << 20  # read at once, of a file that a URL names
# A signature in a URL, a password, or a token in place of a user.
SECRET = re.compile(r"\?[^\s?=]+=|(?<=://)[^/@]*:[^/@]*@|^(?:https?|s?ftp|github)://[^/@]+@")
# A look-up answers at once; files are read with the retries of the client.
S3_LOOKUP = {"config_kwargs": {"connect_timeout": 2, "read_timeout": 10, "retries": {"total_max_attempts": 1}}}
NAMED = (  # what parts of the names of exceptions mean
    ("Credentials", Cause.UNAUTHORIZED),
    ("PermissionError", Cause.FORBIDDEN),
    ("FileNotFoundError", Cause.NOT_FOUND),
    ("ConnectionError", Cause.UNREACHABLE),
    ("Timeout", Cause.UNREACHABLE),
)
WHOLE_FILES = ("support range requests", "streaming HTTP file")  # in errors: the server sends no parts of files
# As the file systems call the version of a file.
VERSIONS = ("ETag", "etag", "blob_id", "generation", "LastModified", "Last-Modified", "mtime")


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


def is_url(name: str) -> bool:
    """Returns whether a name is a URL, such as s3://bucket/name."""
    return "://" in name


def located(name: str) -> AnyPath:
    """Returns the path of a file on this machine, or of the one that a URL names."""
    return UPath(name) if is_url(name) else Path(name)


def files_at(pattern: str) -> list[AnyPath]:
    """Returns the files that a URL, or the glob in one, names, sorted.

    Raises DataError if there are none, if the file system's client is not installed, or its server cannot be used.
    """
    if SECRET.search(pattern):
        raise DataError(
            f"{redact(pattern)}: its password or signature would be written to files: give it to the file "
            "system's client, in the environment or in the client's own settings"
        )
    try:
        path = _looked_up(pattern)
    except ValueError as error:
        raise DataError(f"{pattern}: {error}: name files by a path or by a URL that fsspec knows") from None
    with reading(pattern):
        path.fs.invalidate_cache()
        is_glob = has_magic(path.path) and not path.fs.isfile(path.path)
        found: dict[str, Any] = path.fs.glob(path.path, detail=True) if is_glob else {path.path: _about(path)}
        names = sorted(name for name, about in found.items() if about["type"] == "file")
        for folder in {posixpath.dirname(name) for name in names} if is_glob else ():
            path.fs.ls(folder)  # kept by the file system: sizes and versions then need no request for each file
    if unknown := next((name for name in names if found[name].get("size") is None), None):
        raise DataError(f"{redact(unknown)}: its server does not tell how large it is: download it, and name the copy")
    if not names:
        if found:
            raise DataError(f"{pattern} is a folder: name its files, as {pattern.rstrip('/')}/*.jsonl does")
        raise AbsentError(f"{pattern} names no file: correct it")
    return [_looked_up(pattern.removesuffix(path.path) + name) for name in names]


def _looked_up(url: str) -> UPath:
    options: dict[str, Any] = S3_LOOKUP if url.startswith(("s3://", "s3a://")) else {}
    return UPath(url, **copy.deepcopy(options))  # the client changes them, and file systems are kept by their options


def _about(path: UPath) -> dict[str, Any]:
    return cast(dict[str, Any], path.fs.info(path.path))


def open_bytes(path: UPath) -> io.BufferedReader:
    """Opens a file that a URL names."""
    raw: Any = UPath(str(path)).open("rb", block_size=READ_BYTES)  # with the retries that a look-up does not have
    return io.BufferedReader(raw)


def version_of(path: UPath) -> tuple[int, str | None, str | None]:
    """Returns the bytes of a file, what the storage calls this version of it, and its SHA-256, as far as known."""
    about = _about(path)
    version = next((str(about[name]) for name in VERSIONS if about.get(name)), None)
    return about["size"], version, (about.get("lfs") or {}).get("sha256")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raises DataError with the remedy if the block cannot use the server or the client that a URL needs."""
    if not is_url(name):
        yield
        return
    is_hub = name.startswith("hf://")
    try:
        with huggingface.bounded_client() if is_hub else nullcontext():
            yield
    except UserError:
        raise
    except ImportError as error:
        is_extra = name.startswith(("s3://", "s3a://", "http://", "https://"))
        remedy = "pip install 'longmlm[remote]'" if is_extra else "install it with pip"
        raise DataError(f"{redact(name)}: its client is not installed ({error}): {remedy}") from None
    except Exception as error:
        failure = huggingface.translate(error) if is_hub else translate(error)
        if any(part in str(error) for part in WHOLE_FILES):
            problem = "its server sends whole files only: download it, and name the copy"
            raise DataError(f"{redact(name)}: {problem}") from None
        if failure.cause is Cause.UNUSABLE:
            raise
        target = Target("hf" if is_hub else "storage", name, None, "dataset")
        raise user_error(failure, "download", target) from None


def translate(error: Exception) -> TransferError:
    """Returns what an exception of a file system means.

    Each library has exceptions of its own; some carry a status, the names of others tell.
    """
    for cause in [*causes(error)][::-1]:
        status = next((getattr(cause, name, None) for name in ("status", "code", "status_code")), None)
        message = redact(str(getattr(cause, "message", "") or cause)) or type(cause).__name__
        names = " ".join(kind.__name__ for kind in type(cause).__mro__)
        if isinstance(status, int):
            return request_error(status, message)
        for name, found in NAMED:
            if name in names:
                return TransferError(found, message)
    return TransferError(Cause.UNUSABLE, redact(str(error)) or type(error).__name__)
