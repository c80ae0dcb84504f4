"""Models by name: a local folder, or the files of one commit of a repository, each verified."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, runtime_checkable

from huggingface_hub.constants import REPOCARD_NAME
from huggingface_hub.utils.sha import git_hash

from longmlm.errors import ModelError, ModelNotFoundError
from longmlm.escaping import read_user_text
from longmlm.folders import parse_json, sha256_of
from longmlm.hubs import huggingface
from longmlm.hubs.model_files import (
    CONFIG,
    LICENCES,
    check_links,
    extra_files,
    files_below,
    module_folders,
    weight_files,
)
from longmlm.settings.publishing import Target, parse_target
from longmlm.settings.shipped import BUNDLED, PACKAGE

MODELSCOPE = "ms:"
Result = TypeVar("Result")
PATH_PREFIXES = ("/", "./", "../", "~")
SETTINGS = ("*.json", "*.txt", "*.model", "*.codes", "*.jinja", *LICENCES)  # config and tokenizer, never code
HASHES: dict[int, Callable[[Path], str]] = {64: sha256_of, 40: lambda path: git_hash(path.read_bytes())}  # by digits
IGNORED = ("*/*", "adapter_config.json")  # the latter would make transformers load a different repository


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """The folder of a model's files, their commit if they are from the hub, and notes for the user.

    `names` are the paths of all files of the model, including those that are not downloaded.
    """

    folder: Path
    names: tuple[str, ...]
    commit: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def extra(self) -> list[str]:
        """The paths of the files that are carried over unchanged."""
        return extra_files(self.names, module_folders(self.folder))


@runtime_checkable
class ModelHub(Protocol):
    """The functions of a hub's module that download models."""

    def retry_download(self, target: Target, attempt: Callable[[], Result]) -> Result:
        """Returns the result of `attempt`, which is retried; raises a ModelError in one line if all attempts fail."""

    def resolve(self, target: Target) -> tuple[str, str | None]:
        """Returns the commit of a revision, and a note if the hub did not answer and the cache was used."""

    def download(self, target: Target, commit: str, patterns: Sequence[str], ignored: Sequence[str] = ()) -> Path:
        """Returns the folder with the files that match a pattern, after downloading those that are not in the cache."""

    def download_file(self, target: Target, commit: str, name: str) -> Path | None:
        """Returns one file, from the cache if it is there; None if the repository does not have it."""

    def paths_at(self, target: Target, commit: str) -> list[str] | None:
        """Returns the paths of all files at a commit; None if they are not known on this machine."""

    def cached_file(self, target: Target, commit: str, name: str) -> Path | None:
        """Returns a file if it is in the cache."""


def _target(name: str, revision: str | None) -> Target:
    """Returns the repository that a model's name means, on the Hugging Face Hub or, as ms:OWNER/NAME, on ModelScope."""
    if not name.startswith(MODELSCOPE):
        return Target("hf", name, revision)
    try:
        target = parse_target(name)
    except ValueError:
        raise ModelNotFoundError(f"{name}: no such model: on ModelScope, models are named ms:OWNER/NAME") from None
    if revision and target.revision not in (None, revision):
        raise ModelError(f"{name} names a revision, but revision = {revision} names another one: remove one of them")
    return replace(target, revision=revision or target.revision)


def _hub_of(target: Target) -> ModelHub:
    if target.hub == "hf":
        return huggingface
    if find_spec("modelscope_hub") is None:
        raise ModelError(f"ms:{target.name}: ModelScope's client is not installed: pip install 'longmlm[modelscope]'")
    from longmlm.hubs import modelscope

    return modelscope


