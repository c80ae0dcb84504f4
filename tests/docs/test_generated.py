"""What is generated from code and measured numbers is up to date: the settings page and the pictures."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from docs.scripts.pictures import DRAWN
from docs.scripts.settings_reference import settings_page
from longmlm.settings.pretrain import PretrainRecipe


def test_settings_page_is_up_to_date(root: Path) -> None:
    assert settings_page() == (root / "docs" / "settings.md").read_text(encoding="utf-8")


def test_settings_page_has_every_setting_with_default_and_meaning() -> None:
    page = settings_page()
    assert page.count("\n| `") > 100
    names = {item.name for item in fields(PretrainRecipe)} - {"masking", "held_out"}
    assert [name for name in names if f"\n| `{name}` |" not in page] == []
    assert "| `adam_beta2` | float | `0.98` | AdamW's decay rate" in page
    assert "| `num_steps` | integer | **required** |" in page
    assert not re.search(r"\|\s*\|$", page, re.MULTILINE)


@pytest.mark.parametrize("name", DRAWN)
def test_picture_is_up_to_date(root: Path, name: str) -> None:
    committed, drawn = (root / "docs" / "pictures" / name).read_text(encoding="utf-8"), DRAWN[name]()
    assert _shape(drawn) == _shape(committed)
    pairs = list(zip(_numbers(drawn), _numbers(committed), strict=True))
    assert len(pairs) > 100
    assert [(now, then) for now, then in pairs if abs(now - then) > 0.05] == []


def test_pictures_follow_the_scheme_of_the_reader(root: Path) -> None:
    for name in DRAWN:
        text = (root / "docs" / "pictures" / name).read_text(encoding="utf-8")
        assert "prefers-color-scheme: dark" in text
        assert 'fill="var(--ground)"' in text
        assert "<script" not in text
        assert {url for url in re.findall(r'href="([^"#]+)', text) if not url.startswith("data:")} == set()


def _shape(svg: str) -> str:
    """Returns the SVG without numbers and pixels, which may differ in rounding from machine to machine."""
    return re.sub(r"-?\d+(\.\d+)?", "0", re.sub(r"base64,[^\"]*", "", svg))


def _numbers(svg: str) -> list[float]:
    without_pixels = re.sub(r"base64,[^\"]*", "", svg)
    return [float(number) for number in re.findall(r"(?<![\w#.-])-?\d+(?:\.\d+)?(?![\w.])", without_pixels)]
