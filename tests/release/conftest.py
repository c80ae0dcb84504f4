"""A trained long model, its rows and its evaluation; a hub."""

from tests.support.served import hub, served, waits
from tests.support.worlds import evaluation, world

__all__ = ["evaluation", "hub", "served", "waits", "world"]
