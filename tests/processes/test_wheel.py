"""The wheel alone, in a fresh environment without the clone, has every command and file, and runs a pipeline."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.run import RunSummary
from longmlm.cli import STAGES
from longmlm.folders import verify
from longmlm.pipeline_files import pipeline_file
from longmlm.settings.pipeline import Pipeline
from longmlm.settings.shipped import SHIPPED
from setup import description
from tests.support import precision
from tests.support.pages import Page
from tests.support.tiny import demo_texts, tiny_folder
from tests.support.training import CHILDREN, ROOT
from tests.support.walkthrough import SHORTER, in_shell, walk_through

LARGEST_BYTES = 14_000_000  # of the wheel: nearly all is the model and the texts of the demo
LONG_OR_REMOTE = (
    *("longmlm run demo", "longmlm predict out/demo"),
    *("longmlm run mine.toml --launch", "longmlm release mine.toml --publish"),
)
FOLDERS = ".ci|benchmarks|configs|deploy|docker|docs|examples|pipelines|src|tests"
IN_CLONE = re.compile(rf"(?<![\w./-])((?:{FOLDERS})/(?!\*)[\w./-]*\w|pretrain\.py)")
EXTRAS = re.compile(r"longmlm\[([\w,-]+)\]")
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
NO_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.py[cod]")
LAUNCH = "python -m accelerate.commands.launch --num_processes 1 --num_machines 1 --mixed_precision no"
PIPELINE = ("prepare", "extend", "pretrain", "evaluate", "release")


@dataclass(frozen=True, slots=True)
class Installed:
    """The wheel, the source distribution, and an environment in which only the wheel and the dependencies are."""

    wheel: Path
    sdist: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its user; only CHILDREN of the tree is on its path. Unless BF16 is set, auto is fp32."""
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "LONGMLM", "TRANSFORMERS_VERBOSITY")
        shown = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        shown |= {"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}
        (has_bf16,) = precision.said("0")
        return shown | {"OMP_NUM_THREADS": "1", "PYTHONPATH": CHILDREN, precision.VARIABLE: has_bf16}

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the environment in a folder."""
        command = [str(self.python.parent / words[0]), *words[1:]]
        return subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)


def build(hook: str, source: Path, output: Path) -> Path:
    """Returns what setuptools builds of the source, without a network."""
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILD, hook, str(output)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output / done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the repository holds, since a build writes into its source."""
    tree = tmp_path_factory.mktemp("build") / "tree"
    kept = (path for path in ROOT.iterdir() if path.name not in (".git", ".venv", "out", "site", "build", "dist"))
    for path in (path for path in kept if not path.name.endswith(("cache", ".hypothesis"))):
        if path.is_dir():
            shutil.copytree(path, tree / path.name, ignore=NO_SOURCE)
        else:
            tree.mkdir(exist_ok=True)
            shutil.copy(path, tree)
    return tree


@pytest.fixture(scope="session")
def installed(tree: Path) -> Installed:
    folder = tree.parent
    sdist, wheel = build("build_sdist", tree, folder / "sdist"), build("build_wheel", tree, folder / "wheel")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, env={**os.environ, "PYTHONPATH": ""})
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(site) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return Installed(wheel, sdist, python)


