"""Models on a hub by their name: files of one commit, each verified, from the cache where the hub does not answer."""

import errno
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http, enable_progress_bars, logging
from huggingface_hub.utils.tqdm import progress_bar_states

from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.data.vocabulary import tokenizer_folder
from longmlm.errors import ModelError, ModelNotFoundError, UnavailableError, UserError
from longmlm.hubs import datasets, huggingface
from longmlm.hubs.licences import Licence, licence_of
from longmlm.hubs.model_files import weight_files
from longmlm.hubs.models import check_model, commit_of, model_card_of, snapshot_of
from longmlm.hubs.transfers import WAITS_SECONDS
from longmlm.settings.shipped import bundled_resolved
from tests.support.hub import Hub, Repository
from tests.support.loopback import Fault
from tests.support.served import NAME, content

FILES = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "model.safetensors": bytes(1000)}


def commit_of_dataset(name: str) -> str:
    return datasets.commit_of(name, None)


@pytest.fixture
def repository(hub: Hub) -> Repository:
    hub.repository(f"models/{NAME}").commit(FILES)
    return hub.repository(f"models/{NAME}")


def test_all_files_are_of_one_commit_while_the_branch_moves(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, download = repository.branches["main"], huggingface.snapshot_download

    def moving(*arguments: Any, **options: Any) -> str:
        repository.commit({**FILES, "config.json": b"{}", "model.safetensors": bytes(7)})
        return download(*arguments, **options)

    monkeypatch.setattr(huggingface, "snapshot_download", moving)
    snapshot = snapshot_of(NAME)
    assert repository.branches["main"] != first
    assert (snapshot.commit, snapshot.notes, content(snapshot.folder)) == (first, (), FILES)
    assert content(snapshot_of(NAME).folder) != FILES


def test_commit_is_downloaded_once(hub: Hub, repository: Repository) -> None:
    first = repository.branches["main"]
    repository.tags["v1"] = first
    repository.commit({**FILES, "config.json": b"{}"})
    for revision in (first, "v1"):
        snapshot = snapshot_of(NAME, revision)
        assert (snapshot.commit, content(snapshot.folder)) == (first, FILES)
    requests = len(hub.requests)
    assert content(snapshot_of(NAME, first).folder) == FILES
    assert len(hub.requests) == requests


def test_only_what_is_read_is_downloaded(hub: Hub, repository: Repository) -> None:
    others = {"pytorch_model.bin": b"\x80", "own.py": b"", "adapter_config.json": b"{}", "onnx/config.json": b"{}"}
    repository.commit({**FILES, **others})
    assert content(snapshot_of(NAME, with_weights=False).folder).keys() == {"config.json", "tokenizer.json"}
    assert content(snapshot_of(NAME).folder) == FILES
    assert not [request for request in hub.requests for name in others if request.endswith(f"/{name}")]


MODULES = {
    "modules.json": json.dumps(
        [{"path": "", "type": "sentence_transformers.models.Transformer"},
         {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
         {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    ).encode(),
    "1_Pooling/config.json": b"{}",
    "2_Dense/config.json": b"{}",
    "2_Dense/pytorch_model.bin": bytes(9),
    "additional_chat_templates/tool.jinja": b"",
    "LICENSE": b"MIT",
}  # fmt: skip


def test_modules_of_sentence_transformers_are_downloaded_without_code(hub: Hub, repository: Repository) -> None:
    others = {"1_Pooling/own.py": b"", "3_Other/config.json": b"{}", "onnx/model.onnx": b"", "own.py": b""}
    repository.commit({**FILES, **MODULES, **others})
    snapshot = snapshot_of(NAME)
    files = {path.relative_to(snapshot.folder).as_posix() for path in snapshot.folder.rglob("*") if path.is_file()}
    assert files == {*FILES, *MODULES}
    assert set(snapshot.names) - {".gitattributes"} == {*FILES, *MODULES, *others}
    assert not [request for request in hub.requests for name in others if request.endswith(f"/{name}")]
    (snapshot.folder / "1_Pooling" / "config.json").resolve().write_bytes(b"{ }")
    with pytest.raises(ModelError, match=r"1_Pooling/config\.json.*cache"):
        snapshot_of(NAME)


def test_modules_outside_the_folder_are_refused(repository: Repository) -> None:
    outside = MODULES["modules.json"].replace(b"1_Pooling", b"../1_Pooling")
    repository.commit({**FILES, **MODULES, "modules.json": outside})
    with pytest.raises(ModelError, match=r"modules\.json.*\.\./1_Pooling"):
        snapshot_of(NAME)


@pytest.mark.parametrize(
    ("names", "read"),
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
def test_weights_are_those_that_transformers_reads(names: list[str], read: list[str]) -> None:
    assert weight_files(names) == read


@pytest.mark.parametrize("name", FILES)
def test_file_damaged_in_the_cache_is_named(repository: Repository, name: str) -> None:
    folder = snapshot_of(NAME).folder
    (folder / name).resolve().write_bytes(FILES[name][:1])
    with pytest.raises(ModelError, match=f"{name}.*cache"):
        snapshot_of(NAME)


def test_other_damaged_files_in_the_cache_do_not_matter(repository: Repository) -> None:
    folder = snapshot_of(NAME).folder
    for name in ("tf_model.h5", "pytorch_model.bin"):
        (folder / name).symlink_to(folder / "nowhere")
    assert snapshot_of(NAME).folder == folder


def test_cache_serves_while_the_hub_does_not_answer(
    hub: Hub, repository: Repository, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snapshot_of(NAME)
    hub.faults = [Fault(".", 503, times=10**6)]
    cached = snapshot_of(NAME)
    assert (cached.folder, cached.commit) == (first.folder, first.commit)
    (note,) = cached.notes
    assert NAME in note
    assert str(first.commit) in note
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert snapshot_of(NAME).notes == ()
    assert waits == []


def test_incomplete_cache_is_an_error_while_the_hub_does_not_answer(hub: Hub, repository: Repository) -> None:
    snapshot_of(NAME, with_weights=False)
    hub.faults = [Fault(".", 503, times=10**6)]
    assert snapshot_of(NAME, with_weights=False).notes
    with pytest.raises(ModelError, match=NAME):
        snapshot_of(NAME)


@pytest.mark.parametrize(
    ("name", "revision"),
    [(NAME, "v9"), (NAME, "f" * 40), ("owner/other", None), ("no/such/folder", None), ("../nowhere", None)],
)
def test_name_or_revision_that_does_not_exist_is_told_from_a_fault(
    repository: Repository, name: str, revision: str | None
) -> None:
    with pytest.raises(ModelNotFoundError, match=f"^{name}: ") as caught:
        snapshot_of(name, revision)
    assert revision is None or revision in str(caught.value)


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "../nowhere", "~/nowhere"])
def test_a_path_to_no_folder_is_not_looked_up_on_the_hub(name: str) -> None:
    for look_up in (snapshot_of, check_model, tokenizer_folder):
        with pytest.raises(UserError, match=f"^{name}: no such folder"):
            look_up(name)


def test_a_path_in_a_folder_that_exists_is_not_looked_up_on_the_hub(
    hub: Hub, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    owner = Path(NAME).parent
    assert snapshot_of(NAME).commit
    owner.mkdir()
    requests = len(hub.requests)
    for look_up in (snapshot_of, check_model, tokenizer_folder, commit_of_dataset):
        with pytest.raises(UserError, match=f"^{NAME}: no such folder in {owner}: .* no folder is called {owner}$"):
            look_up(NAME)
    assert len(hub.requests) == requests
    commit = str(repository.branches["main"])
    assert snapshot_of(NAME, "main").commit == snapshot_of(NAME, commit).commit == commit
    assert tokenizer_folder(f"{NAME}@main").is_dir()


def test_a_name_that_is_neither_here_nor_in_reach_is_said_to_be_neither(
    monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    for endpoint in ("http://127.0.0.1:9", "http://no-such-host.invalid"):
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for look_up in (commit_of, commit_of_dataset):
            waits.clear()
            with pytest.raises(UserError, match=f"^{NAME}: no such folder here, and the server cannot be reached"):
                look_up(NAME)
            assert waits == [WAITS_SECONDS[0]]
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
            with pytest.raises(UserError, match=f"^{NAME}: no such folder here, and HF_HUB_OFFLINE is set"):
                look_up(NAME)
            assert waits == [WAITS_SECONDS[0]]
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_an_unknown_bundled_model_is_answered_with_those_that_exist() -> None:
    with pytest.raises(ModelNotFoundError, match="^bundled:roberta-min: .*bundled:roberta-mini$"):
        check_model(bundled_resolved("bundled:roberta-min"))


def test_full_disk_is_not_taken_for_a_fault_of_the_hub(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "blobs/1")

    monkeypatch.setattr(huggingface, "snapshot_download", full)
    with pytest.raises(ModelError, match="the disk is full .blobs/1.: .* HF_HOME") as raised:
        snapshot_of(NAME)
    assert type(raised.value) is ModelError  # not one about the hub


def test_a_download_uses_the_client_of_the_program_and_leaves_it_as_it_was(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[httpx2.Client] = []

    def of_the_program() -> httpx2.Client:
        made.append(_http.default_client_factory())
        return made[-1]

    monkeypatch.setattr(_http, "_GLOBAL_CLIENT_FACTORY", of_the_program)
    logging.set_verbosity_info()
    enable_progress_bars("huggingface_hub.snapshot_download")
    bars = dict(progress_bar_states)
    try:
        assert content(snapshot_of(NAME).folder) == FILES
        assert _http._GLOBAL_CLIENT_FACTORY is of_the_program
        assert made and huggingface._limit in made[0].event_hooks["request"]
        assert huggingface._limit not in _http.get_session().event_hooks["request"]
        assert logging.get_verbosity() == logging.INFO
        assert progress_bar_states == bars
    finally:
        logging.set_verbosity_warning()
        progress_bar_states.clear()
        _http.close_session()


def test_a_run_folder_is_no_model_and_its_newest_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        check_model(str(tmp_path))
    for step in ("step-00000010", "step-00000020"):
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
        (tmp_path / "checkpoints" / step / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="checkpoints/step-00000020$"):
        check_model(str(tmp_path))


def test_model_card_is_that_of_the_commit(hub: Hub, repository: Repository) -> None:
    without = repository.branches["main"]
    commit = repository.commit({**FILES, "README.md": b"---\nlicense: mit\n---\n"})
    assert (model_card_of(NAME, commit), model_card_of(NAME, without)) == ("---\nlicense: mit\n---\n", "")
    with pytest.raises(ModelNotFoundError):
        model_card_of("nobody/nothing", commit)


def test_licence_is_not_unknown_because_the_hub_fails(hub: Hub, repository: Repository) -> None:
    commit = repository.commit({**FILES, "README.md": b"---\nlicense: mit\n---\n"})
    provenance = Provenance(started_from=ModelSource(name=NAME, revision=commit))
    hub.faults = [Fault("README.md", 503, times=10**6)]
    with pytest.raises(UnavailableError, match=rf"{NAME}: .*card\.license"):
        licence_of(None, provenance)
    hub.faults = []
    assert licence_of(None, provenance) == Licence("mit", is_of_base=True)


def test_folder_is_taken_as_it_is_and_has_no_revision(tmp_path: Path) -> None:
    assert snapshot_of(str(tmp_path)).folder == tmp_path
    with pytest.raises(ModelError, match="v1: remove revision"):
        snapshot_of(str(tmp_path), "v1")
