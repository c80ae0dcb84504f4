"""A hub that fails to a publication that waits where that helps, and else ends in one line."""

import shutil
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from longmlm.errors import FolderError, ReleaseError, UnavailableError
from longmlm.folders import new_folder
from longmlm.hubs import huggingface
from tests.support.hub import Hub
from tests.support.loopback import CUT, HANG, Fault
from tests.support.published import NAME, TOKEN, content, held, send, sent

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # what the client does to httpx2
REQUESTS = {
    "look": r"GET /api/models/owner/name$",
    "create": "POST /api/repos/create",
    "card": "POST /api/validate-yaml",
    "preupload": "POST .*/preupload/",
    "batch": "POST .*/info/lfs/objects/batch",
    "object": "PUT /objects/",
    "commit": "POST .*/commit/main",
    "verify": "POST .*/paths-info/",
}


PASSING = [(name, 503) for name in REQUESTS] + [(name, CUT) for name in ("create", "object", "commit", "verify")]


@pytest.mark.parametrize(("name", "status"), [*PASSING, *(("commit", status) for status in (429, 500, 502, 504))])
def test_passing_fault_is_waited_out(hub: Hub, folder: Path, name: str, status: int) -> None:
    hub.faults = [Fault(REQUESTS[name], status, headers={"Retry-After": "1"})]
    send(folder)
    assert hub.faults[0].seen > (status != CUT)
    assert held(hub) == content(folder)
    assert len(hub.repository(f"models/{NAME}").commits) == 2


@pytest.mark.parametrize("status", [503, CUT])
def test_lasting_fault_ends_in_one_line_and_the_next_publication_goes_on(hub: Hub, folder: Path, status: int) -> None:
    hub.faults = [Fault(REQUESTS["preupload"], status, times=10**6)]
    with pytest.raises(UnavailableError) as caught:
        send(folder)
    assert "\n" not in str(caught.value)
    assert held(hub) == {}
    assert len(hub.requests) < 60
    hub.faults = []
    send(folder)
    assert held(hub) == content(folder)


def test_interrupted_publication_goes_on_with_what_is_there(hub: Hub, folder: Path) -> None:
    hub.faults = [Fault(REQUESTS["commit"], 503, times=10**6)]
    with pytest.raises(UnavailableError):
        send(folder)
    assert len(sent(hub, "PUT ")) == 1
    hub.faults = []
    send(folder)
    assert len(sent(hub, "PUT ")) == 1
    assert held(hub) == content(folder)


REFUSALS = {
    401: "hf auth login",
    402: "plan",
    403: "Private repository storage limit reached",
    404: "check its name",
    413: "the request was refused",
}


REFUSED = [("commit", status) for status in REFUSALS] + [(name, 403) for name in ("preupload", "batch", "object")]


@pytest.mark.parametrize(("name", "status"), REFUSED)
def test_refusal_ends_at_once_in_one_line(
    hub: Hub, folder: Path, name: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"Private repository storage limit reached for {TOKEN}"
    hub.faults = [Fault(REQUESTS[name], status, times=10**6, said=said)]
    with pytest.raises(ReleaseError) as caught:
        send(folder)
    assert not isinstance(caught.value, UnavailableError)
    assert hub.faults[0].seen == 1
    assert REFUSALS[status] in str(caught.value)
    for told in (str(caught.value), *capsys.readouterr()):
        assert TOKEN not in told
        assert "signature" not in told
        assert "\n" not in told


def test_wrong_token_is_told_apart_from_a_repository_that_is_not_there(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(ReleaseError, match="the hub answers 401 for owner/name .*HF_TOKEN"):
        send(folder)


def test_hub_that_asks_for_a_long_pause_is_not_waited_for(hub: Hub, folder: Path) -> None:
    for kind, headers in {"object": {"RateLimit": '"api";r=0;t=7200'}, "commit": {"Retry-After": "86400"}}.items():
        hub.faults = [Fault(REQUESTS[kind], 429, headers=headers, times=10**6)]
        with pytest.raises(UnavailableError, match=r"asks for a pause of [\d,]+ seconds: publish again then"):
            send(folder)
        assert hub.faults[0].seen == 1


@pytest.mark.parametrize("name", ["look", "preupload", "commit"])
def test_hub_that_never_answers_is_given_up(hub: Hub, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "TIMEOUT_SECONDS", 0.1)
    hub.faults = [Fault(REQUESTS[name], HANG, times=10**6)]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="the hub cannot be reached"):
        send(folder)
    assert time.monotonic() - began < 20


def test_no_network_is_one_line(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="the hub cannot be reached .*check the network"):
        send(folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ReleaseError, match="HF_HUB_OFFLINE is set: unset it to publish"):
        send(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("spoil", ["altered", "lacking"])
def test_file_that_the_hub_does_not_hold_as_it_is_here_is_named(
    hub: Hub, folder: Path, name: str, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.repository(f"models/{NAME}")
    repository.private, commit = True, repository.commit

    def spoilt(files: dict[str, bytes], branch: str = "main") -> str:
        damaged = {path: text + b"x" if path == name else text for path, text in files.items()}
        return commit(damaged if spoil == "altered" else {path: files[path] for path in files if path != name}, branch)

    repository.commit({})
    monkeypatch.setattr(repository, "commit", spoilt)
    with pytest.raises(ReleaseError, match=rf"owner/name (holds another|lacks) {name}"):
        send(folder)


def test_card_that_the_hub_finds_wrong_is_told(hub: Hub, folder: Path) -> None:
    shutil.rmtree(folder)
    with new_folder(folder) as partial:
        (partial / "README.md").write_text("---\nlicense: mit\n---\n")
    with pytest.raises(ReleaseError, match="library_name is wrong"):
        send(folder)
    assert held(hub) == {}


def test_damaged_folder_is_not_published(hub: Hub, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(FolderError, match="damaged"):
        send(folder)
    assert hub.requests == []


def test_token_goes_nowhere_but_into_the_header(
    hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface, "WAITS_SECONDS", (0.0,) * len(REQUESTS))
    hub.faults = [Fault(request, 503) for request in REQUESTS.values()]
    send(folder)
    assert not [request for request in hub.requests if TOKEN in request]
    assert TOKEN not in "".join(capsys.readouterr())
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 4
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    assert not [path for path, text in held(hub).items() if TOKEN.encode() in text]
