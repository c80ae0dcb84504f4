"""Datasets by name: the files of one commit of a repository, or of a local folder."""

import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import constants

from longmlm.errors import AbsentError, DataError, ModelNotFoundError
from longmlm.hubs import huggingface
from longmlm.hubs.huggingface import retry_download
from longmlm.hubs.models import is_folder
from longmlm.hubs.transfers import causes, redact
from longmlm.settings.prepare import COMPRESSED, Source
from longmlm.settings.publishing import Target, parse_target

CSV_OPTIONS = {"keep_default_na": False}
READ = {"csv": {".csv", ".tsv"}, "json": {".json", ".jsonl", ".ndjson"}, "parquet": {".parquet"}}  # by data/records.py
SAVED = ("state.json", "dataset_dict.json")  # written by Dataset.save_to_disk and DatasetDict.save_to_disk
NOT_CACHED = "Couldn't find cache"  # what `datasets` says about these options if the hub cannot be reached


def is_local(source: Source) -> bool:
    """Returns whether the dataset is a local folder."""
    return Path(str(source.dataset)).is_dir()


def check_dataset(name: str, revision: str | None) -> None:
    """Raises AbsentError for the path of a folder that is not there, as `is_folder` does."""
    try:
        is_folder(name, revision)
    except ModelNotFoundError as error:
        raise AbsentError(str(error)) from None


def commit_of(name: str, revision: str | None) -> str:
    """Returns the commit to which a dataset's revision resolves now; raises DataError if it is unknown."""
    check_dataset(name, revision)
    target = Target("hf", name, revision, "dataset")
    commit, note = retry_download(target, lambda: huggingface.resolve(target))
    if note:
        print(note, file=sys.stderr)
    return commit


def download(name: str, commit: str, patterns: Sequence[str]) -> Path:
    """Returns the folder with a dataset's files that match a pattern; raises DataError if a download fails."""
    target = Target("hf", name, commit, "dataset")
    return retry_download(target, lambda: huggingface.download(target, commit, patterns))


def rows_on_hub(name: str) -> Target | None:
    """Returns the dataset that hf:OWNER/NAME[@REVISION] names; None for a folder. Raises DataError for other names."""
    if not name.startswith("hf:"):
        return None
    try:
        return parse_target(name, "dataset")
    except ValueError as error:
        raise DataError(f"rows: {error}") from None


def source_files(source: Source) -> list[Path]:
    """Returns the files of a split of a dataset in a local folder."""
    if _is_saved(source):
        return arrow_files(source)
    return [Path(name) for name in _data_files(retry_download(_target(source), lambda: _builder(source)), source)]


def shards_of(source: Source, may_convert: bool = True) -> list[str]:
    """Returns the files to read a split from: its own; on the hub, their hf:// URLs, without downloading them.

    Formats that only `datasets` reads, such as WebDataset, and files that it reads with options from their card, are
    downloaded and converted as a whole. Without `may_convert`, these have no files, and offline no dataset on the hub
    has. Raises as `arrow_files` does, and for a converted copy in the cache where the files themselves are out of
    reach: its slices, and so the rows, would be others.
    """
    if constants.HF_HUB_OFFLINE and not (may_convert or is_local(source)):
        return []
    if not _is_saved(source):
        builder = retry_download(_target(source), lambda: _builder(source))
        found = _data_files(builder, source)
        if not found and may_convert and builder.info.builder_name in READ:
            raise DataError(
                f"{source.dataset}: its files cannot be read from the hub now, and the converted copy in the cache "
                "would give other rows: check the network and HF_HUB_OFFLINE, or name a folder that hf download "
                "--repo-type dataset made"
            )
        plain = (re.sub(rf"({'|'.join(COMPRESSED)})$", "", name) for name in found)
        endings = {PurePosixPath(name).suffix for name in plain}
        if found and endings <= READ.get(builder.name, set()) and not _has_options(builder, endings):
            return found
    return [str(path) for path in arrow_files(source)] if may_convert else []


def _data_files(builder: Any, source: Source) -> list[str]:
    return [str(name) for name in (builder.config.data_files or {}).get(source.split, ())]


def _has_options(builder: Any, endings: set[str]) -> bool:
    """Returns whether the dataset's card sets options of the reader, such as the names of columns."""
    from datasets import BuilderConfig

    config = builder.config
    options = CSV_OPTIONS | {"sep": "\t" if endings == {".tsv"} else ","} if builder.name == "csv" else {}
    plain, common = type(config)(**options), {item.name for item in fields(BuilderConfig)}
    own = {item.name for item in fields(config)} - common - {"features"}
    return any(getattr(config, name) != getattr(plain, name) for name in own)


def arrow_files(source: Source) -> list[Path]:
    """Returns the memory-mappable files of the source's split, after downloading and converting it if necessary.

    Code in a dataset is never run. Raises DataError if there is no such dataset, revision, subset or split, or if
    the hub cannot be reached.
    """
    return retry_download(_target(source), lambda: _arrow_files(source))


def _arrow_files(source: Source) -> list[Path]:
    from datasets import DatasetDict, load_from_disk
    from datasets.exceptions import DatasetGenerationError

    if _is_saved(source):
        saved: Any = load_from_disk(str(source.dataset))
        splits = saved if isinstance(saved, DatasetDict) else {str(saved.split or source.split): saved}
        _check_split(source, list(splits))
        table = splits[str(source.split)]
    else:
        builder = _builder(source)
        try:
            builder.download_and_prepare()
        except DatasetGenerationError as error:
            if not is_local(source):
                raise
            reason = redact(str([*causes(error)][-1]))
            raise DataError(
                f"{source.dataset}: its files cannot be converted ({reason}): correct them, or name them in `files`, "
                "where only the records that cannot be read are set aside"
            ) from error
        table = builder.as_dataset(source.split)
    return [Path(file["filename"]) for file in table.cache_files]


def _builder(source: Source) -> Any:
    revision = None if is_local(source) else source.revision
    builder = _loaded(source, revision)
    if revision and builder.hash != revision:
        raise DataError(
            f"{source.dataset}: commit {revision} cannot be downloaded now, and the local cache holds a different one: "
            "check the network, or name the commit in the cache"
        )
    _check_split(source, list(builder.config.data_files or builder.info.splits or ()))
    return builder


def _loaded(source: Source, revision: str | None) -> Any:
    """Returns the builder of a dataset; for .csv files, it keeps texts such as "null" and "NA", which pandas drops."""
    check_dataset(str(source.dataset), revision)
    from datasets import load_dataset_builder

    load = partial(load_dataset_builder, str(source.dataset), source.subset, revision=revision)
    try:
        builder: Any = load()
    except ValueError as error:
        if not str(error).startswith(NOT_CACHED):
            raise
        return load(**CSV_OPTIONS)
    return load(**CSV_OPTIONS) if builder.name == "csv" else builder


def _is_saved(source: Source) -> bool:
    return any((Path(str(source.dataset)) / name).is_file() for name in SAVED)


def _check_split(source: Source, splits: Sequence[object]) -> None:
    if source.split not in splits:
        raise DataError(f"{source.dataset} has no split {source.split!r}: name one of {', '.join(map(str, splits))}")


def _target(source: Source) -> Target:
    return Target("storage" if is_local(source) else "hf", str(source.dataset), source.revision, "dataset")
