"""Fill the tables of README, docs/expectations.md and experiments 11 and 12: python docs/scripts/figures.py.

The files are in docs/experiments/data. A table stands between two comments. `named` holds the figures that stand in
sentences; tests/docs checks that each of them is in its page, and that no page has a number that is not one of them.
"""

import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from claims import CLAIMS, PAIRS_HEAD, cells, interval, pair_cells, task_cells
from layers import START_HEAD, TRAINED_HEAD, start_cells, trained_cells
from layers import figures as figures_of_layers

from longmlm.artifacts.accuracy import difference

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "docs" / "experiments"
LOGS = [EXPERIMENTS / f"{name}.md" for name in ("0011-findings-of-papers", "0012-local-layers")]
PAGES = (ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "docs" / "expectations.md", *LOGS)
FILLED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
MINILM, CHINESE, BUNDLED = (
    "all-MiniLM-L6-v2 with a new MLM head",
    "Chinese BERT mini (docs/experiments/chinese-mini)",
    "bundled RoBERTa mini",
)
NAMES = {MINILM: "MiniLM", CHINESE: "Chinese BERT", BUNDLED: "RoBERTa"}
EVERY = {MINILM: 50, CHINESE: 10, BUNDLED: 10}  # steps between evaluations, in docs/experiments/compare
COPIED = "†"  # marks what stands in a log alone: the files of the run were not kept
GROUPS = {"in the chunk": "in its chunk", "elsewhere": "elsewhere only", "nowhere": "nowhere", "all": "all"}
RECORDED_GAINS = {"whole_minus_base": "whole_minus_control", "whole_minus_own_chunks": "whole_minus_own_chunks"}


@cache
def data(name: str) -> Any:
    """Returns the content of a file of docs/experiments/data."""
    return json.loads((EXPERIMENTS / "data" / f"{name}.json").read_text(encoding="utf-8"))


def filled(page: str) -> str:
    """Returns a page with its tables made from the data."""
    return FILLED.sub(lambda match: "\n".join([match[1], *TABLES[match[2]](), "", match[3]]), page)


def named() -> dict[str, list[str]]:
    """Returns by page the figures that stand in its sentences, as they are written there."""
    found = {"README.md": [*_of_minilm(), *_of_speed()], "expectations.md": [*_of_short_texts(), *_of_lengths()]}
    others = figures_of_layers(data("local-layers"))
    return {page: own + others[page] for page, own in found.items()}


def quoted() -> dict[str, list[str]]:
    """Returns by page of docs/ the findings of experiment 11 that its sentences quote, with their intervals."""
    found: dict[str, list[str]] = {}
    for claim in (claim for claim in CLAIMS if claim.page):
        found.setdefault(claim.page, []).append(interval(claim.measured(data(claim.comparison)), signed))
    return found


def lost() -> list[str]:
    """Returns the table of accuracies before any training."""
    head, summary = "| model | positions | base | distilled | fitted | hierarchical | window |", data("summary")
    cells = [
        [*_names(key), f"{summary[key]['base_cut']}", "–", *(f"{_run(key, arm)['long_before']}" for arm in ARMS)]
        for key in (MINILM, CHINESE)
    ]
    window = {one["positions"]: one for one in data("recorded")["before_training_by_length"]}[1536]["tile, window"]
    cells[0].append(f"{_with_error(window)} {COPIED}")
    cells[1].append("–")
    before = (("fitted", "long_before"), ("hierarchical", "long_after"), ("window", "long_after"))
    runs = ("demo", "base_cut"), ("demo", "long_before"), *before
    cells.append([*_names(BUNDLED), *(_accuracy(*run) for run in runs)])
    return _table(head, "|---|---|---:|---:|---:|---:|---:|", cells)


