"""Models by name: a local folder, or the files of one commit of a repository, each verified."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from huggingface_hub import get_cached_repo_tree
from huggingface_hub.constants import REPOCARD_NAME
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.utils.sha import git_hash

from longmlm.errors import ModelError, ModelNotFoundError
from longmlm.folders import MANIFEST, parse_json, read_manifest, sha256_of
from longmlm.hubs import huggingface
from longmlm.hubs.extra_files import LICENCES, TOKENIZER_FILES, check_links, extra_files, files_below, module_folders
from longmlm.settings.publishing import Target
from longmlm.settings.shipped import BUNDLED, PACKAGE

CONFIG = "config.json"
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


def snapshot_of(name: str, revision: str | None = None, with_weights: bool = True) -> HubSnapshot:
    """Returns a folder as it is, or the folder of a repository's files after downloading what is not in the cache.

    The revision is resolved to a commit once; if the hub does not answer, the cache is used. Every file of the
    repository that is read is in the folder. Raises ModelNotFoundError if there is no such folder, repository or
    revision, and ModelError if the hub fails, the disk is full or a file is damaged.
    """
    if is_folder(name):
        if revision is not None:
            raise ModelError(f"{name} is a folder, which has no revision {revision}: remove revision")
        check_links(Path(name))
        return HubSnapshot(Path(name), tuple(files_below(Path(name))))
    target = Target("hf", name, revision)
    return huggingface.retry_download(target, lambda: _download(target, with_weights))


def _download(target: Target, with_weights: bool) -> HubSnapshot:
    commit, note = huggingface.resolve(target)
    folder = huggingface.download(target, commit, SETTINGS, IGNORED)
    try:
        names = [file.path for file in get_cached_repo_tree(target.name, revision=commit)]
    except CachedRepoTreeNotFoundError:  # the hub does not answer, and an older client filled the cache
        names = files_below(folder)
    extra = [name for name in extra_files(names, module_folders(folder)) if "/" in name] if with_weights else []
    weights = weight_files(names) if with_weights else []
    if weights or extra:
        huggingface.download(target, commit, [*weights, *extra])
    check_links(folder)
    _check_unaltered(folder, [*SETTINGS, *weights], extra)
    return HubSnapshot(folder, tuple(names), commit, (note,) if note else ())


def commit_of(name: str, revision: str | None = None) -> str:
    """Returns the commit of a repository's branch, tag or commit; raises ModelNotFoundError if there is none."""
    target = Target("hf", name, revision)
    return huggingface.retry_download(target, lambda: huggingface.resolve(target))[0]


def check_model(name: str, revision: str | None = None, needs_weights: bool = True) -> None:
    """Raises the error that loading would raise if there is no such model, without downloading or loading it."""
    if is_folder(name):
        check_links(Path(name))
        check_has_config(name, Path(name))
        if needs_weights:
            check_has_weights(name, Path(name))
        return
    commit_of(name, revision)


def config_of_model(name: str, revision: str | None = None, needs_weights: bool = True) -> SimpleNamespace | None:
    """Checks a model as `check_model` does, and returns the keys of its config.json as attributes.

    Returns None if the config is damaged or names code: only loading shows what it means. For a repository, downloads
    config.json.
    """
    if is_folder(name):
        check_model(name, needs_weights=needs_weights)
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
    """Returns a file of the model in a folder or, downloaded, of a repository; None if the model does not have it."""
    path = Path(name) / file
    if is_folder(name):
        return path if path.is_file() else None
    target = Target("hf", name, revision)
    return huggingface.retry_download(
        target, lambda: huggingface.download_file(target, huggingface.resolve(target)[0], file)
    )


