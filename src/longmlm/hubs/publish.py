"""Publishing: uploads a sealed folder to a hub, another folder, or storage behind a URL."""

from importlib.util import find_spec
from pathlib import Path
from typing import assert_never

from longmlm.errors import ReleaseError
from longmlm.folders import verify
from longmlm.hubs import huggingface, storage
from longmlm.hubs.target import Target


def check_can_publish(target: Target) -> None:
    """Raises ReleaseError if the target's client is not installed, is offline or has no token, before any work."""
    match target.hub:
        case "hf":
            huggingface.check_login(target)
        case "ms":
            if find_spec("modelscope_hub") is None:
                raise ReleaseError("ModelScope's client is not installed: pip install 'longmlm[modelscope]'")
            from longmlm.hubs import modelscope

            modelscope.check_login(target)
        case "storage":
            storage.check_client(target)
        case unknown:
            assert_never(unknown)


def publish(folder: Path, target: Target, message: str) -> str:
    """Returns the address of the folder's files, verified there; files that are there already are not uploaded again.

    Raises FolderError for a damaged folder, ReleaseError in one line if it cannot be published.
    """
    verify(folder)
    match target.hub:
        case "hf":
            return huggingface.upload(folder, target, message)
        case "ms":
            from longmlm.hubs import modelscope

            return modelscope.upload(folder, target, message)
        case "storage":
            return storage.upload(folder, target)
        case unknown:
            assert_never(unknown)
