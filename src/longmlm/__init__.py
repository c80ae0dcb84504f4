"""Extends masked language models to longer inputs: the functions `extend`, `pack`, `mask`, `evaluate` and `export`.

They are imported on first use, so that `import longmlm` takes no time and changes nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longmlm.api import evaluate, export, extend, mask, pack

    __version__: str

__all__ = ["evaluate", "export", "extend", "mask", "pack"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from longmlm.artifacts.artifact import version

            return version()
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from longmlm import api

        return getattr(api, name)

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__, "__version__"])
