"""Completion in the shells themselves: commands, options, their choices, pipelines and files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longmlm.cli import main
from longmlm.completion import SHELLS
from tests.support.terminal import terminal

PIPELINES = {"length-1024", "length-1536", "length-2048", "length-4096", "legal-bert"}
LINES = {  # what is typed, and what it may become
    "longmlm ru": {"run"},
    "longmlm run dem": {"demo"},
    "longmlm run demo le": PIPELINES,
    "longmlm run mi": {"minilm-1536", "minilm-512", "mine.toml"},
    "longmlm run demo --pretrain.recipe.num": {"--pretrain.recipe.num-steps"},
    "longmlm run demo --no-ext": {"--no-extension"},
    "longmlm run demo --until ev": {"evaluate"},
    "longmlm pretrain mine.toml --recipe.masking.unit ": {"token", "word", "span"},
    "longmlm pretrain mine.toml --leng": {"--length"},
    "longmlm init --lang": {"--language"},
    "longmlm completion ": set(SHELLS),
    "longmlm schema eval": {"evaluate"},
}
BASH = """
source ./script
COMP_LINE="$1"; COMP_POINT=${#1}; read -ra COMP_WORDS <<< "$1"
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_shtab_longmlm longmlm "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
COMMANDS = {
    "bash": ["bash", "-c", BASH, "bash"],
    "fish": ["fish", "--no-config", "-c", "source ./script; complete -C $argv[1]"],
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Writes the script of a shell into a folder with a pipeline file, and returns its path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").touch()
    (tmp_path / "mine.txt").touch()

    def write(shell: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["longmlm", "completion", shell])
        main()
        (tmp_path / "script").write_text(capsys.readouterr().out, encoding="utf-8")
        return tmp_path / "script"

    return write


@pytest.mark.parametrize("shell", COMMANDS)
def test_commands_options_choices_pipelines_and_files_are_completed(shell: str, script) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script(shell)
    for line, expected in LINES.items():
        done = subprocess.run([*COMMANDS[shell], line], capture_output=True, text=True, check=True)
        assert {one.split("\t")[0] for one in done.stdout.splitlines()} == expected, line


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes(shell: str, script, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = script(shell)
    command, setup = ["bash", "--norc", "--noprofile", "-i"], "source ./script"
    if shell == "zsh":
        command, setup = ["zsh", "-f", "-i"], "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D"
        path.rename(tmp_path / "_longmlm")
    with terminal(command, tmp_path) as screen:
        screen.type(f"{setup}; echo rea''dy\n")
        screen.wait_for("ready", 30)
        for typed, added in (
            ("longmlm ru", "n"),
            ("longmlm run dem", "o"),
            ("longmlm run --pretrain.recipe.num", "-st"),
        ):
            screen.type(f"{typed}\t")
            screen.wait_for(f"{typed}{added}", 30)
            screen.type("\x15")  # clears the line
        screen.type("exit\n")
        screen.finish(30)


def test_a_shell_must_be_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([], "name a shell: longmlm completion bash"),
        (["tcsh"], "choose one of bash, zsh, fish"),
    ):
        monkeypatch.setattr(sys, "argv", ["longmlm", "completion", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2 and message in capsys.readouterr().err
