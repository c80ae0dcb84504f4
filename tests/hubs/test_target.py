"""Names of targets, and what they are published as."""

import pytest

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
    ("settings", "named"),
    [
        ({"publish": "owner/name"}, "hf:OWNER/NAME"),
        ({"publish": "hf:owner/name@dev"}, "revision"),
        ({"publish": "ms:owner/name", "revision": "x"}, "tag"),
        ({"publish": "folder:out", "tag": "v1"}, "tag"),
        ({"public": True}, "public"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Publishing(**settings)
