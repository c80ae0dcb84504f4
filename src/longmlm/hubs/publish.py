"""Publishing: uploads a sealed folder to a hub, a local folder, or storage behind a URL."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, assert_never, runtime_checkable

from longmlm.errors import ReleaseError
from longmlm.folders import MANIFEST, unlisted_note, verify
from longmlm.hubs import huggingface, storage
from longmlm.hubs.transfers import TransferError, retry
from longmlm.settings.publishing import Hub, Target


@runtime_checkable
class Client(Protocol):
    """What the module of a hub provides."""

    def check_ready(self, target: Target) -> None:
        """Raises ReleaseError if the client is offline, has no token, or is not installed."""

    def upload(self, folder: Path, names: Sequence[str], target: Target, message: str, /) -> str:
        """Uploads those of the named files that are new or changed; returns their address, checksums verified there."""

    def translate(self, error: Exception) -> TransferError:
        """Returns what an exception of the client means, without secrets."""


def check_can_publish(target: Target) -> None:
    """Raises ReleaseError, before any work, if the target's client is not installed, is offline or has no token."""
    _client_of(target.hub).check_ready(target)


def publish(folder: Path, target: Target, message: str) -> str:
    """Returns the address of the manifest and the files that it lists, verified there; prints what else there is.

    Files that exist there are not uploaded again. Raises FolderError for a damaged folder, ReleaseError if it cannot be
    published, and UnavailableError if waiting may help.
    """
    files, client = verify(folder)["files"], _client_of(target.hub)
    if note := unlisted_note(folder, files):
        print(f"not published: {note}", flush=True)
    names = [*files, MANIFEST]  # the manifest last: a copy that has one is complete
    return retry(lambda: client.upload(folder, names, target, message), "upload", target, client.translate)


def _client_of(hub: Hub) -> Client:
    match hub:
        case "hf":
            return huggingface
        case "ms":
            if find_spec("modelscope_hub") is None:
                raise ReleaseError("ModelScope's client is not installed: pip install 'longmlm[modelscope]'")
            from longmlm.hubs import modelscope

            return modelscope
        case "storage":
            return storage
        case unknown:
            assert_never(unknown)
