"""Names of targets, what they are published as, and messages about them without secrets."""

import pytest

from longmlm.hubs.transfers import redact
from longmlm.settings.publishing import Publishing, Target, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("hf:owner/name", Target("hf", "owner/name")),
        ("hf:owner/name@refs/pr/1", Target("hf", "owner/name", "refs/pr/1")),
        ("ms:owner/na.me", Target("ms", "owner/na.me")),
        ("folder:out/copy", Target("storage", "out/copy")),
        ("s3://bucket/name", Target("storage", "s3://bucket/name")),
    ],
)
def test_name_is_parsed(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["owner/name", "gh:a/name", "hf:owner", "hf:owner/name@", "hf:a/b/c", "folder:", ""])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="OWNER/NAME"):
        parse_target(text)


def test_settings_name_one_target() -> None:
    settings = Publishing(publish="hf:owner/name", public=True, revision="dev", tag="v1")
    assert settings.target() == Target("hf", "owner/name", "dev", public=True, tag="v1")
    assert settings.hub_scheme == "hf"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("no room for planted-one", "no room for ***"),
        ("planted-key-extended and planted-key", "*** and ***"),
        ("PUT http://storage/objects/1?X-Signature=abc&b=c failed", "PUT http://storage/objects/1 failed"),
        ("(see https://me:planted@example.org/x?sig=1)", "(see https://example.org/x)"),
        ("two\nlines\t and spaces", "two lines and spaces"),
        ("set to false? yes", "set to false? yes"),
        (999 * "x", 300 * "x"),
    ],
)
def test_secrets_and_all_but_one_short_line_are_removed(
    text: str, redacted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "planted-key")
    monkeypatch.setenv("ANOTHER_SECRET", "planted-key-extended")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert redact(text, "planted-one", None) == redacted
