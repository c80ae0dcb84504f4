"""Draw the pictures of README.md and docs/method.md from committed numbers: python docs/scripts/pictures.py.

The pictures have a background of their own, and colours that follow the reader's light or dark scheme.
"""

import base64
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.image import imsave
from torch import Tensor
from torch.nn.functional import avg_pool2d

from longmlm.artifacts.provenance import Extension, ModelSource
from longmlm.model.extension import long_table
from longmlm.model.fitted_positions import PositionAttention
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.position_table import position_table_of
from longmlm.reports.charts import NARROW, Chart, Colour, Series, svg
from longmlm.reports.pages import render
from longmlm.settings.extend import ExtendRecipe, Initialisation

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
RECORDED = ROOT / "docs" / "experiments" / "data" / "recorded.json"
MODEL = ROOT / "src" / "longmlm" / "bundled" / "roberta-mini"
NUM_POSITIONS, ALPHA = 384, 0.4
VIEWS: dict[str, tuple[str, Colour]] = {
    "base_chunks": ("base, in chunks", "amber"),
    "long_before": ("long, untrained", "pale"),
    "long_after": ("long, trained", "blue"),
}
MARGIN, TITLE_HEIGHT, LABEL_HEIGHT = 16, 28, 18
STRIDE, SHADES = 2, 8
WIDTH, HEIGHT = (int(72 * inches) for inches in NARROW)
INITIALISATIONS: tuple[Initialisation, ...] = ("hierarchical", "fitted")
MAP_SIZE, MIN_SHARE, MAX_SHARE = (
    150,
    0.1,
    20.0,
)  # the side of a map of attention, and the multiples of the mean that its colours span

Panel = tuple[str, str]


def recovery_picture() -> str:
    """Returns the recovery curve and the accuracy by block of the experiment with MiniLM at 1536 positions."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))["minilm_1536"]
    steps, whole = ([float(point[key]) for point in found["curve"]] for key in ("step", "accuracy"))
    levels = [Series("base model, cut to 512", "ink", [], [found["base_cut_during_training"]])]
    series = [*levels, Series("long model, whole row", "blue", steps, whole)]
    recovery = Chart("Recovery during training", ("step (7,500 tokens)", "held-out accuracy (%)"), series)
    blocks = {name: views for name, views in found["blocks"].items() if name != "whole row"}
    series = []
    for view, (name, colour) in VIEWS.items():
        values, errors = ([one[view][key] for one in blocks.values()] for key in ("accuracy", "standard_error"))
        series.append(Series(name, colour, [0.0, 1.0, 2.0], values, [2 * error for error in errors]))
    titles = ("positions in the row (tokens)", "held-out accuracy (%)")
    by_block = Chart("Accuracy by block of positions", titles, series, "points", [*blocks])
    panels = [(chart.title, svg(chart, NARROW)) for chart in (recovery, by_block)]
    return picture(f"{recovery.description} {by_block.description}", panels)


def positions_picture() -> str:
    """Returns the cosine similarities and norms of the bundled model's position table, before and after extension."""
    base = load_model(str(MODEL))
    trained = position_table_of(base.model).usable_rows
    table, n = _extended_table(base, "hierarchical"), len(trained)
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
    return picture(f"{caption} {chart.description}", panels)


