"""Passwords and keys in `publish`: each stage publishes with them, and no file, page, option or message holds them."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from longmlm.artifacts.artifact import to_toml
from longmlm.config import parse, read
from longmlm.errors import ConfigError
from longmlm.hubs.transfers import redact
from longmlm.reports.pages import made_with
from longmlm.runtime.children import Ended
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig, StageConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.publishing import Publishing, parse_target, redacted_address
from longmlm.settings.release import ReleaseConfig
from longmlm.stages import run

SECRETS = {  # an address with a secret, and how it is written
    "https://me:planted@host/rows": "https://***@host/rows",
    "https://me:p@planted@host/rows": "https://***@host/rows",
    "https://me:p/planted@host/rows": "https://***@host/rows",
    "https://me:p?planted#1@host/rows": "https://***@host/rows",
    "https://:planted@host": "https://***@host",
    "https://planted@host/rows": "https://***@host/rows",
    "https://planted:@host/rows": "https://***@host/rows",
    "https://planted:x-oauth-basic@host:8080/rows": "https://***@host:8080/rows",
    "webdav+https://me:planted@host/rows": "webdav+https://***@host/rows",
    "sftp://me:planted@host/rows": "sftp://***@host/rows",
    "s3://KEY:planted@bucket/rows": "s3://***@bucket/rows",
    "s3://planted@bucket/rows": "s3://***@bucket/rows",
    "s3://bucket/rows?secret=planted": "s3://bucket/rows?***",
    "s3://bucket/rows?planted": "s3://bucket/rows?***",
    "https://host/rows#token=planted": "https://host/rows#***",
    "https://me:planted@host/rows?sig=planted&se=1#planted": "https://***@host/rows?***",
    "abfs://me:planted@account/rows": "abfs://***@account/rows",
}
PUBLIC = (
    *("hf:owner/name", "ms:owner/name", "folder:out/a@b", "folder:C:/me:p@x", "s3://bucket/rows", "memory://a/b"),
    *("https://host:8080/a@b", "https://host/a:b", "sftp://me@host/rows", "abfs://container@account.net/rows"),
    *("file:///deep/me/a@b", "https://host:443"),
)


@pytest.mark.parametrize(("address", "written"), SECRETS.items())
def test_secret_is_hidden(address: str, written: str) -> None:
    assert redacted_address(address) == written
    assert redacted_address(written) == written
    assert "planted" not in redact(f"cannot reach {address}")


@pytest.mark.parametrize("address", PUBLIC)
def test_address_without_a_secret_stays(address: str) -> None:
    assert redacted_address(address) == address


@pytest.fixture(params=["https://me:p@planted@host/rows", "s3://bucket/rows?secret=planted"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    yield request.param
    held = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "mine.toml"]
    assert [path for path in held if b"planted" in path.read_bytes()] == []


def pipeline(address: str, **more: Any) -> dict[str, Any]:
    """Returns a pipeline that publishes both rows and release, as the user writes it."""
    return {
        "model": "base", "corpus": ["text.jsonl"], "length": 40, "output": "out",
        "prepare": {"publish": address, "card": {"license": "mit"}},
        "release": {"publish": address, "card": {"license": "mit"}},
        **more,
    }  # fmt: skip


def written(settings: dict[str, Any]) -> str:
    Path("mine.toml").write_text(tomli_w.dumps(settings))
    return "mine.toml"


def test_run_writes_no_secret_and_gives_it_to_the_stages_that_publish(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, seen = parse(RunConfig, [written(pipeline(address))]), {}

    def run_stage_process(stage: str, settings: StageConfig, environment: dict[str, str]) -> Ended:
        assert address not in environment.values()
        seen[stage] = getattr(settings, "publish", None)
        return Ended(0)

    monkeypatch.setattr(run, "run_stage_process", run_stage_process)
    monkeypatch.setattr(run, "is_trained", lambda _: True)
    monkeypatch.setattr(run, "is_done", lambda *_: False)
    monkeypatch.setattr(run, "summary", lambda _: "")
    run.run(config)
    assert seen == {"prepare": address, "extend": None, "pretrain": None, "evaluate": None, "release": address}
    assert redacted_address(address) in Path("out/pipeline.toml").read_text()


def test_settings_that_were_written_ask_for_the_address_again(address: str) -> None:
    text = to_toml(parse(ResolvedPipeline, [written(pipeline(address))]))
    Path("out.toml").write_text(text)
    for kind in (ResolvedPipeline, PrepareConfig, ReleaseConfig):
        with pytest.raises(ConfigError, match="give the whole address") as caught:
            parse(kind, ["out.toml"])
        assert "\n" not in str(caught.value)
    option = ["--prepare.publish", address, "--release.publish", address]
    assert parse(ResolvedPipeline, ["out.toml", *option]).release.publish == address
    assert parse(ReleaseConfig, ["out.toml", "--publish", address]).publish == address
    assert read(ResolvedPipeline, [Path("out.toml")]).release.publish == redacted_address(address)


def test_pages_options_and_errors_hold_no_secret(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = parse(ResolvedPipeline, [written(pipeline(address))])
    assert "planted" not in made_with("prepare", {"publish": address, "output": "out"})
    with pytest.raises(SystemExit):
        parse(ReleaseConfig, ["mine.toml", "--help"])
    assert "planted" not in capsys.readouterr().out
    assert asdict(config)["release"]["publish"] == address
    for wrong in (address.replace("://", ":/"), address.replace("://", ": //"), f" {address}", f"HTTPS{address}"):
        for attempt in (lambda wrong=wrong: Publishing(publish=wrong), lambda wrong=wrong: parse_target(wrong)):
            with pytest.raises(ValueError, match="hf:OWNER/NAME") as caught:
                attempt()
            if "?" not in address and "#" not in address:
                assert "planted" not in str(caught.value)
