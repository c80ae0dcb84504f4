"""A released folder to ModelScope: private, only what changed, revisions as tags; faults waited out or told."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.published import NAME, PLACE, content, make

from longmlm.errors import ReleaseError, UnavailableError
from longmlm.hubs import modelscope
from longmlm.hubs.publish import publish, require
from longmlm.hubs.target import Repository
from longmlm.release.released_folder import address
from tests.support.loopback import CUT, HANG, Fault
from tests.support.modelscope_hub import FIRST, PRIVATE, PUBLIC, ModelScope, serve
from tests.support.modelscope_hub import Repository as Held

TOKEN = "ms-planted0123456789"
STEP = replace(PLACE, revision="step-7", mirrors=True)
REQUESTS = {
    "look": r"GET /api/v1/models/owner/name$",
    "create": "POST /api/v1/models$",
    "revisions": "GET .*/revisions$",
    "list": "GET .*/repo/files",
    "batch": "POST .*/info/lfs/objects/batch",
    "object": "PUT /objects/",
    "commit": "POST .*/commit/master",
    "tag": "POST .*/repo/tag",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelScope]:
    """A hub that knows one token, and whose faults are not waited for."""
    with serve() as hub:
        hub.token = TOKEN
        home = {"HOME": str(tmp_path / "home"), "MODELSCOPE_ENDPOINT": hub.endpoint, "MODELSCOPE_API_TOKEN": TOKEN}
        for name, value in home.items():
            monkeypatch.setenv(name, value)
        for name in ("MODELSCOPE_HOME", "MODELSCOPE_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(modelscope, "WAITS_SECONDS", (0.0, 0.0))
        monkeypatch.setattr("modelscope_hub._legacy_api.time.sleep", lambda _: None)
        yield hub


def send(folder: Path, place: Repository = PLACE) -> str:
    """Publishes the folder and returns its address."""
    return publish(folder, f"ms:{place.name}", place, "Release of tiny")


def held(hub: ModelScope, revision: str = "master") -> dict[str, bytes]:
    """Returns the files at a revision without those that the hub makes of itself."""
    files = hub.files(NAME, revision)
    return {path: text for path, text in files.items() if FIRST.get(path) != text}


def sent(hub: ModelScope, name: str) -> list[str]:
    """Returns the requests of a kind."""
    return [request for request in hub.requests if re.search(REQUESTS[name], request)]


def test_folder_lies_on_the_hub_whole_and_private_under_its_licence(hub: ModelScope, folder: Path) -> None:
    assert send(folder) == f"{hub.endpoint}/models/{NAME}"
    assert held(hub) == content(folder)
    assert len(content(folder)) == 4
    repository = hub.repositories[NAME]
    assert (repository.visibility, repository.license, repository.commits) == (PRIVATE, "MIT", ["Release of tiny"])


def test_second_publication_sends_only_what_changed(hub: ModelScope, folder: Path) -> None:
    for _ in range(2):
        send(folder)
    assert len(sent(hub, "commit")) == len(sent(hub, "object")) == 1
    make(folder, '{"a": 2}')
    send(folder)
    assert len(sent(hub, "commit")) == 2
    assert len(sent(hub, "object")) == 1
    assert held(hub) == content(folder)


def test_tag_is_set_once_and_does_not_move(hub: ModelScope, folder: Path) -> None:
    for _ in range(2):
        assert send(folder, replace(PLACE, tag="v1")) == f"{hub.endpoint}/models/{NAME} at v1"
    assert len(sent(hub, "tag")) == 1
    first = content(folder)
    make(folder, '{"a": 4}')
    with pytest.raises(ReleaseError, match="has a tag v1 already, on other files: name another tag"):
        send(folder, replace(PLACE, tag="v1"))
    assert held(hub) == held(hub, "v1") == first


def test_checkpoint_becomes_a_tag_with_nothing_else_and_the_release_stays_what_is_found(
    hub: ModelScope, folder: Path, tmp_path: Path
) -> None:
    checkpoint = make(tmp_path / "checkpoint", '{"a": 7}', b"other" * 1000)
    hub.repositories[NAME] = Held()
    hub.files(NAME)["old.txt"] = b"old"
    for _ in range(2):
        send(checkpoint, STEP)
        send(folder)
    assert hub.files(NAME, "step-7") == {**content(checkpoint), ".gitattributes": FIRST[".gitattributes"]}
    assert held(hub) == content(folder)
    assert len(hub.repositories[NAME].commits) == 2
    assert len(sent(hub, "tag")) == 1


def test_public_repository_is_written_only_where_that_was_asked_for(hub: ModelScope, folder: Path) -> None:
    hub.repositories[NAME] = Held(visibility=PUBLIC)
    with pytest.raises(ReleaseError, match=r"owner/name is public: set public = true"):
        send(folder)
    assert held(hub) == {}
    send(folder, replace(PLACE, public=True))
    assert held(hub) == content(folder)
    send(folder, Repository("owner/other", public=True))
    assert hub.repositories["owner/other"].visibility == PUBLIC


PASSING = [(name, 503) for name in REQUESTS] + [(name, CUT) for name in ("create", "object", "commit", "list", "tag")]


@pytest.mark.parametrize(("name", "status"), [*PASSING, *(("commit", status) for status in (429, 500, 502, 504))])
def test_passing_fault_is_waited_out(hub: ModelScope, folder: Path, name: str, status: int) -> None:
    hub.faults = [Fault(REQUESTS[name], status, headers={"Retry-After": "1"})]
    send(folder, replace(PLACE, tag="v1"))
    assert hub.faults[0].seen > (status != CUT)
    assert held(hub) == held(hub, "v1") == content(folder)
    assert len(hub.repositories[NAME].commits) == 1


@pytest.mark.parametrize(("name", "status"), [("batch", 503), ("commit", CUT), ("commit", 503)])
def test_lasting_fault_ends_in_one_line_and_the_next_publication_goes_on(
    hub: ModelScope, folder: Path, name: str, status: int
) -> None:
    hub.faults = [Fault(REQUESTS[name], status, times=10**6)]
    if status != CUT:
        with pytest.raises(UnavailableError) as caught:
            send(folder)
        assert "\n" not in str(caught.value)
        assert held(hub) == {}
        assert hub.faults[0].seen == 3
    hub.faults = []
    send(folder)
    assert held(hub) == content(folder)
    assert len(sent(hub, "object")) == 1


REFUSALS = {
    401: "set MODELSCOPE_API_TOKEN",
    403: "make room where a quota is full",
    404: "check its name",
    413: "the request was refused",
}
REFUSED = [("commit", status) for status in REFUSALS] + [(name, 403) for name in REQUESTS if name != "commit"]


@pytest.mark.parametrize(("name", "status"), REFUSED)
def test_refusal_ends_at_once_in_one_line(
    hub: ModelScope, folder: Path, name: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"no room for {TOKEN} at http://storage/objects?signature=secret"
    hub.faults = [Fault(REQUESTS[name], status, times=10**6, said=said)]
    with pytest.raises(ReleaseError, match=f"the hub answers {status} for owner/name .no room") as caught:
        send(folder, replace(PLACE, tag="v1"))
    assert not isinstance(caught.value, UnavailableError)
    assert hub.faults[0].seen == 1
    assert REFUSALS[status] in str(caught.value)
    for told in (str(caught.value), *capsys.readouterr()):
        assert TOKEN not in told
        assert "signature" not in told
        assert "\n" not in told


def test_token_that_is_wrong_or_lacks_is_told(hub: ModelScope, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-another")
    with pytest.raises(ReleaseError, match="the hub answers 401 for owner/name .*set MODELSCOPE_API_TOKEN"):
        send(folder)
    monkeypatch.delenv("MODELSCOPE_API_TOKEN")
    hub.requests.clear()
    for act in (lambda: require(f"ms:{NAME}"), lambda: send(folder)):
        with pytest.raises(ReleaseError, match="needs a token: set MODELSCOPE_API_TOKEN"):
            act()
    assert hub.requests == []


@pytest.mark.parametrize("name", ["look", "revisions", "object", "commit"])
def test_hub_that_asks_for_a_long_pause_is_not_waited_for(hub: ModelScope, folder: Path, name: str) -> None:
    hub.faults = [Fault(REQUESTS[name], 429, headers={"Retry-After": "86400"}, times=10**6)]
    with pytest.raises(UnavailableError, match="asks for a pause of 86,400 seconds: publish again then"):
        send(folder)
    assert hub.faults[0].seen == 1


@pytest.mark.parametrize("name", ["look", "object", "commit"])
def test_hub_that_never_answers_is_given_up(
    hub: ModelScope, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modelscope, "TIMEOUT_SECONDS", 0.1)
    hub.faults = [Fault(REQUESTS[name], HANG, times=10**6)]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="the hub cannot be reached"):
        send(folder)
    assert time.monotonic() - began < 20


def test_no_network_is_one_line(hub: ModelScope, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="the hub cannot be reached .*check the network") as caught:
        send(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("spoil", ["altered", "lacking"])
def test_file_that_the_hub_does_not_hold_as_it_is_here_is_named(
    hub: ModelScope, folder: Path, name: str, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(folder)
    altered, lacking = {**whole, name: b"x"}, {path: whole[path] for path in whole if path != name}
    spoilt = altered if spoil == "altered" else lacking
    monkeypatch.setattr("tests.support.modelscope_hub.changed", lambda *_: spoilt)
    with pytest.raises(ReleaseError, match=f"owner/name (holds another|lacks) {name}"):
        send(folder)


def test_token_goes_nowhere_but_into_the_header_and_the_home_folder_stays_as_it_is(
    hub: ModelScope, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(modelscope, "WAITS_SECONDS", (0.0,) * len(REQUESTS))
    hub.faults = [Fault(request, 503) for request in REQUESTS.values()]
    send(folder, replace(PLACE, tag="v1"))
    assert all(fault.seen for fault in hub.faults)
    assert not [request for request in hub.requests if TOKEN in request]
    said = "".join(capfd.readouterr())
    assert "trying again" in said
    assert TOKEN not in said
    assert {path.name for path in tmp_path.iterdir()} == {"tiny"}
    assert not [path for path, text in content(folder).items() if TOKEN.encode() in text]
    assert not [path for path, text in held(hub).items() if TOKEN.encode() in text]


def test_card_loads_the_model_from_where_it_was_published_last(folder: Path) -> None:
    card = folder / "README.md"
    address(folder, f"ms:{NAME}", "step-7")
    assert 'HubApi().download_repo("owner/name", "model", revision="step-7")' in card.read_text()
    address(folder, f"hf:{NAME}")
    assert "modelscope" not in card.read_text()
    assert 'model="owner/name")' in card.read_text()
