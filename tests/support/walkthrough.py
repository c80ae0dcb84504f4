"""Runs the code blocks of a page from top to bottom in an empty folder, as a reader would."""

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.pages import Page

NOT_RUN = ("pip ", "python3", ". .venv")  # the test's environment is installed
SHORTER = {"num_steps": "2", "warmup_steps": "0", "batch_tokens": "2048", "max_rows": "4"}
Run = Callable[[str, str], str]  # of a language and a line of it, or a block of Python, to its output


def walk_through(
    page: Page, folder: Path, run: Run, settings: Mapping[str, str] = SHORTER, skipped: tuple[str, ...] = ()
) -> dict[str, str]:
    """Runs the blocks of shell and Python, applies those of TOML to mine.toml, and returns the output by command.

    A block of TOML that begins with the comment `# NAME.toml` is saved under that name instead.
    Training is shortened by `settings`, and distillation too, so a model that has not recovered is released. Commands
    that start with one of `skipped` are left out.
    """
    outputs = {}
    for language, block in page.blocks:
        match language:
            case "bash":
                for command in block.splitlines():
                    if command and not command.startswith((*NOT_RUN, *skipped)):
                        outputs[command] = run(language, command)
                        _shorten(folder / "mine.toml", settings)
            case "toml":
                if named := re.match(r"# ([\w-]+\.toml)\n", block):
                    (folder / named[1]).write_text(block, encoding="utf-8")
                else:
                    _set(folder / "mine.toml", block)
                _shorten(folder / (named[1] if named else "mine.toml"), settings)
            case "python":
                outputs[block] = run(language, block)
    return outputs


def in_shell(folder: Path, environment: Mapping[str, str]) -> Run:
    """Returns a function that runs a line or a block in a process of its own."""

    def run(language: str, text: str) -> str:
        done = subprocess.run(
            [language, "-c", text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run


def _set(path: Path, block: str) -> None:
    """Puts the lines of each table of `block` under the same heading of the file, as its text asks the reader to do."""
    text = path.read_text(encoding="utf-8")
    for heading, lines in re.findall(r"^(\[[\w.]+\])\n(.*?)(?=^\[|\Z)", block, re.MULTILINE | re.DOTALL):
        for key in re.findall(r"^(\w+) =", lines, re.MULTILINE):
            text = re.sub(rf"(^{re.escape(heading)}\n(?:(?!\[).*\n)*?)#?{key} = .*\n", r"\1", text, flags=re.MULTILINE)
        text = text if f"{heading}\n" in text else f"{text}\n{heading}\n"
        text = text.replace(f"{heading}\n", f"{heading}\n{lines.strip()}\n", 1)
    path.write_text(text, encoding="utf-8")


def _shorten(path: Path, settings: Mapping[str, str]) -> None:
    if path.is_file() and not re.search("^allow_unrecovered", path.read_text(encoding="utf-8"), re.MULTILINE):
        _set(path, "[release.recipe]\nallow_unrecovered = true\n[extend.recipe.distillation]\nnum_tokens = 500\n")
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        for key, value in settings.items():
            text = re.sub(rf"^#?{key} = .*", f"{key} = {value}", text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")
