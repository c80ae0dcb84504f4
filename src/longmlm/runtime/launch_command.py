"""The command that starts training in several processes, from the setting `launch` of a pipeline."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from longmlm.errors import ConfigError
from longmlm.settings.shipped import LAUNCHES

CONFIG_FILE = ("--config_file", "--config-file")  # of accelerate launch
USE_DEEPSPEED = ("--use_deepspeed", "--use-deepspeed")
NUM_PROCESSES = re.compile(rb"^num_processes:\s*(\d+)", re.MULTILINE)
DEEPSPEED = re.compile(rb"^distributed_type:\s*['\"]?DEEPSPEED", re.MULTILINE)


def launch_command(launch: str) -> list[str]:
    """Returns the words of a launch; the name of a shipped YAML file, with options after it, stands for its command.

    Raises ConfigError for a program or a YAML file that does not exist, and for DeepSpeed if it is not installed.
    """
    words = _split(launch)
    names = sorted(path.stem for path in LAUNCHES.glob("*.yaml"))
    words = _expanded(words)
    if not words or shutil.which(words[0], path=search_path()) is None:
        raise ConfigError(
            f"launch = {launch!r}: there is no program {words[0] if words else ''!r}: name one, such as accelerate "
            f"launch, or a launch that comes with longmlm: {', '.join(names)}"
        )
    for file in _values(words, CONFIG_FILE):
        if not Path(file).is_file():
            shipped = f"; launch = {Path(file).stem!r} takes the one of longmlm" if Path(file).stem in names else ""
            raise ConfigError(f"launch: there is no file {file}: check its path{shipped}")
    if starts_deepspeed(launch) and importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            f"launch = {launch!r} needs DeepSpeed, which is not installed: pip install 'longmlm[deepspeed]'"
        )
    return words


def starts_deepspeed(launch: str) -> bool:
    """Returns whether a launch is by Accelerate and starts DeepSpeed; raises ConfigError for one that is no command."""
    words = _expanded(_split(launch))
    is_option = any(word.partition("=")[0] in USE_DEEPSPEED for word in words)
    is_in_file = any(DEEPSPEED.search(content) for content in _configs(words))
    return Path(words[0] if words else "").name == "accelerate" and (is_option or is_in_file)


def named_processes(launch: str) -> int | None:
    """Returns how many processes an option or the YAML file of a launch by Accelerate names; None if none does."""
    words = _expanded(_split(launch))
    if Path(words[0] if words else "").name != "accelerate":
        return None
    named = [*(match[1].decode() for content in _configs(words) if (match := NUM_PROCESSES.search(content)))]
    named += _values(words, ("--num_processes", "--num-processes", "-n"))
    return int(named[-1]) if named and named[-1].isdecimal() else None


def _split(launch: str) -> list[str]:
    try:
        return shlex.split(launch)
    except ValueError as error:
        raise ConfigError(f"launch = {launch!r} is no command: {error}") from None


def _expanded(words: list[str]) -> list[str]:
    """Returns the words with the command in place of the name of a shipped YAML file."""
    if words and (LAUNCHES / f"{words[0]}.yaml").is_file():
        return ["accelerate", "launch", "--config_file", str(LAUNCHES / f"{words[0]}.yaml"), *words[1:]]
    return words


def _values(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the values of an option that has these names, as --name VALUE or --name=VALUE."""
    split = ((word.partition("="), "".join(words[at + 1 : at + 2])) for at, word in enumerate(words))
    return [value or following for (name, _, value), following in split if name in names]


def _configs(words: Sequence[str]) -> list[bytes]:
    return [Path(file).read_bytes() for file in _values(words, CONFIG_FILE) if Path(file).is_file()]


def search_path() -> str:
    """Returns PATH with the folder of this Python before it, where accelerate is."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
