"""Redaction: error messages without tokens, signed URLs and passwords."""

import os
import re

SIGNED_QUERY = re.compile(r"\?[^\s?=]+=[^\s)]*")
USER_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
SECRET_VARIABLE = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
MIN_SECRET_LENGTH = 8  # shorter values are words such as `true`
MAX_LENGTH = 300


def redact(text: str, *secrets: str | None) -> str:
    """Returns the text on one line of at most 300 characters without anything that grants access.

    Removed are the given secrets, the values of environment variables whose names say that they are secret, the
    queries of URLs, which may sign them, and user names and passwords in URLs.
    """
    environment = [value for name, value in os.environ.items() if SECRET_VARIABLE.search(name)]
    known = [*filter(None, secrets), *(value for value in environment if len(value) >= MIN_SECRET_LENGTH)]
    for secret in sorted(known, key=len, reverse=True):  # one may begin with another
        text = text.replace(secret, "***")
    return USER_IN_ADDRESS.sub("", SIGNED_QUERY.sub("", " ".join(text.split())))[:MAX_LENGTH]
