"""A folder to a repository of the Hugging Face Hub: what changed is uploaded, all is verified, waits are bounded."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars, logging, parse_ratelimit_headers
from huggingface_hub.utils._http import default_client_factory

from longmlm.errors import ReleaseError
from longmlm.folders import sha256_of
from longmlm.hubs.redaction import redact
from longmlm.hubs.retry import (
    LONGEST_WAIT_SECONDS,
    REFUSED,
    TIMEOUT_SECONDS,
    TOO_MANY_REQUESTS,
    TRANSIENT,
    WAITS_SECONDS,
    Reason,
    answered,
    chain,
    long_pause,
    retry,
    unreachable,
)
from longmlm.hubs.target import Repository

REMEDIES = {
    401: "log in with `hf auth login`, or set HF_TOKEN to a token that is valid",
    402: "the plan of its owner does not cover this",
    403: "use a token with write access to it, or make room where a quota is full",
    404: "check its name, and that the token may see it",
}


def upload(folder: Path, place: Repository, message: str) -> str:
    """Returns the address of the folder's files on the hub, where each has the content that it has here.

    A second upload sends only what changed, so a failed one is begun again: what the hub may mend by itself a few
    times, anything else not. Raises ReleaseError that says what to do, UnavailableError where that is to wait.
    """
    set_client_factory(_client)
    logging.set_verbosity_error()  # its warnings hold signed addresses
    if not sys.stderr.isatty():
        disable_progress_bars()
    return retry(lambda: _upload(folder, place, message), lambda error: _reason(error, place.name), WAITS_SECONDS)


def check_login() -> None:
    """Raises ReleaseError where the client is told to stay offline, or has no token to publish with."""
    if constants.HF_HUB_OFFLINE:
        raise ReleaseError("HF_HUB_OFFLINE is set: unset it to publish")
    if get_token() is None:
        raise ReleaseError("publishing to the hub needs a token: log in with `hf auth login`, or set HF_TOKEN")


def _upload(folder: Path, place: Repository, message: str) -> str:
    api = HfApi()
    _open_repository(api, place)
    revision = place.revision or "main"
    if place.pull_request:
        revision = _pull_request(api, place, message)
    elif place.revision and not place.revision.startswith("refs/"):
        api.create_branch(place.name, repo_type=place.kind, branch=revision, exist_ok=True)
    commit = api.upload_folder(
        repo_id=place.name,
        repo_type=place.kind,
        folder_path=folder,
        revision=revision,
        commit_message=message,
        delete_patterns="*" if place.mirrors else list(place.owns) or None,
    ).oid
    _verify(api, place, commit, folder)
    if place.tag:
        _tag(api, place, place.tag, commit)
    path = f"datasets/{place.name}" if place.kind == "dataset" else place.name
    return f"{api.endpoint}/{path}/tree/{place.tag or revision}"


def _open_repository(api: HfApi, place: Repository) -> None:
    """Creates the repository unless it is there; raises ReleaseError for a public one that was not asked for."""
    try:
        found = api.repo_info(place.name, repo_type=place.kind)
    except RepositoryNotFoundError:
        api.create_repo(place.name, repo_type=place.kind, private=not place.public, exist_ok=True)
        found = api.repo_info(place.name, repo_type=place.kind)
    if not found.private and not place.public:
        raise ReleaseError(f"{place.name} is public: set public = true, or make it private first")
    if found.private and place.public:
        print(f"{place.name} is private, and stays so: make it public in its settings", file=sys.stderr)


def _pull_request(api: HfApi, place: Repository, title: str) -> str:
    """Returns the branch of the pull request of that title which is open, a new one if there is none."""
    for found in api.get_repo_discussions(place.name, repo_type=place.kind, discussion_type="pull_request"):
        if found.title == title and found.status in ("open", "draft"):
            return f"refs/pr/{found.num}"
    opened = api.create_pull_request(place.name, repo_type=place.kind, title=title, description="A release by longmlm.")
    return f"refs/pr/{opened.num}"


def _verify(api: HfApi, place: Repository, commit: str, folder: Path) -> None:
    """Raises ReleaseError when a file of the folder is absent on the hub at that commit, or another one."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = api.get_paths_info(place.name, list(paths), repo_type=place.kind, revision=commit)
    there: dict[str, Any] = {info.path: info for info in found}
    for relative, path in paths.items():
        info = there.get(relative)
        if info is None:
            raise ReleaseError(f"{place.name} lacks {relative} after the upload: publish again")
        if (info.lfs.sha256 != sha256_of(path)) if info.lfs else (info.blob_id != git_blob_id(path)):
            raise ReleaseError(f"{place.name} holds another {relative} than {folder}: publish again")


def git_blob_id(path: Path) -> str:
    """Returns by what git knows the file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _tag(api: HfApi, place: Repository, tag: str, commit: str) -> None:
    """Sets the tag, unless it is set; raises ReleaseError when it is on another commit, since a tag does not move."""
    known = {ref.name: ref.target_commit for ref in api.list_repo_refs(place.name, repo_type=place.kind).tags}
    if known.get(tag, commit) != commit:
        raise ReleaseError(f"{place.name} has a tag {tag} already, on other files: name another tag")
    if tag not in known:
        api.create_tag(place.name, repo_type=place.kind, tag=tag, revision=commit)


def _client() -> httpx2.Client:
    """Returns the hub's client, which of itself would wait for ever for an answer, or for as long as it is told."""
    client = default_client_factory()
    client.event_hooks = {"request": [*client.event_hooks["request"], _limit], "response": [_refuse_long_wait]}
    return client


def _limit(request: httpx2.Request) -> None:
    request.extensions["timeout"] = httpx2.Timeout(TIMEOUT_SECONDS).as_dict()


def _refuse_long_wait(response: httpx2.Response) -> None:
    if response.status_code in TRANSIENT and (asked := _asked_wait(response)) > LONGEST_WAIT_SECONDS:
        raise long_pause(asked)


def _asked_wait(response: httpx2.Response) -> float:
    limit, after = parse_ratelimit_headers(response.headers), response.headers.get("retry-after", "")
    if response.status_code == TOO_MANY_REQUESTS and limit and not limit.remaining:
        return float(limit.reset_in_seconds)
    return float(after) if after.isdigit() else 0.0


def _reason(error: Exception, name: str) -> Reason:
    """Returns what a client's error means to a user, without the addresses and secrets that it may hold."""
    links = list(chain(error))
    if own := [one for one in links if isinstance(one, ReleaseError)]:
        return Reason(own[0])
    if any(isinstance(one, OfflineModeIsEnabled) for one in links):
        return Reason(ReleaseError("HF_HUB_OFFLINE is set: unset it to publish"))
    if failed := [one for one in links if isinstance(one, HfHubHTTPError)]:
        status, said = failed[0].response.status_code, redact(failed[0].server_message or "", get_token())
        asked = max(_asked_wait(one.response) for one in failed)
        return answered(status, name, said, None if status in TRANSIENT else REMEDIES.get(status, REFUSED), asked)
    if any(isinstance(one, httpx2.TransportError | ConnectionError) for one in links):
        return unreachable(redact(str(error), get_token()) or type(error).__name__)
    said = redact(str(links[-1]), get_token()) or type(links[-1]).__name__
    return Reason(ReleaseError(f"{name} cannot be published: {said}"))
