"""The Python API: `run` runs a pipeline, `read_rows` reads packed rows, the other functions work in memory.

They are imported on first use, so that `import longmlm` takes no time and changes nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longmlm.api.models import evaluate, export, extend
    from longmlm.api.pipelines import run
    from longmlm.api.rows import mask, pack, read_rows

    __version__: str

__all__ = ["evaluate", "export", "extend", "mask", "pack", "read_rows", "run"]

if not TYPE_CHECKING:
    MODULES = {"models": ("evaluate", "export", "extend"), "pipelines": ("run",), "rows": ("mask", "pack", "read_rows")}

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "__version__":
            from longmlm.artifacts.artifact import version

            return version()
        for module, names in MODULES.items():
            if name in names:
                return getattr(import_module(f"longmlm.api.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__, "__version__"])
