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
LOGGED = {  # files of docs/experiments/data that were copied from a log, or belong to it
    "recorded.json": "0010-recovery.md",
    "summary.json": "0010-recovery.md",
}


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
        "It reaches 37.1 ± 0.2.",
        "大约需要八分钟。",
        "速度是 2.5 倍。",
        "| a | b |\n|---|---:|\n| x | 3.14 |\n",
    ],
)
def test_a_new_number_without_a_source_is_found(added: str) -> None:
    for page in ("README.md", "docs/stages.md"):
        assert len([*without_source(page, f"{text_of(page)}\n\n{added}\n", ENTRIES)]) == 1


@pytest.mark.parametrize("harmless", ["rows of 1,536 tokens, step 20, 4 GPUs, seed 42, Python 3.11", "`12 MB/s`"])
def test_other_numbers_need_none(harmless: str) -> None:
    page = "docs/stages.md"
    assert [*without_source(page, f"{text_of(page)}\n\n{harmless}\n", ENTRIES)] == []


def test_a_changed_number_is_found_in_every_page_and_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of each registered sentence is changed once, in the page and in the file."""
    for entry in ENTRIES["measured"]:
        text = measured_text(entry)
        for match in NUMBERS.finditer(text):
            changed = text[: match.start()] + "9" + text[match.start() :]
            for page in entry["pages"]:
                assert text not in joined(text_of(page)).replace(text, changed)
        if "file" not in entry:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(sources, "content", lambda name: _doubled(json.loads((sources.DOCS / name).read_text())))
            assert measured_text(entry) != text or "ratio" in text


def _doubled(value: Any) -> Any:
    """Returns the content of a file with each number doubled and one more."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "name" in value[0] and "unit" in value[0]:
        return {one["name"]: _doubled(one) for one in value}
    if isinstance(value, dict):
        return {key: _doubled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_doubled(one) for one in value]
    return sources.Number(2 * value + 1) if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize(("name", "log"), LOGGED.items())
def test_files_that_were_copied_from_a_log_have_its_numbers(name: str, log: str) -> None:
    text = (sources.DOCS / "experiments" / log).read_text(encoding="utf-8")
    known = {float(number.replace(",", "")) for number in NUMBERS.findall(text)}
    data = json.loads((sources.DOCS / "experiments" / "data" / name).read_text(encoding="utf-8"))
    found = set(_accuracies(data))
    assert len(found) > 10
    assert found - known == set()


def _accuracies(value: Any) -> list[float]:
    """Returns the accuracies and their errors in a file, without signs."""
    if isinstance(value, dict):
        names = {"accuracy", "standard_error", "points", "base_cut", "long_before", "long_after", "share_percent"}
        own = [abs(value[name]) for name in names & value.keys() if isinstance(value[name], float)]
        return own + [number for key, one in value.items() if key != "curve" for number in _accuracies(one)]
    return [number for one in value for number in _accuracies(one)] if isinstance(value, list) else []


def test_pieces_of_a_page_are_its_own() -> None:
    assert "Hours are FLOP divided by 25 % of the data sheet's peak" in pieces("docs/pipelines.md", ENTRIES)
    assert "Hours are FLOP divided by 25 % of the data sheet's peak" not in pieces("docs/stages.md", ENTRIES)
