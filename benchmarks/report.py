"""Runs every benchmark, prints a table of all figures, and writes them to out/benchmarks.json.

docs/scripts/performance.py makes docs/performance.md from that file. Exits with code 1 if a benchmark failed.

    python benchmarks/report.py [--quick]
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from paired import options

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "out" / "benchmarks.json"
OTHERS = ("gpu", "pipeline_costs", "report")  # the first needs a GPU, the others measure nothing
COLUMNS = (("ours", 12), ("peer", 12), ("ratio", 7), ("aim", 6), ("met", 5), ("ours_gib", 9), ("peer_gib", 9))


def machine() -> str:
    """Returns cores, processor and torch version in words."""
    processor, extensions = platform.processor() or platform.machine(), ""
    if (path := Path("/proc/cpuinfo")).exists():
        fields = dict(line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line)
        values = {name: value.strip("\t: ") for name, value in fields.items()}
        processor = values.get("model name", processor)
        found = sorted({"avx512_bf16", "amx_bf16"} & set(values.get("flags", "").split()))
        extensions = f" with {' and '.join(found)}" if found else " without bf16 instructions"
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of an {processor}{extensions}, torch {metadata.version('torch')}"


def scripts() -> list[str]:
    """Returns the names of all benchmarks: the scripts in this folder except OTHERS."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))}
    return [name for name, text in sources.items() if "if __name__ ==" in text and name not in OTHERS]


def run_script(name: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """Runs a benchmark, shows its output, and returns the object in its last line; None if it failed."""
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments]
    print(f"== {name}", flush=True)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if not line.startswith("{"):
                print(line, end="", flush=True)
    return json.loads(last) if process.returncode == 0 else None


def table(results: Sequence[dict[str, Any]]) -> str:
    """Returns a line for each comparison of each benchmark."""
    lines = ["".join(f"{name:>{width}}" for name, width in COLUMNS) + "  benchmark"]
    for found in results:
        for entry in (found, *found.get("others", ())):
            cells = "".join(f"{_cell(entry.get(name)):>{width}}" for name, width in COLUMNS)
            lines.append(f"{cells}  {found['name']}: {entry['shape']}, {entry['unit']}{_peer(entry)}")
    return "\n".join(lines)


def _peer(entry: dict[str, Any]) -> str:
    return f", against {entry['peer_name']}" if entry.get("peer_name") else ""


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"  # noqa: PLR2004
        case _:
            return str(value)


def main() -> None:
    """Runs all, writes the file and prints the table."""
    is_quick, _ = options(__doc__ or "")
    describe = ["git", "describe", "--always", "--dirty"]
    revision = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    facts = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "revision": revision.stdout.strip(),
        "load": round(os.getloadavg()[1], 1),
        "is_quick": is_quick,
    }
    results, failed = [], []
    for name in scripts():
        found = run_script(name, sys.argv[1:])
        if found is None:
            failed.append(name)
        else:
            results.append({"command": f"python benchmarks/{name}.py", **found})
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps({**facts, "results": results}, indent=1) + "\n", encoding="utf-8")
    print(f"\n{facts['machine']}, load {facts['load']} at the start{', quick' if is_quick else ''}\n{table(results)}")
    print(OUTPUT.relative_to(ROOT))
    if failed:
        sys.exit(f"error: these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
