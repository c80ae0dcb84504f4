"""A local HTTP server that records every request and fails those that a test chooses."""

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
    """Fails the requests whose `METHOD /path` matches `kind`, `times` times from the `first` match on.

    The response has `status`. CUT executes the request and sends half of the response, HANG never responds.
    """

    kind: str
    status: int
    first: int = 1
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    said: str = "no"
    seen: int = 0

    def strikes(self, request: str) -> bool:
        """Returns whether this request must fail, and counts it."""
        self.seen += (matches := re.search(self.kind, request) is not None)
        return matches and self.first <= self.seen < self.first + self.times


@dataclass
class Server:
    """An endpoint, its requests as `METHOD /path`, the byte ranges of files that it sent, and the faults to come.

    Without `sends_ranges`, it sends whole files whatever is asked for.
    """

    endpoint: str = ""
    requests: list[str] = field(default_factory=list)
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    ended: Event = field(default_factory=Event)
    sends_ranges: bool = True


@dataclass(frozen=True)
class Request:
    command: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    """Bytes of a file, or any other content as JSON, with a status and headers."""

    content: object = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@contextmanager
def listening(server: Server, respond: Callable[[Request], Response]) -> Iterator[None]:
    """Serves requests, one at a time, until the block exits."""

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
                    said = respond(Request(self.command, address.path, query, self.headers, body))
                else:
                    said = Response({"error": fault.said}, fault.status, fault.headers)
            if said.status == HANG:
                self.close_connection = server.ended.wait()
            else:
                self.send(said, is_cut=fault is not None and fault.status == CUT)

        def send(self, said: Response, is_cut: bool) -> None:
            """Sends the response, or the requested range of it."""
            whole = said.content if isinstance(said.content, bytes) else json.dumps(said.content).encode()
            size, range_ = len(whole), self.headers.get("Range", "") if server.sends_ranges else ""
            asked = re.match(r"bytes=(\d+)-(\d*)", range_)
            first = int(asked[1]) if asked else 0
            whole = whole[: int(asked[2]) + 1] if asked and asked[2] else whole
            headers = {**said.headers, "Content-Length": str(len(whole) - first)}
            if asked:
                headers["Content-Range"] = f"bytes {first}-{len(whole) - 1}/{size}"
            self.send_response(206 if asked else said.status)
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
