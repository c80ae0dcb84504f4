"""The deployment files start what they should: they are run with stand-ins for srun, accelerate and others."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from accelerate.commands.config import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from ray.scripts.symmetric_run import symmetric_run

from longmlm.cli import STAGES
from longmlm.settings.shipped import LAUNCHES
from tests.support.clusters import StandIns

UNRELEASED_EXTRAS = {"dev", "docs"}  # tools of developers


@pytest.fixture
def run_with_fakes(tmp_path, root):
    """Runs a command in the repository with stand-ins first on PATH; returns what they were called with, in order."""
    return partial(StandIns.in_folder(tmp_path).run, root)


def parsed(root: Path, argv: Sequence[str]):
    """Returns the options of a launch as Accelerate parses them, those of its file included."""
    assert argv[:2] == ["accelerate", "launch"]
    options, rest = launch_command_parser().parse_known_args(argv[2:])
    config = load_config_from_file(str(LAUNCHES / Path(options.config_file).name))
    assert (options.module, options.training_script, rest) == (True, "longmlm.stages.pretrain", [])
    assert config.rdzv_backend == "static" and config.same_network
    assert len(options.training_script_args) == 1
    return SimpleNamespace(
        **{**vars(config), **{key: value for key, value in vars(options).items() if value is not None}}
    )


def containers(root: Path) -> Mapping[str, Mapping]:
    documents = list(yaml.safe_load_all((root / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8")))
    pods = [document["spec"]["template"]["spec"] for document in documents if document["kind"] == "Job"]
    return {container["name"]: {**pod, **container} for pod in pods for container in pod["containers"]}


def services(root: Path) -> Mapping[str, Mapping]:
    return yaml.safe_load((root / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize(("job", "port"), [(1234567, 24567), (30001, 20001)])
def test_the_slurm_script_starts_one_launcher_per_node_with_its_rank_and_all_cores(root, run_with_fakes, job, port):
    variables = {"SLURM_JOB_ID": job, "SLURM_NNODES": 2, "SLURM_GPUS_ON_NODE": 4, "SLURM_CPUS_PER_TASK": 48}
    script = ["bash", "deploy/slurm.sbatch", "a file.toml"]
    calls = run_with_fakes(
        script, SLURM_JOB_NODELIST="node[1-2]", **{name: str(value) for name, value in variables.items()}
    )
    srun, *launches = calls
    assert "--cpus-per-task=48" in srun.argv
    assert {call.SRUN_CPUS_PER_TASK for call in calls} == {"48"}
    assert all(call.VIRTUAL_ENV.endswith("/venv") for call in calls)
    options = [parsed(root, launch.argv) for launch in launches]
    assert [option.machine_rank for option in options] == [0, 1]
    for option in options:
        assert (option.num_machines, option.num_processes) == (2, 8)
        assert (option.main_process_ip, option.main_process_port) == ("node1", port)
        assert option.training_script_args == ["a file.toml"]


def test_the_slurm_script_without_a_file_says_what_is_missing(root, run_with_fakes):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_with_fakes(["bash", "deploy/slurm.sbatch"])
    assert b"name a pipeline file" in failed.value.stderr


def ray_options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the options of ray symmetric-run, and the command that the head runs."""
    assert argv[:2] == ["ray", "symmetric-run"]
    options, command = argv[2 : argv.index("--")], argv[argv.index("--") + 1 :]
    assert symmetric_run.params[1].opts == ["--min-nodes"]
    return dict(zip(options[::2], options[1::2], strict=True)), list(command)


def test_the_slurm_script_of_prepare_makes_one_cluster_of_all_nodes(root, run_with_fakes):
    variables = {"SLURM_JOB_ID": "1234567", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "48"}
    script = ["bash", "deploy/prepare.sbatch", "a file.toml"]
    srun, *nodes = run_with_fakes(script, SLURM_JOB_NODELIST="node[1-2]", **variables)
    assert "--cpus-per-task=48" in srun.argv and len(nodes) == 2
    for node in nodes:
        options, command = ray_options(node.argv)
        assert options == {"--address": "node1:24567", "--min-nodes": "2", "--num-cpus": "48"}
        assert command == ["longmlm", "prepare", "a file.toml", "--runtime.executor", "ray"]


