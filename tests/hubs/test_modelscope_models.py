"""Models on ModelScope by name: files of one commit, each verified, from the cache where the site does not answer."""

import importlib.util
import json
from pathlib import Path

import pytest

from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.data.vocabulary import tokenizer_folder
from longmlm.errors import ModelError, ModelNotFoundError, ModelUnavailableError
from longmlm.hubs import modelscope_cache
from longmlm.hubs.licences import Licence, licence_of
from longmlm.hubs.models import check_model, commit_of, config_of_model, model_card_of, snapshot_of
from longmlm.model.facts import facts_of
from tests.support.hub import Repository
from tests.support.loopback import CUT, Fault
from tests.support.modelscope_hub import BRANCH
from tests.support.served import NAME, Served, content

MS = f"ms:{NAME}"
FILES = {"config.json": b'{"model_type": "bert"}', "tokenizer.json": b"{}", "model.safetensors": bytes(1000)}
pytestmark = pytest.mark.parametrize("served", ["ms"], indirect=True)


@pytest.fixture
def repository(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_RETRY_TIMES", 0)
    served.repository().commit(FILES, BRANCH)
    return served.repository()


def requests(served: Served) -> int:
    return len(served.server.requests)


def test_files_are_of_one_commit_which_is_downloaded_once(served: Served, repository: Repository) -> None:
    first = repository.branches[BRANCH]
    second = repository.commit({**FILES, "config.json": b'{"model_type": "roberta"}'}, BRANCH)
    old, new = snapshot_of(MS, first), snapshot_of(MS)
    assert (old.commit, new.commit) == (first, second)
    assert (content(old.folder), content(new.folder)["config.json"]) == (FILES, b'{"model_type": "roberta"}')
    repository.tags["v1"] = first
    before = requests(served)
    assert content(snapshot_of(MS, first).folder) == FILES
    assert requests(served) == before
    assert snapshot_of(f"{MS}@v1") == old
    assert requests(served) == before + 1  # what v1 is


def test_only_what_is_read_is_downloaded(served: Served, repository: Repository) -> None:
    others = {"pytorch_model.bin": b"\x80", "own.py": b"", "adapter_config.json": b"{}", "onnx/config.json": b"{}"}
    listed = [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    modules = {"modules.json": json.dumps(listed).encode(), "1_Pooling/config.json": b"{}"}
    repository.commit({**FILES, **others, **modules}, BRANCH)
    assert content(snapshot_of(MS, with_weights=False).folder).keys() == {*FILES, "modules.json"} - {
        "model.safetensors"
    }
    snapshot = snapshot_of(MS)
    assert content(snapshot.folder) == {**FILES, **modules}
    assert set(snapshot.names) == {*FILES, *others, *modules}
    assert not [request for request in served.server.requests for name in others if request.endswith(f"={name}")]


def test_a_damaged_file_in_the_cache_is_downloaded_anew(served: Served, repository: Repository) -> None:
    folder = snapshot_of(MS).folder
    (folder / "model.safetensors").write_bytes(bytes(999))
    assert content(snapshot_of(MS).folder) == FILES
    (folder / "config.json").write_bytes(b"{}")
    served.server.faults = [Fault(".", 503, times=10**6)]
    with pytest.raises(ModelUnavailableError, match=rf"^{MS}: the server is unavailable"):
        snapshot_of(MS)


def test_an_altered_download_is_refused(
    served: Served, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commits[repository.branches[BRANCH]]["config.json"] = b"{}"
    monkeypatch.setattr("tests.support.modelscope_hub.sha256", lambda _: "f" * 64)
    with pytest.raises(ModelError, match=MS):
        snapshot_of(MS)


def test_the_cache_serves_while_the_site_does_not_answer(served: Served, repository: Repository) -> None:
    first = snapshot_of(MS)
    served.server.faults = [Fault(".", 503, times=10**6)]
    cached = snapshot_of(MS)
    assert (cached.folder, cached.commit) == (first.folder, first.commit)
    [note] = cached.notes
    assert MS in note and str(first.commit) in note
    before = requests(served)
    assert snapshot_of(MS, first.commit).notes == ()
    assert requests(served) == before  # a commit is not looked up
    with pytest.raises(ModelUnavailableError, match=f"^{MS}: the server is unavailable"):
        snapshot_of(MS, "v1")


def test_a_site_that_cannot_be_reached_is_an_error_without_a_cache(
    served: Served, repository: Repository, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ModelUnavailableError, match=f"^{MS}: the server cannot be reached .*; check the network"
    ) as raised:
        snapshot_of(MS)
    assert "\n" not in str(raised.value) and "127.0.0.1" not in str(raised.value)
    assert waits == [1.0]  # a server that no connection reaches is tried once more


def test_an_interrupted_download_goes_on(served: Served, repository: Repository, waits: list[float]) -> None:
    served.server.faults = [Fault("FilePath=model.safetensors", CUT)]
    assert content(snapshot_of(MS).folder) == FILES
    assert waits


@pytest.mark.parametrize(
    ("name", "revision", "said"),
    [
        (MS, "v9", "no revision 'v9'"),
        ("ms:owner/other", None, "no such repository"),
        ("ms:name", None, "ms:OWNER/NAME"),
        ("ms:a/b/c", None, "ms:OWNER/NAME"),
        ("ms:", None, "ms:OWNER/NAME"),
    ],
)
def test_a_name_or_revision_that_does_not_exist(
    served: Served, repository: Repository, name: str, revision: str | None, said: str
) -> None:
    for look_up in (snapshot_of, check_model, config_of_model, commit_of):
        with pytest.raises(ModelNotFoundError, match=f"^{name}: .*{said}") as raised:
            look_up(name, revision)
        assert "\n" not in str(raised.value)


def test_two_revisions_contradict_each_other(served: Served, repository: Repository) -> None:
    with pytest.raises(ModelError, match="remove one of them"):
        snapshot_of(f"{MS}@v1", "v2")


def test_a_private_model_needs_the_token(
    served: Served, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.private = True
    assert content(snapshot_of(MS).folder) == FILES
    monkeypatch.delenv("MODELSCOPE_API_TOKEN")
    with pytest.raises(ModelNotFoundError, match="if it is private, set MODELSCOPE_API_TOKEN"):
        snapshot_of(MS)


def test_without_the_client_the_extra_is_named(
    served: Served, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("longmlm.hubs.models.find_spec", lambda name: None if name == "modelscope_hub" else find(name))
    with pytest.raises(ModelError, match=rf"^{MS}: ModelScope's client is not installed: pip install .*\[modelscope\]"):
        check_model(MS)
    with pytest.raises(ModelError, match="client is not installed"):
        tokenizer_folder(MS)


@pytest.mark.parametrize("path", ["../secret.json", "/etc/secret.json"])
def test_a_file_outside_the_folder_is_refused(served: Served, repository: Repository, path: str) -> None:
    repository.commit({**FILES, path: b"{}"}, BRANCH)
    with pytest.raises(ModelError, match="outside its folder"):
        snapshot_of(MS)


def test_an_answer_that_is_no_listing_is_an_error(
    served: Served, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in ({}, {"Files": None}, {"Files": [], "LatestCommitter": None}, {"Files": [{"Path": "a"}]}):
        monkeypatch.setattr("tests.support.modelscope_hub.listing", lambda *_, answer=answer: answer)
        with pytest.raises(ModelError, match=f"^{MS}: it cannot be read .its site does not"):
            snapshot_of(MS)


def test_a_commit_that_changed_none_of_its_files_is_known_by_its_first_digits(
    served: Served, repository: Repository
) -> None:
    repository.commit({**FILES, "other.txt": b""}, BRANCH)
    commit = repository.commit(FILES, BRANCH)
    assert commit_of(MS) == commit[:8]


def test_the_tokenizer_is_found_by_name_and_revision(served: Served, repository: Repository) -> None:
    first = repository.branches[BRANCH]
    repository.commit({**FILES, "tokenizer.json": b"[]"}, BRANCH)
    assert (tokenizer_folder(f"{MS}@{first}") / "tokenizer.json").read_bytes() == b"{}"
    assert (tokenizer_folder(MS) / "tokenizer.json").read_bytes() == b"[]"
    with pytest.raises(ModelNotFoundError, match="ms:OWNER/NAME"):
        tokenizer_folder("ms:name")


def test_config_and_weights_are_read_without_downloading_all(served: Served, repository: Repository) -> None:
    assert config_of_model(MS).model_type == "bert"
    assert facts_of(MS).weight_files == []
    snapshot_of(MS)
    assert [path.name for path in facts_of(MS).weight_files] == ["model.safetensors"]


@pytest.mark.parametrize(("licence", "identifier"), [("Apache License 2.0", "apache-2.0"), ("mit", "mit")])
def test_the_licence_is_that_of_the_card(served: Served, repository: Repository, licence: str, identifier: str) -> None:
    commit = repository.commit({**FILES, "README.md": f"---\nlicense: {licence}\n---\n".encode()}, BRANCH)
    assert licence in model_card_of(MS, commit)
    source = ModelSource(name=MS, revision=commit)
    assert licence_of(None, Provenance(started_from=source)) == Licence(identifier, is_of_base=True)


def test_what_the_cache_says_is_not_trusted_blindly(served: Served, repository: Repository) -> None:
    snapshot_of(MS)
    [listing] = modelscope_cache.cache_folder(modelscope_cache.Target("ms", NAME)).glob("longmlm/master.json")
    listing.write_text("{", encoding="utf-8")
    assert content(snapshot_of(MS).folder) == FILES
