"""A fake Hugging Face Hub on a local port: the part of its protocol that the client uses.

A repository has commits; a branch points to its latest one.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pytest
from huggingface_hub import RepoCard, constants

from tests.support.loopback import Request, Response, Server, listening

Files = dict[str, bytes]
LATEST = "main"
KINDS = ("datasets", "models")
LARGE = (".arrow", ".parquet", ".png", ".safetensors")
FIRST = {".gitattributes": b"*.safetensors filter=lfs\n", "README.md": b"# empty\n", "configuration.json": b"{}"}
METADATA = {
    "model": ("license", "library_name", "pipeline_tag"),
    "dataset": ("configs", "language", "license", "size_categories"),
}


@dataclass
class Repository:
    """Files by commit, and commits by branch and by tag."""

    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    private: bool = False
    license: str = ""

    def commit(self, files: Files, branch: str = LATEST) -> str:
        """Commits these files as the whole content of the branch; returns the commit."""
        described = json.dumps([len(self.commits), {name: sha1(content) for name, content in files.items()}])
        commit = self.branches[branch] = sha1(described.encode())
        self.commits[commit] = dict(files)
        return commit

    def resolve(self, revision: str) -> str | None:
        """Returns the commit of a branch, a tag or a commit; None for an unknown revision."""
        return (self.branches | self.tags | {commit: commit for commit in self.commits}).get(revision)

    def files(self, revision: str = LATEST) -> Files:
        """Returns the files at a revision; none for an unknown one."""
        return self.commits.get(self.resolve(revision) or "", {})


@dataclass
class Hub(Server):
    """Repositories by kind and name, such as datasets/owner/name.

    If `token` is set, only requests with it may write, or read a private repository.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None

    def repository(self, name: str) -> Repository:
        """Returns the repository of that name, created if missing."""
        return self.repositories.setdefault(name, Repository())

    def knows(self, request: Request) -> bool:
        """Returns whether the request has the token, if there is one."""
        return self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}"


def missing(what: str) -> Response:
    """Returns the 404 response for a missing Repo, Revision or Entry."""
    return Response({"error": "not found"}, 404, {"X-Error-Code": f"{what}NotFound"})


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def oid_of(path: str, content: bytes) -> str:
    """Returns the hub's id of a file: the SHA-256 of a large one, the git blob id of any other."""
    is_large = path.endswith(LARGE)
    return hashlib.sha256(content).hexdigest() if is_large else sha1(b"blob %d\0" % len(content) + content)


def entry(path: str, content: bytes) -> dict[str, object]:
    about = {"type": "file", "path": path, "size": len(content), "oid": oid_of(path, content)}
    large = {"oid": about["oid"], "size": len(content), "pointerSize": 130}
    return {**about, "oid": sha1(content), "lfs": large} if path.endswith(LARGE) else about