def test_the_pods_of_prepare_are_the_nodes_of_one_cluster(root, run_with_fakes):
    service, job = yaml.safe_load_all((root / "deploy" / "prepare.yaml").read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [node] = run_with_fakes(container["command"])
    options, command = ray_options(node.argv)
    name, port = service["metadata"]["name"], container["ports"][0]["containerPort"]
    assert options["--address"] == f"{job['metadata']['name']}-0.{name}:{port}" and pod["subdomain"] == name
    assert port == service["spec"]["ports"][0]["port"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert int(options["--min-nodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert options["--num-cpus"] == container["resources"]["requests"]["cpu"]
    [file] = {word for word in command if word.endswith(".toml")}
    assert command == ["longmlm", "prepare", file, "--runtime.executor", "ray"]
    alone = containers(root)["prepare"]
    assert {volume["name"]: volume for volume in alone["volumes"]}.items() <= {
        volume["name"]: volume for volume in pod["volumes"]
    }.items()
    assert all(mount in container["volumeMounts"] for mount in alone["volumeMounts"])
    assert (container["image"], container["envFrom"]) == (alone["image"], alone["envFrom"])


@pytest.mark.parametrize("rank", [0, 1])
def test_the_pods_of_kubernetes_are_the_machines_of_one_launch(root, run_with_fakes, rank):
    pod = containers(root)["pretrain"]
    [launch] = run_with_fakes(pod["command"], JOB_COMPLETION_INDEX=str(rank))
    options = parsed(root, launch.argv)
    assert options.machine_rank == rank
    assert options.num_processes == options.num_machines * pod["resources"]["limits"]["nvidia.com/gpu"]
    documents = list(yaml.safe_load_all((root / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8")))
    [job] = [document for document in documents if document["metadata"]["name"] == "longmlm-pretrain"]
    [service] = [document for document in documents if document["kind"] == "Service"]
    assert options.num_machines == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert options.main_process_ip == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    ports = {options.main_process_port, service["spec"]["ports"][0]["port"], pod["ports"][0]["containerPort"]}
    assert ports == {29500}


@pytest.mark.parametrize("name", ["node-0", "node-1"])
def test_the_services_of_compose_are_the_machines_of_one_launch(root, run_with_fakes, name):
    service = services(root)[name]
    command = [word.replace("$$", "$") for word in service["command"]]
    [launch] = run_with_fakes(command, MACHINE_RANK=service["environment"]["MACHINE_RANK"])
    options = parsed(root, launch.argv)
    assert f"node-{options.machine_rank}" == name
    gpus = [service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for service in
            (services(root)["node-0"], services(root)["node-1"])]  # fmt: skip
    assert options.num_processes == len({gpu for ids in gpus for gpu in ids}) == 8
    assert options.main_process_ip == "node-0"


def test_prepare_and_release_run_the_stages_of_a_pipeline_file_in_order(root, run_with_fakes):
    pods, composed = containers(root), services(root)
    for name, stages in {"prepare": ["prepare", "extend"], "release": ["evaluate", "release"]}.items():
        for command in (pods[name]["command"], composed[name]["command"]):
            calls = run_with_fakes(command)
            assert [call.argv[:2] for call in calls] == [["longmlm", stage] for stage in stages]
            assert set(stages) <= STAGES.keys()
            [file] = {argument for call in calls for argument in call.argv[2:]}
            assert Path(file).name == "mine.toml"


def test_every_pod_has_requests_tokens_of_a_secret_and_its_downloads_on_a_volume(root):
    image = (root / "docker" / "Dockerfile").read_text(encoding="utf-8")
    [home] = re.findall(r"HF_HOME=(\S+)", image)
    for pod in containers(root).values():
        assert {"cpu", "memory"} <= pod["resources"]["requests"].keys()
        assert [source["secretRef"] for source in pod["envFrom"]] == [{"name": "longmlm", "optional": True}]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in pod["volumeMounts"]}
        [cache] = [volume for path, volume in mounts.items() if Path(home).is_relative_to(path)]
        assert cache["persistentVolumeClaim"] == mounts["/longmlm/out"]["persistentVolumeClaim"]
        assert "configMap" in mounts["/longmlm/pipeline"]
    for service in services(root).values():
        assert any(Path(home).is_relative_to(volume.split(":")[1]) for volume in service["volumes"])
        assert {"HF_TOKEN", "MODELSCOPE_API_TOKEN", "WANDB_API_KEY"} <= service["environment"].keys()


def test_the_image_has_every_extra_and_no_compiler(root):
    image = (root / "docker" / "Dockerfile").read_text(encoding="utf-8")
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    [installed] = re.findall(r"--editable '\.\[(.*)\]'", image)
    assert extras.keys() - UNRELEASED_EXTRAS <= set(installed.split(","))
    assert not re.search(r"apt-get|gcc|g\+\+|build-essential", image)


@pytest.mark.parametrize("name", ["docs/deploy.md", "docs/stages.md"])
def test_accelerate_parses_each_launch_of_the_documentation(root, name):
    text = (root / name).read_text(encoding="utf-8").replace("\\\n", " ")
    launches = re.findall(r"^(?:longmlm .*&& )?accelerate launch (.*)$", text, re.MULTILINE)
    assert launches
    for words in map(shlex.split, launches):
        options, _ = launch_command_parser().parse_known_args(words)
        assert options.training_script in ("pretrain.py", "longmlm.stages.pretrain")
        if options.config_file:
            assert load_config_from_file(str(LAUNCHES / Path(options.config_file).name)).num_processes
