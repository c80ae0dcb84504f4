"""The report of the downstream command: its finding, its tables in numbers, its charts and its page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.downstream import DownstreamComparison, Prediction
from longmlm.reports.charts import Chart
from longmlm.reports.downstream import (
    DIFFERENCES_PICTURE,
    SCORES_PICTURE,
    arms_table,
    cost_table,
    differences_chart,
    differences_table,
    downstream_page,
    scores_chart,
    write_downstream,
)
from longmlm.reports.downstream_details import (
    beyond_table,
    explained_spans_table,
    label_table,
    position_sections,
    search_table,
    seed_table,
    settings_table,
)
from longmlm.reports.downstream_finding import finding
from longmlm.reports.tables import markdown_table, percent, signed
from longmlm.scoring.compared import compared
from longmlm.settings.downstream import Arm
from tests.support.compared_arms import CLEAR, UNCLEAR, comparison_of, cost, explanation, labelling, task, trial


def test_equal_arms_are_not_ranked() -> None:
    trials = [trial(arm, CLEAR["base"]) for arm in ("other", "base")]
    comparison = compared(task(["base", "other"]), trials, {})
    assert [arm.arm for arm in comparison.arms] == ["base", "other"]
    assert finding(comparison).startswith("no difference found between other and base: accuracy +0.00 points")
    assert "<h2>Arms</h2>" in downstream_page(comparison, "")


def test_other_test_documents_of_each_seed_are_explained() -> None:
    trials = [trial("base", [1, 0] * 10, seed, fold=seed) for seed in (1, 2)]  # a fold has documents of its own
    [arm] = (comparison := compared(task(["base"]), [replace(one, fold=0) for one in trials], {})).arms
    assert (arm.num_documents, arm.documents_per_seed) == (40, 20)
    lead = "Classification of 40 test documents, 2 seeds. Each seed draws other test documents, 20 of these."
    assert lead in downstream_page(comparison, "")
    assert "Each seed draws" not in downstream_page(comparison_of(CLEAR), "")


def test_pairs_of_an_arm_that_is_not_trained_have_no_development_score() -> None:
    numbers = range(12)
    pairs = [Prediction(document=f"p{n}", num_tokens=9, score=float(n), predicted_score=n / 5) for n in numbers]
    tried = replace(trial("base", [1]), dev_scores=(), predictions=tuple(pairs))
    arms = {"base": Arm(model="owner/base", frozen=True)}
    comparison = compared(replace(task(["base"]), kind="similarity", labels=(), arms=arms), [tried], {})
    assert settings_table(comparison).lines[0][5] == "–"
    assert search_table(comparison).lines == [["base", "–", "–"]]
    page = downstream_page(comparison, "")
    assert "Similarity of 12 test pairs" in page and "<h2>Pairs</h2>" in page


def test_tables_have_a_number_per_cell() -> None:
    comparison = comparison_of(CLEAR)
    table, bounds = arms_table(comparison), ["95 % low", "95 % high"]
    assert table.header == ["arm", "accuracy (%)", *bounds, "difference", *bounds, "macro-F1 (%)"]
    assert [line[:2] for line in table.lines] == [["long", "80.00"], ["base", "60.00"]]
    assert table.lines[0][4] == "+20.00" and table.lines[1][4:7] == ["–", "–", "–"]
    assert all(re.fullmatch(r"[+−]?[\d.]+|–", cell) for line in table.lines for cell in line[1:])
    assert [line[5] for line in differences_table(comparison).lines] == ["better", "better"]
    assert differences_table(comparison_of(UNCLEAR)).lines[0][5] == "no difference found"
    assert markdown_table(table).count("\n") == 3


def test_documents_of_a_failed_fold_are_named_in_the_finding_and_the_table() -> None:
    trials = [trial(arm, correct) for arm, correct in CLEAR.items()] + [trial("base", [1] * 30, fold=1)]
    comparison = compared(task([*CLEAR]), trials, {"long, fold 1": "out of memory"})
    expected = "; left out of the difference from base, documents that only one of the two arms predicted: long 30"
    assert finding(comparison).endswith(expected)
    table = arms_table(comparison)
    assert [line[table.header.index("documents left out")] for line in table.lines] == ["30", "0"]
    assert all(len(line) == len(table.header) for line in table.lines)
    assert "left out" not in finding(comparison_of(CLEAR))


def test_arms_with_one_group_have_no_interval() -> None:
    trials = [trial(arm, correct) for arm, correct in CLEAR.items()]
    grouped = [replace(one, predictions=tuple(replace(each, unit="a") for each in one.predictions)) for one in trials]
    comparison = compared(task([*CLEAR]), grouped, {})
    assert finding(comparison).startswith("accuracy +20.00 points (long minus base), without an interval")
    assert arms_table(comparison).lines[0][1:7] == ["80.00", "–", "–", "+20.00", "–", "–"]
    [baseline, other] = scores_chart(comparison).series
    assert [*(baseline.intervals or ()), *(other.intervals or ())] == [(60, 60), (80, 80)]


def test_details_are_by_label_seed_and_setting() -> None:
    trials = [trial(arm, correct, seed, rate=0.5) for arm, correct in CLEAR.items() for seed in (1, 2)]
    comparison = compared(task([*CLEAR, "tfidf"]), trials[:-1], {})
    assert label_table(comparison).lines == [["no", "80.0", "60.0"], ["yes", "80.0", "60.0"]]
    assert seed_table(comparison).lines == [["long", "80.0", "–"], ["base", "60.0", "60.0"]]
    assert settings_table(comparison).lines[0] == ["long", "owner/long", "first", "512 tokens", "–", "all", "rate 0.5"]


def test_the_page_holds_finding_tables_settings_and_failures() -> None:
    comparison = comparison_of(CLEAR, {"wild, seed 1": "the loss is not finite"})
    text = downstream_page(comparison, "longmlm downstream task.toml")
    title = text.index("<title>news: comparison of 2 arms</title>")
    assert title < text.index("long is better than base</b>: accuracy") < text.index("Arms, the best one first")
    assert "Classification of 100 test documents, 1 seed." in text
    assert "one seed says nothing about how much training varies" in text
    for expected in ("the loss is not finite", "longmlm downstream task.toml", "1,000", "records set aside</dt><dd>7<"):
        assert expected in text
    assert "Which paragraphs" not in text and "By distance" not in text and "<script" not in text


def test_documents_that_are_not_tested_are_counted() -> None:
    trials = [trial(arm, correct, seed) for arm, correct in CLEAR.items() for seed in (1, 2)]
    text = downstream_page(compared(task([*CLEAR], num_untested=3), trials, {}), "")
    counted = "3 documents with some seed, since no training document has all of the labels"
    assert f"2 seeds. Not tested: {counted}." in text and f"<dd>{counted}</dd>" in text
    assert "ot tested" not in downstream_page(comparison_of(CLEAR), "")


def test_a_speed_that_was_not_measured_is_a_dash() -> None:
    unknown = replace(cost(), documents_per_second=None)
    untimed = [replace(trial(arm, correct), cost=unknown) for arm, correct in CLEAR.items()]
    table = cost_table(compared(task([*CLEAR]), untimed, {}))
    assert {line[table.header.index("documents/s predicted")] for line in table.lines} == {"–"}


def test_memory_of_prediction_is_shown_where_it_is_known() -> None:
    assert "in prediction (GB)" not in cost_table(comparison_of(CLEAR)).header
    trials = [trial(arm, correct) for arm, correct in CLEAR.items()]
    on_gpu = replace(trials[0], cost=replace(cost(), inference_memory_bytes=2_500_000_000))
    table = cost_table(compared(task([*CLEAR]), [on_gpu, trials[1]], {}))
    column = table.header.index("in prediction (GB)")
    assert {line[0]: line[column] for line in table.lines} == {"base": "2.50", "long": "–"}


def test_the_page_of_labelling_shows_where_entities_are_found() -> None:
    comparison = labelling()
    text = downstream_page(comparison, "")
    assert "By distance into the document" in text and "By distance from a cut" in text
    assert beyond_table(comparison).lines == [["whole", *["100.0"] * 3], ["truncate", *["0.0"] * 3]]
    assert explained_spans_table(comparison).lines == [
        ["Ms C", "PER", "600", "novel-0", "found", "not read"],
        ["Ms D", "PER", "900", "novel-0", "found", "not read"],
    ]
    header, line, _ = re.findall(r"<tr>.*?</tr>", text[text.index("By distance into the document</h2>") :])[:3]
    assert "0–511" in header and "1024" not in header
    assert re.findall(r"<td>([\d.]+)</td>", line) == ["66.7", "100.0"]


def test_single_entities_are_those_of_every_document_and_of_earlier_versions() -> None:
    comparison = labelling()
    whole, truncate = comparison.arms
    several = [
        replace(arm, explanations=tuple(replace(arm.explanations[0], document=f"novel-{n}") for n in range(50)))
        for arm in (whole, truncate)
    ]
    lines = explained_spans_table(replace(comparison, arms=tuple(several))).lines
    assert [line[3] for line in lines] == [f"novel-{number}" for number in range(40)]
    [explained] = whole.explanations
    same = [replace(span, start=-1, text="Ms") for span in explained.spans]
    earlier = replace(whole, explanations=(replace(explained, spans=tuple(same)),))
    lines = explained_spans_table(replace(comparison, arms=(earlier,))).lines
    assert [line[2] for line in lines] == ["600", "900"]


def test_the_page_shows_the_effects_of_paragraphs() -> None:
    explained = [
        replace(trial(arm, correct), explanations=(explanation(20.0, -5.0, -0.01, None),))
        for arm, correct in CLEAR.items()
    ]
    text = downstream_page(compared(task([*CLEAR]), explained, {}), "")
    section = text[text.index("Which paragraphs the decision comes from") : text.index("<h2>Settings")]
    assert section.count("Paragraph 0 &lt;b&gt;") == 2
    assert "predicted: yes (81.2 %), actual label: no" in section
    likeliest = [replace(one, explanations=(replace(one.explanations[0], is_predicted=False),)) for one in explained]
    page = downstream_page(compared(task([*CLEAR]), likeliest, {}), "")
    assert "predicted: none, likeliest: yes (81.2 %), actual label: no" in page
    assert section.count("+20.0") == 2 and section.count("−5.0") == 2
    assert section.count("<span>0.0</span>") == 2 and section.count(">not read<") == 2
    assert 'class="bar" style="width:100.0%"' in section and 'class="bar against" style="width:25.0%"' in section


def test_zero_has_no_minus_sign() -> None:
    assert (percent(-0.001), signed("-0.00 ± 0.10"), signed("-0.05"), signed("-10")) == (
        "0.00",
        "0.00 ± 0.10",
        "−0.05",
        "−10",
    )


def test_charts_have_an_interval_per_arm() -> None:
    comparison = comparison_of({**CLEAR, "third": UNCLEAR["long"]})
    chart = scores_chart(comparison)
    assert chart.ticks == ["long", "third", "base"]
    assert {series.name: list(series.x) for series in chart.series} == {"baseline": [2.0], "other arms": [0.0, 1.0]}
    assert chart.description == "Means and 95 % intervals. accuracy (%): long 80, third 62, base 60."
    [series] = differences_chart(comparison).series
    for arm, value, interval in zip(comparison.arms, series.values, series.intervals or (), strict=False):
        difference = arm.differences[0]
        assert (value, interval) == (difference.mean, (difference.low, difference.high))
    below, above = series.bars or ()
    assert below == pytest.approx([v - low for v, (low, _) in zip(series.values, series.intervals or (), strict=True)])
    assert all(length > 0 for length in above)


def test_a_score_without_an_interval_has_no_error_bar() -> None:
    comparison = labelling()
    arms = [
        replace(arm, by_position=tuple(replace(score, low=None, high=None) for score in arm.by_position))
        for arm in comparison.arms
    ]
    charts = [section.content for section in position_sections(replace(comparison, arms=tuple(arms)))]
    drawn = [series for chart in charts[:2] if isinstance(chart, Chart) for series in chart.series]
    assert len(drawn) == 2
    assert all(series.intervals == [(value, value) for value in series.values] for series in drawn)


def test_all_files_are_written(tmp_path: Path) -> None:
    comparison = comparison_of(CLEAR)
    write_downstream(comparison, tmp_path, "a command")
    assert artifact.read(DownstreamComparison, tmp_path / "downstream.json") == comparison
    for name in (SCORES_PICTURE, DIFFERENCES_PICTURE):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert text == downstream_page(comparison, "a command")
    alone = tuple(replace(arm, differences=()) for arm in comparison.arms)
    write_downstream(replace(comparison, arms=alone), tmp_path, "a command")
    assert not (tmp_path / DIFFERENCES_PICTURE).exists()


def test_a_comparison_of_an_earlier_version_opens(tmp_path: Path) -> None:
    comparison = labelling(1024, 384)
    artifact.write(tmp_path / "downstream.json", comparison)
    content = json.loads((tmp_path / "downstream.json").read_text(encoding="utf-8"))
    content["format"] = 1
    del content["length"], content["num_trials"]
    for arm in content["arms"]:
        del arm["constant"], arm["documents_per_seed"], arm["by_cut"]
        arm["by_border"] = []
    (tmp_path / "downstream.json").write_text(json.dumps(content), encoding="utf-8")
    earlier = artifact.read(DownstreamComparison, tmp_path / "downstream.json")
    assert (earlier.length, earlier.arms[0].scores) == (512, comparison.arms[0].scores)


def test_the_page_of_labelling_without_any_span_has_no_chart_of_distances() -> None:
    without = [
        replace(one, predictions=tuple(Prediction(document=f"d{number}", num_tokens=20) for number in range(5)))
        for one in (trial("base", [1] * 5), trial("long", [1] * 5))
    ]
    text = downstream_page(compared(task(["base", "long"], kind="labelling", labels=("PER",)), without, {}), "")
    assert "no arm found a span" in text and "F1 by distance into the document" not in text
