"""Packing of slices on a Ray cluster whose nodes share a disk; a slice whose node or worker is lost is packed again.

A Ray task has the folder and the environment of its node, not those of the process that started it: both are passed on.
"""

import functools
import json
import logging
import os
import re
import signal
import socket
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from longmlm.artifacts.artifact import version
from longmlm.artifacts.unfinished_rows import WorkPlan
from longmlm.data.corpus import Slice, slice_bytes
from longmlm.data.executor import do_slice, job_file, progress_of
from longmlm.data.slices import SliceJob, Work, pack_slice
from longmlm.errors import DataError, UserError
from longmlm.folders import sha256_of
from longmlm.hubs.storage import is_url
from longmlm.progress import message

RETRIES, MAX_WAITING = 3, 1_000
CONNECT_SECONDS, CANCEL_SECONDS = 2.0, 30.0
ADDRESS = "RAY_ADDRESS"
CURRENT = Path("ray") / "ray_current_cluster"  # in Ray's temporary folder: the cluster of the last `ray start`
MACHINE_NAMES = ("HOME", "HOSTNAME", "LD_LIBRARY_PATH", "PATH", "PWD", "SHLVL", "TMPDIR", "USER", "VIRTUAL_ENV")
EARLY = ("HF_", "PYTHONPATH", "TOKENIZERS_", "RAYON_", "OMP_")  # read by imports; Ray logs the values
SECRET = re.compile("TOKEN$|KEY|SECRET|PASSWORD|CREDENTIAL")  # in a name
JOB_PREFIXES = ("RAY_", "SLURM_", "KUBERNETES_", "CUDA_")
SHARED = "put output and corpus on a disk that all nodes mount at the same path"


@dataclass(frozen=True, slots=True)
class Driver:
    """What a task needs of the process that started it: its folder, the file of the job, and what all nodes share."""

    folder: Path
    job: Path
    plan: Path
    plan_sha256: str
    versions: str
    environment: tuple[tuple[str, str], ...] = field(repr=False)


def check_cluster() -> None:
    """Raises DataError if Ray is not installed, or if its cluster cannot be reached; imports no Ray."""
    if find_spec("ray") is None:
        raise DataError("runtime.executor = 'ray' needs Ray: pip install 'longmlm[ray]', or remove the setting")
    address = os.environ.get(ADDRESS, "")
    if address in ("", "auto"):
        folder = os.environ.get("RAY_TMPDIR", "/tmp")  # noqa: S108 - Ray's own default
        try:
            address = (Path(folder) / CURRENT).read_text(encoding="utf-8").strip()
        except OSError:
            raise DataError(_unreachable("none was started on this machine")) from None
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        raise DataError(f"{ADDRESS} = {address} is not the address of a cluster: set it to HOST:PORT of its head")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise DataError(_unreachable(f"{address}: {error}")) from None


def _unreachable(reason: object) -> str:
    return (
        f"no Ray cluster can be reached ({reason}): start one with ray start --head, set {ADDRESS} to HEAD:6379, or "
        "remove runtime.executor"
    )


def run_slices_on_ray(
    job: SliceJob, numbers: Sequence[int], work: Work = pack_slice, num_workers: int | None = None
) -> None:
    """Does the work on the slices of these numbers as Ray tasks, each on a CPU of the cluster, `num_workers` at a time.

    Raises DataError for a node that does not see the folder or the files, or has other versions, and for a slice that
    is lost more than RETRIES times; any other error is that of the task. On an error, all other tasks are cancelled.
    """
    check_cluster()
    plan = job.folder / WorkPlan.FILE
    with _cluster() as ray, job_file(job) as file, progress_of(job, numbers) as progress:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_do_on_node)
        driver = ray.put(Driver(Path.cwd(), file, plan, sha256_of(plan), _versions(), tuple(forwarded().items())))
        if ray.cluster_resources().get("CPU", 0) < 1:
            message("the Ray cluster has no CPU: waiting for a node that has one")
        left, running = iter(numbers), dict[Any, int]()  # Any: a reference of Ray
        try:
            while True:
                for number in islice(left, (num_workers or MAX_WAITING) - len(running)):
                    spans = job.slices[number]
                    running[task.remote(driver, work, number, spans, _file_sizes(spans))] = number
                if not running:
                    return
                [finished], _ = ray.wait([*running])
                _raise_failure(ray, finished, running[finished])
                progress.advance(slice_bytes(job.slices[running.pop(finished)]))
        except BaseException:
            for unfinished in running:
                ray.cancel(unfinished, force=True)
            ray.wait([*running], num_returns=len(running), timeout=CANCEL_SECONDS)
            raise