def returns() -> list[str]:
    """Returns the table of tokens until the accuracy is back."""
    head = "| model | positions | seeds | recovered after (M tokens) | measured every | at the end |"
    cells = []
    for key, model in data("summary").items():
        for run in model["runs"]:
            if run["tokens_to_recovery"] is None:
                continue
            resolution = run["tokens_trained"] or model["runs"][0]["tokens_trained"]
            steps = run["num_steps"] if run["tokens_trained"] else model["runs"][0]["num_steps"]
            end = f"{run['long_after']} at {_millions(run['tokens_trained'])}" if run["long_after"] else "–"
            row = [len(run["seeds"]), _millions(run["tokens_to_recovery"]), _millions(EVERY[key] * resolution / steps)]
            cells.append([NAMES[key], run["arm"], *map(str, row), end])
    first, second, *_ = (point for point in data("demo")["curve"])
    back = next(point for point in data("demo")["curve"] if point["whole"]["accuracy"] >= point["base_cut"])
    last = data("demo")["curve"][-1]
    resolution = _millions(second["tokens"] - first["tokens"])
    before = data("demo")["distillation_tokens"]
    end = f"{last['whole']['accuracy']:.2f} at {_millions(before + last['tokens'])}"
    recovered = _millions(before + back["tokens"])
    cells.append([f"{NAMES[BUNDLED]} (demo)", "distilled", "1", recovered, resolution, end])
    return _table(head, "|---|---|---:|---:|---:|---|", cells)


def context() -> list[str]:
    """Returns the table of what whole rows gain over chunks, by where else the row has the masked token."""
    head = (
        f"| the token occurs | {NAMES[BUNDLED]}: share | − control | − own chunks "
        f"| MiniLM {COPIED}: share | − control | − own chunks |"
    )
    kept = data("repeated-tokens")
    recorded = {one["token_occurs"]: one for one in data("recorded")["where_longer_context_helps"]}
    cells = []
    for group, name in GROUPS.items():
        ours, theirs = kept[group], recorded[name]["models"]["fitted, full attention"]
        share = 100 * ours["tokens"] / kept["all"]["tokens"]
        gains = [_points(ours["models"]["fitted"][key]) for key in RECORDED_GAINS]
        copied = [_points(theirs[key]) for key in RECORDED_GAINS.values()]
        cells.append([name, f"{share:.1f}%", *gains, f"{recorded[name]['share_percent']:.1f}%", *copied])
    return _table(head, "|---|---:|---:|---:|---:|---:|---:|", cells)


def tasks() -> list[str]:
    """Returns the table of differences on labelled tasks, with intervals before and after correction."""
    study = json.loads((EXPERIMENTS / "downstream.json").read_text(encoding="utf-8"))
    return _table("| task | compared | difference | corrected |", "|---|---|---|---|", task_cells(study, signed))


def findings() -> list[str]:
    """Returns the table of what papers found, and what was found here."""
    head = "| paper | finding | compared | difference, 95 % interval | seeds | result |"
    return _table(head, "|---|---|---|---|---:|---|", cells(data, signed))


def minilm(language: int = 0) -> list[str]:
    """Returns README's table of accuracies of MiniLM at 1536 positions, in English (0) or Chinese (1)."""
    measured = _whole_row(data("recorded")["minilm_1536"]["blocks"]["whole row"])
    cells = [[names[language], _with_error(measured[view])] for view, names in READ.items()]
    return _table(f"| {('accuracy of', '准确率')[language]} | % |", "|---|---:|", cells)


ARMS = ("fitted", "hierarchical")
VIEWS = ("base_cut", "base_chunks", "long_before", "long_after", "long_after_cut")
READ = {
    "base_chunks": ("the base model, in chunks of 512 tokens", "原模型，按 512 个 token 一段"),
    "long_before": ("the long model before training, with `fitted` positions", "长模型，训练之前，用 `fitted` 位置"),
    "long_after": ("the long model after training", "长模型，训练之后"),
}
TABLES: dict[str, Callable[[], list[str]]] = {
    "lost": lost,
    "returns": returns,
    "context": context,
    "tasks": tasks,
    "minilm": minilm,
    "minilm-zh": partial(minilm, 1),
    "findings": findings,
    "pairs": lambda: _table(*PAIRS_HEAD, pair_cells(data, signed)),
    "start": lambda: _table(*START_HEAD, start_cells(data("local-layers"), signed)),
    "trained": lambda: _table(*TRAINED_HEAD, trained_cells(data("local-layers"), signed)),
}


