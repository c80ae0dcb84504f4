"""Faults of a hub, over uploads to both hubs and downloads: what may pass is retried, the rest is one line at once."""

import errno
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest
from huggingface_hub import constants

from longmlm.data.rows import folder_of_rows, pin_rows
from longmlm.errors import DataError, ModelError, ModelNotFoundError, ReleaseError, UnavailableError, UserError
from longmlm.hubs import huggingface, modelscope, transfers
from longmlm.hubs.models import snapshot_of
from longmlm.hubs.publish import publish
from longmlm.hubs.transfers import request_error, user_error
from longmlm.settings.publishing import Target
from tests.support.loopback import CUT, HANG, Fault
from tests.support.served import NAME, Served, content, serve

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's use of httpx2
MODEL = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "model.safetensors": bytes(range(256)) * 1000}
ROWS = {"manifest.json": json.dumps({"files": {}}).encode(), "train/slice-00000.arrow": bytes(range(256)) * 1000}


@dataclass
class Transfer:
    """An upload or a download, whose result `is_complete`; `decisive` names the request that faults hit."""

    served: Served
    kinds: Mapping[str, str]
    run: Callable[[], object]
    is_complete: Callable[[], bool]
    error: type[UserError]
    decisive: str

    def fault(self, status: int, **more: Any) -> Fault:
        """Makes the decisive request fail, and returns the fault."""
        fault = Fault(self.kinds[self.decisive], status, **more)
        self.served.server.faults = [fault]
        return fault

    def fail(self) -> UserError:
        """Returns the error of the transfer, which is of its own type, on one line and without secrets."""
        with pytest.raises(self.error) as caught:
            self.run()
        line = str(caught.value)
        assert NAME in line
        assert "\n" not in line
        assert self.served.token not in line
        assert "signature" not in line
        return caught.value


def upload(served: Served, folder: Path) -> Transfer:
    return Transfer(
        served,
        served.kinds,
        run=lambda: served.publish(folder, tag="v1"),
        is_complete=lambda: served.files() == served.files("v1") == content(folder),
        error=ReleaseError,
        decisive="commit",
    )


def download(served: Served, kind: str, files: dict[str, bytes], run: Callable[[], Path], error: Any) -> Transfer:
    served.server.repository(f"{kind}/{NAME}").commit(files)
    large = next(name for name in files if len(files[name]) > 1000)
    kinds = {
        "look": rf"GET /api/{kind}/{NAME}(/revision/\w+)?$",
        "list": rf"GET /api/{kind}/{NAME}/tree/",
        "metadata": rf"HEAD .*/{NAME}/resolve/.*/{large}",
        "object": rf"GET .*/{NAME}/resolve/.*/{large}",
    }
    return Transfer(served, kinds, run, lambda: content(run()) == files, error, "object")


@pytest.fixture
def transfer(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits: list[float],
) -> Iterator[Transfer]:
    """A transfer by its name."""
    with serve("ms" if request.param == "upload ms" else "hf", tmp_path, monkeypatch) as served:
        match request.param:
            case "model":
                yield download(served, "models", MODEL, lambda: snapshot_of(NAME).folder, ModelError)
            case "rows":
                yield download(served, "datasets", ROWS, lambda: folder_of_rows(pin_rows(f"hf:{NAME}")), DataError)
            case _:
                yield upload(served, folder)


TRANSFERS = ("upload hf", "upload ms", "model", "rows")
each_transfer = pytest.mark.parametrize("transfer", TRANSFERS, indirect=True)


@each_transfer
@pytest.mark.parametrize("status", [429, CUT])
def test_passing_fault_is_retried(transfer: Transfer, status: int, waits: list[float]) -> None:
    fault = transfer.fault(status, headers={"Retry-After": "7"})
    transfer.run()
    assert transfer.is_complete()
    assert fault.seen >= (1 if status == CUT else 2)
    assert status == CUT or max(waits) >= 7


@each_transfer
def test_lasting_fault_is_one_line_and_the_next_attempt_transfers_what_is_missing(transfer: Transfer) -> None:
    server, fault = transfer.served.server, transfer.fault(503, times=10**6)
    error = transfer.fail()
    assert isinstance(error, UnavailableError | ModelError | DataError) and not isinstance(error, ModelNotFoundError)
    assert "503" in str(error)
    assert len(transfers.WAITS_SECONDS) < fault.seen <= 8 * (1 + len(transfers.WAITS_SECONDS))
    uploaded = sum(request.startswith("PUT ") for request in server.requests)
    server.faults = []
    transfer.run()
    assert transfer.is_complete()
    if transfer.decisive == "commit":
        assert sum(request.startswith("PUT ") for request in server.requests) == uploaded == 1