def snapshot_of(name: str, revision: str | None = None, with_weights: bool = True) -> HubSnapshot:
    """Returns a folder as it is, or the folder of a repository's files after downloading what is not in the cache.

    The revision is resolved to a commit once; if the hub does not answer, the cache is used. Every file of the
    repository that is read is in the folder. Raises ModelNotFoundError if there is no such folder, repository or
    revision, and ModelError if the hub fails, the disk is full or a file is damaged.
    """
    if is_folder(name, revision):
        if revision is not None:
            raise ModelError(f"{name} is a folder, which has no revision {revision}: remove revision")
        check_links(Path(name))
        return HubSnapshot(Path(name), tuple(files_below(Path(name))))
    target = _target(name, revision)
    hub = _hub_of(target)
    return hub.retry_download(target, lambda: _download(hub, target, with_weights))


def _download(hub: ModelHub, target: Target, with_weights: bool) -> HubSnapshot:
    commit, note = hub.resolve(target)
    folder = hub.download(target, commit, SETTINGS, IGNORED)
    names = hub.paths_at(target, commit) or files_below(folder)
    extra = [name for name in extra_files(names, module_folders(folder)) if "/" in name] if with_weights else []
    weights = weight_files(names) if with_weights else []
    if weights or extra:
        hub.download(target, commit, [*weights, *extra])
    check_links(folder)
    _check_unaltered(folder, [*SETTINGS, *weights], extra)
    return HubSnapshot(folder, tuple(names), commit, (note,) if note else ())


def commit_of(name: str, revision: str | None = None) -> str:
    """Returns the commit of a repository's branch, tag or commit; raises ModelNotFoundError if there is none."""
    target = _target(name, revision)
    hub = _hub_of(target)
    return hub.retry_download(target, lambda: hub.resolve(target))[0]


def cached_file(name: str, commit: str, file: str) -> Path | None:
    """Returns a file of a repository at a commit if it is in the cache."""
    target = _target(name, commit)
    return _hub_of(target).cached_file(target, commit, file)


def check_model(name: str, revision: str | None = None) -> None:
    """Raises the error that loading would raise if there is no such model, without downloading or loading it."""
    if is_folder(name, revision):
        check_links(Path(name))
        check_has_config(name, Path(name))
        check_has_weights(name, Path(name))
        return
    commit_of(name, revision)


def config_of_model(name: str, revision: str | None = None) -> SimpleNamespace | None:
    """Returns the keys of a model's config.json as attributes; raises the error of loading if there is no such model.

    Returns None if the config is damaged or names code: only loading shows what it means. For a repository, downloads
    config.json.
    """
    if is_folder(name, revision):
        check_links(Path(name))
        check_has_config(name, Path(name))
    path = file_of_model(name, revision, CONFIG)
    try:
        content = _config_in(str(path)) if path else {}
    except ModelError:
        return None
    if not path or "auto_map" in content:
        return None
    _check_model_type(str(path), content)
    return SimpleNamespace(**content)


def file_of_model(name: str, revision: str | None, file: str) -> Path | None:
    """Returns the path of a model's file, after downloading it from a hub; None if the model does not have it."""
    path = Path(name) / file
    if is_folder(name, revision):
        return path if path.is_file() else None
    target = _target(name, revision)
    hub = _hub_of(target)
    return hub.retry_download(target, lambda: hub.download_file(target, hub.resolve(target)[0], file))


def hub_weight_names(name: str, commit: str) -> frozenset[str]:
    """Returns the names of the weights in a repository, from the headers of its safetensors files.

    The set is empty if it has no such files, if the client is offline, and for ModelScope, which serves no headers.
    """
    target = _target(name, commit)
    if target.hub != "hf":
        return frozenset()
    try:
        return huggingface.retry_download(target, lambda: huggingface.safetensors_weight_names(target, commit))
    except ModelError:
        return frozenset()


