"""What import-linter cannot express: settings import annotated-types alone; how many modules stand behind others."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

BEHIND = {"longmlm.batches.masking": 2, "longmlm.stages.pretrain": 68}  # these numbers may only fall
COUNT = """
import sys, importlib
importlib.import_module(sys.argv[1])
packages = {name for name, module in sys.modules.items() if hasattr(module, "__path__")}
print(len({name for name in sys.modules if name.startswith("longmlm.")} - packages - {sys.argv[1]}))
"""


def test_settings_import_only_settings(root: Path, modules: list[Path]) -> None:
    settings = [path for path in modules if path.match("src/longmlm/settings/*.py")]
    assert len(settings) >= 5
    strangers = {
        f"{path}: {name}"
        for path in settings
        for name in _imported(root / path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "annotated_types"}
        if not name.startswith("longmlm.settings.")
    }
    assert strangers == set()


def _imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names


@pytest.mark.parametrize("module", BEHIND)
def test_a_module_has_few_modules_behind_it(module: str) -> None:
    command = [sys.executable, "-c", COUNT, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= BEHIND[module]
