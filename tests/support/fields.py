"""All fields of the records of a source."""

from typing import Any

from longmlm.data.files import files_of
from longmlm.data.records import fields_of
from longmlm.hubs.datasets import arrow_files
from longmlm.settings.prepare import Source


def all_fields(source: Source) -> list[Any]:
    """Returns the fields of every record, or why it cannot be read."""
    paths = arrow_files(source) if source.dataset else files_of(source.files)
    return [fields for path in paths for _, fields in fields_of(path, source)]
