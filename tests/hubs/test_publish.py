"""Publishing a folder to both hubs and to storage: private, only what changed, under a branch or tag."""

from contextlib import nullcontext
from pathlib import Path

import fsspec
import huggingface_hub
import pytest

from longmlm.errors import FolderError, ReleaseError
from longmlm.folders import MANIFEST, new_folder, read_manifest, unlisted_note
from longmlm.hubs.publish import check_can_publish, publish
from longmlm.settings.publishing import Target, parse_target
from tests.support.hub import FIRST
from tests.support.served import CARD, NAME, Served, content, make

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's use of httpx2
both_hubs = pytest.mark.parametrize("served", ["hf", "ms"], indirect=True)
huggingface_alone = pytest.mark.parametrize("served", ["hf"], indirect=True)


@both_hubs
def test_new_repository_is_private_and_holds_the_folder(served: Served, folder: Path) -> None:
    address = served.publish(folder)
    assert address.startswith(served.server.endpoint)
    assert NAME in address
    assert served.files() == content(folder)
    assert len(content(folder)) == 4
    assert served.repository().private
    assert served.name == "hf" or served.repository().license == "MIT"


def add_unlisted_files(folder: Path) -> None:
    """Adds what a user may keep in a release, or what came there by accident, in each form that a file can have."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    for name in (".env", "notes.txt", "checkpoints/optimizer.pt", ".hidden/key", "model.safetensors.orig"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret")
        (elsewhere / Path(name).name).write_text("secret")
    (folder / "link").symlink_to(elsewhere / "key")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "dangling").symlink_to("nowhere")


@both_hubs
def test_exactly_the_files_of_the_manifest_are_published_and_the_others_are_named(
    served: Served, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed, files = content(folder), read_manifest(folder)["files"]
    add_unlisted_files(folder)
    for _ in range(2):
        served.publish(folder)
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not published")]
        assert f"{folder / MANIFEST} does not list .env, .hidden/key, " in line
        assert line.endswith(" and 3 more")
        assert served.files() == listed
    publish(folder, parse_target(f"folder:{tmp_path}/copy"), "Release")
    assert content(tmp_path / "copy") == listed
    named = [".env", ".hidden/key", "checkpoints/optimizer.pt", "dangling", "link"]
    last = ["linked", "model.safetensors.orig", "notes.txt"]
    assert unlisted_note(folder, {**files, **dict.fromkeys(named)}).endswith(f"does not list {', '.join(last)}")


@both_hubs
def test_names_are_no_patterns(served: Served, tmp_path: Path) -> None:
    with new_folder(tmp_path / "odd") as partial:
        for name in ("a[1].json", "b*?.json", "onnx/model.onnx", "deep/er/a b"):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_text(name)
        (partial / "README.md").write_text(CARD)
    listed = content(tmp_path / "odd")
    for name in ("a1.json", "bxx.json", "onnx/other"):
        (tmp_path / "odd" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "odd" / name).write_text("secret")
    served.publish(tmp_path / "odd")
    assert served.files() == listed


@pytest.mark.parametrize("name", ["config.json", MANIFEST])
def test_copy_is_not_written_through_a_link(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.json").write_text("mine")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / name).symlink_to(tmp_path / "mine.json")
    with pytest.raises(ReleaseError, match=f"{name} is a link"):
        publish(folder, parse_target(f"folder:{tmp_path}/copy"), "Release")
    assert (tmp_path / "mine.json").read_text() == "mine"


@both_hubs
def test_only_changed_files_are_uploaded(served: Served, folder: Path) -> None:
    for _ in range(2):
        served.publish(folder)
    assert served.count("object") == 1
    commits = served.count("commit")
    make(folder, '{"a": 2}')
    served.publish(folder)
    assert served.count("commit") == commits + 1
    assert served.count("object") == 1
    assert served.files() == content(folder)


@both_hubs
def test_tag_is_set_once_and_does_not_move(served: Served, folder: Path) -> None:
    for _ in range(2):
        assert "v1" in served.publish(folder, tag="v1")
    assert served.count("tag") == 1
    make(folder, '{"a": 4}')
    with pytest.raises(ReleaseError, match=f"{NAME}.*v1"):
        served.publish(folder, tag="v1")
    assert b'"a": 1' in served.files("v1")["config.json"]


@both_hubs
def test_public_repository_is_refused_unless_asked_for(served: Served, folder: Path) -> None:
    served.repository().commit(FIRST, served.branch)
    with pytest.raises(ReleaseError, match=f"{NAME}.*public = true"):
        served.publish(folder)
    assert served.files() == {}
    served.publish(folder, public=True)
    assert served.files() == content(folder)
    served.publish(folder, "owner/other", public=True)
    assert not served.repository("owner/other").private


@both_hubs
def test_damaged_folder_is_not_published(served: Served, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(FolderError, match=r"model\.safetensors"):
        served.publish(folder)
    assert served.server.requests == []


@huggingface_alone
def test_branch_holds_what_was_published_to_it(served: Served, folder: Path) -> None:
    served.publish(folder)
    first = content(folder)
    make(folder, '{"a": 3}')
    served.publish(folder, revision="step-1000", tag="v1")
    assert served.files() == first
    assert served.files("step-1000") == served.files("v1") == content(folder)


@huggingface_alone
def test_card_that_the_hub_rejects_is_named(served: Served, tmp_path: Path) -> None:
    with new_folder(tmp_path / "wrong") as partial:
        (partial / "README.md").write_text("---\nlicense: mit\n---\n")
    with pytest.raises(ReleaseError, match="library_name"):
        served.publish(tmp_path / "wrong")
    assert served.files() == {}


@pytest.mark.parametrize(
    "target", ["folder:{ground}/copies/tiny", "file://{ground}/copies/tiny", "memory://bucket/tiny"]
)
def test_copy_on_any_storage_is_verified_and_holds_what_changed(
    folder: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = parse_target(target.format(ground=tmp_path))
    system, root = fsspec.core.url_to_fs(publish(folder, storage, "Release"))

    def files() -> dict[str, bytes]:
        return {path.rsplit("/", 1)[1]: system.cat(path) for path in system.find(root)}

    assert files() == content(folder)
    make(folder, '{"a": 6}')
    copied, put = [], type(system).put_file

    def put_file(self: object, path: str, copy: str, **options: object) -> None:
        copied.append(Path(path).name)
        put(self, path, copy, **options)

    monkeypatch.setattr(type(system), "put_file", put_file)
    publish(folder, storage, "Release")
    assert copied == ["config.json", MANIFEST]
    assert files() == content(folder)
    system.rm(root, recursive=True)


def test_file_in_the_way_of_a_copy_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReleaseError, match="file/below[^\n]*$"):
        publish(folder, Target("storage", f"{tmp_path}/file/below"), "Release")


@pytest.mark.parametrize(
    ("target", "missing"),
    [("gs://bucket/tiny", "gcsfs"), ("no://bucket", "no"), (f"ms:{NAME}", r"longmlm\[modelscope\]")],
)
def test_missing_client_is_refused_before_the_work(target: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longmlm.hubs.publish.find_spec", lambda _: None)
    with pytest.raises(ReleaseError, match=missing) as caught:
        check_can_publish(parse_target(target))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", [f"hf:{NAME}", f"ms:{NAME}", "folder:copies", "file:///copies", "memory://bucket"])
@pytest.mark.parametrize(
    ("token", "is_offline", "problem"),
    [("planted", False, ""), ("", False, "TOKEN"), ("planted", True, "HF_HUB_OFFLINE")],
)
def test_hub_is_refused_before_the_work_without_a_token_or_access(
    target: str, token: str, is_offline: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr("longmlm.hubs.huggingface.get_token", lambda: token or None)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", token)
    is_refused = problem and target.startswith("hf:" if is_offline else ("hf:", "ms:"))
    with pytest.raises(ReleaseError, match=f"{NAME}.*{problem}") if is_refused else nullcontext():
        check_can_publish(parse_target(target))
