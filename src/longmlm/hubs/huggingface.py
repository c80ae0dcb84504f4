"""Hugging Face Hub: uploads a folder to a repository, resolves revisions, downloads files of one commit."""

import glob
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_cached_repo_tree,
    get_token,
    hf_hub_download,
    set_client_factory,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.utils import _http, disable_progress_bars, logging, parse_ratelimit_headers, validate_repo_id
from huggingface_hub.utils.tqdm import progress_bar_states

from longmlm.errors import ReleaseError, naming
from longmlm.hubs.transfers import (
    LONGEST_WAIT_SECONDS,
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

LOOKUP_TIMEOUT_SECONDS = 10.0  # after which the cache is used
Result = TypeVar("Result")


@overlapping
@contextmanager
def bounded_client() -> Iterator[None]:
    """Bounds the client's waits, unlimited by default, and silences its warnings, which contain signed URLs.

    Afterwards the client is what it was, since it also belongs to the program that calls longmlm.
    """
    factory = _http._GLOBAL_CLIENT_FACTORY  # noqa: SLF001 - no public function returns it
    verbosity, bars = logging.get_verbosity(), dict(progress_bar_states)

    def bounded() -> httpx2.Client:
        client = factory()
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks["request"], _limit],
            "response": [*hooks["response"], _refuse_long_wait],
        }
        return client

    set_client_factory(bounded)
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    finally:
        if _http._GLOBAL_CLIENT_FACTORY is bounded:  # noqa: SLF001 - else the program has set another one meanwhile
            set_client_factory(factory)
        logging.set_verbosity(verbosity)
        progress_bar_states.clear()
        progress_bar_states.update(bars)


def check_ready(target: Target) -> None:
    """Raises ReleaseError for a name that no repository can have, or if the client is offline or has no token."""
    try:
        validate_repo_id(target.name)
    except errors.HFValidationError as error:
        raise ReleaseError(f"{target.name} cannot be the name of a repository: {str(error).rstrip('.')}") from None
    if constants.HF_HUB_OFFLINE or get_token() is None:
        cause = Cause.OFFLINE if constants.HF_HUB_OFFLINE else Cause.UNAUTHORIZED
        raise user_error(TransferError(cause), "upload", target)


def retry_download(target: Target, attempt: Callable[[], Result]) -> Result:
    """Returns the result of an attempt, which may use the client; raises as `retry` does."""

    def named() -> Result:
        with naming(Path(constants.HF_HOME)):
            return attempt()

    with bounded_client():
        return retry(named, "download", target, translate)


def resolve(target: Target) -> tuple[str, str | None]:
    """Returns the commit of the target's revision, and a note if the hub did not answer and the cache was used."""
    if target.is_pinned:
        return str(target.revision), None
    api, about = HfApi(), {"repo_type": target.kind, "revision": target.revision}
    try:
        api.repo_info(target.name, timeout=LOOKUP_TIMEOUT_SECONDS, **about)  # resolve_revision takes no timeout
        return api.resolve_revision(target.name, **about).resolved, None
    except Exception as error:
        if not (failure := translate(error)).is_transient and failure.cause != Cause.OFFLINE:
            raise
        try:
            commit = api.resolve_revision(target.name, **about, local_files_only=True).resolved
        except errors.RevisionResolutionError:
            raise error from None
        note = f"the hub does not answer: {target.name} is taken from the cache, at commit {commit}"
        return commit, None if constants.HF_HUB_OFFLINE else note


def download(target: Target, commit: str, patterns: Sequence[str], ignored: Sequence[str] = ()) -> Path:
    """Returns the folder with the repository's files that match a pattern; files in the cache are not downloaded."""
    options = {"allow_patterns": list(patterns), "ignore_patterns": list(ignored)}
    return Path(snapshot_download(target.name, repo_type=target.kind, revision=commit, **options))


def download_file(target: Target, commit: str, name: str) -> Path | None:
    """Returns one file of the repository, from the cache if it is there; None if the repository does not have it."""
    try:
        return Path(hf_hub_download(target.name, name, repo_type=target.kind, revision=commit))
    except errors.RemoteEntryNotFoundError:
        return None


def paths_at(target: Target, commit: str) -> list[str] | None:
    """Returns the paths of all files of a model at a commit; None if the cache does not list them."""
    try:
        return [file.path for file in get_cached_repo_tree(target.name, revision=commit)]
    except errors.CachedRepoTreeNotFoundError:  # the hub does not answer, and an older client filled the cache
        return None


def cached_file(target: Target, commit: str, name: str) -> Path | None:
    """Returns a file of a model if it is in the cache."""
    path = try_to_load_from_cache(target.name, name, revision=commit)
    return Path(path) if isinstance(path, str) else None


def safetensors_weight_names(target: Target, commit: str) -> frozenset[str]:
    """Returns the names of the weights in a repository, from the headers of its safetensors files.

    The set is empty if it has no such files.
    """
    try:
        return frozenset(HfApi().get_safetensors_metadata(target.name, revision=commit).weight_map)
    except errors.NotASafetensorsRepoError:
        return frozenset()


