"""Stand-ins for the programs of clusters: sbatch, srun and kubectl start what they should, accelerate records it."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Self

RECORDER = """#!/usr/bin/env python3
import json, os, sys
names = ("SRUN_CPUS_PER_TASK", "VIRTUAL_ENV")
line = {"argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]], **{name: os.environ.get(name) for name in names}}
print(json.dumps(line), file=open(os.environ["RECORD"], "a"))
"""
SRUN = """#!/usr/bin/env bash
python3 "$(dirname "$0")/recorder" "$@"
while [[ $1 == -* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@"; done
"""
SCONTROL = """#!/usr/bin/env bash
[[ "$*" == "show hostnames node[1-2]" ]] && printf 'node1\\nnode2\\n'
"""
SBATCH = """#!/usr/bin/env bash
export SLURM_JOB_ID=30001 SLURM_NNODES=2 SLURM_GPUS_ON_NODE=8 SLURM_CPUS_PER_TASK=64 SLURM_JOB_NODELIST='node[1-2]'
exec bash "$@"
"""
KUBECTL = """#!/usr/bin/env python3
import os, subprocess, sys
import yaml
assert sys.argv[1:2] + sys.argv[2:3] + sys.argv[4:5] == ["apply", "--filename", "--selector"], sys.argv
label, _, value = sys.argv[5].partition("=")
jobs = [one for one in yaml.safe_load_all(open(sys.argv[3])) if one["kind"] == "Job"]
for job in (job for job in jobs if job["metadata"]["labels"].get(label) == value):
    [container] = job["spec"]["template"]["spec"]["containers"]
    for index in range(job["spec"].get("completions", 1)):
        environment = {**os.environ, "JOB_COMPLETION_INDEX": str(index)}
        subprocess.run(container["command"], env=environment, check=True)
"""


@dataclass(frozen=True)
class StandIns:
    """A folder with the stand-ins, which go first on PATH, a virtual environment, and the record of calls."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """Writes the stand-ins."""
        (folder / "venv" / "bin").mkdir(parents=True)
        activate = f"export VIRTUAL_ENV={folder / 'venv'}\n"
        (folder / "venv" / "bin" / "activate").write_text(activate, encoding="utf-8")
        (folder / "fakes").mkdir()
        recorders = dict.fromkeys(("recorder", "accelerate", "longmlm", "ray"), RECORDER)
        scripts = {**recorders, "srun": SRUN, "scontrol": SCONTROL, "sbatch": SBATCH, "kubectl": KUBECTL}
        for name, script in scripts.items():
            (folder / "fakes" / name).write_text(script, encoding="utf-8")
            (folder / "fakes" / name).chmod(0o755)
        return cls(folder)

    def run(self, place: Path, command: Sequence[str], **variables: str) -> list[SimpleNamespace]:
        """Runs a command in a folder; returns what the stand-ins were called with, in order."""
        record = self.folder / "record.jsonl"
        path = f"{self.folder / 'fakes'}{os.pathsep}{os.environ['PATH']}"
        environment = {"HOME": str(self.folder), "PATH": path, "RECORD": str(record), "VENV": str(self.folder / "venv")}
        environment |= variables
        subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True, timeout=60)
        lines = record.read_text(encoding="utf-8").splitlines()
        record.unlink()
        return [SimpleNamespace(**json.loads(line)) for line in lines]