def labels(output: str) -> list[str]:
    """Returns which stages were started and which were already done."""
    words = (line.split() for line in output.splitlines() if re.search(r"^\[.*: (started|already)", line))
    return [f"{word[1]} {word[2].rstrip(',')}" for word in words]


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(installed: Installed) -> None:
    package = ROOT / "src" / "longmlm"
    files = {path.relative_to(package.parent).as_posix(): path for path in package.rglob("*") if path.is_file()}
    files = {name: path for name, path in files.items() if "__pycache__" not in name}
    with zipfile.ZipFile(installed.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert packed == set(files)
        assert all(archive.read(name) == path.read_bytes() for name, path in files.items())
    for needed in (
        "py.typed",
        "bundled/roberta-mini/model.safetensors",
        "pipelines/demo.toml",
        "launches/zero-2.yaml",
        "launches/jobs/slurm.sbatch",
    ):
        assert f"longmlm/{needed}" in packed
    assert installed.wheel.stat().st_size < LARGEST_BYTES


def test_what_the_package_names_is_in_the_wheel(installed: Installed) -> None:
    """Its messages, help, comments and the file of init; what needs a clone says so in the same sentence."""
    package = ROOT / "src" / "longmlm"
    files = (path for path in package.rglob("*") if path.suffix in (".py", ".toml", ".yaml", ".html", ".md"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    lines += pipeline_file(Pipeline(model="m", corpus=("text.jsonl",), length=1024, output="out")).splitlines()
    with zipfile.ZipFile(installed.wheel) as archive:
        packed = archive.namelist()
    needed = {(path, line) for line in lines if "clone" not in line for path in IN_CLONE.findall(line)}
    assert any(IN_CLONE.search(line) for line in lines)
    assert [line for path, line in needed if not _is_packed(path, packed)] == []


def _is_packed(path: str, packed: list[str]) -> bool:
    name = path.removeprefix("src/")
    return name != path and any(file == name or file.startswith(f"{name}/") for file in packed)


def test_the_metadata_is_complete(installed: Installed) -> None:
    about, project = metadata_of(installed.wheel), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert about["Requires-Python"] == "<3.14,>=3.11" and about["License-Expression"] == "Apache-2.0"
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload() == description((ROOT / "README.md").read_text(encoding="utf-8"), None)
    urls = dict(line.split(", ") for line in about.get_all("Project-URL"))
    assert urls == project["urls"] and all(url.startswith("https://") for url in urls.values())
    assert "Operating System :: POSIX :: Linux" in about.get_all("Classifier")
    assert set(about.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert about["Summary"] and about["Keywords"] and about["License-File"] == "LICENSE"


def test_every_extra_that_a_message_names_exists(installed: Installed) -> None:
    extras = set(metadata_of(installed.wheel).get_all("Provides-Extra"))
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*")]
    texts = [path.read_text(encoding="utf-8") for path in (*ROOT.glob("src/**/*.py"), *pages) if path.is_file()]
    named = {extra for text in texts for words in EXTRAS.findall(text) for extra in words.split(",")}
    assert {"deepspeed", "modelscope", "onnx", "wandb"} <= named <= extras


def test_the_source_distribution_is_the_repository_and_gives_the_same_wheel(
    installed: Installed, tree: Path, tmp_path: Path
) -> None:
    with tarfile.open(installed.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    shipped = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    files = {path.relative_to(tree) for path in tree.rglob("*") if path.is_file() and ".egg-info" not in str(path)}
    left_out = {path.parts[0] for path in files - shipped}
    assert left_out == {".github", ".gitattributes", ".gitignore", "build"}  # the last is setuptools' own
    again = build("build_wheel", unpacked, tmp_path / "wheel")
    first, second = (_content(wheel) for wheel in (installed.wheel, again))
    assert first == second and len(first) > 100


def _content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    record = next(name for name in content if name.endswith("RECORD"))
    return {**content, record: b"\n".join(sorted(content[record].splitlines()))}


def test_the_command_offers_every_stage_and_pipeline_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    usage = installed.run(tmp_path, "longmlm", "--help")
    assert usage.returncode == 0, usage.stderr
    assert {*STAGES, "init", "pipelines"} <= {line.split()[0] for line in usage.stdout.splitlines() if line[:2] == "  "}
    listed = installed.run(tmp_path, "longmlm", "pipelines")
    assert all(path.stem in listed.stdout for path in SHIPPED.glob("*.toml")) and listed.returncode == 0
    where = "import longmlm.api, longmlm, sys; print(longmlm.__file__, longmlm.extend.__doc__[:7])"
    imported = installed.run(tmp_path, "python", "-c", where)
    assert imported.stdout.split() == [str(_site(installed) / "longmlm" / "__init__.py"), "Returns"], imported.stderr
    about = installed.run(tmp_path, "python", "-c", "from importlib.metadata import version as v; print(v('longmlm'))")
    assert about.stdout.strip() == metadata_of(installed.wheel)["Version"]
    assert list(tmp_path.iterdir()) == []


def _site(installed: Installed) -> Path:
    return next(installed.python.parents[1].glob("lib/python*/site-packages"))


def test_a_reader_of_the_readme_gets_to_a_release_and_the_same_command_then_does_nothing(
    installed: Installed, tmp_path: Path
) -> None:
    """Its code runs as it is printed, with a tiny BERT; training is started by Accelerate."""
    model = tiny_folder(tmp_path / "google-bert" / "bert-base-chinese", "bert", 0, 512)
    (model / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (tmp_path / "docs").mkdir()
    lines = "".join(json.dumps({"text": text * 3}) + "\n" for text in demo_texts())
    (tmp_path / "docs" / "mine.jsonl").write_text(lines, encoding="utf-8")
    settings = {**SHORTER, "launch": f'"{LAUNCH}"'}
    shell = in_shell(tmp_path, installed.environment)
    outputs = walk_through(Page(ROOT / "README.md"), tmp_path, shell, settings, LONG_OR_REMOTE)
    assert len(outputs) == 4
    output, (command, printed) = tmp_path / "out" / "mine", next(item for item in outputs.items() if "run m" in item[0])
    assert labels(printed) == [f"{name}: started" for name in PIPELINE]
    *_, finding, page, released, step = printed.splitlines()
    assert finding.startswith(("Recovered", "Not recovered")) and step.startswith("next: ")
    assert (page, released) == ("page: out/mine/evaluation/index.html", "released: out/mine/release")
    assert printed.count("\nwhole row") == 1
    assert verify(output / "release") and (output / "rows" / "index.html").is_file()
    assert read_evaluation(output / "evaluation" / Evaluation.FILE).row_length == 1536
    assert json.loads((output / "release" / "config.json").read_text())["max_position_embeddings"] == 1536
    assert artifact.read(RunSummary, output / "run" / RunSummary.FILE).state.step == 2
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.json*")}
    again = installed.run(tmp_path, *command.partition("#")[0].split(), "--pretrain.runtime.num-threads", "2")
    assert again.returncode == 0, again.stderr
    assert labels(again.stdout) == [f"{name}: already" for name in PIPELINE]
    assert {path: path.stat().st_mtime_ns for path in before} == before
