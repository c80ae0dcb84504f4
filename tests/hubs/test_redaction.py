"""Redaction of tokens, signed URLs and passwords."""

import pytest

from longmlm.hubs.transfers import redact


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("no room for planted-one", "no room for ***"),
        ("planted-key-extended and planted-key", "*** and ***"),
        ("PUT http://storage/objects/1?X-Signature=abc&b=c failed", "PUT http://storage/objects/1 failed"),
        ("(see https://me:planted@example.org/x?sig=1)", "(see https://example.org/x)"),
        ("two\nlines\t and spaces", "two lines and spaces"),
        ("set to false? yes", "set to false? yes"),
    ],
)
def test_secrets_are_removed(text: str, redacted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "planted-key")
    monkeypatch.setenv("ANOTHER_SECRET", "planted-key-extended")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert redact(text, "planted-one", None) == redacted


def test_text_is_short() -> None:
    assert len(redact(999 * "x")) == 300
