"""What is generated from code and measured numbers is up to date: the settings page and the pictures."""

import json
import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from docs.scripts.pictures import DRAWN
from docs.scripts.settings_reference import settings_page
from longmlm.config import STAGES, parse
from longmlm.options import named_fields, sections
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.settings.tables import default_of, leaves


@pytest.fixture(scope="module")
def page() -> str:
    """The settings page, generated."""
    return settings_page()


def test_settings_page_is_up_to_date(root: Path, page: str) -> None:
    assert page == (root / "docs" / "settings.md").read_text(encoding="utf-8")


def test_settings_page_has_every_setting_with_default_and_meaning(page: str) -> None:
    assert page.count("\n| `") > 100
    names = {item.name for item in fields(PretrainRecipe)} - {"masking", "held_out"}
    assert [name for name in names if f"\n| `{name}` |" not in page] == []
    assert "| `adam_beta2` | float | `0.98` |  | AdamW's decay rate" in page
    assert "| `num_steps` | integer | **required** | `3000` |" in page
    assert not re.search(r"\|\s*\|$", page, re.MULTILINE)


def test_settings_page_shows_every_value_that_a_pipeline_gives_in_place_of_a_default(page: str) -> None:
    options = ["--model", "MODEL", "--corpus", "TEXT", "--length", "1536", "--output", "OUTPUT"]
    pipeline, shown = parse(ResolvedPipeline, options), 0
    for kind, stage in STAGES.items():
        values = dict(leaves(asdict(getattr(pipeline, stage))))
        for name, item in named_fields(kind):
            section, _, key = name.rpartition(".")
            if name not in values or [*sections(item)] or values[name] == default_of(item):
                continue
            table = page.partition(f"\n## {stage}\n")[2].partition("\n## ")[0]
            table = table.partition(f"`[{section}]`\n")[2] if section else table
            row = next(line for line in table.splitlines() if line.startswith(f"| `{key}` |"))
            assert row.split(" | ")[3].startswith(f"`{json.dumps(values[name])}`"), row
            shown += 1
    assert shown > 30


@pytest.mark.parametrize(
    ("key", "cell"),
    [
        ("batch_tokens", "`98304` (`length`)"),
        ("warmup_steps", "`150` (`pretrain.recipe.num_steps`)"),
        ("held_out_fraction", "`0.05`"),
        ("language", '`"en"` (`language`)'),
    ],
)
def test_settings_page_names_the_keys_from_which_a_value_follows(page: str, key: str, cell: str) -> None:
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith(f"| `{key}` |")]
    assert cell in [row[3] for row in rows]


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
