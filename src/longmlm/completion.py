"""Shell completion: a script that completes all commands, options, their choices and the shipped pipelines."""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from longmlm.options import Option, base_options, negation, options_of
from longmlm.settings.shipped import SHIPPED

SHELLS = ("bash", "zsh", "fish")
FILES = {  # names of shipped pipelines, TOML files and folders
    "bash": """\
_longmlm_files() {{
  compgen -W '{names}' -- "$1"
  compgen -f -X '!*.toml' -- "$1"
  compgen -d -- "$1"
}}""",
    "zsh": """\
_longmlm_files() {{
  _alternative 'pipelines:pipeline:({names})' 'files:file:_files -g "*.toml(-.)"'
}}""",
    "fish": """\
function _longmlm_files
  printf '%s\\tpipeline\\n' {names}
  for candidate in (__fish_complete_path (commandline -ct))
    string match -qr '(\\.toml|/)(\\t|$)' -- $candidate; and printf '%s\\n' $candidate
  end
end""",
}


def completion_script(
    shell: str, commands: Mapping[str, type], words: Mapping[str, Iterable[str]], descriptions: Mapping[str, str]
) -> str:
    """Returns the script for bash, zsh or fish that completes the arguments of longmlm without starting Python.

    Each of `commands` takes files, and options for its settings; each other command takes one of its `words`.
    """
    import shtab

    parser = argparse.ArgumentParser(prog="longmlm")
    parser.add_argument("--version", action="version", version="", help="show the version")
    subparsers = parser.add_subparsers()
    files = {"bash": "_longmlm_files", "zsh": "_longmlm_files", "fish": "(_longmlm_files)"}
    for name, description in descriptions.items():
        own = subparsers.add_parser(name, help=_first_clause(description), description=_first_clause(description))
        if name in commands:
            argument: Any = own.add_argument("files", nargs="*", help="file or pipeline")
            argument.complete = files
            for option in _options(commands[name]):
                _add_option(own, option, shtab.FILE)
        elif name in words:
            own.add_argument("word", nargs="?", choices=list(words[name]))
    names = " ".join(sorted(path.stem for path in SHIPPED.glob("*.toml")))
    preamble: Any = {name: text.format(names=names) for name, text in FILES.items()}
    script = shtab.complete(parser, shell, preamble=preamble)
    return f"# Completion of longmlm: longmlm completion {shell}\n{script}" if shell != "zsh" else script


def _options(kind: type) -> Iterator[Option]:
    """Yields the options that a command takes with or without a pipeline file."""
    found = {option.name: option for option in (*base_options(kind, {}), *options_of(kind, {}, {}))}
    yield from (option for option in found.values() if option.help != argparse.SUPPRESS)


def _add_option(parser: argparse.ArgumentParser, option: Option, any_file: Any) -> None:
    text = _first_clause(option.help).replace("%", "%%")
    if option.kind is bool:
        parser.add_argument(option.name, negation(option.name), action="store_true", help=text)
        return
    kinds = [option.kind, *get_args(option.kind)]
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), None)
    nargs = "+" if get_origin(option.kind) is tuple else None
    action: Any = parser.add_argument(option.name, nargs=nargs, choices=choices, help=text)
    if choices is None and str in kinds:
        action.complete = any_file


def _first_clause(text: str) -> str:
    """Returns the first clause of a help text, since a menu has room for little more."""
    return re.split(r"[.:;](?: |$)|, such as | \((?:default|optional|required)", text, maxsplit=1)[0]
