"""Accelerate parses every launch command in the deployment files, and the files named in it exist."""

import re
import shlex
from pathlib import Path

import pytest
from accelerate.commands.config import load_config_from_file
from accelerate.commands.launch import launch_command_parser

COMMAND = re.compile(r"accelerate launch(?: |\\\n|\n)(.*?pretrain\.py)\s+(\S+)", re.DOTALL)


def commands(path: Path) -> list[tuple[list[str], str]]:
    """Returns, for each launch, the arguments up to pretrain.py, and the settings file after it."""
    text = re.sub(r"^# ?", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    launches = COMMAND.findall(text.replace("$$", "$"))
    arithmetic = re.compile(r"\$\(\(.*?\)\)")
    return [(shlex.split(arithmetic.sub("16", words.replace("\\\n", " "))), settings) for words, settings in launches]


@pytest.mark.parametrize(
    "name", ["docs/deploy.md", "deploy/compose.yaml", "deploy/slurm.sbatch", "deploy/kubernetes.yaml"]
)
def test_accelerate_parses_each_launch(root: Path, name: str) -> None:
    launches = commands(root / name)
    assert launches
    for words, settings in launches:
        numbers = ["0" if word.startswith(('"$', "$")) else word for word in words]
        arguments = launch_command_parser().parse_args([word.replace("$MACHINE_RANK", "0") for word in numbers])
        assert arguments.training_script == "pretrain.py"
        if arguments.config_file:
            config = load_config_from_file(str(root / arguments.config_file))
            assert config.num_processes
            if config.num_machines > 1:
                assert arguments.main_process_port == 29500
                assert arguments.main_process_ip and arguments.machine_rank is not None
        if settings.endswith(".toml") and "/" in settings:
            assert (root / settings).is_file()
