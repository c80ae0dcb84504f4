"""A released folder to where others find it: a hub, a folder, or storage behind a URL."""

import hashlib
import posixpath
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec

from longmlm.errors import ReleaseError
from longmlm.folders import MANIFEST, sha256_of, verify
from longmlm.hubs import huggingface
from longmlm.hubs.target import Repository

CARD = "README.md"
CHUNK_BYTES = 1 << 22


def publish(folder: Path, target: str, repository: Repository, message: str) -> str:
    """Returns the address at which the whole folder lies, verified there; what was there already is not sent again.

    Outside of hubs a revision is a folder. Raises FolderError for a folder that is not whole, ReleaseError in one
    line when it cannot be published.
    """
    verify(folder)
    if target.startswith("hf:"):
        return huggingface.upload(folder, repository, message)
    if target.startswith("ms:"):
        from longmlm.hubs import modelscope

        return modelscope.upload(folder, repository, message)
    target = target.removeprefix("folder:")
    return copy(folder, posixpath.join(target, repository.revision) if repository.revision else target)


def require(target: str) -> None:
    """Raises ReleaseError where the client that writes to the target is not installed, or lacks a token."""
    scheme, _, rest = target.partition(":")
    if scheme == "hf":
        huggingface.check_login()
    if scheme == "ms":
        if find_spec("modelscope_hub") is None:
            raise ReleaseError("ModelScope's client is not installed: pip install 'longmlm[modelscope]'")
        from longmlm.hubs import modelscope

        modelscope.token_of_environment()
    if rest.startswith("//"):
        try:
            fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            raise ReleaseError(f"{target}: its client is not installed ({error})") from None


def copy(folder: Path, url: str) -> str:
    """Returns the address of the folder's copy on any file system that fsspec knows; the manifest is written last."""
    try:
        system, root = fsspec.core.url_to_fs(url)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in sorted(paths, key=lambda path: path == folder / MANIFEST):
            there, expected = posixpath.join(root, path.relative_to(folder).as_posix()), sha256_of(path)
            if _sha256(system, there) == expected:
                continue
            system.makedirs(posixpath.dirname(there), exist_ok=True)
            system.put_file(str(path), there)
            if _sha256(system, there) != expected:
                raise ReleaseError(f"{url} holds another {path.name} than was written: publish again")
    except ReleaseError:
        raise
    except Exception as error:  # each file system raises types of its own
        raise ReleaseError(f"{url} cannot be written ({str(error) or type(error).__name__})") from error
    return str(system.unstrip_protocol(root))


def _sha256(system: Any, path: str) -> str | None:
    """Returns the SHA-256 of a file's bytes, nothing where there is no file."""
    if not system.isfile(path):
        return None
    found = hashlib.sha256()
    with system.open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
