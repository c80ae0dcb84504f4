"""Launches of training in several processes: the command for the setting `launch`, and the files of launches."""

import argparse
import difflib
import importlib.util
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from longmlm.errors import ConfigError, counted
from longmlm.settings.shipped import JOBS, LAUNCHES

FIRST_SENTENCE = re.compile(r"(?<=\w)[.:](?= |$)")


class Launched(NamedTuple):
    """The processes that a launch starts, on all its machines: None if it names no number; and whether on CPUs."""

    num_processes: int | None = None
    num_machines: int = 1
    is_on_cpu: bool = False

    @property
    def per_machine(self) -> int:
        """Processes on each machine; 1 if the launch names no number."""
        return math.ceil((self.num_processes or 1) / self.num_machines)


def launch_command(launch: str) -> list[str]:
    """Returns the words of a launch; the name of a shipped YAML file, with options after it, stands for its command.

    Raises ConfigError for a program or a YAML file that does not exist, and for DeepSpeed if it is not installed.
    """
    words, names = _expanded(_split(launch)), launch_names()
    if not words or shutil.which(words[0], path=search_path()) is None:
        program = words[0] if words else ""
        if program in {path.stem for path in JOBS.iterdir()}:
            raise ConfigError(
                f"launch = {launch!r}: {program} is no launch but a job, in which a cluster starts the training: print "
                f"its file with longmlm launch-config {program}, or name a launch: {', '.join(names)}"
            )
        raise ConfigError(
            f"launch = {launch!r}: there is no program {program!r}{_suggestion(program, names)}: name one, such as "
            f"accelerate launch, or a launch that comes with longmlm: {', '.join(names)}"
        )
    file = _settings(words).get("config_file")
    if file is not None and not Path(file).is_file():
        shipped = f"; launch = {Path(file).stem!r} takes the one of longmlm" if Path(file).stem in names else ""
        raise ConfigError(f"launch: there is no file {file}: check its path{shipped}")
    if starts_deepspeed(launch) and importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            f"launch = {launch!r} needs DeepSpeed, which is not installed: pip install 'longmlm[deepspeed]'"
        )
    return words


def launch_names() -> list[str]:
    """Returns the names of the launches that come with longmlm, each a YAML file for Accelerate."""
    return sorted(path.stem for path in LAUNCHES.glob("*.yaml"))


def launch_files() -> dict[str, str]:
    """Returns the content of each launch's YAML file and of each cluster's job file, by name."""
    paths = (path for folder in (LAUNCHES, JOBS) for path in sorted(folder.iterdir()) if path.is_file())
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def launch_file(name: str) -> str:
    """Returns the content of a launch's YAML file for Accelerate, or of a job file that starts training on a cluster.

    Raises ConfigError, with the name that was probably meant, for any other name.
    """
    files = launch_files()
    if name not in files:
        raise ConfigError(f"there is no launch {name!r}{_suggestion(name, files)}: choose one of {', '.join(files)}")
    return files[name]


def launch_descriptions() -> str:
    """Returns a line for each launch and job: its name, and the first sentence of the comment in its file."""
    lines = []
    for name, text in launch_files().items():
        comment = " ".join([line.removeprefix("# ") for line in text.splitlines() if not line.startswith("#!")][:2])
        lines.append(f"  {name:20}{FIRST_SENTENCE.split(comment)[0]}")
    return "\n".join(lines)


def _suggestion(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    return f", did you mean {' or '.join(near)}?" if near else ""


def starts_deepspeed(launch: str) -> bool:
    """Returns whether a launch starts DeepSpeed through Accelerate; raises ConfigError if it is not a command."""
    settings = _settings(_expanded(_split(launch)))
    return settings.get("use_deepspeed") is True or str(settings.get("distributed_type")).upper() == "DEEPSPEED"


def launched(launch: str) -> Launched:
    """Returns what the options or the YAML file of accelerate launch start; of other programs, nothing is known."""
    settings = _settings(_expanded(_split(launch)))
    if not settings:
        return Launched()
    variable, value = ("DS_ACCELERATOR", "cpu") if starts_deepspeed(launch) else ("ACCELERATE_USE_CPU", "true")
    is_on_cpu = True in (settings.get("cpu"), settings.get("use_cpu")) or os.environ.get(variable, "").lower() == value
    return Launched(_number(settings, "num_processes"), _number(settings, "num_machines") or 1, is_on_cpu)


def check_gpus(launch: str) -> None:
    """Raises ConfigError if accelerate launch is to start more processes on a machine than this one has GPUs.

    It also refuses processes that are to train on the CPU, but would train on this machine's GPUs.
    """
    started = launched(launch)
    if started.per_machine == 1:
        return
    import torch  # takes seconds, which commands that launch a single process need not wait

    num_gpus = torch.cuda.device_count()
    if started.is_on_cpu and num_gpus and not starts_deepspeed(launch):
        raise ConfigError(
            f"launch = {launch!r} is for CPUs, and this machine has {counted(num_gpus, 'GPU')}: to train on its CPU, "
            "set CUDA_VISIBLE_DEVICES= as well"
        )
    if not started.is_on_cpu and started.per_machine > num_gpus:
        raise ConfigError(
            f"launch = {launch!r} starts {counted(started.per_machine, 'process')} on a machine, and this one has "
            f"{counted(num_gpus, 'GPU') if num_gpus else 'no GPU'}: start one for each GPU, as in 'ddp --num_processes "
            "4', or train on CPUs with two-cpu-processes"
        )


def _split(launch: str) -> list[str]:
    try:
        return shlex.split(launch)
    except ValueError as error:
        raise ConfigError(f"launch = {launch!r} is not a valid command: {error}") from None


def _expanded(words: list[str]) -> list[str]:
    """Returns the words, with the name of a shipped YAML file replaced by its command."""
    if words and (LAUNCHES / f"{words[0]}.yaml").is_file():
        return ["accelerate", "launch", "--config_file", str(LAUNCHES / f"{words[0]}.yaml"), *words[1:]]
    return words


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Returns what options and YAML file of accelerate launch set, under the names of the options.

    It is empty for another program.
    """
    if Path(words[0] if words else "").name != "accelerate":
        return {}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, *short in (("config_file",), ("num_processes", "-n"), ("num_machines",)):
        parser.add_argument(*short, f"--{name}", f"--{name.replace('_', '-')}", dest=name, nargs="?", const="")
    for name in ("cpu", "use_cpu", "use_deepspeed"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", dest=name, action="store_true")
    options = vars(parser.parse_known_args(words[1:])[0])
    file, content = Path(options.get("config_file", "")), None
    if file.is_file():
        try:
            content = yaml.safe_load(file.read_bytes())
        except yaml.YAMLError as error:
            raise ConfigError(f"launch: {file} is not valid YAML: {error}") from None
    return (content if isinstance(content, dict) else {}) | {"config_file": None} | options


def _number(settings: Mapping[str, Any], name: str) -> int | None:
    return int(value) if (value := str(settings.get(name))).isdecimal() else None


def search_path() -> str:
    """Returns PATH with the folder of this Python before it, where accelerate is."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