@each_transfer
def test_refusal_is_one_line_at_once(
    transfer: Transfer, waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"no room for {transfer.served.token} at http://storage/objects?signature=secret"
    fault = transfer.fault(403, times=10**6, said=said)
    error = transfer.fail()
    assert not isinstance(error, UnavailableError)
    assert "403" in str(error)
    assert fault.seen == 1
    assert waits == []
    assert transfer.served.token not in "".join(capsys.readouterr())


@pytest.mark.parametrize("status", [401, 402, 403, 404, 413])
def test_every_refusal_is_permanent_and_says_its_status(status: int) -> None:
    failure = request_error(status, "what the server says")
    assert not failure.is_transient
    line = str(user_error(failure, "upload", Target("hf", NAME)))
    assert NAME in line and str(status) in line and "what the server says" in line


PAUSES = [(name, {"Retry-After": "86400"}) for name in TRANSFERS]
PAUSES += [(name, {"RateLimit": '"api";r=0;t=86400'}) for name in ("upload hf", "model")]


@pytest.mark.parametrize(("transfer", "headers"), PAUSES, indirect=["transfer"])
def test_long_pause_is_refused_at_once(transfer: Transfer, headers: dict[str, str], waits: list[float]) -> None:
    fault = transfer.fault(429, headers=headers, times=10**6)
    assert "86,400" in str(transfer.fail())
    assert fault.seen == 1
    assert waits == []


@each_transfer
def test_server_that_never_answers_is_given_up(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    for client in (huggingface, modelscope):
        monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.1)
    transfer.fault(HANG, times=10**6)
    began = time.monotonic()
    transfer.fail()
    assert time.monotonic() - began < 20


@each_transfer
def test_no_network_is_one_line(
    transfer: Transfer, monkeypatch: pytest.MonkeyPatch, waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    line = str(transfer.fail())
    expected = list(transfers.WAITS_SECONDS[: None if transfer.decisive == "commit" else 1])
    assert waits[-len(expected) :] == expected
    assert capsys.readouterr().err.count(f"retrying: {line}\n") == 1
    if transfer.served.name == "hf":
        waits.clear()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE" in str(transfer.fail())
        assert waits == []


@each_transfer
def test_wrong_token_is_named(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = {"hf": "HF_TOKEN", "ms": "MODELSCOPE_API_TOKEN"}[transfer.served.name]
    monkeypatch.setenv(variable, "planted-another")
    for repository in transfer.served.server.repositories.values():
        repository.private = True
    line = str(transfer.fail())
    assert variable in line
    assert "planted-another" not in line


@each_transfer
def test_token_goes_nowhere_but_into_the_header(
    transfer: Transfer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server, token = transfer.served.server, transfer.served.token
    server.faults = [Fault(request, 503, said=f"no {token}") for request in transfer.kinds.values()]
    for _ in range(3):  # more faults than one transfer retries
        try:
            transfer.run()
        except UserError:
            continue
    assert transfer.is_complete()
    assert all(fault.seen for fault in server.faults)
    assert not [request for request in server.requests if token in request]
    assert token not in "".join(capfd.readouterr())
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if token.encode() in path.read_bytes()]
    if transfer.served.name == "ms":  # the client would leave its own folder
        assert {path.name for path in tmp_path.iterdir()} == {"tiny"}


@pytest.mark.parametrize("served", ["hf", "ms"], indirect=True)
@pytest.mark.parametrize(
    ("name", "damage"), [("config.json", "altered"), ("model.safetensors", "altered"), ("model.safetensors", "missing")]
)
def test_uploaded_file_that_differs_is_named(
    served: Served, folder: Path, name: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> dict[str, bytes]:
        files = content(folder)
        return {**files, name: files[name] + b"x"} if damage == "altered" else {k: files[k] for k in files if k != name}

    for module in ("hub", "modelscope_hub"):
        monkeypatch.setattr(f"tests.support.{module}.changed", damaged)
    with pytest.raises(ReleaseError, match=f"^{NAME}: {name} "):
        served.publish(folder)


def test_storage_retries_a_cut_connection_and_copies_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    system, copied, faults = fsspec.filesystem("memory"), [], [ConnectionResetError("cut"), TimeoutError("slow")]
    put = type(system).put_file

    def put_file(self: object, path: str, copy: str, **options: object) -> None:
        if Path(path).name == "config.json" and faults:
            raise faults.pop()
        copied.append(Path(path).name)
        put(self, path, copy, **options)

    monkeypatch.setattr(type(system), "put_file", put_file)
    publish(folder, Target("storage", "memory://bucket/faulty"), "")
    assert sorted(copied) == sorted(content(folder))
    assert waits == list(transfers.WAITS_SECONDS[:2])
    system.rm("/bucket/faulty", recursive=True)


@pytest.mark.parametrize(
    ("fault", "error", "num_attempts"),
    [(ConnectionResetError("cut"), UnavailableError, 4), (PermissionError(errno.EACCES, "denied"), ReleaseError, 1)],
)
def test_storage_that_fails_is_one_line_without_its_password(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits: list[float],
    fault: Exception,
    error: type[ReleaseError],
    num_attempts: int,
) -> None:
    attempts = []

    def url_to_fs(url: str) -> None:
        attempts.append(url)
        raise fault

    monkeypatch.setattr("fsspec.core.url_to_fs", url_to_fs)
    with pytest.raises(error, match="host/tiny") as caught:
        publish(folder, Target("storage", "sftp://somebody:planted@host/tiny"), "")
    assert "planted" not in str(caught.value)
    assert type(caught.value) is error
    assert len(attempts) == 1 + len(waits) == num_attempts
