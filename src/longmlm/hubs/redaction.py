"""Redaction: error texts without tokens and signed URLs."""

import textwrap

from longmlm.hubs.datasets import ADDRESS_QUERY


def redact(said: str, token: str | None) -> str:
    """Returns what was said in a short line, neither the token nor what signs an address in it."""
    return textwrap.shorten(ADDRESS_QUERY.sub("", said.replace(token, "***") if token else said), 300)
