"""A model's name to a folder of its files, all of one commit, each as the hub has it."""

import errno
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longmlm.errors import ModelError
from longmlm.folders import sha256_of

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
BESIDE = ("*.json", "*.txt", "*.model", "*.codes", "*.jinja")  # settings and tokenizer beside weights, never code
PASSED_OVER = ("*/*", "adapter_config.json")  # the latter would lead transformers to another repository
TIMEOUT_SECONDS = 10.0
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """The folder of a model's files, their commit where they come from the hub, and what was said on the way."""

    folder: Path
    commit: str | None = None
    notes: tuple[str, ...] = ()


def snapshot_of(name: str, revision: str | None = None, with_weights: bool = True) -> HubSnapshot:
    """Returns a folder as it is; of a repository the files that lack here are downloaded, and every file is verified.

    What a branch or tag means is asked once, and the cache serves where the hub cannot be asked. safetensors are taken
    before a pytorch_model.bin; without `with_weights` neither. Raises ModelError in one line, and OSError where the
    disk does not take them.
    """
    if Path(name).is_dir():
        return HubSnapshot(Path(name))
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, logging

    logging.set_verbosity_error()  # its warnings hold signed addresses
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        commit, is_here, notes = _commit_of(name, revision)
        about = {"revision": commit, "local_files_only": is_here, "ignore_patterns": list(PASSED_OVER)}
        folder = Path(snapshot_download(name, allow_patterns=list(BESIDE), **about))
        if with_weights and (weights := weight_files(_tree(name, commit))):
            snapshot_download(name, allow_patterns=weights, **about)
    except ModelError:
        raise
    except Exception as error:  # the client raises types of its own and of the libraries below
        if isinstance(error, OSError) and error.errno in OF_THE_DISK:
            raise
        raise ModelError(_told(name, revision, error)) from error
    weights = weight_files([path.name for path in folder.iterdir()]) if with_weights else []
    _refuse_altered(folder, [*BESIDE, *weights])
    return HubSnapshot(folder, commit, notes)


def _commit_of(name: str, revision: str | None) -> tuple[str, bool, tuple[str, ...]]:
    """Returns the commit, whether its files are taken from the cache alone, and a note where that was not meant."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
        RevisionResolutionError,
    )

    api = HfApi()
    if COMMIT.fullmatch(revision or "") and _tree(name, str(revision)):
        return str(revision), constants.HF_HUB_OFFLINE, ()
    try:
        api.model_info(name, revision=revision, timeout=TIMEOUT_SECONDS)  # resolve_revision knows no patience
        return api.resolve_revision(name, revision=revision).resolved, False, ()
    except (RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError, HFValidationError):
        raise
    except Exception as error:  # noqa: BLE001 - it is raised again where the cache does not serve
        try:
            commit = api.resolve_revision(name, revision=revision, local_files_only=True).resolved
        except RevisionResolutionError:
            raise error from None
        note = f"the hub does not answer: {name} is taken from the cache, at commit {commit}"
        return commit, True, () if constants.HF_HUB_OFFLINE else (note,)


def _tree(name: str, commit: str) -> list[str]:
    """Returns the files that the repository has, where that was asked before."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return [file.path for file in get_cached_repo_tree(name, revision=commit)]
    except CachedRepoTreeNotFoundError:
        return []


def weight_files(files: Sequence[str]) -> list[str]:
    """Returns those of a folder's files that transformers reads weights from: safetensors first, whole ones first.

    A variant, such as model.fp16.safetensors, it does not read.
    """
    top = [file for file in files if "/" not in file]
    for whole, suffix in (("model.safetensors", ".safetensors"), ("pytorch_model.bin", ".bin")):
        stem = whole.removesuffix(suffix)
        found = sorted(file for file in top if file.startswith(stem) and file.endswith(suffix))
        if shards := [file for file in found if file == whole or not file.startswith(f"{stem}.")]:
            return [whole] if whole in shards else shards
    return []


def _refuse_altered(folder: Path, patterns: Sequence[str]) -> None:
    """Raises ModelError for a file of the hub's cache that is not what its name there says, the hash of its bytes.

    Files that match no pattern are not read, and are not looked at.
    """
    links = (path for path in folder.iterdir() if path.is_symlink())
    for path in sorted(path for path in links if any(path.match(pattern) for pattern in patterns)):
        blob = path.resolve()
        if not blob.is_file():
            raise ModelError(f"{path} is missing from the hub's cache: remove {folder} and load it again")
        found = next((hash_of(blob) for kind, hash_of in HASHES.items() if kind.fullmatch(blob.name)), blob.name)
        if found != blob.name:
            raise ModelError(f"{path} is damaged in the hub's cache ({blob}): remove that file and load it again")


def _git_blob_id(path: Path) -> str:
    """Returns by what git knows the file's content."""
    with path.open("rb") as file:
        found = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


HASHES = {SHA256: sha256_of, COMMIT: _git_blob_id}


def _told(name: str, revision: str | None, error: Exception) -> str:
    """Returns what a client's error means to a user, without the addresses and secrets that it may hold."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    nowhere, login = (
        f"{name} is neither a folder with a model nor one that the hub gives",
        "log in with `hf auth login`",
    )
    known = {
        HFValidationError: f"{nowhere}: there is no such folder, and no repository has such a name",
        GatedRepoError: f"{nowhere} to all: accept its conditions there, and {login}",
        RevisionNotFoundError: f"{name} has no revision {revision!r}: name a branch, a tag or a commit",
        RepositoryNotFoundError: f"{nowhere}: check its name, and {login} where it is private",
        OfflineModeIsEnabled: f"{nowhere}: HF_HUB_OFFLINE is set, and the cache lacks it: unset it, or name a folder",
    }
    for kind, said in known.items():
        if isinstance(error, kind):
            return said
    if isinstance(error, HfHubHTTPError):
        return f"{nowhere} now: it answers {error.response.status_code}; try again later, or name a folder"
    if constants.HF_HUB_OFFLINE:
        return f"{name} is not whole in the cache, and HF_HUB_OFFLINE is set: unset it, or name a folder"
    return f"{nowhere}: it cannot be reached ({type(error).__name__}); check the network, or name a folder"