def model_card_of(name: str, commit: str | None) -> str:
    """Returns the model card in a folder or, at a commit, of a repository; empty if there is none.

    Raises ModelNotFoundError if the repository or the commit is gone, and ModelError if the hub fails or the card is a
    link that leaves the folder.
    """
    path = Path(name) / REPOCARD_NAME
    if path.parent.is_dir():
        check_links(path.parent)
    if commit and not path.is_file():
        target = _target(name, commit)
        hub = _hub_of(target)
        path = hub.retry_download(target, lambda: hub.download_file(target, commit, path.name)) or path
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def is_folder(name: str, revision: str | None = None) -> bool:
    """Returns whether a model is a local folder.

    Raises ModelNotFoundError for a path that no repository can have, and without a revision also for one in a folder
    that exists, such as out/long: the model is then most likely to be missing there.
    """
    path = Path(name)
    if path.is_dir():
        return True
    if path.parent == PACKAGE / "bundled":
        models = ", ".join(sorted(f"{BUNDLED}{file.parent.name}" for file in path.parent.glob(f"*/{CONFIG}")))
        raise ModelNotFoundError(f"{BUNDLED}{path.name}: no such bundled model: choose {models}")
    if name.startswith(PATH_PREFIXES):
        raise ModelNotFoundError(f"{name}: no such folder: check its path")
    repository, _, own_revision = name.partition("@")
    if "://" in name or name.startswith(MODELSCOPE):
        return False
    if repository.count("/") > 1 or repository.endswith("/"):
        raise ModelNotFoundError(f"{name}: no such folder: check its path, or run the stage that writes it first")
    if path.parent.is_dir() and path.parent != Path() and not (revision or own_revision):
        raise ModelNotFoundError(
            f"{name}: no such folder in {path.parent}: check its path, or run the stage that writes it first; to load "
            f"a repository from the hub, run the command where no folder is called {path.parent}"
        )
    return False


def check_has_config(name: str, folder: Path) -> None:
    """Raises ModelError if the model `name`, whose files are in the folder, has no config.json."""
    if not (folder / CONFIG).is_file():
        checkpoints = sorted(folder.glob("checkpoints/step-????????"))  # of a run
        example = f", such as {checkpoints[-1]}" if checkpoints else ""
        raise ModelError(f"{name} has no {CONFIG}: name the folder or repository of a model{example}")


def check_has_weights(name: str, folder: Path) -> None:
    """Raises ModelError if the model `name`, whose files are in the folder, has no weights: files of any name."""
    if not any(path.suffix in (".safetensors", ".bin") for path in folder.iterdir()):
        raise ModelError(
            f"{name} has no model.safetensors or pytorch_model.bin: name the folder or repository of a model's weights"
        )


def read_architecture(config_file: str) -> dict[str, Any]:  # the keys depend on the family
    """Returns the content of a transformers config.json; raises ModelError if it cannot be read or names no family."""
    content = _config_in(config_file)
    _check_model_type(config_file, content)
    return content


def _check_model_type(config_file: str, content: dict[str, Any]) -> None:
    """Raises ModelError without a model_type, for which transformers would search the name of the folder."""
    if not isinstance(content.get("model_type"), str):
        raise ModelError(
            f'{config_file} has no model_type: add that of the family of its weights, such as "model_type": "bert"'
        )


def _config_in(config_file: str) -> dict[str, Any]:
    try:
        content = parse_json(read_user_text(config_file))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ModelError(f"{config_file} does not describe a model: {reason}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{config_file} does not describe a model: it holds no JSON object")
    return content


def _check_unaltered(folder: Path, patterns: Sequence[str], extra: Sequence[str]) -> None:
    """Raises ModelError if a file in the hub's cache does not have the hash that it is named after.

    Files that match no pattern and are not in `extra` are never read, so they are not checked.
    """
    read = [path for path in folder.iterdir() if any(path.match(pattern) for pattern in patterns)]
    for path in sorted(path for path in (*read, *(folder / name for name in extra)) if path.is_symlink()):
        blob = path.resolve()
        if not blob.is_file():
            raise ModelError(f"{path} is missing from the hub's cache: remove {folder} and load the model again")
        hash_of = HASHES.get(len(blob.name))
        if hash_of and hash_of(blob) != blob.name:
            raise ModelError(f"{path} is damaged in the hub's cache ({blob}): remove that file and load it again")
