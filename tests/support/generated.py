"""A tiny base model, rows of a long length, and the long model in either mode of positions."""

from pathlib import Path

import pytest

from longmlm.model.extension import write_extension
from longmlm.model.loading import load_model
from tests.support.tiny import tiny_extension, tiny_folder, tiny_rows


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """Folders: rows, and the long model of each mode."""
    folder = tmp_path_factory.mktemp("generated")
    base = tiny_folder(folder / "base")
    rows = tiny_rows(folder, base)
    for mode in ("generated", "materialized"):
        write_extension(load_model(str(base)), tiny_extension(base, mode=mode), folder / mode)
    return {"rows": rows, **{mode: folder / mode for mode in ("generated", "materialized")}}
