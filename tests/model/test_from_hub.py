"""Loading from a hub: all files of one commit, each verified, and one line on failure."""

import errno
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory
from safetensors.torch import load_file, save_file

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, ModelError
from longmlm.hubs.models import snapshot_of, weight_files
from longmlm.model.loading import load_model
from tests.support.hub import Hub, serve
from tests.support.loopback import Fault
from tests.support.tiny import World, tiny_extension

NAME, TOKEN = "owner/name", "hf_planted0123456789"
BIAS = "lm_head.bias"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub for the client in this process, with an empty cache."""
    with serve() as hub:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for name, value in {"ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
        pattern = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", pattern)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
        yield hub
        set_client_factory(default_client_factory)


def commit(hub: Hub, folder: Path, bias: float, **more: bytes) -> str:
    """Commits the model with this bias and these other files, and returns the commit."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    weights = load_file(folder / "model.safetensors")
    scratch = folder.parent / "biased.safetensors"
    save_file({**weights, BIAS: torch.full_like(weights[BIAS], bias)}, scratch, {"format": "pt"})
    about = artifact.dump(Provenance(extension=tiny_extension(f"base of {bias}")))
    mine = {"model.safetensors": scratch.read_bytes(), Provenance.FILE: json.dumps(about).encode()}
    named = {name.replace("__", "."): content for name, content in more.items()}
    return hub.repository(f"models/{NAME}").commit(files | mine | named)


def bias_of(loaded: Any) -> float:
    return loaded.model.lm_head.bias[0].item()


def test_all_files_are_of_one_commit_while_the_branch_moves(
    hub: Hub, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = commit(hub, world.base, 1.0), huggingface_hub.snapshot_download

    def moving(*arguments: Any, **named: Any) -> str:
        commit(hub, world.base, 2.0, tokenizer_config__json=b'{"model_max_length": 7}')
        return real(*arguments, **named)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", moving)
    loaded = load_model(NAME)
    assert hub.repository(f"models/{NAME}").branches["main"] != first
    assert (loaded.revision, bias_of(loaded), loaded.tokenizer.model_max_length) == (first, 1.0, 16)
    assert loaded.provenance.extension.base.name == "base of 1.0"
    assert bias_of(load_model(NAME)) == 2.0


def test_pinned_commit_is_kept_and_requested_once(hub: Hub, world: World) -> None:
    first = commit(hub, world.base, 1.0)
    commit(hub, world.base, 2.0)
    hub.repository(f"models/{NAME}").tags["v1"] = first
    for revision in (first, "v1"):
        loaded = load_model(NAME, revision)
        assert (loaded.revision, bias_of(loaded), loaded.notes) == (first, 1.0, ())
    asked = len(hub.requests)
    assert bias_of(load_model(NAME, first)) == 1.0
    assert len(hub.requests) == asked
    assert load_vocabulary(NAME, first).size == load_vocabulary(str(world.base)).size


def test_only_safetensors_are_downloaded_and_no_code(hub: Hub, world: World) -> None:
    commit(hub, world.base, 1.0, pytorch_model__bin=b"\x80", own__py=b"", adapter_config__json=b"{}")
    assert bias_of(load_model(NAME)) == 1.0
    assert any("model.safetensors" in request for request in hub.requests)
    assert not [request for request in hub.requests if ".bin" in request or ".py" in request or "adapter" in request]


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (["model.safetensors", "pytorch_model.bin", "model.fp16.safetensors"], ["model.safetensors"]),
        (["model-2.safetensors", "model-1.safetensors", "a/model.safetensors"],
         ["model-1.safetensors", "model-2.safetensors"]),
        (["pytorch_model.bin", "training_args.bin"], ["pytorch_model.bin"]),
        (["model.fp16.safetensors", "model.fp16-00001-of-00002.safetensors", "pytorch_model.bin"],
         ["pytorch_model.bin"]),
        (["config.json"], []),
    ],
)  # fmt: skip
def test_weights_that_are_read(files: list[str], taken: list[str]) -> None:
    assert weight_files(files) == taken