@contextmanager
def _cluster() -> Iterator[Any]:  # Any: the module
    """Yields Ray, connected to the cluster of RAY_ADDRESS or of this machine for the block, unless it already is."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    handler = signal.getsignal(signal.SIGTERM)
    early = {name: value for name, value in forwarded().items() if name.startswith(EARLY) and not SECRET.search(name)}
    try:
        address = os.environ.get(ADDRESS) or "auto"
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": early})
    except (ConnectionError, RuntimeError) as error:
        raise DataError(_unreachable(str(error).split(". ")[0])) from error
    try:
        with suppress(ValueError):  # only the main thread has handlers
            signal.signal(signal.SIGTERM, handler)
        yield ray
    finally:
        ray.shutdown()


def forwarded() -> dict[str, str]:
    """Returns the variables of this process that its tasks are to have: not those of the machine, or of the Ray job."""
    of_the_job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}").get("runtime_env", {})
    left_out = (*MACHINE_NAMES, *of_the_job.get("env_vars", {}))
    own = {key: value for key, value in os.environ.items() if key not in left_out and not key.startswith(JOB_PREFIXES)}
    return {**own, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}  # slices run in parallel


def _raise_failure(ray: Any, finished: Any, number: int) -> None:
    try:
        ray.get(finished)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError | OSError):
            raise error.cause from None
        if "No module named" in str(error):
            raise DataError(
                "a node of the Ray cluster cannot import longmlm: install the same environment on all nodes"
            ) from error
        raise
    except ray.exceptions.RayError as error:
        raise DataError(
            f"slice {number} was lost {RETRIES + 1} times ({type(error).__name__}), possibly because memory ran out on "
            "a node: run the same command again; finished slices are kept"
        ) from error


def _versions() -> str:
    """Returns the versions that the rows depend on."""
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("tokenizers", "rensa"))
    return f"longmlm {version()}, {packages}, Unicode {unicodedata.unidata_version}"


def _file_sizes(spans: Slice) -> dict[str, int | None]:
    """Returns the bytes of each file of a slice, but for URLs; None for one that this machine cannot read."""
    paths = [Path(span.path) for span in spans if not is_url(span.path)]
    return {str(path): path.stat().st_size if os.access(path, os.R_OK) else None for path in paths}


def _do_on_node(driver: Driver, work: Work, number: int, spans: Slice, sizes: dict[str, int | None]) -> None:
    """Does the work on a slice in the folder of the process that started the task, where relative paths begin.

    Errors of the user name the node, whose files, packages and access may differ.
    """
    node = f"node {socket.gethostname()} of the Ray cluster"
    _check_node(driver, node)
    found = _file_sizes(spans)
    if unseen := next((path for path, size in sizes.items() if found[path] != size), None):
        raise DataError(f"{node} does not see {unseen}, or sees a file of another size there: {SHARED}")
    try:
        do_slice(work, driver.job, number, spans)
    except UserError as error:
        raise type(error)(f"{node}: {error}") from error
    except ImportError as error:
        raise DataError(f"{node}: {error}: install the same packages on all nodes") from error


@functools.lru_cache(maxsize=1)
def _check_node(driver: Driver, node: str) -> None:
    """Enters the driver's folder; raises DataError if this node does not see it, or has other versions."""
    os.environ.update(driver.environment)
    try:
        os.chdir(driver.folder)
        is_shared = sha256_of(driver.plan) == driver.plan_sha256
    except OSError:
        is_shared = False
    if not is_shared:
        raise DataError(f"{node} does not see {driver.folder / driver.plan.parent}: {SHARED}")
    if (versions := _versions()) != driver.versions:
        raise DataError(f"{node} has {versions}, not {driver.versions}: install the same versions on all nodes")
