"""The cache of models on ModelScope: the files of each commit, and lists of them.

ModelScope's own client caches files by branch, and replaces them when the branch moves. longmlm keeps the files of each
commit in a separate folder. It also keeps the latest answer of the site, in case the site does not answer later:

    MODELSCOPE_CACHE/models/OWNER--NAME/
        snapshots/COMMIT/config.json, ...
        longmlm/COMMIT.json                 the files of that commit, each with SHA-256 and bytes
        longmlm/master.json                 the same for the commit of the branch master at the latest lookup
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import quote

from longmlm.folders import sha256_of, write_json
from longmlm.hubs.transfers import Cause, TransferError
from longmlm.settings.publishing import COMMIT, Target

SHORT_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at a commit: SHA-256 (None if the site has none) and size in bytes, by path."""

    commit: str
    files: dict[str, tuple[str | None, int]]

    @classmethod
    def of(cls, answer: Mapping[str, Any], revision: str) -> Self:
        """Returns the files in the site's answer; raises TransferError for an answer that cannot be used."""
        try:
            entries = {entry["Path"]: entry for entry in answer["Data"]["Files"] if entry["Type"] != "tree"}
            files = {path: ((one.get("Sha256") or "").lower() or None, one["Size"]) for path, one in entries.items()}
            commit = _commit_in(answer["Data"], revision)
        except (KeyError, TypeError, AttributeError) as error:
            raise TransferError(Cause.UNUSABLE, "its site does not list its files") from error
        if outside := [path for path in map(PurePosixPath, files) if path.is_absolute() or ".." in path.parts]:
            raise TransferError(Cause.UNUSABLE, f"it names a file outside its folder, {outside[0]}")
        if SHORT_COMMIT.fullmatch(commit) is None:
            raise TransferError(Cause.UNUSABLE, "its site does not tell the commit")
        return cls(commit, files)

    def is_intact(self, path: str, folder: Path) -> bool:
        """Returns whether the folder holds a file with the right SHA-256."""
        sha256, _ = self.files[path]
        return (folder / path).is_file() and sha256 in (None, sha256_of(folder / path))


def _commit_in(data: Mapping[str, Any], revision: str) -> str:
    """Returns the commit of a listing, even if the site gives only its first digits.

    Each file has the commit that changed it last, and one of these commits begins with the digits.
    """
    latest = data.get("LatestCommitter") or {}
    digits = str(latest.get("Id") or latest.get("ShortId") or "")
    known = [digits, revision, *(str(entry.get("Revision")) for entry in data["Files"])]
    return next((one for one in known if COMMIT.fullmatch(one) and digits and one.startswith(digits)), digits)


def cache_folder(target: Target) -> Path:
    """Returns the folder of a repository in the cache of ModelScope's client."""
    cache = Path(os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser()
    return cache / "models" / target.name.replace("/", "--")


def snapshot_folder(target: Target, commit: str) -> Path:
    """Returns the folder in the cache for the files of a commit."""
    return cache_folder(target) / "snapshots" / commit


def cached_listing(target: Target, revision: str) -> Listing | None:
    """Returns the listing of a branch, tag or commit at the latest lookup; None if it was never looked up."""
    try:
        content = json.loads(_listing_file(target, revision).read_text(encoding="utf-8"))
        return Listing(content["commit"], {path: (sha256, size) for path, (sha256, size) in content["files"].items()})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def store_listing(target: Target, revision: str, listing: Listing) -> None:
    """Stores the listing for its commit, and for the revision that was resolved to that commit."""
    for name in {listing.commit, revision}:
        file = _listing_file(target, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"commit": listing.commit, "files": listing.files})


def _listing_file(target: Target, revision: str) -> Path:
    return cache_folder(target) / "longmlm" / f"{quote(revision, safe='')}.json"