def attention_picture() -> str:
    """Returns the attention of each head of the first layer if all tokens were the same, for three position tables."""
    base = load_model(str(MODEL))
    trained = position_table_of(base.model).usable_rows
    attention, n = PositionAttention.of(base.model, 1), len(trained)
    tables = {f"trained, {n}": trained}
    tables |= {f"{name}, {NUM_POSITIONS}": _extended_table(base, name) for name in INITIALISATIONS}
    step, grid = MAP_SIZE + MARGIN, []
    for column, (title, table) in enumerate(tables.items()):
        (kernels,) = attention.kernels(table[1:], table[1:])
        x = LABEL_HEIGHT + MARGIN + column * step
        style = 'font-size="13" font-weight="600" fill="var(--ink)"'
        grid.append(f'<text x="{x}" y="{MARGIN + 14}" {style}>{title}</text>')
        for head, shares in enumerate(len(table) * kernels.softmax(-1)):
            y = MARGIN + TITLE_HEIGHT + head * step
            grid.append(_image(_log_shades(shares, len(table) // n), "Blues", x, y, MAP_SIZE))
            if column == 0:
                place = (
                    f'x="{MARGIN + 4}" y="{y + MAP_SIZE // 2}" transform="rotate(-90 {MARGIN + 4} {y + MAP_SIZE // 2})"'
                )
                grid.append(
                    f'<text {place} text-anchor="middle" font-size="11" fill="var(--ink)">head {head + 1}</text>'
                )
    caption = (
        "First-layer attention from positions alone (rows: queries, columns: keys). Trained positions follow the "
        "diagonal; hierarchical ones repeat it in every block; fitted ones restore it."
    )
    width = LABEL_HEIGHT + MARGIN + len(tables) * step
    return _svg(caption, width, MARGIN + TITLE_HEIGHT + base.model.config.num_attention_heads * step, grid)


def _extended_table(base: LoadedModel, initialisation: Initialisation) -> Float[Tensor, "positions width"]:
    """Returns the position table after extension."""
    recipe = ExtendRecipe(num_positions=NUM_POSITIONS, initialisation=initialisation, alpha=ALPHA)
    source = ModelSource(name=MODEL.name)
    return long_table(base.model, Extension.of(recipe, source, len(position_table_of(base.model).usable_rows)))


def _log_shades(shares: Float[Tensor, "queries keys"], pooled: int) -> Float[Tensor, "rows columns"]:
    """Maps attention to 0 to 1 on a log scale: 0 at MIN_SHARE times the mean or less, 1 at MAX_SHARE times or more.

    Each pixel is the mean of `pooled` x `pooled` values.
    """
    scaled = (avg_pool2d(shares.unsqueeze(0), pooled)[0] / MIN_SHARE).clamp(min=1).log() / math.log(
        MAX_SHARE / MIN_SHARE
    )
    return (scaled.clamp(max=1) * SHADES).round() / SHADES


def _heat_map(rows: Float[Tensor, "rows width"], n: int) -> str:
    """Returns the cosine similarities of all pairs of rows as an SVG element, with a label at every n-th position."""
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T)[::STRIDE, ::STRIDE]
    shades = (1 + (cosines * SHADES).round() / SHADES) / 2  # few shades compress well
    size = HEIGHT - 2 * LABEL_HEIGHT
    x, labels = (WIDTH - size) // 2, []
    for start in range(0, len(rows) + 1, n):
        at = size * start / len(rows)
        labels.append(f'<text x="{x + at:g}" y="{size + LABEL_HEIGHT}" text-anchor="middle">{start}</text>')
        labels.append(f'<text x="{x - 6}" y="{at + 8:g}" text-anchor="end">{start}</text>')
    return (
        f'<svg viewBox="0 -4 {WIDTH} {HEIGHT}" font-size="10" fill="var(--ink)">'
        f"{_image(shades, 'RdBu_r', x, 0, size)}{''.join(labels)}</svg>"
    )


def _image(shades: Float[Tensor, "rows columns"], colours: str, x: int, y: int, size: int) -> str:
    """Returns a matrix of numbers from 0 to 1 as an SVG image."""
    buffer = io.BytesIO()
    imsave(buffer, shades.numpy(), format="png", metadata={"Software": ""}, vmin=0, vmax=1, cmap=colours)
    image = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<image x="{x}" y="{y}" width="{size}" height="{size}" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{image}"/>'
    )


def picture(description: str, panels: Sequence[Panel]) -> str:
    """Returns an SVG file with titled panels side by side."""
    parts = []
    for number, (title, panel) in enumerate(panels):
        x, y = MARGIN + number * (WIDTH + MARGIN), MARGIN + TITLE_HEIGHT
        style = 'font-size="13" font-weight="600" fill="var(--ink)"'
        parts.append(f'<text x="{x + 4}" y="{MARGIN + 14}" {style}>{title}</text>')
        place = f'<svg x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(panel.replace("<svg ", place, 1).replace(' aria-hidden="true"', ""))
    return _svg(description, len(panels) * (WIDTH + MARGIN) + MARGIN, HEIGHT + TITLE_HEIGHT + 2 * MARGIN, parts)


def _svg(description: str, width: int, height: int, elements: Sequence[str]) -> str:
    """Returns an SVG file with a background of its own."""
    css = render("page.css")
    scheme = " ".join(css[: css.index("* {")].split())
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return "\n".join(
        [
            f'<svg {namespaces} role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
            f"<title>{description}</title>",
            f"<style>{scheme} svg {{ font-family: system-ui, sans-serif; }}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="var(--ground)"/>',
            *elements,
            "</svg>\n",
        ]
    )


DRAWN = {
    "minilm-1536.svg": recovery_picture,
    "positions.svg": positions_picture,
    "attention.svg": attention_picture,
}

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (PICTURES / name).write_text(draw(), encoding="utf-8")
        print(PICTURES / name)
