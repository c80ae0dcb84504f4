"""The limits on file sizes, the names of modules, docstrings, the paths in ARCHITECTURE.md, and those in no file."""

import ast
import re
from pathlib import Path

FORBIDDEN_NAMES = {"util", "utils", "common", "helper", "helpers", "misc"}
TOP_FOLDERS = (".ci", "benchmarks", "configs", "deploy", "docker", "docs", "examples", "pipelines", "src", "tests")


def test_no_file_is_long(root: Path, modules: list[Path]) -> None:
    lengths = {str(path): len((root / path).read_text().splitlines()) for path in modules}
    assert max(lengths.values()) > 100
    assert {path: length for path, length in lengths.items() if length > 300} == {}


def test_no_comment_silences_a_limit(root: Path, modules: list[Path]) -> None:
    pattern = re.compile(r"#\s*(ruff:\s*)?[n]oqa(?!: *[A-Z]+\d)|[n]oqa:.*(PLR0913|PLR0915|C901)")
    assert [str(path) for path in modules if pattern.search((root / path).read_text())] == []


def test_no_module_is_a_catch_all(modules: list[Path]) -> None:
    assert [path for path in modules if FORBIDDEN_NAMES & {*path.parts, path.stem}] == []


def test_packages_have_empty_inits(root: Path, modules: list[Path]) -> None:
    """Only that of the package itself is not: it names the API, which it imports on first use."""
    inits = [path for path in modules if path.name == "__init__.py"]
    assert len(inits) >= 6
    assert [path for path in inits if (root / path).read_text()] == [Path("src/longmlm/__init__.py")]
    body = ast.parse((root / "src/longmlm/__init__.py").read_text()).body
    assert {ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)} == {
        "from typing import TYPE_CHECKING"
    }


def test_public_names_have_docstrings(root: Path, modules: list[Path]) -> None:
    """A protocol describes its members, also for the classes that implement it."""
    paths = [path for path in modules if path.parts[0] in ("src", "pipelines")]
    public = {f"{path}:{node.lineno}": node for path in paths for node in _public(ast.parse((root / path).read_text()))}
    protocols = [
        node for node in public.values() if isinstance(node, ast.ClassDef) and "Protocol" in map(_name, node.bases)
    ]
    assert len(public) > 100 and len(protocols) > 1
    described = {member.name for protocol in protocols for member in _public(protocol) if ast.get_docstring(member)}
    without = {location: node for location, node in public.items() if not ast.get_docstring(node)}
    assert [location for location, node in without.items() if node.name not in described] == []


def _name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _public(parent: ast.Module | ast.ClassDef) -> list[ast.ClassDef | ast.FunctionDef]:
    nodes = [node for node in parent.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    public = [node for node in nodes if not node.name.startswith("_")]
    return public + [inner for node in public if isinstance(node, ast.ClassDef) for inner in _public(node)]


def test_architecture_names_paths_that_exist(root: Path, files: list[Path]) -> None:
    text = (root / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"[\w.*-]+(?:/[\w.*-]+)*/?", text))
    rooted = {name for name in names if "/" in name and Path(name).parts[0] in TOP_FOLDERS}
    python = {name for name in names if name.endswith(".py")} - rooted
    assert len(rooted | python) >= 10
    missing = {name for name in rooted if not any(root.glob(name))}
    missing |= {name for name in python if not any(path.match(name) for path in files)}
    assert missing == set()


def test_no_file_names_a_path_of_the_machine_that_it_was_written_on_or_a_package_registry(
    root: Path, files: list[Path]
) -> None:
    machine = ["../" + "shared", *(f"/{folder}/" for folder in ("work", "root", "opt", "home"))]
    registries = [f"{name}.org" for name in ("pypi", "pythonhosted", "download.pytorch", "anaconda")]
    forbidden = [phrase.encode() for phrase in (*machine, *registries, "find" + "-links", "index" + "-url")]
    contents = {path: (root / path).read_bytes() for path in files}
    texts = {path: content for path, content in contents.items() if b"\0" not in content}
    assert len(texts) > 50
    assert [path for path, content in texts.items() if any(phrase in content for phrase in forbidden)] == []
