"""The files of a model: its weights, hashes that identify it, and the files that are carried over unchanged.

Carried over are licences, extra files of the tokenizer and modules of sentence-transformers.

A sentence-transformers model names the folders of its modules, such as 1_Pooling, in modules.json. A tokenizer may have
vocab.txt, special_tokens_map.json or additional_chat_templates/tool.jinja next to its tokenizer.json.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from longmlm.errors import ModelError, ModelNotFoundError
from longmlm.folders import MANIFEST, parse_json, read_manifest, sha256_of
from longmlm.temporary import leads_out

CONFIG = "config.json"
MODULES = "modules.json"
SENTENCE_CONFIGS = "sentence_*_config.json"  # sentence_bert_config.json; older ones are named after other families
SENTENCE_FILES = (MODULES, SENTENCE_CONFIGS, "config_sentence_transformers.json")
VOCABULARY_FILES = ("vocab.*", "merges.txt", "dict.txt", "*.codes", "*.model", "added_tokens.json")
TOKENIZER_FILES = (*VOCABULARY_FILES, "special_tokens_map.json", "chat_template.*")
LICENCES = ("LICENSE*", "NOTICE*")
READ_ENDINGS = (".json", ".txt", ".model", ".codes", ".jinja", ".safetensors", ".bin")
TEMPLATES = "additional_chat_templates"
MODULE_WEIGHTS = ("pytorch_model.bin", "model.safetensors")  # if both exist, the second is read
MODULE_FILES = ("*.json", "*.txt", *MODULE_WEIGHTS)
TOKENIZER_CONFIG = "tokenizer_config.json"
REWRITTEN_FILES = ("config.json", "tokenizer.json", TOKENIZER_CONFIG, "README.md")
KNOWN_MODULES = "sentence_transformers."  # other modules are code of the repository, which is never carried over
VOCABULARY_KEYS = ("vocab", "merges")  # of tokenizer_config.json; transformers opens a text there as a path


def module_folders(folder: Path) -> tuple[str, ...] | None:
    """Returns the folders of a sentence-transformers model's modules; None if a module is code of the repository.

    There are none without a modules.json. Raises ModelError if that is damaged or names a folder outside the model's.
    """
    path = folder / MODULES
    if not path.is_file():
        return ()
    try:
        modules = [(str(module["path"]), str(module["type"])) for module in parse_json(path.read_text("utf-8"))]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged: it does not list a path and a type for each module") from error
    names = tuple(name for name, _ in modules if name)
    if outside := [name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]:
        raise ModelError(f"{path} names a folder outside its own, {outside[0]}: do not use this model")
    return names if all(kind.startswith(KNOWN_MODULES) for _, kind in modules) else None


def check_links(folder: Path) -> None:
    """Raises ModelError if a file of the model that may be read is outside its folder, or no regular file.

    What is read may be published: a link, or a path in tokenizer_config.json, could name any file of the user.
    """
    _check_regular(folder)
    _check_inside(folder, [path for path in folder.iterdir() if not path.is_dir()])
    for part in (folder / name for name in (*(module_folders(folder) or ()), TEMPLATES)):
        _check_inside(folder, [part])
        _check_inside(folder, part.iterdir() if part.is_dir() else ())
    try:
        content = parse_json((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return  # whoever reads it says what is wrong with it
    for key in VOCABULARY_KEYS if isinstance(content, dict) else ():
        if isinstance(content.get(key), str):
            raise ModelError(f"{folder / TOKENIZER_CONFIG} names a file as its {key}: do not use this model")


def _check_regular(folder: Path) -> None:
    """Raises ModelError if a folder, a pipe or a link to nothing has the name of a file that is read."""
    is_cache = folder.resolve().parent.name == "snapshots"  # in which files may be missing that are not read
    for path in folder.iterdir():
        if path.name.endswith(READ_ENDINGS) and not path.is_file() and not (is_cache and not path.exists()):
            kind = "a folder" if path.is_dir() else "a pipe or a device" if path.exists() else "a link to nothing"
            raise ModelError(f"{path} is {kind}, not a file: put the file in its place, or remove it")


def _check_inside(folder: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.name.startswith(".") and leads_out(path, folder):
            raise ModelError(
                f"{path} is a link that leaves {folder}, so what it links to could be published: replace the link by a "
                "copy of the file, or remove it"
            )


def extra_files(names: Collection[str], modules: Collection[str] | None) -> list[str]:
    """Returns the paths, among the `names` of a model's files, of those that are carried over.

    `modules` is what `module_folders` returns. Other weights, code and pictures are not carried over.
    """
    folders = {"": (*(() if modules is None else SENTENCE_FILES), *TOKENIZER_FILES, *LICENCES), TEMPLATES: ("*.jinja",)}
    folders |= dict.fromkeys((name.rstrip("/") for name in modules or ()), MODULE_FILES)
    split = ((name, *name.rpartition("/")[::2]) for name in names)
    return sorted(
        name for name, parent, last in split if any(fnmatch(last, pattern) for pattern in folders.get(parent, ()))
    )


def files_below(folder: Path) -> list[str]:
    """Returns the paths of all files in a folder, relative to it; hidden files and folders are left out."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))


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
    return model_sha256(folder) if name is not None and (folder / CONFIG).is_file() and weight_paths(folder) else ""


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
