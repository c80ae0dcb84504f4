"""Files on S3 and HTTP servers: the rows of local copies, hashed once, and what cannot be used in one line at once."""

import gzip
import importlib
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.files import count_bytes, files_of, left_out, open_bytes
from longmlm.data.rows_plan import check_files_unchanged, plan_rows
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.planning.size import corpus_size
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.support.corpora import json_lines
from tests.support.loopback import Fault, Request, Response, Server, listening
from tests.support.s3 import BUCKET, Bucket, bucket, s3_endpoint, s3_environment

__all__ = ["bucket", "s3_endpoint", "s3_environment"]

MAX_SECONDS = 5.0  # of which a client without a retry takes 1, and one with its usual retries more than 10
TEXTS = [f"It rained {number} times. She went out, and nobody saw her. " * 9 for number in range(90)]


def contents() -> dict[str, bytes]:
    """Returns a file of each kind by its name."""
    parquet = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS[40:60]}), parquet, row_group_size=5)
    return {
        "a.jsonl": json_lines(TEXTS[:20]),
        "b.jsonl.gz": gzip.compress(json_lines(TEXTS[20:30])),
        "c.json": json.dumps([{"text": text} for text in TEXTS[30:40]]).encode(),
        "d.parquet": parquet.getvalue(),
        "e.csv": "\n".join(["text", *(f'"{text}"' for text in TEXTS[60:80])]).encode(),
        "deep/f.txt": TEXTS[80].encode(),
        "deep/g.md": TEXTS[81].encode(),
    }


def recipe_of(*files: str, **changes: object) -> PrepareRecipe:
    recipe = PrepareRecipe(
        tokenizer="tiny",
        row_length=64,
        sources=(Source(files=files),),
        held_out_fraction=0.2,
        slice_bytes=6_000,
    )
    return replace(recipe, **changes)


def test_rows_of_remote_files_are_those_of_local_copies(bucket: Bucket, vocabulary: Vocabulary, tmp_path: Path) -> None:
    for name, content in contents().items():
        bucket.write(name, content)
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(content)
    remote = recipe_of(f"s3://{BUCKET}/*.*", f"s3://{BUCKET}/deep/*")
    local = recipe_of(f"{tmp_path}/local/*.*", f"{tmp_path}/local/deep/*")
    size = corpus_size(remote.sources)
    assert (size.num_files, size.num_bytes) == (7, sum(map(len, contents().values())))
    assert size == corpus_size(local.sources)
    made = prepare_rows(remote, vocabulary, tmp_path / "remote")
    assert made.sha256 == prepare_rows(local, vocabulary, tmp_path / "rows").sha256
    assert made.report.train.documents + made.report.held_out.documents == 82
    assert prepare_rows(local, vocabulary, tmp_path / "remote") == made  # wherever they lie


def test_a_remote_file_is_hashed_once_and_again_when_its_version_changes(
    bucket: Bucket, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    url = bucket.write("a.jsonl", json_lines(TEXTS))
    recipe = recipe_of(url)
    made = prepare_rows(recipe, vocabulary, tmp_path / "rows")
    s3fs.S3FileSystem.clear_instance_cache()
    bucket.requests.clear()
    plan = plan_rows(recipe, vocabulary.fingerprint, made.plan).plan
    assert plan == made.plan
    assert "get_object" not in bucket.requests
    assert bucket.requests
    bucket.write("a.jsonl", json_lines(TEXTS[1:]))
    with pytest.raises(DataError, match="a.jsonl changed"):
        check_files_unchanged(plan.files)
    with pytest.raises(DataError, match="other text"):
        prepare_rows(recipe, vocabulary, tmp_path / "rows")


@pytest.mark.parametrize("name", ["a[1].jsonl", "a*.jsonl", "a?.jsonl", "{a,b}.jsonl", "deep/**/a.jsonl"])
def test_a_file_is_found_by_its_own_name_whatever_signs_that_has(bucket: Bucket, tmp_path: Path, name: str) -> None:
    for other in ("a1.jsonl", "ab.jsonl", "deep/more/a.jsonl"):
        bucket.write(other, b"{}")
    [found] = files_of([url := bucket.write(name, content := json_lines(TEXTS[:3]))])
    assert str(found) == url and count_bytes(found) == len(content)
    with open_bytes(found) as stream:
        assert stream.read() == content


@pytest.mark.parametrize("name", ["a[1].jsonl", "of[1]/*.jsonl", "of*/a.jsonl", "[x]/{y}/**/a.jsonl"])
def test_a_local_folder_is_found_by_its_own_name_too(tmp_path: Path, name: str) -> None:
    for other in ("of1/a.jsonl", "x/{y}/a.jsonl", "a1.jsonl", name.replace("/*.", "/a.").replace("/**/", "/")):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_bytes(b"{}")
    [found] = files_of([f"{tmp_path}/{name}"])
    assert found == tmp_path / name.replace("/*.", "/a.").replace("/**/", "/")
    assert not left_out([f"{tmp_path}/{name}"])


def refusal(pattern: str) -> str:
    """Returns the line with which a URL is refused at once."""
    started = time.monotonic()
    with pytest.raises(DataError) as raised:
        files_of([pattern])
    assert time.monotonic() - started < MAX_SECONDS
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_a_server_does_not_have_is_named(bucket: Bucket) -> None:
    bucket.write("a.jsonl", json_lines(TEXTS))
    bucket.write("a.pdf", b"%PDF-1.4")
    for pattern in (f"s3://{BUCKET}/b*.jsonl", f"s3://{BUCKET}/b.jsonl", "s3://other/b.jsonl"):
        assert re.match(rf"{re.escape(pattern)}.* no (such .*)?file", refusal(pattern))
    assert refusal(f"s3://{BUCKET}") == f"s3://{BUCKET} is a folder: name its files, as s3://{BUCKET}/*.jsonl does"
    assert "sources are .txt" in refusal(f"s3://{BUCKET}/a.pdf")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "the server cannot be reached.*check the network"),
        ({"AWS_ACCESS_KEY_ID": None}, "access needs .*AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_server_that_cannot_be_used_is_named_at_once(
    s3_environment: None, changed: dict[str, str | None], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    for pattern in (f"s3://{BUCKET}/a*.jsonl", f"s3://{BUCKET}/a.jsonl"):
        assert re.search(line, refusal(pattern))


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (
            "gs://bucket/a.jsonl",
            r"a.jsonl: its client is not installed \(Please install gcsfs .*\): install it with pip$",
        ),
        ("https://127.0.0.1:9/a.jsonl", "cannot be reached"),
        ("http://127.0.0.1:9/a.jsonl", "cannot be reached"),
        ("nowhere://bucket/a.jsonl", "fsspec"),
        ("sftp://user:planted0123@host/a.jsonl", "password or signature"),
        ("https://host/a.jsonl?X-Amz-Signature=planted0123", "password or signature"),
    ],
)
def test_other_urls_that_cannot_be_used_are_named_at_once(pattern: str, line: str) -> None:
    assert re.search(line, found := refusal(pattern))
    assert "planted" not in found


