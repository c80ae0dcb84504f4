"""Passwords and keys in the address that a stage publishes to: they are used, and written to no file.

https://me:password@host/rows?key=1 is written as https://***@host/rows?***.
"""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
VARIABLE = "LONGMLM_PUBLISH_SECRET"  # in which `run` passes the address to the process of a stage
NO_ADDRESS = ("hf:", "ms:", "folder:")
USERS_ARE_PUBLIC = ("sftp", "ssh", "abfs", "abfss", "hdfs")  # elsewhere, a user without a password may be a token
PASSWORD = re.compile(r"[^/@:]*:(?!\d+(?:[/?#]|$)).*@", re.DOTALL)  # a port has no @ behind it
USER = re.compile(r"[^/@?#]*@")
QUERY = re.compile(r"(?<=[?#]).+", re.DOTALL)


def without_secret(address: str) -> str:
    """Returns an address with *** in place of user and password, and of the query, which may hold a signature."""
    scheme, is_url, rest = address.partition("://")
    if not is_url:  # no address, or a mistyped one
        is_target = "@" not in address or address.startswith(NO_ADDRESS)
        return address if is_target else f"{HIDDEN}@{address.rpartition('@')[2]}"
    secret = PASSWORD.match(rest) or (USER.match(rest) if scheme not in USERS_ARE_PUBLIC else None)
    rest = f"{HIDDEN}@{rest[secret.end() :]}" if secret else rest
    return f"{scheme}://{QUERY.sub(HIDDEN, rest)}"


def without_secrets(value: Any) -> Any:  # of any type that settings have
    """Returns settings, in tables and lists, in which every `publish` is without its secret."""
    if isinstance(value, Mapping):
        return {
            key: without_secret(item) if key == "publish" and isinstance(item, str) else without_secrets(item)
            for key, item in value.items()
        }
    return [without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def secret_of(stage: object) -> dict[str, str]:
    """Returns the environment variable that passes a stage its address, if that has a secret."""
    address = getattr(stage, "publish", None)
    return {VARIABLE: address} if address and without_secret(address) != address else {}
