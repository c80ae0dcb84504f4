"""Help as a user's shell gets it: without heavy imports, and quiet when the reader closes the pipe."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "COLUMNS": "100"}


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys, longmlm.cli\n"
        "sys.argv = ['longmlm', 'prepare', 'demo', '--help']\n"
        "try:\n    longmlm.cli.main()\n"
        "except SystemExit as stop:\n    print(*sys.modules, file=sys.stderr); sys.exit(stop.code)\n"
    )
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, check=False, env=ENVIRONMENT, capture_output=True, text=True)
    imported = set(process.stderr.split())
    assert process.returncode == 0
    assert "longmlm.settings.prepare" in imported
    assert not {"torch", "transformers", "datasets", "tokenizers", "numpy", "pyarrow"} & imported


def test_help_exits_quietly_when_its_reader_closes_the_pipe() -> None:
    command = [sys.executable, "-m", "longmlm", "pretrain", "--help"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == -signal.SIGPIPE
