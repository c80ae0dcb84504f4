"""Data sets of the Hugging Face hub, or in a folder, to files on this machine."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from longmlm.errors import DataError
from longmlm.settings.prepare import Source

COMMIT = re.compile(r"[0-9a-f]{40}")
ADDRESS_QUERY = re.compile(r"\?[^\s?=]+=[^\s)]*")  # may hold what an address is signed with
SAVED = ("state.json", "dataset_dict.json")  # what Dataset.save_to_disk and DatasetDict.save_to_disk leave


def is_local(source: Source) -> bool:
    """Tells whether the data set is a folder on this machine."""
    return Path(cast(str, source.dataset)).is_dir()


def commit_of(name: str, revision: str | None) -> str:
    """Returns the commit that the data set's revision means now; raises DataError when there is none to be had."""
    if revision and COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    with _one_line(name, revision):
        try:
            return cast(str, HfApi().dataset_info(name, revision=revision).sha)
        except HfHubHTTPError:
            raise
        except Exception as error:  # of the client below, which is no dependency of ours
            raise ConnectionError(_said(error)) from error


def downloaded(name: str, commit: str, patterns: Sequence[str]) -> Path:
    """Returns the folder of the files of a data set that match, downloaded where they are not here yet.

    Raises DataError when they cannot be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, logging

    logging.set_verbosity_error()  # its warnings hold signed addresses
    if not sys.stderr.isatty():
        disable_progress_bars()
    with _one_line(name, commit):
        return Path(snapshot_download(name, repo_type="dataset", revision=commit, allow_patterns=list(patterns)))


def source_files(source: Source) -> list[Path]:
    """Returns the files of a data set in a folder that its split is made of."""
    with _one_line(cast(str, source.dataset), source.revision):
        if _is_saved(source):
            return arrow_files(source)
        data_files = _builder(source).config.data_files
        return [Path(path) for path in data_files[source.split]]


def arrow_files(source: Source) -> list[Path]:
    """Returns the memory-mappable files of the source's split, downloaded and converted where they are not yet.

    Code that a data set brings is never run. Raises DataError for a data set, revision, subset or split that there
    is not, and when the hub cannot be reached.
    """
    from datasets import DatasetDict, load_from_disk

    with _one_line(cast(str, source.dataset), source.revision):
        if _is_saved(source):
            saved: Any = load_from_disk(cast(str, source.dataset))
            splits = saved if isinstance(saved, DatasetDict) else {str(saved.split or source.split): saved}
            _check_split(source, list(splits))
            table = splits[cast(str, source.split)]
        else:
            builder = _builder(source)
            builder.download_and_prepare()
            table = builder.as_dataset(source.split)
        return [Path(file["filename"]) for file in table.cache_files]


def _builder(source: Source) -> Any:
    from datasets import load_dataset_builder

    revision = None if is_local(source) else source.revision
    builder: Any = load_dataset_builder(cast(str, source.dataset), source.subset, revision=revision)
    if revision and builder.hash != revision:
        raise DataError(
            f"{source.dataset}: commit {revision} cannot be fetched now, and the local cache holds another one: "
            "check the network, or name the commit that you have"
        )
    _check_split(source, list(builder.config.data_files or builder.info.splits or ()))
    return builder


def _is_saved(source: Source) -> bool:
    return any((Path(cast(str, source.dataset)) / name).is_file() for name in SAVED)


def _check_split(source: Source, there: Sequence[object]) -> None:
    if source.split not in there:
        raise DataError(f"{source.dataset} has no split {source.split!r}; there are {', '.join(map(str, there))}")


@contextmanager
def _one_line(name: str, revision: str | None) -> Iterator[None]:
    """Turns what the clients raise, types of their own and of the libraries below, into one line with the remedy."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except DataError:
        raise
    except RevisionNotFoundError as error:
        raise DataError(f"{name} has no revision {revision!r}: name a branch, a tag or a commit") from error
    except (RepositoryNotFoundError, DatasetNotFoundError) as error:
        raise DataError(
            f"{name}: no such folder nor data set of the hub that you may read ({_said(error)}): check its name, and "
            "that HF_TOKEN is valid and may read it"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        remedy = (
            "set HF_TOKEN to a token that may read it" if status in (401, 403) else "give the same command again later"
        )
        raise DataError(f"{name}: the hub answers {status}: {remedy}; what was downloaded whole is kept") from error
    except (ConnectionError, LocalEntryNotFoundError) as error:
        raise DataError(
            f"{name}: the hub cannot be reached ({_said(error)}): check the network, or name a commit that is here"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataError(f"{name} cannot be read as a data set: {_said(error)}") from error


def _said(error: Exception) -> str:
    from huggingface_hub import get_token

    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    said = ADDRESS_QUERY.sub("", said)
    return said.replace(token, "***") if (token := get_token()) else said
