"""Write docs/performance.md and its pictures from measured numbers: python docs/scripts/performance.py.

docs/performance.json holds all published results, each with machine and date. If there is an out/benchmarks.json, as
`make bench` writes it, its results replace those of the same benchmark.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pictures import picture

from longmlm.reports.charts import NARROW, Chart, Series, svg

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "out" / "benchmarks.json"
PUBLISHED, PAGE = ROOT / "docs" / "performance.json", ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
PLACE = re.compile(r"([\d,]+) tokens, dropout ([\d.]+)")

HEAD = """\
# Performance

Each figure comes from a script in `benchmarks/` of a clone. The script runs longmlm and a peer in turn, each in a
fresh process; the figure is the median over the rounds. The peer is another library unless a section says otherwise.
*Ratio* is longmlm's figure divided by the peer's (for times, the inverse), so above 1 is better. *Aim* is our target
for the ratio. Two sections compare an estimate (in the column *longmlm*) with its measurement (*peer*): there 1 is
ideal, and the target is met within 15 % (memory) or a factor of 1.5 (speed). *Memory* is the peak resident memory of
the largest process, longmlm's and the peer's. `make bench` runs all scripts, `make bench QUICK=1` runs smaller
versions in minutes, and `python docs/scripts/performance.py` makes this page from the results. `benchmarks/gpu.sh`
measures a GPU in ten minutes; it has not been run, since no GPU was available.
"""
TEXTS = {
    "training step": "Masks, forward and backward pass, clipping and AdamW on random rows. The peer is "
    "transformers' Trainer with DataCollatorForLanguageModeling, as in run_mlm.py, and the same model, dropout, "
    "precision and batch. On rows under the same masks and without dropout, both have the same losses in each of five "
    "steps, up to rounding; the script checks it. An earlier measurement on the same day gave 173 tokens/s for the "
    "Trainer at 1 x 1536 tokens with dropout 0.1, a ratio of 3.28.",
    "training step, first version": "The same before training had [its own attention]"
    "(decisions/0014-packed-batches.md).",
    "training step, slower machine": "Measured again with faster dropout masks and two warm-up steps for both, on a "
    "machine that reaches 385 GFLOP/s in bf16 matrix products instead of 911.",
    "other models": "Models of the same depth, width and vocabulary with random weights; longmlm trains RoBERTa with "
    "full attention. Speed and memory are compared, not accuracy.",
    "micro-batch in 24 GB": "Where the unit is *rows*, *longmlm* is the micro-batch that the cost model predicts in "
    "bf16, and *peer* the one that Su (2020) reached in fp32. Where it is *MiB*, *longmlm* is the memory that the "
    "cost model predicts, and *peer* what autograd saves. *Stock*: transformers' model, logits at all positions; "
    "*eager*: saves every attention probability; *recomputed*: activation checkpointing; *card filled*: all 24 GB "
    "instead of the usual 85 % of the free memory. See [memory](performance-memory.md).",
    "window attention": "Forward and backward pass, without the optimizer, of a RoBERTa-base with a vocabulary of "
    "8,192: sliding-window attention compared with longmlm's own full attention. Speeds cannot be compared with those "
    "of the other tables.",
    "evaluation": "Masked-token accuracy of held-out rows.",
    "start-up": "Resuming after ten million rows: tokens of the first global batch, divided by the time until it is "
    "ready. longmlm computes where to go on; the Trainer iterates over all earlier batches. The last row is the time "
    "from launch until the first step after resuming is logged.",
    "busy machine": "Training while two endless loops use the cores, and without them. The peer is the same command "
    "with OpenMP's default, under which an idle thread spins longer before it sleeps.",
    "growth": "The same number of tokens, cut into shorter and longer rows. The exponent says how the time of a row "
    "grows with its length: 1 is linear, 2 quadratic. Su (2020) calls the growth near-linear up to 2048 tokens; we "
    "set the limit of near-linear at 1.2. The last table gives FLOP, time and peak memory per token. The formula's "
    "time assumes the FLOP/s measured at 512 tokens without dropout.",
    "profile": "The peer is the fastest bf16 matrix product on the same machine; the ratio is the share of it that a "
    "training step reaches, by the FLOP formula of `src/longmlm/model/cost.py`. It misses the aim: about half of the "
    "time of attention goes to softmax and dropout masks, and a sixth of the step to groups other than products, "
    "attention and decoder; the formula counts neither.",
    "generated positions": "Positions computed in each forward pass, compared with materialized ones.",
    "planned speed": "The speed that `longmlm plan` measures in a few seconds, compared with that of training steps; "
    "the aim is a factor of 1.5 in either direction.",
    "pause of a save": "How long training waits for a checkpoint. longmlm copies weights and moments in memory and "
    "writes them in the background; Accelerate's save_state writes them while training waits, without hashes and "
    "without waiting for the disk.",
    "packing": "Text to rows, one worker each, whose tokenizer uses all cores. The peer, `datasets.map` as in "
    "run_mlm.py, cuts across sentences.",
    "memory of prepare": "The same work as packing, on a large corpus and on single huge documents.",
    "masking": "Dynamic masks; longmlm's depend only on seed, epoch and row.",
}
NO_GAIN = """\
## What did not pay off

