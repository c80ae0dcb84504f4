"""Each measured number of a page has a source, and agrees with it: docs/scripts/sources.py, docs/sources.toml."""

import json
import re
from typing import Any

import pytest
import sources
from sources import GENERATED, PAGES, ROOT, WHY, measured_text, pieces, registry, text_of, without_source

ENTRIES = registry()
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES if path.name not in GENERATED]
NUMBERS = re.compile(r"\d[\d,]*(?:\.\d+)?")


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("entry", ENTRIES["measured"])
def test_sentences_have_the_numbers_of_their_files(entry: dict[str, Any]) -> None:
    text = measured_text(entry)
    assert NUMBERS.search(text)
    assert [page for page in entry["pages"] if text not in joined(text_of(page))] == []


@pytest.mark.parametrize("entry", ENTRIES["logged"])
def test_sentences_have_the_numbers_of_their_logs(entry: dict[str, Any]) -> None:
    known = set(NUMBERS.findall((ROOT / entry["log"]).read_text(encoding="utf-8")))
    for text in entry["texts"]:
        assert text in joined(text_of(entry["page"]))
        assert NUMBERS.search(text) and set(NUMBERS.findall(text)) <= known


@pytest.mark.parametrize("entry", ENTRIES["stated"])
def test_what_is_no_measurement_stands_in_its_page_as_registered(entry: dict[str, Any]) -> None:
    assert entry["why"] in WHY
    assert [text for text in entry["texts"] if text not in joined(text_of(entry["page"]))] == []


@pytest.mark.parametrize("page", NAMES)
def test_no_measured_number_is_without_a_source(page: str) -> None:
    assert [*without_source(page, text_of(page), ENTRIES)] == []


@pytest.mark.parametrize(
    "added",
    [
        "It takes 7 % less memory.",
        "It reads 12.5 MB/s.",
        "It packs 3,000 tokens/s.",
        "It needs 1.2 GiB.",
        "It takes 0.4 s.",
        "It takes about eight minutes.",
        "It is three times as fast.",
        "It is 2.5 to 3.5 times as fast.",
        "It gains 1.3 points.",
        "It lost 7 of 2,084.",
        "A loss of 3.14 nats.",
        "It reaches 37.1 ± 0.2.",
        "大约需要八分钟。",
        "速度是 2.5 倍。",
        "| a | b |\n|---|---:|\n| x | 3.14 |\n",
    ],
)
def test_a_new_number_without_a_source_is_found(added: str) -> None:
    for page in ("README.md", "docs/stages.md"):
        assert [*without_source(page, f"{text_of(page)}\n\n{added}\n", ENTRIES)]


@pytest.mark.parametrize("harmless", ["rows of 1,536 tokens, step 20, 4 GPUs, seed 42, Python 3.11", "`12 MB/s`"])
def test_other_numbers_need_none(harmless: str) -> None:
    page = "docs/stages.md"
    assert [*without_source(page, f"{text_of(page)}\n\n{harmless}\n", ENTRIES)] == []


def test_a_number_that_is_changed_in_a_page_is_found() -> None:
    page = "docs/performance.md"
    text = text_of(page)
    assert "37 % attention" in text
    found = [*without_source(page, text.replace("37 % attention", "38 % attention"), ENTRIES)]
    assert [one for one in found if one.endswith(" 38 %")]


@pytest.mark.parametrize("entry", [one for one in ENTRIES["measured"] if "file" in one])
def test_a_number_that_is_changed_in_a_file_is_found(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before = measured_text(entry)
    monkeypatch.setattr(sources, "content", lambda name: _doubled(json.loads((sources.DOCS / name).read_text())))
    after = measured_text(entry)
    assert len(NUMBERS.findall(after)) >= len(NUMBERS.findall(before)) and after != before


def _doubled(value: Any) -> Any:
    """Returns the content of a file with each number doubled and one more."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "name" in value[0] and "unit" in value[0]:
        return {one["name"]: _doubled(one) for one in value}
    if isinstance(value, dict):
        return {key: _doubled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_doubled(one) for one in value]
    return sources.Number(2 * value + 1) if isinstance(value, int | float) and not isinstance(value, bool) else value


def test_pieces_of_a_page_are_its_own() -> None:
    assert "Hours are FLOP divided by 25 % of the data sheet's peak" in pieces("docs/pipelines.md", ENTRIES)
    assert "Hours are FLOP divided by 25 % of the data sheet's peak" not in pieces("docs/stages.md", ENTRIES)


TASKS = ("hyperpartisan-frozen", "litbank", "novels", "laws")
SCORE = re.compile(r"\|[ *]*([+−]?[\d.]+) \[([+−]?[\d.]+), ([+−]?[\d.]+)\][ *]*(?=\|)")


def test_the_log_of_labelled_tasks_has_the_scores_of_its_file() -> None:
    log = (sources.DOCS / "experiments" / "0009-labelled-tasks.md").read_text(encoding="utf-8")
    study = json.loads((sources.DOCS / "experiments" / "downstream.json").read_text(encoding="utf-8"))
    tables = [table for table in sources.TABLE.findall(log) if table.startswith("| arm | reads |")]
    compared = 0
    for task, table in zip(TASKS, tables, strict=True):
        rows = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines()[2:]}
        assert rows.keys() == study[task]["arms"].keys()
        for arm, line in rows.items():
            data = study[task]["arms"][arm]
            expected = [data["scores"][0], *data["differences"][:1]]
            expected += [data["over_tfidf"]] if task == TASKS[0] and data.get("over_tfidf") else []
            found = [[float(number.replace("−", "-")) for number in match] for match in SCORE.findall(line)]
            assert len(found) == len(expected), line
            for shown, one in zip(found, expected, strict=True):
                assert shown == pytest.approx([one["mean"], one["low"], one["high"]], abs=0.0501), line
                compared += 1
    assert compared > 40


FILES = ("recorded.json", "summary.json")
# In the log of experiment 10, but in no file: two runs, and the trials of other recipes.
NOT_KEPT = {
    *("44.99", "45.16", "1.79"),
    *("36.03", "36.11", "36.25", "35.48", "36.39", "35.74", "36.22", "34.56", "35.79", "35.96", "35.70", "35.37"),
    "35.47",
}


def test_the_log_of_recovery_has_the_numbers_of_its_files() -> None:
    data = [json.loads((sources.DOCS / "experiments" / "data" / name).read_text(encoding="utf-8")) for name in FILES]
    known = {f"{number:.{places}f}" for number in _all_numbers(data) for places in (1, 2)}
    known |= {f"{number / 1e6:.2f}" for number in _all_numbers(data)}
    log = (sources.DOCS / "experiments" / "0010-recovery.md").read_text(encoding="utf-8")
    shown = {
        number for table in sources.TABLE.findall(log) for number in re.findall(r"(?<![\w.,-])\d+\.\d+(?!\w)", table)
    }
    assert len(shown) > 100
    assert shown - known == NOT_KEPT


def _all_numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in _all_numbers(one)]
    if isinstance(value, list):
        return [number for one in value for number in _all_numbers(one)]
    return [abs(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []
