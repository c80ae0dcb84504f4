"""ModelScope: uploads a folder in one commit of a repository's only branch; downloads the files of a model."""

import base64
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import requests
from huggingface_hub import ModelCard
from huggingface_hub.constants import REPOCARD_NAME
from huggingface_hub.utils import filter_repo_objects
from modelscope_hub import HubApi, HubConfig, License, Visibility
from modelscope_hub.constants import MODEL_LFS_SUFFIX, UPLOAD_INLINE_METADATA_PATHS, UPLOAD_LFS_FORCE_THRESHOLD_BYTES
from modelscope_hub.errors import APIError, HubError, NotExistError
from requests.adapters import HTTPAdapter

from longmlm.errors import ReleaseError, naming
from longmlm.folders import sha256_of
from longmlm.hubs.modelscope_cache import Listing, cache_folder, cached_listing, snapshot_folder, store_listing
from longmlm.hubs.transfers import (
    TIMEOUT_SECONDS,
    Cause,
    TransferError,
    causes,
    redact,
    request_error,
    retry,
    user_error,
)
from longmlm.processes import overlapping
from longmlm.settings.publishing import Target

TOKEN_VARIABLE = "MODELSCOPE_API_TOKEN"  # noqa: S105 - the name of the variable
BRANCH = "master"
MODEL = "model"
LOOKUP_SECONDS = 10.0  # then the commit in the cache is used
Result = TypeVar("Result")


