"""An S3 server on a local port, which moto provides, for the client in this process."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import pytest
import s3fs
from moto.server import ThreadedMotoServer

BUCKET = "corpus"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass
class Bucket:
    """A bucket, and what the server was asked for."""

    system: fsspec.AbstractFileSystem
    requests: list[str] = field(default_factory=list)

    def write(self, name: str, content: bytes) -> str:
        """Writes a file and returns its URL."""
        self.system.pipe(f"{BUCKET}/{name}", content)
        return f"s3://{BUCKET}/{name}"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_environment(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment names the server and its keys, and no other place has keys."""
    own = {"AWS_ENDPOINT_URL": s3_endpoint, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    for name, value in {**KEYS, **own, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket."""
    bucket, call = Bucket(s3fs.S3FileSystem(use_listings_cache=False)), s3fs.S3FileSystem._call_s3
    if bucket.system.exists(BUCKET):
        bucket.system.rm(BUCKET, recursive=True)
    bucket.system.mkdir(BUCKET)

    async def counted(client: s3fs.S3FileSystem, method: str, *args: object, **options: object) -> object:
        bucket.requests.append(method)
        return await call(client, method, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    return bucket
