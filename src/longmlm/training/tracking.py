"""Metrics to metrics.jsonl, the record of a run."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


def append(run: Path, line: dict[str, Any]) -> None:
    """Adds one line."""
    with (run / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(run: Path) -> list[dict[str, Any]]:
    """Returns the lines written so far; a line that a crash tore is left out."""
    path = run / METRICS
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        with suppress(ValueError):
            found += [json.loads(line)] if line.endswith("\n") else []
    return found


def forget_after(run: Path, step: int) -> None:
    """Drops the lines beyond `step`, which a resumed run is going to write again."""
    kept = [line for line in read(run) if line["step"] <= step]
    aside = run / f"{METRICS}.partial"
    aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    aside.replace(run / METRICS)
