"""Settings import the standard library and other settings only; import-linter cannot express the first."""

import ast
import sys
from pathlib import Path


def test_settings_import_only_settings(root: Path, modules: list[Path]) -> None:
    settings = [path for path in modules if path.match("src/longmlm/settings/*.py")]
    assert len(settings) >= 5
    strangers = {
        f"{path}: {name}"
        for path in settings
        for name in _imported(root / path)
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("longmlm.settings.")
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
