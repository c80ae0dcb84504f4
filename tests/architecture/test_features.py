"""A feature can be deleted, with its tests, its page and its line in cli.py, and everything else still works."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FEATURES = {  # the files of each, which are deleted with its line in cli.py
    "compare": (
        *("src/longmlm/compare", "tests/compare", "docs/compare.md"),
        *("docs/experiments/scripts/summary.py", "docs/experiments/scripts/kept_comparison.py"),
        "docs/experiments/scripts/trained_layers.py",
    ),
    "downstream": (
        *("src/longmlm/downstream", "tests/downstream", "docs/downstream.md"),
        "docs/experiments/scripts/downstream_study.py",
    ),
    "inspect": ("src/longmlm/inspect", "tests/inspect", "docs/inspect.md"),
    "predict": ("src/longmlm/predict", "tests/predict", "docs/predict.md"),
}
SCRIPTS = Path(sys.executable).parent
CHECKS = (
    ("ruff", "check", "--no-cache"),
    ("lint-imports", "--no-cache"),
    ("pyrefly", "check"),
    ("pytest", "--collect-only", "-q"),
    ("pytest", "-q", "tests/test_cli.py", "tests/test_effects.py", "tests/experiments"),
)


@pytest.fixture(params=FEATURES)
def without_feature(request: pytest.FixtureRequest, root: Path, files: list[Path], tmp_path: Path) -> Path:
    """A copy of the repository without a feature."""
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / file, tmp_path / file, follow_symlinks=False)
    for name in FEATURES[request.param]:
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    cli = tmp_path / "src/longmlm/cli.py"
    lines = cli.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if f"longmlm.{request.param}." not in line]
    assert len(lines) - len(kept) == 1
    cli.write_text("".join(kept), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_feature_can_be_deleted(without_feature: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(without_feature / "src"), "PYTEST_ADDOPTS": ""}
    for script, *arguments in CHECKS:
        command = [str(SCRIPTS / script), *arguments]
        done = subprocess.run(
            command, cwd=without_feature, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}: {done.stdout[-4000:]}{done.stderr[-2000:]}"
