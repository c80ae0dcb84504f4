"""The Ray executor where no cluster is needed: what it refuses before it starts, and what a node refuses."""

import json
import socket
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray

from longmlm.data import ray_executor
from longmlm.data.files import Span
from longmlm.data.ray_executor import Driver, check_cluster
from longmlm.data.slices import pack_slice
from longmlm.errors import DataError, EncoderError
from longmlm.folders import sha256_of

NODE = f"node {socket.gethostname()} of the Ray cluster"


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("ray://head:10001", r"RAY_ADDRESS = ray://head:10001 is not the address of a cluster: set it to HOST:PORT"),
        ("head", "RAY_ADDRESS = head is not the address"),
        ("127.0.0.1:1", r"no Ray cluster can be reached \(127.0.0.1:1: .*refused\): start one with ray start --head"),
        ("no-such-host.invalid:6379", "no Ray cluster can be reached"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_one_line(
    address: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    with pytest.raises(DataError, match=problem):
        check_cluster()
    assert time.monotonic() - started < 5


def test_the_last_cluster_of_this_machine_may_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(DataError, match="no Ray cluster can be reached .none was started on this machine.: start one"):
        check_cluster()
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        check_cluster()
    with pytest.raises(DataError, match=f"no Ray cluster can be reached .{address}: "):
        check_cluster()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"needs Ray: pip install 'longmlm\[ray\]'"):
        check_cluster()


def test_a_node_must_see_the_folder_and_have_the_same_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Path("rows.partial") / "plan.json"
    plan.parent.mkdir()
    plan.write_text("{}")
    versions = ray_executor._versions()
    driver = Driver(tmp_path, Path("job"), plan, sha256_of(plan), versions, ())
    check_node = ray_executor._check_node.__wrapped__
    check_node(driver, NODE)
    for other in (
        Driver(tmp_path / "elsewhere", *_rest(driver)),
        Driver(tmp_path, Path("job"), plan, "0", versions, ()),
    ):
        with pytest.raises(DataError, match=f"{NODE} does not see {other.folder}/rows.partial: put output and corpus"):
            check_node(other, NODE)
    with pytest.raises(DataError, match=f"{NODE} has {versions}, not longmlm 0.0.1: install the same versions"):
        check_node(Driver(tmp_path, Path("job"), plan, sha256_of(plan), "longmlm 0.0.1", ()), NODE)


def test_a_node_must_see_the_files_of_a_slice_and_is_named_in_every_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "_check_node", lambda *_: None)
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    for name in names:
        Path(name).write_text("It rained.")
    spans = tuple(Span(name, 0, 1, 0, 10) for name in (*names, "s3://bucket/c.txt"))
    sizes, driver = ray_executor._file_sizes(spans), Driver(tmp_path, tmp_path / "job", Path("plan"), "", "", ())
    done: list[int] = []
    monkeypatch.setattr(ray_executor, "do_slice", lambda _work, _job, number, _spans: done.append(number))
    ray_executor._do_on_node(driver, pack_slice, 3, spans, sizes)
    assert done == [3] and [*sizes] == names
    for content in ("It snowed and rained.", None):
        Path(names[1]).write_text(content) if content else Path(names[1]).unlink()
        with pytest.raises(DataError, match=f"{NODE} does not see {names[1]}, or .*: put output and corpus on a disk"):
            ray_executor._do_on_node(driver, pack_slice, 4, spans, sizes)
    for kind in (DataError, EncoderError):
        monkeypatch.setattr(ray_executor, "do_slice", Mock(side_effect=kind("s3fs is not installed")))
        with pytest.raises(kind, match=f"^{NODE}: s3fs is not installed$"):
            ray_executor._do_on_node(driver, pack_slice, 5, spans[:1], {names[0]: 10})
    assert done == [3]


def _rest(driver: Driver) -> tuple[Path, Path, str, str, tuple[tuple[str, str], ...]]:
    return driver.job, driver.plan, driver.plan_sha256, driver.versions, driver.environment


def test_secrets_are_passed_on_but_not_to_the_logs_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "HF_HOME": "/cache", "SLURM_JOB_ID": "1", "MYVAR": "x"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    job = {"runtime_env": {"env_vars": {"MYVAR": "of the job"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    found = ray_executor.forwarded()
    assert {name: found.get(name) for name in given} == {**given, "SLURM_JOB_ID": None, "MYVAR": None}
    seen: dict = {}
    monkeypatch.setattr(ray, "init", lambda **options: seen.update(options))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with ray_executor._cluster():
        early = seen["runtime_env"]["env_vars"]
    assert early["HF_HOME"] == "/cache" and not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MYVAR"} & early.keys()
