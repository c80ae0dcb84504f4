"""No file names a path of the machine that it was written on, or a package registry."""

from pathlib import Path

MACHINE = ("../shared", "/work/", "/root/", "/opt/", "/home/")
REGISTRIES = ("pypi.org", "pythonhosted.org", "download.pytorch.org", "anaconda.org", "find-links", "index-url")


def test_no_machine_and_no_registry_is_named(root: Path, files: list[Path]) -> None:
    texts = {path: text for path in files if (text := _text(root / path)) is not None}
    own = Path(__file__).relative_to(root)
    assert len(texts) > 50
    assert own in texts
    assert _named(texts.pop(own)) == [*MACHINE, *REGISTRIES]
    assert {path: phrases for path, text in texts.items() if (phrases := _named(text))} == {}


def _named(text: str) -> list[str]:
    return [phrase for phrase in (*MACHINE, *REGISTRIES) if phrase in text]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
