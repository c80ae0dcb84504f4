"""A fake ModelScope hub on a local port: the part of its protocol that the client uses.

A repository has one branch, master; a tag is a copy of its files. Files are identified by their SHA-256.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.support.loopback import Request, Response, Server, listening

Files = dict[str, bytes]
BRANCH = "master"
PRIVATE, PUBLIC = 1, 5
FIRST = {".gitattributes": b"*.safetensors filter=lfs\n", "README.md": b"# empty\n", "configuration.json": b"{}"}


@dataclass
class Repository:
    """Files by revision, the messages of the commits, visibility and licence."""

    revisions: dict[str, Files] = field(default_factory=lambda: {BRANCH: dict(FIRST)})
    commits: list[str] = field(default_factory=list)
    visibility: int = PRIVATE
    license: str = ""


@dataclass
class ModelScope(Server):
    """Repositories by OWNER/NAME, and large files by their SHA-256.

    If `token` is set, only requests with it may write, or read a private repository.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None

    def files(self, name: str, revision: str = BRANCH) -> Files:
        """Returns the files of a repository at a revision."""
        return self.repositories[name].revisions[revision]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def success(data: object) -> Response:
    return Response({"Code": 200, "Success": True, "Message": "", "Data": data})


def failure(status: int, message: str, code: int = 10010000000) -> Response:
    return Response({"Code": code, "Success": False, "Message": message, "Data": None}, status)


def answer(hub: ModelScope, request: Request) -> Response:
    """Returns the response to a request; only one with the right token may write."""
    parts = unquote(request.path).removeprefix("/api/v1").strip("/").split("/")
    is_known = hub.token in (None, request.headers.get("Authorization", "").removeprefix("Bearer "))
    if request.command in ("POST", "PUT") and not is_known:
        return failure(401, "user not logged in")
    match [request.command, *parts]:
        case ["POST", "models"]:
            return created(hub, json.loads(request.body))
        case ["PUT", "objects", oid]:
            hub.objects[sha256(request.body)] = request.body
            return success(None) if oid in hub.objects else failure(400, "these bytes belong to another object")
        case [_, "models", owner, name, *rest] | [_, "repos", "models", owner, name, *rest]:
            repository = hub.repositories.get(f"{owner}/{name}")
            if repository is None or (repository.visibility == PRIVATE and not is_known):
                return failure(404, "model not exists")
            is_read = request.command == "GET"
            body = json.loads(request.body or "null")
            return read(repository, rest, request) if is_read else written(hub, repository, rest, body)
    return failure(404, "no such page")


def created(hub: ModelScope, request: dict) -> Response:
    name = f"{request['Path']}/{request['Name']}"
    if name in hub.repositories:
        return failure(400, "the name is registered", 10010101001)
    hub.repositories[name] = Repository(visibility=request["Visibility"], license=request["License"])
    return success({"Path": request["Path"], "Name": request["Name"]})


def read(repository: Repository, parts: list[str], request: Request) -> Response:
    """Returns the response to a request that reads visibility, revisions, a list of files or a file."""
    files = repository.revisions.get(request.query.get("Revision", BRANCH))
    path = request.query.get("FilePath", "")
    match parts:
        case []:
            return success({"Visibility": repository.visibility, "License": repository.license})
        case ["revisions"]:
            tags = [{"Revision": name} for name in repository.revisions if name != BRANCH]
            return success({"RevisionMap": {"Branches": [{"Revision": BRANCH}], "Tags": tags}})
        case ["repo", "files"] if files is not None:
            return success({"Files": [entry(*each) for each in files.items()]})
        case ["repo"] if files is not None and path in files:
            return Response(files[path])
    return failure(404, "no such revision or file")


def entry(path: str, content: bytes) -> dict[str, object]:
    return {"Path": path, "Name": path, "Type": "blob", "Size": len(content), "Sha256": sha256(content)}


def written(hub: ModelScope, repository: Repository, parts: list[str], request: dict) -> Response:
    """Returns the response to a request that changes a repository or prepares a commit."""
    match parts:
        case ["info", "lfs", "objects", "batch"]:
            return success({"objects": [actions_for(hub, one) for one in request["objects"]]})
        case ["commit", revision]:
            return committed(hub, repository, revision, request)
        case ["repo", "tag"] if request["TagName"] in repository.revisions:
            return failure(400, "the tag exists")
        case ["repo", "tag"]:
            repository.revisions[request["TagName"]] = dict(repository.revisions[request["Ref"]])
            return success({"Name": request["TagName"]})
    return failure(404, "no such page")


def committed(hub: ModelScope, repository: Repository, revision: str, request: dict) -> Response:
    if revision != BRANCH:
        return failure(400, "You can only create or edit files when you are on a branch")
    if [each for each in request["actions"] if each["type"] == "lfs" and each["sha256"] not in hub.objects]:
        return failure(400, "an object was not uploaded")
    repository.revisions[BRANCH] = changed(hub, repository.revisions[BRANCH], request["actions"])
    repository.commits.append(request["commit_message"])
    return success({"Id": str(len(repository.commits))})


def actions_for(hub: ModelScope, one: dict) -> dict[str, object]:
    where = {"href": f"{hub.endpoint}/objects/{one['oid']}?signature=secret"}
    return one if one["oid"] in hub.objects else {**one, "actions": {"upload": where}}


def changed(hub: ModelScope, files: Files, actions: list[dict]) -> Files:
    files = dict(files)
    for action in actions:
        match action:
            case {"type": "lfs", "path": path, "sha256": oid}:
                files[path] = hub.objects[oid]
            case {"type": "normal", "path": path, "content": content, "encoding": "base64"}:
                files[path] = base64.b64decode(content)
    return files


@contextmanager
def serve() -> Iterator[ModelScope]:
    """Yields an empty hub that listens on a local port until the block exits."""
    hub = ModelScope()
    with listening(hub, lambda request: answer(hub, request)):
        yield hub
