"""Which files of a model are carried over unchanged: licences, tokenizer extras, modules of sentence-transformers.

A sentence-transformers model names the folders of its modules, such as 1_Pooling, in modules.json. A tokenizer may have
vocab.txt, special_tokens_map.json or additional_chat_templates/tool.jinja next to its tokenizer.json.
"""

import json
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from longmlm.errors import ModelError

MODULES = "modules.json"
SENTENCE_CONFIGS = "sentence_*_config.json"  # sentence_bert_config.json; older ones are named after other families
SENTENCE_FILES = (MODULES, SENTENCE_CONFIGS, "config_sentence_transformers.json")
VOCABULARY_FILES = (
    *("vocab.*", "merges.txt", "dict.txt", "*.codes", "*.model"),
    *("special_tokens_map.json", "added_tokens.json"),
)
TOKENIZER_FILES = (*VOCABULARY_FILES, "chat_template.*")
LICENCES = ("LICENSE*", "NOTICE*")
TEMPLATES = "additional_chat_templates"
MODULE_WEIGHTS = ("pytorch_model.bin", "model.safetensors")  # if both exist, the second is read
MODULE_FILES = ("*.json", "*.txt", *MODULE_WEIGHTS)
REWRITTEN_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "README.md")
KNOWN_MODULES = "sentence_transformers."  # other modules are code of the repository, which is never carried over


def module_folders(folder: Path) -> tuple[str, ...] | None:
    """Returns the folders of a sentence-transformers model's modules; None if a module is code of the repository.

    There are none without a modules.json. Raises ModelError if that is damaged or names a folder outside the model's.
    """
    path = folder / MODULES
    if not path.is_file():
        return ()
    try:
        modules = [(str(module["path"]), str(module["type"])) for module in json.loads(path.read_text("utf-8"))]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged: it does not list a path and a type for each module") from error
    names = tuple(name for name, _ in modules if name)
    if outside := [name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]:
        raise ModelError(f"{path} names a folder outside its own, {outside[0]}: do not use this model")
    return names if all(kind.startswith(KNOWN_MODULES) for _, kind in modules) else None


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
