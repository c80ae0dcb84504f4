"""Prepare on a Ray cluster of two nodes: whatever is killed, the rows are those of one process."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmlm.artifacts.rows import read_rows_manifest
from longmlm.folders import partial_of, verify
from longmlm.settings.shipped import SHIPPED

cluster_utils = pytest.importorskip("ray.cluster_utils")
OVERRIDES = ("--recipe.slice-bytes", "60000", "--runtime.executor", "ray")
SECONDS = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each on this machine, whose working folder is not that of the driver."""
    own = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    own.add_node(num_cpus=1)
    yield own
    own.shutdown()


def start(folder: Path, cluster: Any, *more: str, **pipes: int) -> subprocess.Popen:
    """Starts prepare in a folder, with an output whose path is relative to it."""
    command = [sys.executable, "-m", "longmlm", "prepare", str(SHIPPED / "demo.toml"), "--output", "rows"]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    return subprocess.Popen([*command, *OVERRIDES, *more], cwd=folder, env=environment, text=True, **pipes)


def made(output: Path) -> dict:
    verify(output)
    manifest = read_rows_manifest(output)
    counts = (manifest.report.train, manifest.report.held_out, manifest.report.set_aside)
    return {"files": manifest.files, "counts": counts}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What one process makes."""
    output = tmp_path_factory.mktemp("local") / "rows"
    overrides = ["--output", str(output), *OVERRIDES[:2], "--runtime.num-workers", "1"]
    subprocess.run(
        [sys.executable, "-m", "longmlm", "prepare", str(SHIPPED / "demo.toml"), *overrides],
        check=True,
        timeout=SECONDS,
    )
    return made(output)


def finished_slices(output: Path) -> dict[str, float]:
    return {path.name: path.stat().st_mtime_ns for path in (partial_of(output) / "reports").glob("*.json")}


def wait_for_slices(driver: subprocess.Popen, output: Path) -> None:
    """Waits until the nodes are at work, and not nearly done."""
    while len(finished_slices(output)) < 2:
        assert driver.poll() is None, "it ended too early"
        time.sleep(0.02)


def kill_worker(_cluster: Any) -> None:
    while True:
        for process in psutil.process_iter():
            if process.name().startswith("ray::_do_on_node"):
                process.send_signal(signal.SIGKILL)
                return


def remove_node(cluster: Any) -> None:
    [node] = list(cluster.worker_nodes)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=1)


@pytest.mark.parametrize("kill", [kill_worker, remove_node])
def test_slices_that_a_worker_or_node_lost_are_packed_again(
    kill: Callable[[Any], None], cluster: Any, expected: dict, tmp_path: Path
) -> None:
    with start(tmp_path, cluster) as driver:
        wait_for_slices(driver, tmp_path / "rows")
        kill(cluster)
        assert driver.wait(SECONDS) == 0
    assert made(tmp_path / "rows") == expected


def test_a_driver_that_was_killed_goes_on_where_it_was(cluster: Any, expected: dict, tmp_path: Path) -> None:
    with start(tmp_path, cluster) as driver:
        wait_for_slices(driver, tmp_path / "rows")
        driver.kill()
    before = finished_slices(tmp_path / "rows")
    with start(tmp_path, cluster, stdout=subprocess.PIPE) as driver:
        output = str(driver.communicate(timeout=SECONDS)[0])
        assert driver.returncode == 0
    [line] = [line for line in output.splitlines() if line.startswith("resuming: ")]
    assert int(line.split()[1]) >= len(before) >= 2
    assert made(tmp_path / "rows") == expected


def test_an_error_of_the_user_on_a_node_is_one_line(cluster: Any, tmp_path: Path) -> None:
    texts = [f"Chapter {number}. " + "The ship sailed on. " * 500 for number in range(40)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=4, compression="NONE")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    begin = content.index(b"Chapter 21")
    content[begin - 60 : begin] = bytes(60)  # the header of a page
    (tmp_path / "a.parquet").write_bytes(content)
    corpus = ["--corpus", "a.parquet", "--recipe.held-out-fraction", "0.4"]
    with start(tmp_path, cluster, *corpus, stderr=subprocess.PIPE) as driver:
        error = str(driver.communicate(timeout=SECONDS)[1])
    assert driver.returncode == 2 and "Traceback" not in error
    assert f"error: node {socket.gethostname()} of the Ray cluster: a.parquet is damaged (" in error
