"""The command that starts training in several processes, from the setting `launch` of a pipeline."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from longmlm.errors import ConfigError
from longmlm.settings.shipped import LAUNCHES

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
    names = sorted(path.stem for path in LAUNCHES.glob("*.yaml"))
    if words and words[0] in names:
        words = ["accelerate", "launch", "--config_file", str(LAUNCHES / f"{words[0]}.yaml"), *words[1:]]
    if not words or shutil.which(words[0], path=search_path()) is None:
        raise ConfigError(
            f"launch = {launch!r}: there is no program {words[0] if words else ''!r}: name one, such as accelerate "
            f"launch, or a launch that comes with longmlm: {', '.join(names)}"
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


def search_path() -> str:
    """Returns PATH with the folder of this Python before it, where accelerate is."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
