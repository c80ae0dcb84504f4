"""A fake ModelScope hub on a local port: the part of its protocol that the client uses.

A repository has one branch, master. Files are identified by their SHA-256.
"""

import base64
import hashlib
import json
from contextlib import AbstractContextManager
from urllib.parse import unquote

from tests.support import hub as hf
from tests.support.hub import FIRST, Files, Hub, Repository, actions_for
from tests.support.loopback import Request, Response

BRANCH = "master"
PRIVATE, PUBLIC = 1, 5


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def success(data: object) -> Response:
    return Response({"Code": 200, "Success": True, "Message": "", "Data": data})


def failure(status: int, message: str, code: int = 10010000000) -> Response:
    return Response({"Code": code, "Success": False, "Message": message, "Data": None}, status)


def answer(hub: Hub, request: Request) -> Response:
    """Returns the response to a request; only one with the right token may write."""
    parts = unquote(request.path).removeprefix("/api/v1").strip("/").split("/")
    is_known = hub.knows(request)
    if request.command in ("POST", "PUT") and not is_known:
        return failure(401, "user not logged in")
    match [request.command, *parts]:
        case ["POST", "models"]:
            return created(hub, json.loads(request.body))
        case ["PUT", "objects", oid]:
            hub.objects[sha256(request.body)] = request.body
            return success(None) if oid in hub.objects else failure(400, "these bytes belong to another object")
        case [_, "models", owner, name, *rest] | [_, "repos", "models", owner, name, *rest]:
            repository = hub.repositories.get(f"models/{owner}/{name}")
            if repository is None or (repository.private and not is_known):
                return failure(404, "model not exists")
            is_read = request.command == "GET"
            body = json.loads(request.body or "null")
            return read(repository, rest, request) if is_read else written(hub, repository, rest, body)
    return failure(404, "no such page")


def created(hub: Hub, request: dict) -> Response:
    name = f"models/{request['Path']}/{request['Name']}"
    if name in hub.repositories:
        return failure(400, "the name is registered", 10010101001)
    hub.repositories[name] = Repository(private=request["Visibility"] == PRIVATE, license=request["License"])
    hub.repositories[name].commit(FIRST, BRANCH)
    return success({"Path": request["Path"], "Name": request["Name"]})


def read(repository: Repository, parts: list[str], request: Request) -> Response:
    commit = repository.resolve(request.query.get("Revision", BRANCH))
    path = request.query.get("FilePath", "")
    match parts:
        case []:
            visibility = PRIVATE if repository.private else PUBLIC
            return success({"Visibility": visibility, "License": repository.license})
        case ["revisions"]:
            tags = [{"Revision": name} for name in repository.tags]
            return success({"RevisionMap": {"Branches": [{"Revision": BRANCH}], "Tags": tags}})
        case ["repo", "files"] if commit:
            return success(listing(repository, commit))
        case ["repo"] if commit and path in repository.commits[commit]:
            return Response(repository.commits[commit][path])
    return failure(404, "no such revision or file")


def listing(repository: Repository, commit: str) -> dict[str, object]:
    """Returns the files of a commit, each with the commit that changed it last; of the commit itself, 8 digits."""
    commits = list(repository.commits)
    earlier, files = commits[: commits.index(commit) + 1], []
    for path, content in repository.commits[commit].items():
        unchanged = [one for one in earlier if repository.commits[one].get(path) == content]
        files.append(entry(path, content) | {"Revision": unchanged[0]})
    folders = {path.rpartition("/")[0] for path in repository.commits[commit] if "/" in path}
    files += [{"Path": folder, "Name": folder, "Type": "tree", "Size": 0} for folder in sorted(folders)]
    return {"Files": files, "IsVisual": 0, "LatestCommitter": {"Id": "", "ShortId": commit[:8]}}


def entry(path: str, content: bytes) -> dict[str, object]:
    return {"Path": path, "Name": path, "Type": "blob", "Size": len(content), "Sha256": sha256(content)}


def written(hub: Hub, repository: Repository, parts: list[str], request: dict) -> Response:
    match parts:
        case ["info", "lfs", "objects", "batch"]:
            return success({"objects": [actions_for(hub, one) for one in request["objects"]]})
        case ["commit", revision]:
            return committed(hub, repository, revision, request)
        case ["repo", "tag"] if request["TagName"] in repository.tags:
            return failure(400, "the tag exists")
        case ["repo", "tag"]:
            repository.tags[request["TagName"]] = str(repository.resolve(request["Ref"]))
            return success({"Name": request["TagName"]})
    return failure(404, "no such page")


def committed(hub: Hub, repository: Repository, revision: str, request: dict) -> Response:
    if revision != BRANCH:
        return failure(400, "You can only create or edit files when you are on a branch")
    if [each for each in request["actions"] if each["type"] == "lfs" and each["sha256"] not in hub.objects]:
        return failure(400, "an object was not uploaded")
    return success({"Id": repository.commit(changed(hub, repository.files(BRANCH), request["actions"]), BRANCH)})


def changed(hub: Hub, files: Files, actions: list[dict]) -> Files:
    files = dict(files)
    for action in actions:
        match action:
            case {"type": "lfs", "path": path, "sha256": oid}:
                files[path] = hub.objects[oid]
            case {"type": "normal", "path": path, "content": content, "encoding": "base64"}:
                files[path] = base64.b64decode(content)
    return files


def serve() -> AbstractContextManager[Hub]:
    """Returns a context with an empty hub that listens on a local port."""
    return hf.serve(answer)
