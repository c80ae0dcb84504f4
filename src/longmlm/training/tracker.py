"""Shows a run in Weights & Biases or TensorBoard, through their own clients in the process that trains.

A thread passes the lines of metrics on: when a tracker fails, hangs or waits for a network, training neither fails nor
waits.
"""

import json
import math
import os
import secrets
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from longmlm.artifacts.accuracy import accuracy_difference
from longmlm.artifacts.artifact import dump
from longmlm.artifacts.metrics import METRICS_FILE, EvaluationMetrics, Metrics, TrainingMetrics
from longmlm.errors import TrainingError
from longmlm.folders import parse_json, write_json
from longmlm.hubs.transfers import USER_IN_ADDRESS, redact
from longmlm.progress import message
from longmlm.settings.pretrain import Tracking
from longmlm.training.run_folder import read_state

IDENTITY = "tracker.json"
PATIENCE_SECONDS = 30.0
NOT_PLOTTED = ("format", "step")
RECOVERY = ("base_chunks", "base_cut", "recovered_at_step", "recovered_at_tokens")

Show = Callable[[Metrics | None], None]  # see Run
Settings = dict[str, Any]  # Any: tables of settings.toml, shown as they are


def check_installed(tracker: Literal["wandb", "tensorboard"] | None) -> None:
    """Raises TrainingError when the tracker is not installed."""
    spec = tracker and find_spec(tracker)
    if tracker and (spec is None or spec.origin is None):  # a folder of that name is no package
        raise TrainingError(
            f"tracking.tracker is {tracker}, which is not installed: pip install 'longmlm[{tracker}]', or leave it out"
        )


@contextmanager
def tracked(run: Path, tracking: Tracking, settings: str, resumed_from: Path | None, show: Show) -> Iterator[Show]:
    """Yields a function that passes a line of metrics to `show` and the tracker, whose last message ends the block.

    `settings` are those of the run, in TOML; `resumed_from` is a checkpoint, None if the run begins. A tracker that
    raises shows nothing more; one that has not finished PATIENCE_SECONDS after the block is left behind.
    """
    if tracking.tracker is None:
        yield show
        return
    lines = SimpleQueue[Metrics | bool]()
    after = read_state(resumed_from).state.step if resumed_from else -1
    thread = threading.Thread(target=_show, args=(lines, run, tracking, settings, after), daemon=True)
    thread.start()

    def show_both(line: Metrics | None) -> None:
        show(line)
        if line:
            lines.put(line)

    went_well = False
    try:
        yield show_both
        went_well = True
    finally:
        lines.put(went_well)
        thread.join(PATIENCE_SECONDS)
        if thread.is_alive():
            message(_failure(tracking.tracker, f"not finished {PATIENCE_SECONDS:.0f} s after training"))


def _show(lines: "SimpleQueue[Metrics | bool]", run: Path, tracking: Tracking, settings: str, after: int) -> None:
    """Shows lines until the end of training, whether it went well; the tracker starts with the first line."""
    client: WandbRun | TensorBoardRun | None = None
    try:
        while not isinstance(line := lines.get(), bool):
            client = client or _client(run, tracking, settings, after)
            client.show(line)
        if client:
            message(redact(client.finish(line)))
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training continues
        message(_failure(str(tracking.tracker), redact(f"{type(error).__name__}: {error}")))


def _client(run: Path, tracking: Tracking, settings: str, after: int) -> "WandbRun | TensorBoardRun":
    shown = {name: value for name, value in tomllib.loads(settings).items() if name != "tracking"}
    return WandbRun(run, tracking, shown) if tracking.tracker == "wandb" else TensorBoardRun(run, shown, after)


def _failure(tracker: str, reason: str) -> str:
    return f"{tracker} failed ({reason}); training is not affected, {METRICS_FILE} has every number"


def figures(line: Metrics) -> dict[str, float]:
    """Returns the finite numbers of a line of metrics under the names of their curves; `step` is the axis."""
    group, values = "train", dump(line)
    if isinstance(line, TrainingMetrics):
        values |= {f"{target}_{key}": value for target, own in values["targets"].items() for key, value in own.items()}
    else:
        blocks = {f"block_{index}": block.accuracy for index, block in enumerate(line.held_out.blocks)}
        group, values = "held_out", {**values["held_out"]["whole"], **{key: values[key] for key in RECOVERY}, **blocks}
        for name, one in line.held_out.sources.items():
            values |= {f"{name}/accuracy": one.whole.accuracy, f"{name}/loss": one.whole.loss}
        if own := line.pairs:
            values |= {"pair_accuracy": own.accuracy, "pair_loss": own.loss, "pair_larger_share": own.larger_share}
        for name, base in line.base_chunks_by_source.items():
            gain = accuracy_difference(line.held_out.sources[name].whole, base)
            values |= {f"{name}/base_chunks": base.accuracy, f"{name}/recovery": gain and gain.points}
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float) and key not in NOT_PLOTTED}
    return {f"{group}/{key}": float(value) for key, value in numbers.items() if math.isfinite(value)}


