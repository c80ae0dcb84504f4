"""A released folder to hubs and storage: private, only what changed, as branch, tag or pull request, or as a copy."""

import json
from dataclasses import replace
from pathlib import Path

import fsspec
import huggingface_hub
import pytest

from longmlm.errors import ReleaseError
from longmlm.folders import MANIFEST, verify
from longmlm.hubs.huggingface import Repository
from longmlm.hubs.publish import publish, require
from longmlm.release.released_folder import address
from tests.support.hub import Hub
from tests.support.published import NAME, PLACE, content, held, make, send, sent

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # what the client does to httpx2


def test_folder_lies_on_the_hub_whole_and_private(hub: Hub, folder: Path) -> None:
    said = send(folder)
    assert said == f"{hub.endpoint}/{NAME}/tree/main"
    assert held(hub) == content(folder)
    assert len(content(folder)) == 4
    assert hub.repository(f"models/{NAME}").private


def test_second_publication_sends_only_what_changed(hub: Hub, folder: Path) -> None:
    send(folder)
    commits = len(sent(hub, "/commit/"))
    send(folder)
    assert len(sent(hub, "/commit/")) == commits
    make(folder, '{"a": 2}')
    send(folder)
    assert len(sent(hub, "/commit/")) == commits + 1
    assert len(sent(hub, "PUT ")) == 1
    assert held(hub) == content(folder)


def test_branches_and_tags_hold_what_was_published_as_them(hub: Hub, folder: Path) -> None:
    send(folder)
    first = content(folder)
    make(folder, '{"a": 3}')
    send(folder, replace(PLACE, revision="step-1000", tag="v1"))
    assert held(hub) == first
    for name in ("step-1000", "v1"):
        assert held(hub, name) == content(folder)


def test_tag_is_set_once_and_does_not_move(hub: Hub, folder: Path) -> None:
    for _ in range(2):
        send(folder, replace(PLACE, tag="v1"))
    assert len(sent(hub, "/tag/")) == 1
    make(folder, '{"a": 4}')
    with pytest.raises(ReleaseError, match="has a tag v1 already, on other files: name another tag"):
        send(folder, replace(PLACE, tag="v1"))
    assert b'"a": 1' in held(hub, "v1")["config.json"]


def test_pull_request_is_opened_once_and_gone_on_with(hub: Hub, folder: Path) -> None:
    place = replace(PLACE, pull_request=True)
    send(folder, place)
    make(folder, '{"a": 5}')
    said = send(folder, place)
    assert said.endswith("/tree/refs/pr/1")
    assert hub.repository(f"models/{NAME}").pulls == ["Release of tiny"]
    assert held(hub) == {}
    assert held(hub, "refs/pr/1") == content(folder)


def test_branch_that_mirrors_a_folder_keeps_nothing_else(hub: Hub, folder: Path) -> None:
    hub.repository(f"models/{NAME}").private = True
    hub.repository(f"models/{NAME}").commit({"old.txt": b"old", ".gitattributes": b""})
    send(folder, replace(PLACE, revision="kept"))
    send(folder, replace(PLACE, revision="step-7", mirrors=True))
    assert "old.txt" in held(hub, "kept")
    assert held(hub, "step-7") == content(folder)
    assert ".gitattributes" in hub.repository(f"models/{NAME}").files("step-7")


def test_public_repository_is_written_only_where_that_was_asked_for(hub: Hub, folder: Path) -> None:
    hub.repository(f"models/{NAME}").commit({})
    with pytest.raises(ReleaseError, match=r"owner/name is public: set public = true"):
        send(folder)
    assert held(hub) == {}
    send(folder, replace(PLACE, public=True))
    assert held(hub) == content(folder)
    other = publish(folder, "hf:owner/other", Repository("owner/other", public=True), "Release")
    assert other.endswith("owner/other/tree/main")
    assert not hub.repository("models/owner/other").private


@pytest.mark.parametrize(
    "target", ["folder:{ground}/copies/tiny", "file://{ground}/copies/tiny", "memory://bucket/tiny"]
)
def test_copy_on_any_storage_is_whole_and_made_once(
    folder: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target.format(ground=tmp_path)
    said = publish(folder, target, Repository(""), "Release")
    system, root = fsspec.core.url_to_fs(said)
    assert {path.rsplit("/", 1)[1]: system.cat(path) for path in system.find(root)} == content(folder)
    make(folder, '{"a": 6}')
    written, put = [], type(system).put_file

    def noted(self: object, here: str, there: str, *rest: object, **more: object) -> None:
        written.append(Path(here).name)
        put(self, here, there, *rest, **more)

    monkeypatch.setattr(type(system), "put_file", noted)
    publish(folder, target, Repository(""), "Release")
    assert written == ["config.json", MANIFEST]
    assert {path.rsplit("/", 1)[1]: system.cat(path) for path in system.find(root)} == content(folder)
    publish(folder, target, Repository("", revision="step-7"), "Release")
    assert system.isfile(f"{root}/step-7/config.json")
    system.rm(root, recursive=True)


def test_storage_that_fails_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for target in (f"folder:{tmp_path}/file/below", "nosuch://bucket/name"):
        with pytest.raises(ReleaseError, match="cannot be written|not installed") as caught:
            publish(folder, target, Repository(""), "Release")
        assert "\n" not in str(caught.value)


def test_missing_client_is_told_in_one_line_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-known")
    for target in ("folder:copies", "file:///copies", "memory://bucket/tiny", "ms:owner/name"):
        require(target)
    monkeypatch.setattr("longmlm.hubs.publish.find_spec", lambda _: None)
    for target, client in {"s3://bucket/tiny": "s3fs", "no://bucket": "no", "ms:owner/name": "longmlm"}.items():
        with pytest.raises(ReleaseError, match=rf"client is not installed.*{client}") as caught:
            require(target)
        assert "\n" not in str(caught.value)


def test_hub_that_may_not_be_asked_or_is_not_logged_in_to_is_told_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_offline, token, said in ((True, "hf-known", "HF_HUB_OFFLINE is set"), (False, None, "needs a token")):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_offline)
        monkeypatch.setattr("longmlm.hubs.huggingface.get_token", lambda token=token: token)
        with pytest.raises(ReleaseError, match=said):
            require("hf:owner/name")
    monkeypatch.setattr("longmlm.hubs.huggingface.get_token", lambda: "hf-known")
    require("hf:owner/name")


def test_card_of_a_whole_folder_names_the_model_by_where_it_is(folder: Path) -> None:
    address(folder, f"hf:{NAME}", "step-7")
    assert 'model="owner/name", revision="step-7")' in (folder / "README.md").read_text()
    address(folder, f"hf:{NAME}")
    assert 'model="owner/name")' in (folder / "README.md").read_text()
    assert json.loads((folder / MANIFEST).read_text())["files"].keys() == verify(folder)["files"].keys()
    assert huggingface_hub.ModelCard.load(folder / "README.md").data.license == "mit"