class SingleAttempt(HTTPAdapter):
    """Sends each request once with a timeout; the client's own adapter would retry for an hour, or as the hub asks."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        """Returns the response; raises requests.Timeout if it takes too long."""
        options["timeout"] = self.seconds
        return super().send(*arguments, **options)


def check_ready(target: Target) -> None:
    """Raises ReleaseError if there is no token to publish with."""
    if not os.environ.get(TOKEN_VARIABLE):
        raise user_error(TransferError(Cause.UNAUTHORIZED), "upload", target)


@overlapping
@contextmanager
def _silent() -> Iterator[None]:
    """Silences the client's logger, which writes requests with signed URLs."""
    logger = logging.getLogger("modelscope_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _client(seconds: float | None = None) -> Iterator[HubApi]:
    """Yields a client that sends each request once, logs nothing, and leaves no token or id on this machine.

    A request fails after `seconds` or, by default, TIMEOUT_SECONDS; the client itself retries parts of a download.
    """
    with _silent(), tempfile.TemporaryDirectory() as home:
        api = HubApi(HubConfig(token=os.environ.get(TOKEN_VARIABLE), config_dir=Path(home), cache_dir=Path(home)))
        for scheme in ("http://", "https://"):
            api.legacy._session.mount(scheme, SingleAttempt(seconds or TIMEOUT_SECONDS))  # noqa: SLF001 - there is no setting for its retries
        yield api


def upload(folder: Path, names: Sequence[str], target: Target, message: str) -> str:
    """Uploads to the only branch and sets the tag."""
    expected = {name: sha256_of(folder / name) for name in names}
    with _client() as api:
        _open_repository(api, folder, target)
        tag = target.tag
        _, tags = api.legacy.list_revisions_detail(target.name, MODEL)
        is_tagged = tag in {each["Revision"] for each in tags}
        if is_tagged and _different(_checksums(api, target.name, tag), expected):
            raise ReleaseError(f"{target.name} has a tag {tag} with other files: choose another tag")
        _commit(api, folder, expected, target.name, message)
        if tag and not is_tagged:
            api.create_repo_tag(target.name, MODEL, tag, revision=BRANCH)
        if names := _different(_checksums(api, target.name, tag or BRANCH), expected):
            problem = f"{names[0]} is not what was uploaded, or is missing"
            raise ReleaseError(f"{target.name}: {problem}: publish again")
    return f"{api.legacy.endpoint}/models/{target.name}" + (f" at {tag}" if tag else "")


def _open_repository(api: HubApi, folder: Path, target: Target) -> None:
    """Creates the repository if it does not exist; raises ReleaseError for an unexpectedly public one."""
    try:
        repository = api.legacy.get_repo_info(target.name, MODEL)
    except NotExistError:
        identifier = str(ModelCard.load(folder / REPOCARD_NAME).data.to_dict().get("license"))
        licence = next((known for known in License if known.lower() == identifier.lower()), License.OTHER)
        visibility = Visibility.PUBLIC if target.public else Visibility.PRIVATE
        api.create_repo(target.name, MODEL, visibility=visibility, license=licence)
        repository = api.legacy.get_repo_info(target.name, MODEL)
    if repository.get("Visibility") != Visibility.PRIVATE and not target.public:
        raise ReleaseError(f"{target.name} is public: set public = true, or make it private first")


def _checksums(api: HubApi, name: str, revision: str | None) -> dict[str, str | None]:
    """Returns the SHA-256 of each file of the repository at a revision."""
    files = api.list_repo_files(name, MODEL, revision=revision)
    return {file.path: file.sha256 for file in files if not file.is_dir}


def _different(uploaded: Mapping[str, str | None], expected: Mapping[str, str]) -> list[str]:
    return sorted(path for path, sha256 in expected.items() if uploaded.get(path) != sha256)


def _commit(api: HubApi, folder: Path, expected: Mapping[str, str], name: str, message: str) -> None:
    """Commits the changed files, if any."""
    changed = _different(_checksums(api, name, BRANCH), expected)
    large = {path: expected[path] for path in changed if _is_large(folder / path)}
    paths = {sha256: folder / path for path, sha256 in large.items()}
    blobs = [{"oid": sha256, "size": path.stat().st_size} for sha256, path in paths.items()]
    for sha256, address in (api.legacy.validate_blobs(name, MODEL, blobs) if blobs else {}).items():
        if address:  # the hub does not have this file
            with paths[sha256].open("rb") as file:
                api.legacy.upload_blob(address, file, paths[sha256].stat().st_size)
    actions = [_action(folder / path, path, large.get(path)) for path in changed]
    if actions:
        api.legacy.create_commit(name, MODEL, actions, message, BRANCH)


def _is_large(path: Path) -> bool:
    """Returns whether the hub stores a file outside git, by the client's rule."""
    is_large = path.suffix.lower() in MODEL_LFS_SUFFIX or path.stat().st_size > UPLOAD_LFS_FORCE_THRESHOLD_BYTES
    return is_large and path.name.upper() not in UPLOAD_INLINE_METADATA_PATHS


def _action(path: Path, name: str, blob: str | None) -> dict[str, str | int]:
    """Returns the part of a commit that writes a file: a reference to its uploaded blob, or else its content."""
    action = {"action": "create", "path": name, "size": path.stat().st_size}
    if blob:
        return {**action, "type": "lfs", "sha256": blob, "content": "", "encoding": ""}
    content = base64.b64encode(path.read_bytes()).decode()
    return {**action, "type": "normal", "sha256": "", "content": content, "encoding": "base64"}


def retry_download(target: Target, attempt: Callable[[], Result]) -> Result:
    """Returns the result of an attempt; raises as `retry` does."""

    def named() -> Result:
        with naming(cache_folder(target)):
            return attempt()

    return retry(named, "download", target, translate)


def resolve(target: Target) -> tuple[str, str | None]:
    """Returns the commit of the target's revision, and a note if the site did not answer and the cache was used."""
    if target.is_pinned:
        return str(target.revision), None
    revision = target.revision or BRANCH
    try:
        return _fetch_listing(target, revision).commit, None
    except Exception as error:
        if not translate(error).is_transient or (cached := cached_listing(target, revision)) is None:
            raise
        return (
            cached.commit,
            f"ModelScope does not answer: ms:{target.name} is taken from the cache, at commit {cached.commit}",
        )


def download(target: Target, commit: str, patterns: Sequence[str], ignored: Sequence[str] = ()) -> Path:
    """Returns the folder with the repository's files that match a pattern; intact files there are not downloaded."""
    listing, folder = _listing(target, commit), snapshot_folder(target, commit)
    folder.mkdir(parents=True, exist_ok=True)
    names = filter_repo_objects(listing.files, allow_patterns=list(patterns), ignore_patterns=list(ignored))
    if missing := [name for name in names if not listing.is_intact(name, folder)]:
        with _client() as api:
            for name in missing:
                sha256, size = listing.files[name]
                about: dict[str, Any] = {"revision": commit, "expected_sha256": sha256, "file_size": size}
                api.download_file(target.name, MODEL, name, local_dir=folder, **about)
    return folder


def download_file(target: Target, commit: str, name: str) -> Path | None:
    """Returns one file of the repository, from the cache if it is there; None if the repository does not have it."""
    return download(target, commit, [name]) / name if name in _listing(target, commit).files else None


def paths_at(target: Target, commit: str) -> list[str] | None:
    """Returns the paths of all files of the repository at a commit; None if the cache does not list them."""
    listing = cached_listing(target, commit)
    return list(listing.files) if listing else None


def cached_file(target: Target, commit: str, name: str) -> Path | None:
    """Returns a file of the repository if it is in the cache."""
    path = snapshot_folder(target, commit) / name
    return path if path.is_file() else None


def _listing(target: Target, commit: str) -> Listing:
    return cached_listing(target, commit) or _fetch_listing(target, commit)


def _fetch_listing(target: Target, revision: str) -> Listing:
    """Asks the site for the files at a revision, returns them and keeps the answer in the cache."""
    with _client(LOOKUP_SECONDS) as api:
        about = {"Revision": revision, "Recursive": "True"}
        try:  # list_repo_files leaves out the commit
            response = api.legacy._request("GET", f"models/{target.name}/repo/files", params=about)  # noqa: SLF001
        except NotExistError as error:
            api.legacy.get_repo_info(target.name, MODEL)  # raises the same if there is no such repository
            raise TransferError(Cause.NO_REVISION) from error
    listing = Listing.of(response.json(), revision)
    store_listing(target, revision, listing)
    return listing


def translate(error: Exception) -> TransferError:
    """Returns what an exception of the client means; its message holds no token and no signed URL."""
    root = list(causes(error))[-1]
    match error:
        case APIError(status_code=int(status)):
            said = "" if error.message.startswith(("HTTP ", "<")) else redact(error.message)
            failure = request_error(status, said, float(getattr(error, "retry_after", None) or 0))
            if error.retryable:  # such as two commits at the same time
                failure.cause = Cause.UNAVAILABLE
            return failure
        case requests.RequestException() | HubError(retryable=True):
            return TransferError(Cause.UNREACHABLE, type(root).__name__)
        case _:
            return TransferError(Cause.UNUSABLE, redact(str(root)) or type(root).__name__)