@pytest.fixture
def web(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the files above over HTTP; with headers as parameter, it sends these, and whole files only."""
    server, headers = Server(sends_ranges=not hasattr(request, "param")), getattr(request, "param", {"ETag": '"1"'})

    def respond(asked: Request) -> Response:
        return Response(contents()[asked.path[1:]], headers=headers)

    with listening(server, respond):
        yield server


def test_rows_of_files_on_the_web_are_those_of_local_copies(
    web: Server, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    names = ("a.jsonl", "b.jsonl.gz", "d.parquet", "e.csv")
    for name in names:
        (tmp_path / name).write_bytes(contents()[name])
    remote, local = (
        recipe_of(*(f"{web.endpoint}/{name}" for name in names)),
        recipe_of(*(f"{tmp_path}/{name}" for name in names)),
    )
    made = prepare_rows(remote, vocabulary, tmp_path / "remote")
    assert made.sha256 == prepare_rows(local, vocabulary, tmp_path / "rows").sha256
    web.sent.clear()
    assert plan_rows(remote, vocabulary.fingerprint, made.plan).plan == made.plan
    assert web.sent == []


@pytest.mark.parametrize("web", [{}, {"Accept-Ranges": "none"}], indirect=True)
def test_a_web_server_that_sends_whole_files_only_is_named_where_a_part_is_read(
    web: Server, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    url = f"{web.endpoint}/a.jsonl"
    prepare_rows(recipe_of(url, slice_bytes=1 << 20), vocabulary, tmp_path / "rows")
    with pytest.raises(DataError) as raised:
        prepare_rows(recipe_of(url), vocabulary, tmp_path / "slices")
    assert str(raised.value) == f"{url}: its server sends whole files only: download it, and name the copy"


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (401, r"access needs a valid token \(status 401, Unauthorized\)"),
        (403, r"access is forbidden \(status 403, Forbidden\)"),
        (404, r"no such repository, folder or file \(status 404, Not Found\); check its name"),
        (503, r"the server is unavailable \(status 503, Service Unavailable\); run the same command again later"),
    ],
)
def test_what_a_web_server_answers_is_one_line(web: Server, status: int, line: str) -> None:
    web.faults = [Fault("/a.jsonl", status, times=100)]
    assert re.match(f"{web.endpoint}/a.jsonl: {line}", refusal(f"{web.endpoint}/a.jsonl"))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    registry = {name: known for name, known in fsspec.registry.items() if name != "s3"}
    monkeypatch.setattr(importlib.import_module("fsspec.registry"), "registry", registry)
    with pytest.raises(DataError, match=r"s3://corpus/a\.jsonl.*pip install 'longmlm\[remote\]'"):
        files_of([f"s3://{BUCKET}/a.jsonl"])


def test_credentials_that_end_while_files_are_read_are_named(
    bucket: Bucket, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(bucket.write("a.jsonl", json_lines(TEXTS)))

    def without_keys(job: object, numbers: object) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        s3fs.S3FileSystem.clear_instance_cache()
        run_slices(job, numbers)

    with pytest.raises(DataError, match=r"s3://corpus/a\.jsonl: access needs.*AWS_ACCESS_KEY_ID"):
        prepare_rows(recipe, vocabulary, tmp_path / "rows", without_keys)