def model_card_of(name: str, commit: str | None) -> str:
    """Returns the model card in a folder or, at a commit, of a repository; empty if there is none.

    Raises ModelNotFoundError if the repository or the commit is gone, and ModelError if the hub fails or the card is a
    link that leaves the folder.
    """
    path = Path(name) / REPOCARD_NAME
    if path.parent.is_dir():
        check_links(path.parent)
    if commit and not path.is_file():
        target = Target("hf", name, commit)
        path = huggingface.retry_download(target, lambda: huggingface.download_file(target, commit, path.name)) or path
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def is_folder(name: str) -> bool:
    """Returns whether a model is a local folder; raises ModelNotFoundError for a path that no repository can have."""
    path = Path(name)
    if path.is_dir():
        return True
    if path.parent == PACKAGE / "bundled":
        models = ", ".join(sorted(f"{BUNDLED}{file.parent.name}" for file in path.parent.glob(f"*/{CONFIG}")))
        raise ModelNotFoundError(f"{BUNDLED}{path.name}: no such bundled model: choose {models}")
    if name.startswith(PATH_PREFIXES):
        raise ModelNotFoundError(f"{name}: no such folder: check its path")
    if "://" not in name and name.partition("@")[0].count("/") > 1:
        raise ModelNotFoundError(f"{name}: no such folder: check its path, or run the stage that writes it first")
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
        content = parse_json(Path(config_file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ModelError(f"{config_file} does not describe a model: {reason}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{config_file} does not describe a model: it holds no JSON object")
    return content


def weights_sha256(folder: str | Path) -> str:
    """Returns one SHA-256 of all weight files in a local folder; raises ModelError if there are none."""
    return hashlib.sha256("".join(sha256_of(path) for path in local_weights(folder)).encode()).hexdigest()


def listed_weights_sha256(folder: Path) -> str | None:
    """Returns weights_sha256, without reading the weights if a manifest lists their hashes; None without weights."""
    if not (folder / MANIFEST).is_file():
        return weights_sha256(folder) if weight_paths(folder) else None
    files = read_manifest(folder)["files"]
    return hashlib.sha256("".join(files[name]["sha256"] for name in weight_files(list(files))).encode()).hexdigest()


def model_sha256(folder: str | Path) -> str:
    """Returns one SHA-256 of weights, architecture and tokenizer in a local folder; ModelError without weights."""
    hashes = _hashes(Path(folder), (CONFIG, "longmlm.json", "tokenizer*", *TOKENIZER_FILES))
    return hashlib.sha256("\n".join([weights_sha256(folder), *hashes]).encode()).hexdigest()


def _hashes(folder: Path, patterns: Sequence[str]) -> list[str]:
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return [f"{path.name} {sha256_of(path)}" for path in sorted(files)]


def tokenizer_sha256(name: str) -> str | None:
    """Returns one SHA-256 of the tokenizer's files in a local folder; None if there are none, as for one on a hub."""
    hashes = _hashes(Path(name), ("tokenizer*", *TOKENIZER_FILES))
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest() if hashes else None


def local_model_sha256(name: str | None) -> str:
    """Returns model_sha256 of a model in a folder; empty for a run, for one on a hub, and without weights."""
    folder = Path(name or "")
    if name is None or not (folder / CONFIG).is_file() or not (weights := weight_paths(folder)):
        return ""
    return _model_sha256(name, tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in weights))


@functools.cache
def _model_sha256(folder: str, _times_and_sizes: tuple[tuple[int, int], ...]) -> str:
    return model_sha256(folder)


def local_weights(folder: str | Path) -> list[Path]:
    """Returns the weight files in a local folder; raises ModelError if there are none."""
    if not Path(folder).exists():
        raise ModelNotFoundError(f"{folder}: no such folder: run longmlm pretrain first, or check its path")
    if not (paths := weight_paths(Path(folder))):
        raise ModelError(
            f"{folder} is neither a run with checkpoints nor a folder with model.safetensors or pytorch_model.bin"
        )
    return paths


def weight_paths(folder: Path) -> list[Path]:
    """Returns the weight files in a local folder; none if there is no such folder."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [folder / name for name in weight_files(names)]


def weight_files(names: Sequence[str]) -> list[str]:
    """Returns which of a folder's files transformers reads weights from: safetensors before pytorch_model.bin.

    A single file is preferred to shards. Variants such as model.fp16.safetensors are not read.
    """
    top = [name for name in names if "/" not in name]
    for single, suffix in (("model.safetensors", ".safetensors"), ("pytorch_model.bin", ".bin")):
        stem = single.removesuffix(suffix)
        candidates = sorted(name for name in top if name.startswith(stem) and name.endswith(suffix))
        if shards := [name for name in candidates if name == single or not name.startswith(f"{stem}.")]:
            return [single] if single in shards else shards
    return []


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