def upload(folder: Path, names: Sequence[str], target: Target, message: str) -> str:
    """Uploads to a branch in one commit, and tags that commit once its files are verified."""
    with bounded_client():
        return _upload(HfApi(), folder, names, target, message)


def _upload(api: HfApi, folder: Path, names: Sequence[str], target: Target, message: str) -> str:
    _open_repository(api, target)
    revision = target.revision or "main"
    if target.revision and not target.revision.startswith("refs/"):
        api.create_branch(target.name, repo_type=target.kind, branch=revision, exist_ok=True)
    commit = api.upload_folder(
        repo_id=target.name,
        repo_type=target.kind,
        folder_path=folder,
        allow_patterns=[glob.escape(name) for name in names],
        revision=revision,
        commit_message=message,
        delete_patterns=list(target.owns) or None,
    ).oid
    _verify(api, target, commit, folder, names)
    if target.tag:
        tags = {ref.name: ref.target_commit for ref in api.list_repo_refs(target.name, repo_type=target.kind).tags}
        if tags.get(target.tag, commit) != commit:  # tags do not move
            raise ReleaseError(f"{target.name} has a tag {target.tag} with other files: choose another tag")
        if target.tag not in tags:
            api.create_tag(target.name, repo_type=target.kind, tag=target.tag, revision=commit)
    path = f"datasets/{target.name}" if target.kind == "dataset" else target.name
    return f"{api.endpoint}/{path}/tree/{target.tag or revision}"


def _open_repository(api: HfApi, target: Target) -> None:
    """Creates the repository if it does not exist; raises ReleaseError for an unexpectedly public one."""
    try:
        repository = api.repo_info(target.name, repo_type=target.kind)
    except errors.RepositoryNotFoundError:
        api.create_repo(target.name, repo_type=target.kind, private=not target.public, exist_ok=True)
        repository = api.repo_info(target.name, repo_type=target.kind)
    if not repository.private and not target.public:
        raise ReleaseError(f"{target.name} is public: set public = true, or make it private first")
    if repository.private and target.public:
        print(f"{target.name} is private and stays private: make it public in its settings", file=sys.stderr)


def _verify(api: HfApi, target: Target, commit: str, folder: Path, names: Sequence[str]) -> None:
    """Raises ReleaseError if one of the folder's files is missing on the hub at that commit, or differs."""
    found = api.verify_repo_checksums(target.name, repo_type=target.kind, revision=commit, local_dir=folder)
    wrong = {*found.extra_paths, *(mismatch["path"] for mismatch in found.mismatches)}
    if different := sorted(wrong.intersection(names)):
        raise ReleaseError(f"{target.name}: {different[0]} is not what was uploaded, or is missing: publish again")


def translate(error: Exception) -> TransferError:
    """Returns what an exception of the client means; its message holds no token and no signed URL."""
    said = redact(str(error), get_token()) or type(error).__name__
    unreachable = Cause.OFFLINE if constants.HF_HUB_OFFLINE else Cause.UNREACHABLE
    for cause in reversed(list(causes(error))):
        match cause:
            case errors.HFValidationError():
                return TransferError(Cause.NOT_FOUND)
            case errors.GatedRepoError() | errors.RevisionNotFoundError():
                is_gated = isinstance(cause, errors.GatedRepoError)
                return TransferError(Cause.GATED if is_gated else Cause.NO_REVISION)
            case errors.HfHubHTTPError():
                failure = request_error(cause.response.status_code, redact(cause.server_message or "", get_token()))
                failure.retry_after = _asked_wait(cause.response)
                if cause.response.headers.get("X-Error-Code") == "RepoNotFound":  # its status may be 401
                    failure.cause = Cause.NOT_FOUND
                return failure
            case httpx2.TransportError() | ConnectionError() | TimeoutError():
                return TransferError(unreachable, said)
    if isinstance(error, errors.LocalEntryNotFoundError):
        return TransferError(unreachable, "the cache does not hold all its files")
    root = redact(str([*causes(error)][-1]), get_token())
    return TransferError(Cause.UNUSABLE, said if root in said else f"{said}: {root}")


def _limit(request: httpx2.Request) -> None:
    limits = request.extensions["timeout"]
    request.extensions["timeout"] = {phase: min(limits[phase] or TIMEOUT_SECONDS, TIMEOUT_SECONDS) for phase in limits}


def _refuse_long_wait(response: httpx2.Response) -> None:
    """Raises TransferError for a pause that the client must not wait for by itself."""
    failure = request_error(response.status_code, "", _asked_wait(response))
    if failure.is_transient and failure.retry_after > LONGEST_WAIT_SECONDS:
        raise failure


def _asked_wait(response: httpx2.Response) -> float:
    limit, after = parse_ratelimit_headers(response.headers), response.headers.get("retry-after", "")
    if response.status_code == httpx2.codes.TOO_MANY_REQUESTS and limit and not limit.remaining:
        return float(limit.reset_in_seconds)
    return float(after) if after.isdigit() else 0.0