def predictions(line: Metrics) -> list[dict[str, str | float]]:
    """Returns a table row for each masked token in a line of metrics: context, truth, guesses with percentages."""
    rows = []
    for example in line.examples if isinstance(line, EvaluationMetrics) else ():
        row: dict[str, str | float] = {"row": str(example.row_id), "position": str(example.position)}
        row |= {"before": example.before, "truth": example.truth, "after": example.after}
        for rank, (guess, probability) in enumerate(example.guesses, 1):
            row |= {f"guess {rank}": guess, f"percent {rank}": 100 * probability}
        rows.append(row)
    return rows


class WandbRun:
    """A run at Weights & Biases with the same id after every resume; offline without a login or a connection.

    The client's recording of machine, code and environment is switched off.
    """

    def __init__(self, run: Path, tracking: Tracking, settings: Settings) -> None:
        own = {"ERROR_REPORTING": "false", "SILENT": "true", "DATA_DIR": str(run / "wandb"), "CACHE_DIR": str(run)}
        for name, value in own.items():
            os.environ.setdefault(f"WANDB_{name}", value)
        import wandb

        self.client, hooks = wandb, (sys.exit, sys.excepthook)
        self.run = wandb.init(
            config=settings,
            settings=wandb.Settings(
                mode=self._mode(),
                root_dir=str(run),
                project=tracking.project,
                entity=tracking.entity,
                run_name=tracking.name or "/".join(run.absolute().parts[-2:]),
                run_id=_run_id(run),
                resume="allow",
                init_timeout=PATIENCE_SECONDS,
                finish_timeout=PATIENCE_SECONDS,
                allow_val_change=True,
                silent=True,
                console="off",
                save_code=False,
                disable_code=True,
                disable_git=True,
                label_disable=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        sys.exit, sys.excepthook = hooks  # the client replaces them
        self.run.define_metric("*", step_metric="step")

    def _mode(self) -> Any:
        """Returns the mode of the user's settings, but offline where the service rejects them or does not answer."""
        own = self.client.setup().settings
        if USER_IN_ADDRESS.search(own.base_url):
            raise ValueError("the W&B client would log the password in its base_url: remove it")
        with suppress(self.client.Error):
            return own.mode if own.mode != "online" or self.client.login(prompt=False) else "offline"
        return "offline"

    def show(self, line: Metrics) -> None:
        """Logs a line of metrics; W&B's own step counts lines, ours is the axis of every curve."""
        shown: dict[str, object] = {"step": line.step, **figures(line)}
        if rows := predictions(line):
            shown["predictions"] = self.client.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self.run.log(shown)

    def finish(self, went_well: bool) -> str:
        """Finishes the run, and returns where to see it."""
        self.run.finish(exit_code=0 if went_well else 1)
        self.client.teardown()
        if self.run.offline:
            return f"wandb: offline; `wandb sync {Path(self.run.dir).parent}` uploads what is new"
        return f"wandb: {self.run.url}"


class TensorBoardRun:
    """A folder of TensorBoard events; those beyond the step that a run resumes from are hidden."""

    def __init__(self, run: Path, settings: Settings, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = run / "tensorboard"
        self.writer = SummaryWriter(str(self.folder), purge_step=after + 1)
        content = json.dumps(settings, indent=4)
        self.writer.add_text("settings", "".join(f"    {line}\n" for line in content.splitlines()), after + 1)

    def show(self, line: Metrics) -> None:
        """Adds a line of metrics, predictions as text."""
        for name, value in figures(line).items():
            self.writer.add_scalar(name, value, line.step)
        if rows := predictions(line):
            table = [list(rows[0]), ["---"] * len(rows[0])]
            table += [
                [f"{x:.1f}" if isinstance(x, float) else " ".join(x.split()) for x in row.values()] for row in rows
            ]
            cells = ("".join(f"| {cell.replace('|', '&#124;')} " for cell in row) + "|" for row in table)
            self.writer.add_text("predictions", "\n".join(cells), line.step)
        self.writer.flush()

    def finish(self, _went_well: bool) -> str:
        """Closes the folder, and returns how to view it."""
        self.writer.close()
        return f"tensorboard: `tensorboard --logdir {self.folder}` shows this run"


def _run_id(run: Path) -> str:
    """Returns the id that a run keeps in its folder across resumes."""
    with suppress(OSError, ValueError, KeyError):
        return parse_json((run / IDENTITY).read_text(encoding="utf-8"))["id"]
    new = secrets.token_hex(4)
    write_json(run / IDENTITY, {"id": new})
    return new
