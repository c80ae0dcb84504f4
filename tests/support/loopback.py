"""Answers to HTTP requests on this machine; each request is noted, and fails where a test wants it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import parse_qsl, unquote, urlsplit

CUT, HANG = 0, 1


@dataclass
class Fault:
    """Fails the requests whose `METHOD /path` matches, from the `first` on, `times` times.

    They are answered with `status`; CUT does what is asked and sends half of the answer, HANG never answers.
    """

    kind: str
    status: int
    first: int = 1
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    said: str = "no"
    seen: int = 0

    def strikes(self, request: str) -> bool:
        """Tells whether this request is to fail, and counts it."""
        self.seen += (matches := re.search(self.kind, request) is not None)
        return matches and self.first <= self.seen < self.first + self.times


@dataclass
class Server:
    """Where it listens, what was asked, as `METHOD /path`, what was sent of files, and what is going to fail."""

    endpoint: str = ""
    requests: list[str] = field(default_factory=list)
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    ended: Event = field(default_factory=Event)


@dataclass(frozen=True)
class Asked:
    """A request."""

    command: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is sent, a file's bytes or else as JSON, and with which status."""

    content: object = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@contextmanager
def listening(server: Server, respond: Callable[[Asked], Answer]) -> Iterator[None]:
    """Lets the server answer, one request after the other, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                server.requests.append(f"{self.command} {unquote(self.path)}")
                fault = next((fault for fault in server.faults if fault.strikes(server.requests[-1])), None)
                if fault is None or fault.status == CUT:
                    address = urlsplit(self.path)
                    query = dict(parse_qsl(address.query))
                    said = respond(Asked(self.command, address.path, query, self.headers, body))
                else:
                    said = Answer({"error": fault.said}, fault.status, fault.headers)
            if said.status == HANG:
                self.close_connection = server.ended.wait()
            else:
                self.send(said, is_cut=fault is not None and fault.status == CUT)

        def send(self, said: Answer, is_cut: bool) -> None:
            """Sends the answer, of a file the range that is asked for, from a byte on."""
            whole = said.content if isinstance(said.content, bytes) else json.dumps(said.content).encode()
            first = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
            headers = {**said.headers, "Content-Length": str(len(whole) - first)}
            if first:
                headers["Content-Range"] = f"bytes {first}-{len(whole) - 1}/{len(whole)}"
            self.send_response(206 if first else said.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            last = len(whole) if not is_cut else first + (len(whole) - first) // 2
            if self.command != "HEAD":
                server.sent += [(unquote(self.path), first, last)] * isinstance(said.content, bytes)
                self.wfile.write(whole[first:last])
            self.close_connection = is_cut

        def log_message(self, *_: object) -> None:
            pass

    for command in ("GET", "HEAD", "POST", "PUT"):
        setattr(Handler, f"do_{command}", Handler.respond)
    listener, lock = ThreadingHTTPServer(("127.0.0.1", 0), Handler), Lock()
    server.endpoint = f"http://127.0.0.1:{listener.server_port}"
    thread = Thread(target=listener.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.ended.set()
        listener.shutdown()
        thread.join()
        listener.server_close()