- Scores in fp32 instead of bf16 in longmlm's chunked attention on a CPU: 29 % slower. FlexAttention on a CPU: it has no
  backward pass there ([decision 14](decisions/0014-packed-batches.md)).
- torch.compile on a CPU (`docs/experiments/scripts/variants.py`, RoBERTa-base in bf16 with dropout 0.1):
  compiling the feed-forward layers is 9 % faster if all rows have 1536 tokens (600 against 550 tokens/s), but no faster
  on rows of different lengths, such as packed ones (600 against 598); compiling whole layers is 5 % faster with dropout
  and 13 % slower without.
- One matrix product for queries, keys and values instead of three: 25.7 ms instead of 22.4 ms.
- Casting the weights of all layers to bf16 once per step instead of once per micro-batch: saves at most 15 ms of a step
  of 2,800 ms.
- Other numbers of spins than 100,000 before an idle OpenMP thread sleeps. With 1,000, the bundled model trains at 4,404
  tokens/s on two idle cores (100,000: 5,785; 300,000, the default: 5,171) and at 2,751 beside two busy processes
  (2,112; 1,201). 20,000 and 50,000 are slower than 100,000 in both cases (`training` of `benchmarks/busy_machine.py`
  with `GOMP_SPINCOUNT` set, 14 steps, medians of three rounds that differ by up to a factor of two, 2026-11-25).
