"""Draw the pictures of README.md and docs/method.md from committed numbers: python docs/scripts/pictures.py.

The pictures have a background of their own, and colours that follow the reader's light or dark scheme.
"""

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.image import imsave
from safetensors.torch import load_file
from torch import Tensor

from longmlm.model.positions import hierarchical_table
from longmlm.reports.charts import NARROW, Chart, Colour, Series, svg
from longmlm.reports.pages import render

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
EXPERIMENT = ROOT / "docs" / "experiments" / "0003-minilm-1536.md"
MODEL = ROOT / "src" / "longmlm" / "bundled" / "roberta-mini" / "model.safetensors"
TABLE, RESERVED_ROWS = "roberta.embeddings.position_embeddings.weight", 2
NUM_POSITIONS, ALPHA = 384, 0.4
VIEWS: dict[str, tuple[str, Colour]] = {
    "base_windows": ("base, in windows", "amber"),
    "long_before": ("long, untrained", "pale"),
    "long_after": ("long, trained", "blue"),
}
MARGIN, TITLE_HEIGHT, LABEL_HEIGHT = 16, 28, 18
STRIDE, SHADES = 2, 8
WIDTH, HEIGHT = (int(72 * inches) for inches in NARROW)

Panel = tuple[str, str]


def recovery_picture() -> str:
    """Returns the recovery curve and the accuracy by block of the experiment with MiniLM at 1536 positions."""
    text = EXPERIMENT.read_text(encoding="utf-8")
    curve, blocks = _table(text, "| step | whole row (%) |"), _table(text, "| | base_cut | base_windows |")
    base_cut = re.search(r"base_cut on them is ([\d.]+) %", text)
    assert base_cut is not None, f"{EXPERIMENT} no longer gives base_cut"
    steps, whole = ([float(line[column]) for line in curve[1:]] for column in (0, 1))
    levels = [Series("base model, cut to 512", "ink", [], [float(base_cut[1])])]
    series = [*levels, Series("long model, whole row", "blue", steps, whole)]
    recovery = Chart("Recovery during training", ("step (3,072 tokens)", "held-out accuracy (%)"), series)
    lines = blocks[2:]  # without names and whole rows
    series = []
    for view, (name, colour) in VIEWS.items():
        cells = [line[blocks[0].index(view)].split(" ± ") for line in lines]
        values, errors = ([float(cell[part]) for cell in cells] for part in (0, 1))
        series.append(Series(name, colour, [0.0, 1.0, 2.0], values, [2 * error for error in errors]))
    titles = ("positions in the row (tokens)", "held-out accuracy (%)")
    by_block = Chart("Accuracy by block of positions", titles, series, "points", [line[0] for line in lines])
    panels = [(chart.title, svg(chart, NARROW)) for chart in (recovery, by_block)]
    return _picture(f"{recovery.description} {by_block.description}", panels)


def positions_picture() -> str:
    """Returns the cosine similarities and norms of the bundled model's position table, before and after extension."""
    trained = load_file(MODEL)[TABLE][RESERVED_ROWS:].float()
    table, n = hierarchical_table(trained, NUM_POSITIONS, ALPHA), len(trained)
    positions, norms = [float(position) for position in range(NUM_POSITIONS)], table.norm(dim=1).tolist()
    series = [
        Series(f"trained: 0–{n - 1}", "ink", positions[:n], norms[:n]),
        Series("computed", "blue", positions[n:], norms[n:]),
    ]
    chart = Chart("Norm of each row", ("position", "norm"), series)
    panels = [
        (f"Before: {n} trained rows", _heat_map(trained, n)),
        (f"After: {NUM_POSITIONS} rows, α = {ALPHA}", _heat_map(table, n)),
        (chart.title, svg(chart, NARROW)),
    ]
    caption = "Cosine similarity of every pair of rows of a position table: blue −1, white 0, red +1."
    return _picture(f"{caption} {chart.description}", panels)


def _table(text: str, header: str) -> list[list[str]]:
    """Returns the cells of the Markdown table whose first line starts with `header`, without the line of dashes."""
    lines = text[text.index(header) :].split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def _heat_map(rows: Float[Tensor, "rows width"], n: int) -> str:
    """Returns the cosine similarities of all pairs of rows as an SVG element, with a label at every n-th position."""
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T)[::STRIDE, ::STRIDE]
    shades = (cosines * SHADES).round() / SHADES  # few shades compress well
    buffer, size = io.BytesIO(), HEIGHT - 2 * LABEL_HEIGHT
    colours = {"vmin": -1, "vmax": 1, "cmap": "RdBu_r"}
    imsave(buffer, shades.numpy(), format="png", metadata={"Software": ""}, **colours)
    image = base64.b64encode(buffer.getvalue()).decode()
    x, labels = (WIDTH - size) // 2, []
    for start in range(0, len(rows) + 1, n):
        at = size * start / len(rows)
        labels.append(f'<text x="{x + at:g}" y="{size + LABEL_HEIGHT}" text-anchor="middle">{start}</text>')
        labels.append(f'<text x="{x - 6}" y="{at + 8:g}" text-anchor="end">{start}</text>')
    return (
        f'<svg viewBox="0 -4 {WIDTH} {HEIGHT}" font-size="10" fill="var(--ink)">'
        f'<image x="{x}" width="{size}" height="{size}" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{image}"/>{"".join(labels)}</svg>'
    )


def _picture(description: str, panels: Sequence[Panel]) -> str:
    """Returns an SVG file with titled panels side by side on a background of its own."""
    css = render("page.css")
    scheme = " ".join(css[: css.index("* {")].split())
    width = len(panels) * (WIDTH + MARGIN) + MARGIN
    height = HEIGHT + TITLE_HEIGHT + 2 * MARGIN
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    parts = [
        f'<svg {namespaces} role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{description}</title>",
        f"<style>{scheme} svg {{ font-family: system-ui, sans-serif; }}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="var(--ground)"/>',
    ]
    for number, (title, panel) in enumerate(panels):
        x, y = MARGIN + number * (WIDTH + MARGIN), MARGIN + TITLE_HEIGHT
        style = 'font-size="13" font-weight="600" fill="var(--ink)"'
        parts.append(f'<text x="{x + 4}" y="{MARGIN + 14}" {style}>{title}</text>')
        place = f'<svg x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(panel.replace("<svg ", place, 1).replace(' aria-hidden="true"', ""))
    return "\n".join([*parts, "</svg>\n"])


DRAWN = {"minilm-1536.svg": recovery_picture, "positions.svg": positions_picture}

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (PICTURES / name).write_text(draw(), encoding="utf-8")
        print(PICTURES / name)
