"""Files to a Hugging Face hub on this machine, which speaks as much of its protocol as the client needs to read.

Repositories have commits; a branch names the last one that was made on it. Every request is noted.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]
LATEST = "main"


@dataclass
class Repository:
    """The files of each commit, and the commit of each branch."""

    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Files, branch: str = LATEST) -> str:
        """Makes these files the content of the branch and returns the commit."""
        described = json.dumps([len(self.commits), {name: sha1(content) for name, content in files.items()}])
        commit = sha1(described.encode())
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """Returns the commit that a revision means."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)


@dataclass
class Hub:
    """Repositories by kind and name, such as datasets/owner/name, where they are served, and what was asked."""

    endpoint: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def repository(self, name: str) -> Repository:
        """Returns the repository of that name, a new one if there is none."""
        return self.repositories.setdefault(name, Repository())


@dataclass(frozen=True)
class Answer:
    """A status, and what is sent with it."""

    status: HTTPStatus = HTTPStatus.OK
    content: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def as_json(content: object) -> Answer:
    return Answer(content=json.dumps(content).encode(), headers={"Content-Type": "application/json"})


def missing(what: str) -> Answer:
    """Returns the answer by which the client tells a repository, a revision and an entry that there is not apart."""
    return Answer(HTTPStatus.NOT_FOUND, b'{"error": "not found"}', {"X-Error-Code": f"{what}NotFound"})


def entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": sha1(content)}


def entries(files: Files, folder: str) -> list[dict[str, object]]:
    """Returns the files and folders below a folder."""
    inside = {path: content for path, content in files.items() if path.startswith(f"{folder}/" if folder else "")}
    parents = {path.rsplit("/", 1)[0] for path in inside if "/" in path} - {folder}
    folders = [{"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode())} for path in sorted(parents)]
    return folders + [entry(path, content) for path, content in inside.items()]


def answer(hub: Hub, path: str, body: bytes) -> Answer:
    """Returns what the hub says to a request for reading."""
    kinds = "|".join(re.escape(name) for name in sorted(hub.repositories)) or "$"
    parts = re.fullmatch(rf"/(?:api/)?(?P<name>{kinds})(?:/(?P<verb>[\w-]+)/(?P<rest>.+))?", path)
    if not parts:
        return missing("Repo")
    repository, verb, rest = hub.repositories[parts["name"]], parts["verb"] or "revision", parts["rest"] or LATEST
    revision, _, inside = rest.partition("/")
    commit = repository.resolve(revision)
    if commit is None:
        return missing("Revision")
    files = repository.commits[commit]
    if verb == "revision":
        siblings = [{"rfilename": name} for name in files]
        name = parts["name"].split("/", 1)[1]
        return as_json({"id": name, "sha": commit, "private": False, "tags": [], "siblings": siblings})
    return below(files, commit, verb, inside or json.loads(body or b"{}").get("paths", ""))


def below(files: Files, commit: str, verb: str, inside: str | list[str]) -> Answer:
    """Returns what the hub says of a folder, of a list of paths, or the content of a file, at a commit."""
    match verb, inside:
        case "paths-info", list():
            return as_json([each for each in entries(files, "") if each["path"] in inside])
        case "tree", str() if not inside or entries(files, inside):
            return as_json(entries(files, inside))
        case "resolve", str() if inside in files:
            headers = {"ETag": f'"{sha1(files[inside])}"', "X-Repo-Commit": commit}
            return Answer(content=files[inside], headers=headers)
        case _:
            return missing("Entry")


@contextmanager
def serve() -> Iterator[Hub]:
    """Yields a hub without repositories that listens on this machine until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            path = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.requests.append(f"{self.command} {path}")
            said = answer(hub, path, body)
            self.send_response(said.status)
            for name, value in {**said.headers, "Content-Length": str(len(said.content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said.content)

        def log_message(self, *_: object) -> None:
            pass

    for command in ("GET", "HEAD", "POST"):
        setattr(Handler, f"do_{command}", Handler.respond)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