- Keeping freed memory in the process (glibc's allocator set never to use mmap and never to return memory): on rows of
  1536 tokens, steps have no page faults from the fourth on and are 7 to 14 % faster. On rows of different lengths
  they are no faster, and memory grows with every step (`docs/experiments/scripts/kept_memory.py`).
- Computing accuracy in the same pass over the logits as the loss: the two together take 1 to 2 % of a step.
- Huge pages for tensors (`THP_MEM_ALLOC_ENABLE=1`): a tenth of the page faults, but training steps of RoBERTa-base on
  1536 tokens are 9 to 19 % slower with dropout 0.1 and 4 to 12 % slower without (two rounds, 2026-11-23).
- More than 2,048 tokens in a micro-batch on a CPU: no faster ([experiment
  6](experiments/0006-plan-against-reality.md)).
- Estimating the speed of training as a constant share of the speed of a matrix product: the share varied from 3 to
  60 %, depending on the shape ([experiment 6](experiments/0006-plan-against-reality.md)).
- Storing the extended position table instead of computing it in each forward pass: any difference in speed is within
  the spread of the measurements ([experiment 4](experiments/0004-memory-of-prepare.md)).
"""


def merged(published: list[dict[str, Any]], measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the results with those of a run in place of older ones of the same name, in the order of TEXTS."""
    facts = {key: measured[key] for key in ("machine", "date", "revision", "load")}
    results = {one["name"]: one for one in published} | {one["name"]: facts | one for one in measured["results"]}
    order = [*(name for name in TEXTS if name in results), *(name for name in results if name not in TEXTS)]
    return [results[name] for name in order]


def page(results: list[dict[str, Any]]) -> str:
    """Returns the page as Markdown."""
    return "\n".join([HEAD, *(_section(one) for one in results), NO_GAIN])


def pictures(results: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the SVG files by name: speed by row length, and time per token where growth has been measured."""
    by_name = {one["name"]: one for one in results}
    charts = {"training-step.svg": list(_speed_charts(by_name["training step"]))}
    if "growth" in by_name:
        charts["growth.svg"] = list(_growth_charts(by_name["growth"]))
    return {
        name: picture(" ".join(one.description for one in drawn), [(one.title, svg(one, NARROW)) for one in drawn])
        for name, drawn in charts.items()
    }


def _section(one: dict[str, Any]) -> str:
    """Returns the heading, the text, the table and the origin of one benchmark."""
    name = one["name"]
    load = f", load {one['load']:g} at the start" if "load" in one else ""
    note = f" {one['note']}" if "note" in one else ""
    lines = [f"## {name[0].upper()}{name[1:]}", "", TEXTS.get(name, ""), ""]
    shared, works = split_shapes([entry["shape"] for entry in _entries(one)])
    lines += [f"In all rows: {shared}.", ""] if shared else []
    lines += ["| work | longmlm | peer | unit | ratio | aim | memory (GiB) |", "|---|---:|---|---|---:|---|---|"]
    lines += [_row(work, entry) for work, entry in zip(works, _entries(one), strict=True)]
    for extra, head in (
        ("profile", "| group | ms | share |"),
        ("growth", "| from 512 to 2048 tokens | exponent | near-linear | attention's share of the time at 2048 |"),
    ):
        if extra in one:
            lines += ["", head, re.sub(r"[^|]+", "---", head), *(_extra_row(extra, line) for line in one[extra])]
    lines += ["", *one["tables"]] if "tables" in one else []
    lines += ["", *_growth_table(one)] if name == "growth" else []
    shown = {"training step": "training-step.svg", "growth": "growth.svg"}
    if name in shown:
        lines += ["", f"![{name}](pictures/{shown[name]})"]
    command = f"`{one['command']}`: " if "command" in one else "Measured on "
    return "\n".join([*lines, "", f"{command}{one['machine']}, {one['date']}{load}.{note}", ""])


def _entries(one: dict[str, Any]) -> list[dict[str, Any]]:
    return [one, *one.get("others", ())]


def split_shapes(shapes: list[str]) -> tuple[str, list[str]]:
    """Returns the first and last parts that all shapes share, and the rest of each: a table does not repeat them.

    "base, 1 x 512, bf16" and "base, 1 x 1536, bf16" share "base, bf16"; the rests are "1 x 512" and "1 x 1536".
    """
    parts, ends = [shape.split(", ") for shape in shapes], ([], [])
    for index, end in zip((0, -1), ends, strict=True):
        while all(len(one) > 1 for one in parts) and len({one[index] for one in parts}) == 1 < len(parts):
            end.append(parts[0][index])
            parts = [one[1:] if index == 0 else one[:-1] for one in parts]
    return ", ".join([*ends[0], *reversed(ends[1])]), [", ".join(one) for one in parts]


def _row(work: str, entry: dict[str, Any]) -> str:
    names = (entry["peer_name"],) if entry.get("peer_name") else ()
    peer = "–" if entry["peer"] is None else ", ".join((_figure(entry["peer"]), *names))
    ratio = "–" if entry["ratio"] is None else f"{entry['ratio']:.2f}"
    aim = "–" if entry["aim"] is None else f"{entry['aim']:.2g}, {'met' if entry['met'] else 'missed'}"
    memory = " and ".join(f"{entry[key]:.2f}" for key in ("ours_gib", "peer_gib") if entry.get(key) is not None) or "–"
    cells = (work, _figure(entry["ours"]), peer, entry["unit"], ratio, aim, memory)
    return f"| {' | '.join(cells)} |"


def _extra_row(extra: str, line: dict[str, Any]) -> str:
    if extra == "profile":
        return f"| {line['group']} | {line['milliseconds']:,.0f} | {line['share']:.1%} |"
    verdict = "yes" if line["is_near_linear"] else "no"
    return f"| {line['measured']} | {line['exponent']:.2f} | {verdict} | {line['quadratic_share']:.0%} |"


def _growth_table(benchmark: dict[str, Any]) -> Iterator[str]:
    """Yields the verdict on near-linear growth, and a table of FLOP, time and memory per token by row length."""
    formula, *measured = benchmark["growth"]
    verdict = "confirmed" if all(line["is_near_linear"] for line in measured) else "refuted"
    exponents = " and ".join(f"{line['exponent']:.2f}" for line in measured)
    yield f"Near-linear growth is {verdict}: the exponents are {exponents}, {formula['exponent']:.2f} by the formula."
    yield ""
    yield "| per token: | GFLOP | ms by formula | ms, dropout 0 | ms, dropout 0.1 | MiB, dropout 0 | MiB, dropout 0.1 |"
    yield f"|{'---:|' * 7}"
    lengths, flops, entries = benchmark["row_lengths"], benchmark["flop_per_token"], _entries(benchmark)
    without_dropout, with_dropout = entries[: len(lengths)], entries[len(lengths) :]
    for length, flop, *pair in zip(lengths, flops, without_dropout, with_dropout, strict=True):
        milliseconds = [1e3 / entries[0]["ours"] * flop / flops[0], *(1e3 / entry["ours"] for entry in pair)]
        num_tokens = benchmark["num_tokens"] // length * length
        mebibytes = [entry["ours_gib"] * 1024 / num_tokens for entry in pair]
        cells = [f"rows of {length:,}", f"{flop / 1e9:.2f}", *(f"{value:.2f}" for value in (*milliseconds, *mebibytes))]
        yield f"| {' | '.join(cells)} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004


def _speed_charts(one: dict[str, Any]) -> Iterator[Chart]:
    """Yields bars of tokens/s by row length, for each dropout that was measured."""
    places = [(entry, PLACE.search(entry["shape"])) for entry in _entries(one)]
    known = [(int(match[1].replace(",", "")), match[2], entry) for entry, match in places if match]
    for dropout in sorted({dropout for _, dropout, _ in known}, reverse=True):
        points = sorted(
            (length, float(entry["ours"]), float(entry["peer"])) for length, own, entry in known if own == dropout
        )
        x = [float(number) for number in range(len(points))]
        series = [
            Series("longmlm", "blue", x, [ours for _, ours, _ in points]),
            Series("Trainer", "amber", x, [peer for *_, peer in points]),
        ]
        titles, ticks = ("row length (tokens)", "tokens/s"), [str(length) for length, *_ in points]
        yield Chart(f"Training step, dropout {dropout}", titles, series, "bars", ticks)


def _growth_charts(one: dict[str, Any]) -> Iterator[Chart]:
    """Yields time and memory over the row length, without dropout and with it."""
    lengths, flops, entries = list(map(float, one["row_lengths"])), one["flop_per_token"], _entries(one)
    halves = (("dropout 0", "blue", entries[: len(lengths)]), ("dropout 0.1", "amber", entries[len(lengths) :]))
    formula = [1e3 / entries[0]["ours"] * flop / flops[0] for flop in flops]
    times = [Series(name, colour, lengths, [1e3 / entry["ours"] for entry in half]) for name, colour, half in halves]
    times.append(Series("formula, dropout 0", "faint", lengths, formula))
    yield Chart("Time per token", ("row length (tokens)", "ms per token"), times)
    memory = [Series(name, colour, lengths, [entry["ours_gib"] for entry in half]) for name, colour, half in halves]
    yield Chart("Peak memory, same number of tokens", ("row length (tokens)", "GiB"), memory)


def main() -> None:
    """Publishes the last run, if any, and writes page and pictures."""
    results = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    if MEASURED.exists():
        measured = json.loads(MEASURED.read_text(encoding="utf-8"))
        if measured["is_quick"]:
            sys.exit(
                f"error: {MEASURED} holds results of --quick, which are not published: run make bench, or remove it"
            )
        results = merged(results, measured)
        PUBLISHED.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
    for name, text in pictures(results).items():
        (PICTURES / name).write_text(text, encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
