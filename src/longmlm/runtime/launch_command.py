"""How training is started in several processes: the command from the setting `launch`, and the files of launches."""

import difflib
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from longmlm.errors import ConfigError
from longmlm.settings.shipped import JOBS, LAUNCHES

CONFIG_FILE = ("--config_file", "--config-file")  # of accelerate launch
USE_DEEPSPEED = ("--use_deepspeed", "--use-deepspeed")
DEEPSPEED = re.compile(rb"^distributed_type:\s*['\"]?DEEPSPEED", re.MULTILINE)


def launch_command(launch: str) -> list[str]:
    """Returns the words of a launch; the name of a shipped YAML file, with options after it, stands for its command.

    Raises ConfigError for a program or a YAML file that does not exist, and for DeepSpeed if it is not installed.
    """
    try:
        words = shlex.split(launch)
    except ValueError as error:
        raise ConfigError(f"launch = {launch!r} is no command: {error}") from None
    names = launch_names()
    if words and words[0] in names:
        words = ["accelerate", "launch", "--config_file", str(LAUNCHES / f"{words[0]}.yaml"), *words[1:]]
    if not words or shutil.which(words[0], path=search_path()) is None:
        program = words[0] if words else ""
        raise ConfigError(
            f"launch = {launch!r}: there is no program {program!r}{_meant(program, names)}: name one, such as "
            f"accelerate launch, or a launch that comes with longmlm: {', '.join(names)}"
        )
    for at, word in enumerate(words):
        option, _, value = word.partition("=")
        file = value or "".join(words[at + 1 : at + 2])
        if option in CONFIG_FILE and not Path(file).is_file():
            shipped = f"; launch = {Path(file).stem!r} takes the one of longmlm" if Path(file).stem in names else ""
            raise ConfigError(f"launch: there is no file {file}: check its path{shipped}")
        is_deepspeed = option in CONFIG_FILE and DEEPSPEED.search(Path(file).read_bytes())
        is_deepspeed = is_deepspeed or option in USE_DEEPSPEED
        if Path(words[0]).name == "accelerate" and is_deepspeed and importlib.util.find_spec("deepspeed") is None:
            raise ConfigError(
                f"launch = {launch!r} needs DeepSpeed, which is not installed: pip install 'longmlm[deepspeed]'"
            )
    return words


def launch_names() -> list[str]:
    """Returns the names of the launches that come with longmlm: those of YAML files for Accelerate."""
    return sorted(path.stem for path in LAUNCHES.glob("*.yaml"))


def launch_files() -> dict[str, str]:
    """Returns the content of each launch's YAML file, and of each job, by name."""
    paths = (path for folder in (LAUNCHES, JOBS) for path in sorted(folder.iterdir()) if path.is_file())
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def launch_file(name: str) -> str:
    """Returns the content of a launch's YAML file for Accelerate, or of the job that starts training on a cluster.

    Raises ConfigError, with the name that was probably meant, for any other name.
    """
    files = launch_files()
    if name not in files:
        raise ConfigError(f"there is no launch {name!r}{_meant(name, files)}: choose one of {', '.join(files)}")
    return files[name]


def _meant(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    return f", did you mean {' or '.join(near)}?" if near else ""


def search_path() -> str:
    """Returns PATH with the folder of this Python before it, where accelerate is."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
