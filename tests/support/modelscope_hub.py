"""Files to a ModelScope hub on this machine, which speaks as much of its protocol as the client needs.

A repository has one branch, master; tags keep what that held when they were set. Files are known by their SHA-256.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.support.loopback import Answer, Asked, Server, listening

Files = dict[str, bytes]
BRANCH = "master"
PRIVATE, PUBLIC = 1, 5
FIRST = {".gitattributes": b"*.safetensors filter=lfs\n", "README.md": b"# empty\n", "configuration.json": b"{}"}


@dataclass
class Repository:
    """What each revision holds, the messages of the commits, and who may see it."""

    revisions: dict[str, Files] = field(default_factory=lambda: {BRANCH: dict(FIRST)})
    commits: list[str] = field(default_factory=list)
    visibility: int = PRIVATE
    license: str = ""


@dataclass
class ModelScope(Server):
    """Repositories by OWNER/NAME, and large files by their SHA-256.

    With a token, only requests that bring it may write, or see a private repository.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None

    def files(self, name: str, revision: str = BRANCH) -> Files:
        """Returns the files of a repository at a revision."""
        return self.repositories[name].revisions[revision]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def success(data: object) -> Answer:
    return Answer({"Code": 200, "Success": True, "Message": "", "Data": data})


def failure(status: int, message: str, code: int = 10010000000) -> Answer:
    return Answer({"Code": code, "Success": False, "Message": message, "Data": None}, status)


def answer(hub: ModelScope, asked: Asked) -> Answer:
    """Returns what the hub says to a request; who is known may write."""
    parts = unquote(asked.path).removeprefix("/api/v1").strip("/").split("/")
    is_known = hub.token in (None, asked.headers.get("Authorization", "").removeprefix("Bearer "))
    if asked.command in ("POST", "PUT") and not is_known:
        return failure(401, "user not logged in")
    match [asked.command, *parts]:
        case ["POST", "models"]:
            return created(hub, json.loads(asked.body))
        case ["PUT", "objects", oid]:
            hub.objects[sha256(asked.body)] = asked.body
            return success(None) if oid in hub.objects else failure(400, "these bytes are of another object")
        case [_, "models", owner, name, *rest] | [_, "repos", "models", owner, name, *rest]:
            repository = hub.repositories.get(f"{owner}/{name}")
            if repository is None or (repository.visibility == PRIVATE and not is_known):
                return failure(404, "model not exists")
            is_read = asked.command == "GET"
            return read(repository, rest, asked) if is_read else written(hub, repository, rest, json.loads(asked.body))
    return failure(404, "no such page")


def created(hub: ModelScope, asked: dict) -> Answer:
    name = f"{asked['Path']}/{asked['Name']}"
    if name in hub.repositories:
        return failure(400, "the name is registered", 10010101001)
    hub.repositories[name] = Repository(visibility=asked["Visibility"], license=asked["License"])
    return success({"Path": asked["Path"], "Name": asked["Name"]})


def read(repository: Repository, parts: list[str], asked: Asked) -> Answer:
    """Returns what there is in a repository: who may see it, revisions, the files of one, a file."""
    files = repository.revisions.get(asked.query.get("Revision", BRANCH))
    path = asked.query.get("FilePath", "")
    match parts:
        case []:
            return success({"Visibility": repository.visibility, "License": repository.license})
        case ["revisions"]:
            tags = [{"Revision": name} for name in repository.revisions if name != BRANCH]
            return success({"RevisionMap": {"Branches": [{"Revision": BRANCH}], "Tags": tags}})
        case ["repo", "files"] if files is not None:
            return success({"Files": [entry(*each) for each in files.items()]})
        case ["repo"] if files is not None and path in files:
            return Answer(files[path])
    return failure(404, "no such revision or file")


def entry(path: str, content: bytes) -> dict[str, object]:
    return {"Path": path, "Name": path, "Type": "blob", "Size": len(content), "Sha256": sha256(content)}


def written(hub: ModelScope, repository: Repository, parts: list[str], asked: dict) -> Answer:
    """Returns what the hub says to a request that changes a repository, or prepares that."""
    match parts:
        case ["info", "lfs", "objects", "batch"]:
            return success({"objects": [actions_for(hub, one) for one in asked["objects"]]})
        case ["commit", revision]:
            return committed(hub, repository, revision, asked)
        case ["repo", "tag"] if asked["TagName"] in repository.revisions:
            return failure(400, "the tag exists")
        case ["repo", "tag"]:
            repository.revisions[asked["TagName"]] = dict(repository.revisions[asked["Ref"]])
            return success({"Name": asked["TagName"]})
    return failure(404, "no such page")


def committed(hub: ModelScope, repository: Repository, revision: str, asked: dict) -> Answer:
    if revision != BRANCH:
        return failure(400, "You can only create or edit files when you are on a branch")
    if [each for each in asked["actions"] if each["type"] == "lfs" and each["sha256"] not in hub.objects]:
        return failure(400, "an object was not uploaded")
    repository.revisions[BRANCH] = changed(hub, repository.revisions[BRANCH], asked["actions"])
    repository.commits.append(asked["commit_message"])
    return success({"Id": str(len(repository.commits))})


def actions_for(hub: ModelScope, one: dict) -> dict[str, object]:
    where = {"href": f"{hub.endpoint}/objects/{one['oid']}?signature=secret"}
    return one if one["oid"] in hub.objects else {**one, "actions": {"upload": where}}


def changed(hub: ModelScope, files: Files, actions: list[dict]) -> Files:
    files = dict(files)
    for action in actions:
        match action:
            case {"action": "delete", "path": path}:
                del files[path]
            case {"type": "lfs", "path": path, "sha256": oid}:
                files[path] = hub.objects[oid]
            case {"type": "normal", "path": path, "content": content, "encoding": "base64"}:
                files[path] = base64.b64decode(content)
    return files


@contextmanager
def serve() -> Iterator[ModelScope]:
    """Yields a hub without repositories that listens on this machine until the block ends."""
    hub = ModelScope()
    with listening(hub, lambda asked: answer(hub, asked)):
        yield hub