def _of_minilm() -> list[str]:
    """Returns MiniLM's figures in README: tokens, and the differences from the control."""
    _, far, *_, whole = data("recorded")["where_longer_context_helps"]
    over_control = [one["models"]["fitted, full attention"]["whole_minus_control"] for one in (whole, far)]
    gains = (f"{gain['points']:.2f} ± {gain['standard_error']:.2f}" for gain in over_control)
    return [f"{_run(MINILM, ARMS[0])['tokens_trained'] / 1e6:.1f} M", *gains, f"{far['share_percent']:.0f} %"]


def _of_speed() -> list[str]:
    """Returns the lowest and the highest ratio of training steps on 1536 tokens without dropout."""
    results = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    found = [each for one in results if one["name"].startswith("training step") for each in (one, *one["others"])]
    ratios = sorted(one["ratio"] for one in found if "1 x 1536" in one["shape"] and "dropout 0.0" in one["shape"])
    return [f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]


def _of_short_texts() -> list[str]:
    """Returns how the trained models do on rows cut to the base model's length, compared with it."""
    found = [data("summary")[key]["evaluation"] for key in (MINILM, CHINESE)]
    return [signed(one["long_after_cut"] - one["base_cut"]) for one in found] + [
        _points(_gain("long_after_cut", "base_cut"))
    ]


def _of_lengths() -> list[str]:
    """Returns what fitted positions keep at 4096 positions, and what trained models gain over chunks."""
    at_4096 = {one["positions"]: one for one in data("recorded")["before_training_by_length"]}[4096]
    minilm = data("summary")[MINILM]["evaluation"]
    return [
        f"{minilm['base_cut']:.2f}",
        f"{at_4096['fitted']['accuracy']:.1f} of {at_4096['base_chunks']['accuracy']:.1f} %",
        f"{signed(minilm['long_after'] - minilm['base_chunks'])} points",
        f"{_points(_gain('long_after', 'base_chunks'))} points",
        *{f"both have {_run(key, 'hierarchical')['long_before']} is chance" for key in (MINILM, CHINESE)},
    ]


def _gain(view: str, other: str) -> dict[str, float]:
    """Returns the accuracy of one view of the demo's evaluation minus another's, paired by row."""
    first, second = (data("demo")["measured"][name] for name in (view, other))
    gains = [mine - its for mine, its in zip(first["correct"], second["correct"], strict=True)]
    found = difference(gains, second["selected"])
    assert first["selected"] == second["selected"]
    assert found is not None
    return {"points": found.points, "standard_error": found.standard_error}


def _whole_row(views: dict[str, Any]) -> dict[str, Any]:
    """Returns the accuracies copied from the log, after a check that those of summary.json are the same."""
    summary = data("summary")[MINILM]["evaluation"]
    assert all(views[view]["accuracy"] == summary[view] for view in VIEWS)
    return views


def _table(head: str, line: str, cells: list[list[str]]) -> list[str]:
    return [head, line, *(f"| {' | '.join(row)} |" for row in cells)]


def _names(key: str) -> tuple[str, str]:
    model = data("summary")[key]
    return NAMES[key], f"{model['base_positions']} to {model['row_length']}"


def _run(key: str, arm: str) -> dict[str, Any]:
    return next(run for run in data("summary")[key]["runs"] if run["arm"] == arm)


def _accuracy(name: str, view: str) -> str:
    return _with_error(data(name)["measured"][view]["whole"])


def _with_error(measured: dict[str, Any]) -> str:
    return f"{measured['accuracy']:.2f} ± {measured['standard_error']:.2f}"


def _points(gain: dict[str, float]) -> str:
    return f"{signed(gain['points'])} ± {gain['standard_error']:.2f}"


def signed(points: float) -> str:
    """Returns points with their sign."""
    return f"{points:+.2f}".replace("-", "−")


def _millions(tokens: float) -> str:
    return f"{tokens / 1e6:.2f}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(page)
