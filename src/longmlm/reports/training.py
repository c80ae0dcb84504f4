"""The page of a run while it trains: its progress, the recovery, and the latest predictions at masks."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from longmlm.artifacts.accuracy import RECOVERED, ROW, has_recovered, when_recovered
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.metrics import EvaluationMetrics, Metrics, MetricsFile, TrainingMetrics
from longmlm.escaping import single_line
from longmlm.folders import GB
from longmlm.progress import TIME, message
from longmlm.reports.charts import Chart, svg
from longmlm.reports.context import MEANING, groups_table
from longmlm.reports.evaluation import recovery_chart
from longmlm.reports.pages import Head, Section, Tile, page, write_page
from longmlm.reports.tables import percent

REFRESH_SECONDS = 5
RECOVERY = (
    "Accuracy at masked tokens of held-out rows, read whole; the shaded area shows two standard errors. The horizontal "
    "lines are the base model: base_chunks, and base_cut on the same rows cut to its length, shown for reference only. "
    f"{RECOVERED}"
)
ACCURACY = "Accuracy at masked tokens of held-out rows; the shaded area shows two standard errors."
PREDICTIONS = (
    "Predictions at the last masked position of held-out rows that are spread evenly over the split. The original "
    "token is highlighted."
)


@dataclass(slots=True)
class TrainingPage(AbstractContextManager["TrainingPage"]):
    """The page in a run folder, which `show` rewrites with each line of metrics.

    As a context manager, it names an error that ends the run on the page. If the page cannot be written, one line says
    so, and training continues.
    """

    run: Path
    num_steps: int
    facts: Mapping[str, str]
    made_by: str
    is_written: bool = True
    state: str = "measuring the model before training"
    evaluations: list[EvaluationMetrics] = field(default_factory=list)
    latest: TrainingMetrics | None = None
    started: float = 0.0
    first_step: int = 0
    charts: dict[tuple[float, float], str] = field(default_factory=dict)
    drawn: float = 0.0
    is_outdated: bool = False
    has_failed: bool = False

    def start(self, step: int) -> None:
        """Reads the lines of metrics up to `step`, at which training starts or resumes, and writes the page."""
        self.state, self.first_step, self.started = "training", step, time.monotonic()
        self.evaluations.clear()
        self.charts.clear()
        for line in MetricsFile(self.run).lines() if self.is_written else ():
            self._add(line)
        self.write()

    def show(self, line: Metrics | None) -> None:
        """Adds a line of metrics, unless it is None, and writes the page."""
        if line is not None:
            self._add(line)
        self.write()

    def end(self, state: str) -> None:
        """Writes how the run ended; browsers no longer reload the page."""
        self.state = state
        self.write(is_over=True)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, SystemExit):
            self.end("stopped: the same command resumes")
        elif error is not None:
            self.end(f"ended early: {single_line(str(error)) or type(error).__name__}")

    def write(self, is_over: bool = False) -> None:
        """Writes the page; prints one line at the first failure."""
        try:
            if not self.is_written:
                return
            write_page(self._page(is_over), self.run / PAGE_FILE)
        except Exception as error:  # noqa: BLE001 - no error of the page may end training
            if not self.has_failed:
                message(f"the page {self.run / PAGE_FILE} cannot be written ({error}); training is not affected")
            self.has_failed = self.is_outdated = True

    def _add(self, line: Metrics) -> None:
        if isinstance(line, TrainingMetrics):
            self.latest = line
            return
        if self.evaluations:
            self.evaluations[-1] = replace(self.evaluations[-1], examples=())
        self.evaluations.append(line)
        self.is_outdated = True

    @property
    def step(self) -> int:
        """The step of the latest line of metrics."""
        lines = [line.step for line in (self.latest, *self.evaluations[-1:]) if line is not None]
        return max(lines, default=self.first_step)

    def _page(self, is_over: bool) -> str:
        lead = f"{self.state}; written {time.strftime(TIME)}, at each evaluation and each logged step"
        name = "/".join(self.run.absolute().parts[-2:])
        last, sections = self.evaluations[-1] if self.evaluations else None, []
        if self.is_outdated and (is_over or time.monotonic() - self.drawn >= REFRESH_SECONDS):
            self.charts.clear()
            self.drawn, self.is_outdated = time.monotonic(), False
        if last:
            title, text = ("Accuracy during training", ACCURACY) if last.base_chunks is None else ("Recovery", RECOVERY)
            sections.append(Section(title, text, recovery_chart(self.evaluations)))
        if last and last.held_out.groups and last.held_out.groups["occurrence"][ROW].num_selected:
            base = {"base model, in chunks": last.base_chunks_by_occurrence} if last.base_chunks_by_occurrence else {}
            columns = {**base, "long model, whole rows": last.held_out.groups["occurrence"]}
            table = groups_table(columns, "occurrence")
            sections.append(Section(f"By other occurrences of the masked token, step {last.step:,}", MEANING, table))
        if last and last.examples:
            sections.append(Section(f"Predictions at masks, step {last.step:,}", PREDICTIONS, last.examples))
        sections.append(Section("This run", "", self.facts))
        head = Head(
            f"{name}: step {self.step:,} of {self.num_steps:,}",
            f"{lead[0].upper()}{lead[1:]}.",
            self._finding(last),
            (last is not None and last.recovered_at_step is not None and has_recovered(last.recovery)) or None,
            self._tiles(last, is_over),
            None if is_over else REFRESH_SECONDS,
        )
        return page(head, sections, self.made_by, self._svg)

    def _svg(self, chart: Chart, size: tuple[float, float]) -> str:
        """Returns the chart as SVG, which is redrawn at most as often as browsers reload the page."""
        if size not in self.charts:
            self.charts[size] = svg(chart, size)
        return self.charts[size]

    def _finding(self, last: EvaluationMetrics | None) -> str:
        """Returns in one sentence whether the base model's accuracy is recovered."""
        if last is None or last.recovery is None:
            return ""
        verdict = when_recovered(last.recovery, last.recovered_at_step)
        compared = last.recovery.compared_with(f"the base model's {percent(last.base_chunks)} % in chunks")
        reached = f"at step {last.step:,} the accuracy is {percent(last.held_out.whole.accuracy)} %"
        return f"{verdict.capitalize()}: {reached}, {compared}."

    def _tiles(self, last: EvaluationMetrics | None, is_over: bool) -> list[Tile]:
        share = f"{self.step / max(1, self.num_steps):.0%}".replace("%", " %")
        tiles = [Tile("steps", f"{self.step:,}", f"of {self.num_steps:,}, {share}")]
        if not is_over and self.started:
            tiles.append(Tile("time left", self._time_left() or "–"))
        if line := self.latest:
            tiles.append(Tile("speed", f"{line.tokens_per_second:,.0f}", "tokens/s"))
            tiles.append(Tile("memory", f"{line.memory_bytes / GB:.1f} GB", "at its peak"))
            tiles += [Tile(f"{name} loss", f"{one.loss:.3f}", "nats") for name, one in line.targets.items()]
        if last:
            error = last.held_out.whole.standard_error
            note = "%" if error is None else f"% ± {error:.2f}"
            tiles.append(Tile("held-out accuracy", percent(last.held_out.whole.accuracy), note))
        if last and last.base_chunks is not None:
            chunks, cut = percent(last.base_chunks), percent(last.base_cut)
            tiles.append(Tile("base model in chunks", chunks, f"% ± {percent(last.base_chunks_error)}"))
            tiles.append(Tile("base model, cut rows", cut, f"% ± {percent(last.base_cut_error)}"))
        return tiles

    def _time_left(self) -> str:
        """Returns the time left, evaluations included; empty before the first step of this process."""
        if (made := self.step - self.first_step) <= 0:
            return ""
        seconds = (time.monotonic() - self.started) / made * (self.num_steps - self.step)
        return str(timedelta(seconds=round(seconds)))
