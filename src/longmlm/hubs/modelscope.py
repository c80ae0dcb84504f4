"""A folder to a repository of ModelScope: what changed is committed, all is verified, waits are bounded."""

import base64
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
from huggingface_hub import ModelCard
from modelscope_hub import HubApi, HubConfig, License, Visibility
from modelscope_hub.constants import MODEL_LFS_SUFFIX, UPLOAD_INLINE_METADATA_PATHS, UPLOAD_LFS_FORCE_THRESHOLD_BYTES
from modelscope_hub.errors import APIError, HubError, NotExistError
from requests.adapters import HTTPAdapter

from longmlm.errors import ReleaseError
from longmlm.folders import sha256_of
from longmlm.hubs.redaction import redact
from longmlm.hubs.retry import (
    REFUSED,
    TIMEOUT_SECONDS,
    TRANSIENT,
    WAITS_SECONDS,
    Reason,
    answered,
    chain,
    retry,
    unreachable,
)
from longmlm.hubs.target import Repository

TOKEN = "MODELSCOPE_API_TOKEN"  # noqa: S105 - the name of the variable
BRANCH = "master"
MODEL = "model"
CARD = "README.md"
REMEDIES = {
    401: f"set {TOKEN} to a token that is valid",
    403: "use a token with write access to it, or make room where a quota is full",
    404: "check its name, and that the token may see it",
}


class Patience(HTTPAdapter):
    """Asks once and waits for an answer no longer than that; the client would wait for an hour, or as it is told."""

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,  # noqa: ARG002
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Returns the answer; raises requests.Timeout when it takes too long."""
        return super().send(request, stream, TIMEOUT_SECONDS, verify, cert, proxies)


def upload(folder: Path, place: Repository, message: str) -> str:
    """Returns the address of the folder's files on the hub, where each has the content that it has here.

    They go to the branch master; a revision is a tag there, since the client makes no branches. A second upload sends
    only what changed, so a failed one is begun again: what the hub may mend by itself a few times, anything else not.
    Raises ReleaseError that says what to do, UnavailableError where that is to wait.
    """
    token = token_of_environment()
    logging.getLogger("modelscope_hub").setLevel(logging.CRITICAL + 1)  # it tells requests with what they hold
    expected = {path.relative_to(folder).as_posix(): sha256_of(path) for path in folder.rglob("*") if path.is_file()}
    with tempfile.TemporaryDirectory() as home:  # where it writes by what it knows this machine again
        api = HubApi(HubConfig(token=token, config_dir=Path(home), cache_dir=Path(home)))
        for scheme in ("http://", "https://"):
            api.legacy._session.mount(scheme, Patience())  # noqa: SLF001 - there is no other way to its waits
        return retry(
            lambda: _upload(api, folder, expected, place, message),
            lambda error: _reason(error, place.name, token),
            WAITS_SECONDS,
        )


def token_of_environment() -> str:
    """Returns the token by which the hub knows who publishes; raises ReleaseError without one."""
    if token := os.environ.get(TOKEN, ""):
        return token
    raise ReleaseError(f"publishing to ModelScope needs a token: set {TOKEN}")


def _upload(api: HubApi, folder: Path, expected: Mapping[str, str], place: Repository, message: str) -> str:
    _open_repository(api, folder, place)
    tag = place.tag or place.revision
    _, tags = api.legacy.list_revisions_detail(place.name, MODEL)
    is_tagged = tag in {each["Revision"] for each in tags}
    if is_tagged and _different(_held(api, place.name, tag), expected):
        raise ReleaseError(f"{place.name} has a tag {tag} already, on other files: name another tag")
    if not (is_tagged and place.revision):
        _commit(api, folder, expected, place, message)
    if tag and not is_tagged:
        api.create_repo_tag(place.name, MODEL, tag, revision=BRANCH)
    there = _held(api, place.name, tag or BRANCH)
    for relative in _different(there, expected):
        if relative not in there:
            raise ReleaseError(f"{place.name} lacks {relative} after the upload: publish again")
        raise ReleaseError(f"{place.name} holds another {relative} than {folder}: publish again")
    return f"{api.legacy.endpoint}/models/{place.name}" + (f" at {tag}" if tag else "")


def _open_repository(api: HubApi, folder: Path, place: Repository) -> None:
    """Creates the repository unless it is there; raises ReleaseError for a public one that was not asked for."""
    try:
        found = api.legacy.get_repo_info(place.name, MODEL)
    except NotExistError:
        told = ModelCard.load(folder / CARD).data.to_dict().get("license")
        licence = next((one for one in License if one.lower() == str(told).lower()), License.OTHER)
        visibility = Visibility.PUBLIC if place.public else Visibility.PRIVATE
        api.create_repo(place.name, MODEL, visibility=visibility, license=licence)
        found = api.legacy.get_repo_info(place.name, MODEL)
    if found.get("Visibility") != Visibility.PRIVATE and not place.public:
        raise ReleaseError(f"{place.name} is public: set public = true, or make it private first")


def _held(api: HubApi, name: str, revision: str | None) -> dict[str, str | None]:
    """Returns the SHA-256 of each file of the repository at a revision."""
    files = api.list_repo_files(name, MODEL, revision=revision)
    return {file.path: file.sha256 for file in files if not file.is_dir}


def _different(there: Mapping[str, str | None], expected: Mapping[str, str]) -> list[str]:
    return sorted(path for path, sha256 in expected.items() if there.get(path) != sha256)


def _commit(api: HubApi, folder: Path, expected: Mapping[str, str], place: Repository, message: str) -> None:
    """Brings the branch to the folder's content by one commit, or by none; a mirror is rid of all else."""
    there = _held(api, place.name, BRANCH)
    changed = _different(there, expected)
    gone = [path for path in there if place.mirrors and path not in expected and not path.startswith(".git")]
    large = {path: expected[path] for path in changed if _is_large(folder / path)}
    _send(api, folder, large, place.name)
    actions = [_action(folder / path, path, large.get(path)) for path in changed]
    actions += [{"action": "delete", "path": path, "type": "normal", "size": 0} for path in gone]
    if actions:
        api.legacy.create_commit(place.name, MODEL, actions, message, BRANCH)


