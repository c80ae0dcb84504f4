"""Settings, tokenizer and sources to all that the rows depend on: sources by the hash of their files, or a commit."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from longmlm.data.files import files_of
from longmlm.folders import MANIFEST, partial_of, sha256_of
from longmlm.hubs.datasets import commit_of, is_local, source_files
from longmlm.settings.prepare import PrepareConfig, Source

PLAN = "plan.json"
ASKED = ("dataset", "subset", "split", "revision")


def previous_plan(output: Path) -> dict[str, Any]:
    """Returns the plan of the rows in `output`, or of those that were begun there, and nothing where there is none."""
    for path, key in ((output / MANIFEST, "plan"), (partial_of(output) / PLAN, None)):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return content[key] if key else content
        except (OSError, ValueError, KeyError):
            continue
    return {}


def pinned(sources: Sequence[Source], earlier: dict[str, Any]) -> tuple[Source, ...]:
    """Returns the sources, those of the hub at a commit: the one of the earlier plan, else what the revision means."""
    return tuple(
        replace(source, revision=_commit(source, earlier)) if source.dataset and not is_local(source) else source
        for source in sources
    )


def _commit(source: Source, earlier: dict[str, Any]) -> str:
    known = (each for each in earlier.get("sources", ()) if all(each.get(key) == getattr(source, key) for key in ASKED))
    return next((each["commit"] for each in known if "commit" in each), None) or commit_of(
        cast(str, source.dataset), source.revision
    )


def plan_of(config: PrepareConfig, sources: Sequence[Source], tokenizer_fingerprint: str) -> dict[str, Any]:
    """Returns all that the rows depend on; `sources` are those of `config`, pinned. Raises DataError for bad ones."""
    settings = {key: value for key, value in asdict(config.recipe).items() if key != "sources"}
    described = [_described(asked, found) for asked, found in zip(config.recipe.sources, sources, strict=True)]
    return json.loads(
        json.dumps({"settings": settings, "sources": described, "tokenizer_fingerprint": tokenizer_fingerprint})
    )


def without_paths(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plan, of which local folders and files keep the last part of their path."""
    settings = {**plan["settings"], "tokenizer": Path(plan["settings"]["tokenizer"]).name}
    return {**plan, "settings": settings, "sources": [_without_places(source) for source in plan["sources"]]}


def _without_places(source: Mapping[str, Any]) -> dict[str, Any]:
    if "files" not in source:
        return dict(source)
    named = {"dataset": Path(source["dataset"]).name} if "dataset" in source else {}
    files = [{**file, "path": Path(file["path"]).name} for file in source["files"]]
    return {**source, **named, "files": files}


def _described(asked: Source, found: Source) -> dict[str, Any]:
    present = {key: value for key, value in asdict(asked).items() if value is not None and key != "files"}
    if asked.dataset and not is_local(asked):
        return {**present, "commit": found.revision}
    paths = source_files(asked) if asked.dataset else files_of(asked.files)
    return {**present, "files": [{"path": str(path), "sha256": sha256_of(path)} for path in paths]}