@pytest.mark.parametrize("shard", ["../../../../secret.safetensors", "/etc/secret.safetensors"])
def test_index_that_names_a_file_outside_the_folder_is_refused(hub: Hub, world: World, shard: str) -> None:
    index = json.dumps({"weight_map": {BIAS: shard}}).encode()
    commit(hub, world.base, 1.0, model__safetensors__index__json=index)
    with pytest.raises(ModelError, match=f"names a file outside its folder, {shard}"):
        load_model(NAME)
    assert not [request for request in hub.requests if "secret" in request]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_file_that_is_damaged_in_the_cache_is_named(hub: Hub, world: World, name: str) -> None:
    commit(hub, world.base, 1.0)
    folder = snapshot_of(NAME).folder
    content = (folder / name).read_bytes()
    (folder / name).resolve().write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=rf"{name} is damaged in the hub's cache .*: remove that file"):
        load_model(NAME)
    (folder / name).resolve().unlink()
    assert f"{name} is missing from the hub's cache" in refusal() or (folder / name).read_bytes() == content


def refusal() -> str:
    try:
        snapshot_of(NAME)
    except ModelError as error:
        return str(error)
    return ""


def test_other_files_in_the_cache_are_ignored(hub: Hub, world: World) -> None:
    commit(hub, world.base, 1.0)
    folder = snapshot_of(NAME).folder
    for name in ("tf_model.h5", "pytorch_model.bin"):
        (folder / name).symlink_to(folder / "nowhere")
    assert bias_of(load_model(NAME)) == 1.0


def test_cache_serves_while_the_hub_does_not_answer(hub: Hub, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = commit(hub, world.base, 1.0)
    load_model(NAME)
    hub.faults = [Fault(".", 503, times=10**6)]
    loaded = load_model(NAME)
    assert (loaded.revision, bias_of(loaded)) == (first, 1.0)
    assert loaded.notes == (f"the hub does not answer: {NAME} is taken from the cache, at commit {first}",)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_model(NAME).notes == ()
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set") as caught:
        load_model("owner/other")
    assert "\n" not in str(caught.value)


def test_history_comes_with_the_weights_and_not_in_a_second_call(hub: Hub, world: World) -> None:
    commit(hub, world.base, 1.0)
    hub.faults = [Fault(f"GET .*{Provenance.FILE}", 503, times=10**6)]
    with pytest.raises(ModelError, match=NAME):
        load_model(NAME)


def test_unreachable_hub_is_reported_at_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with monkeypatch.context() as patch:
        for name, value in {"ENDPOINT": f"http://127.0.0.1:{port}", "HF_HUB_OFFLINE": False}.items():
            patch.setattr(constants, name, value)
        patch.setattr(constants, "HF_HUB_CACHE", "/nowhere")
        started = time.monotonic()
        with pytest.raises(ModelError, match="it cannot be reached .*; check the network, or name a folder") as caught:
            load_model(NAME)
        with pytest.raises(DataError, match="it cannot be reached"):
            load_vocabulary(NAME)
        assert time.monotonic() - started < 10
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "check its name"), (403, "answers 403"), (429, "answers 429"), (500, "try again later")]
)
def test_refusal_of_the_hub_is_one_line_without_secrets(hub: Hub, world: World, status: int, said: str) -> None:
    commit(hub, world.base, 1.0)
    headers = {"X-Error-Code": "RepoNotFound"} if status == 401 else {}
    hub.faults = [Fault("GET /api/models", status, times=10**6, headers=headers, said=f"no {TOKEN}")]
    with pytest.raises(ModelError, match=said) as caught:
        load_model(NAME)
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert len(hub.requests) < 10


def test_missing_revision_and_repository_are_named(hub: Hub, world: World) -> None:
    commit(hub, world.base, 1.0)
    with pytest.raises(ModelError, match=f"{NAME} has no revision 'v9': name a branch, a tag or a commit"):
        load_model(NAME, "v9")
    with pytest.raises(ModelError, match="owner/other is neither a folder .*: check its name"):
        load_model("owner/other")


def test_path_of_the_cache_is_written_nowhere(hub: Hub, world: World, tmp_path: Path) -> None:
    commit(hub, world.base, 1.0)
    loaded = load_model(NAME)
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    assert len(list((tmp_path / "saved").iterdir())) > 3
    for path in (tmp_path / "saved").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()


def test_full_disk_is_not_reported_as_a_network_error(hub: Hub, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "blobs/1")

    commit(hub, world.base, 1.0)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(OSError, match="No space left"):
        load_model(NAME)