def _is_large(path: Path) -> bool:
    """Tells whether the hub keeps a file apart from the history, by the client's rule."""
    if path.name.upper() in UPLOAD_INLINE_METADATA_PATHS:
        return False
    return path.suffix.lower() in MODEL_LFS_SUFFIX or path.stat().st_size > UPLOAD_LFS_FORCE_THRESHOLD_BYTES


def _send(api: HubApi, folder: Path, large: Mapping[str, str], name: str) -> None:
    """Uploads the files, given with their SHA-256, that the hub does not hold."""
    paths = {sha256: folder / path for path, sha256 in large.items()}
    wanted = [{"oid": sha256, "size": path.stat().st_size} for sha256, path in paths.items()]
    addresses = api.legacy.validate_blobs(name, MODEL, wanted) if wanted else {}
    for sha256, address in addresses.items():
        if address:
            with paths[sha256].open("rb") as file:
                api.legacy.upload_blob(address, file, paths[sha256].stat().st_size)


def _action(path: Path, relative: str, sha256: str | None) -> dict[str, Any]:
    """Returns what a commit does to write a file: by its SHA-256 where that was uploaded, else with its content."""
    action = {"action": "create", "path": relative, "size": path.stat().st_size}
    if sha256:
        return {**action, "type": "lfs", "sha256": sha256, "content": "", "encoding": ""}
    content = base64.b64encode(path.read_bytes()).decode()
    return {**action, "type": "normal", "sha256": "", "content": content, "encoding": "base64"}


def _reason(error: Exception, name: str, token: str) -> Reason:
    """Returns what a client's error means to a user, without the addresses and secrets that it may hold."""
    links = list(chain(error))
    if own := [one for one in links if isinstance(one, ReleaseError)]:
        return Reason(own[0])
    failed = links[0]
    if isinstance(failed, APIError) and failed.status_code:
        said = "" if failed.message.startswith(("HTTP ", "<")) else redact(failed.message, token)
        may_pass = failed.retryable or failed.status_code in TRANSIENT
        remedy = None if may_pass else REMEDIES.get(failed.status_code, REFUSED)
        return answered(failed.status_code, name, said, remedy, float(getattr(failed, "retry_after", None) or 0))
    if isinstance(failed, requests.RequestException) or (isinstance(failed, HubError) and failed.retryable):
        return unreachable(type(links[-1]).__name__)
    said = redact(str(links[-1]), token) or type(links[-1]).__name__
    return Reason(ReleaseError(f"{name} cannot be published: {said}"))