def entries(files: Files, folder: str) -> list[dict[str, object]]:
    """Returns the files and folders below a folder."""
    inside = {path: content for path, content in files.items() if path.startswith(f"{folder}/" if folder else "")}
    parents = {path.rsplit("/", 1)[0] for path in inside if "/" in path} - {folder}
    folders = [{"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode())} for path in sorted(parents)]
    return folders + [entry(path, content) for path, content in inside.items()]


def answer(hub: Hub, request: Request) -> Response:
    command, body, is_known = request.command, request.body, hub.knows(request)
    parts = [unquote(part) for part in request.path.removeprefix("/api").strip("/").split("/")]
    match [command, *parts]:
        case ["POST", "validate-yaml"]:
            return validated(**json.loads(body))
        case ["POST", "repos", "create"]:
            return created(hub, json.loads(body)) if is_known else Response({"error": "unknown token"}, 401)
        case ["PUT", "objects", oid]:
            hub.objects[oid_of(LARGE[0], body)] = body
            return Response(status=200 if oid in hub.objects else 400)
    parts = parts if parts[0] in KINDS else ["models", *parts]
    name, parts = "/".join(parts[:3]).removesuffix(".git"), parts[3:]
    repository = hub.repositories.get(name)
    if repository is None or (repository.private and not is_known):
        return missing("Repo")
    if command != "POST":
        return read(repository, name.split("/", 1)[1], parts or ["revision"])
    return written(hub, repository, parts, body) if is_known else Response({"error": "you may only read"}, 403)


def read(repository: Repository, name: str, parts: list[str]) -> Response:
    revision, inside = (parts[1:] or [LATEST])[0], "/".join(parts[2:])
    commit, files, content, headers = repository.resolve(revision), repository.files(revision), None, {}
    match parts[0], inside:
        case "refs", _:
            refs = {"branches": repository.branches, "tags": repository.tags, "converts": {}}
            content = {kind: [{"name": n, "ref": n, "targetCommit": to[n]} for n in to] for kind, to in refs.items()}
        case _ if commit is None:
            return missing("Revision")
        case "revision", _:
            siblings = [{"rfilename": path} for path in files]
            content = {"id": name, "sha": commit, "private": repository.private, "tags": [], "siblings": siblings}
        case "tree", str(folder) if not folder or entries(files, folder):
            content = entries(files, folder)
        case "resolve", str(path) if path in files:
            content, headers = files[path], {"ETag": f'"{oid_of(path, files[path])}"', "X-Repo-Commit": commit}
    return missing("Entry") if content is None else Response(content, headers=headers)


def validated(content: str, repoType: str) -> Response:  # noqa: N803 - the client's name
    """Returns the response to a validation of a card's metadata: the keys that are wrong."""
    data = RepoCard(content).data.to_dict()
    wrong = [key for key in METADATA[repoType] if not data.get(key)]
    for split in (split for config in data.get("configs", ()) for split in config["data_files"]):
        wrong += [] if re.fullmatch(r"\w+", split["split"]) and split["path"] else ["configs"]
    for result in (result for index in data.get("model-index", ()) for result in index["results"]):
        parts = [result["task"]["type"], result["dataset"]["name"], result["dataset"]["type"]]
        numbers = [metric["value"] for metric in result["metrics"]]
        wrong += [] if all(parts) and all(isinstance(number, float) for number in numbers) else ["model-index"]
    errors = [{"message": f"{key} is wrong"} for key in wrong]
    return Response({"errors": errors, "warnings": []}, 400 if wrong else 200)


def created(hub: Hub, request: dict) -> Response:
    name = f"{request.get('type', 'model')}s/{request['organization']}/{request['name']}"
    if name in hub.repositories:
        return Response({"error": "exists"}, 409)
    hub.repository(name).private = request.get("visibility") == "private"
    hub.repository(name).commit({".gitattributes": FIRST[".gitattributes"]})
    return Response({"url": f"{hub.endpoint}/{name.removeprefix('models/')}"})


def written(hub: Hub, repository: Repository, parts: list[str], body: bytes) -> Response:
    lines = [json.loads(line) for line in body.splitlines()]
    match parts:
        case ["preupload", revision]:
            return Response({"files": [mode_of(one["path"], repository.files(revision)) for one in lines[0]["files"]]})
        case ["info", "lfs", "objects", "batch"]:
            return Response({"objects": [actions_for(hub, one) for one in lines[0]["objects"]]})
        case ["commit", revision] if repository.resolve(revision):
            commit = repository.commit(changed(repository.files(revision), lines, hub.objects), revision)
            return Response({"commitUrl": f"{hub.endpoint}/owner/name/commit/{commit}", "commitOid": commit})
        case ["branch", name] if name not in repository.branches:
            repository.branches[name] = repository.branches[LATEST]
        case ["tag", revision]:
            repository.tags[lines[0]["tag"]] = str(repository.resolve(revision))
        case _:
            return Response({"error": "exists"}, 409)
    return Response()


def mode_of(path: str, files: Files) -> dict[str, object]:
    oid = oid_of(path, files[path]) if path in files else None
    return {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular", "shouldIgnore": False, "oid": oid}


def actions_for(hub: Hub, one: dict) -> dict[str, object]:
    where = {"href": f"{hub.endpoint}/objects/{one['oid']}?signature=secret"}
    return one if one["oid"] in hub.objects else {**one, "actions": {"upload": where}}


def changed(files: Files, operations: list[dict], objects: dict[str, bytes]) -> Files:
    files = dict(files)
    for operation in operations:
        match operation["key"], operation["value"]:
            case "file", {"path": path, "content": content}:
                files[path] = base64.b64decode(content)
            case "lfsFile", {"path": path, "oid": oid}:
                files[path] = objects[oid]
            case "deletedFile", {"path": path}:
                del files[path]
    return files


def point_client_at(hub: Hub, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes the client in this process use the hub, with a valid token and its own cache folder."""
    if hub.token:
        patch.setenv("HF_TOKEN", hub.token)
    settings = {"ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for name, value in {**settings, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(cache)}.items():
        patch.setattr(constants, name, value)


@contextmanager
def serve(respond: Callable[[Hub, Request], Response] = answer) -> Iterator[Hub]:
    """Yields an empty hub that listens on a local port until the block exits."""
    hub = Hub()
    with listening(hub, partial(respond, hub)):
        yield hub
