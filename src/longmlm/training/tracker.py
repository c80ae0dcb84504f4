"""Shows a run in Weights & Biases or TensorBoard, from a separate process that `tracked` starts.

That process reads metrics.jsonl as the file grows. So when a tracker fails, hangs or waits for a network, training
neither fails nor waits, and what it shows is what the file says.
"""

import json
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from longmlm.artifacts.accuracy import accuracy_difference
from longmlm.artifacts.artifact import dump
from longmlm.artifacts.metrics import METRICS_FILE, EvaluationMetrics, Metrics, TrainingMetrics, parse_line
from longmlm.artifacts.run import TrainState
from longmlm.errors import TrainingError
from longmlm.folders import parse_json, write_json
from longmlm.hubs.transfers import USER_IN_ADDRESS, redact
from longmlm.processes import ignore_stop_signals
from longmlm.progress import message
from longmlm.training.run_folder import SETTINGS

IDENTITY = "tracker.json"
DONE = b"done"
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
NOT_PLOTTED = ("format", "step")
RECOVERY = ("base_chunks", "base_cut", "recovered_at_step", "recovered_at_tokens")

Settings = dict[str, Any]  # Any: tables of settings.toml, shown as they are


def check_installed(tracker: Literal["wandb", "tensorboard"] | None) -> None:
    """Raises TrainingError when the tracker is not installed."""
    spec = tracker and find_spec(tracker)
    if tracker and (spec is None or spec.origin is None):  # a folder of that name is no package
        raise TrainingError(
            f"tracking.tracker is {tracker}, which is not installed: pip install 'longmlm[{tracker}]', or leave it out"
        )


@contextmanager
def tracked(run: Path, tracker: str | None, resumed: TrainState | None) -> Iterator[None]:
    """Shows a run's metrics in the tracker while the block runs, then prints the tracker's last line.

    Of a resumed run, it shows what comes after the state that it resumes from; an evaluation of that step too, if the
    state has no result of it.
    A tracker that has not exited PATIENCE_SECONDS after the block is killed.
    """
    if tracker is None:
        yield
        return
    after, is_evaluated = (resumed.step, resumed.accuracy_here is not None) if resumed else (-1, True)
    options = (str(run), str(after), str(int(is_evaluated)), str(PATIENCE_SECONDS))
    command = [sys.executable, "-P", "-m", "longmlm.training.tracker", *options]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, bufsize=0, start_new_session=True)
    except OSError as error:
        message(_failure(tracker, str(error)))
        yield
        return
    reporter = threading.Thread(target=_report, args=(process, tracker), daemon=True)
    reporter.start()
    assert process.stdin is not None
    try:
        yield
        with suppress(BrokenPipeError):
            process.stdin.write(DONE)
    finally:
        process.stdin.close()
        reporter.join(PATIENCE_SECONDS)
        process.kill()
        reporter.join()


def _report(process: subprocess.Popen[bytes], tracker: str) -> None:
    assert process.stdout is not None
    with process.stdout as pipe:
        line, code = pipe.read().decode(errors="replace").strip(), process.wait()
    if code == -signal.SIGKILL:
        line = f"killed, or not finished {PATIENCE_SECONDS:.0f} s after training"
    if code or line:
        message(_failure(tracker, line or f"exit code {code}") if code else line)


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

    def __init__(self, run: Path, chosen: Settings, settings: Settings) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_DATA_DIR", str(run / "wandb"))
        os.environ.setdefault("WANDB_CACHE_DIR", str(run))
        import wandb

        self.client = wandb
        self.run = wandb.init(
            config=settings,
            settings=wandb.Settings(
                mode=self._mode(),
                root_dir=str(run),
                project=chosen["project"],
                entity=chosen.get("entity"),
                run_name=chosen.get("name", "/".join(run.absolute().parts[-2:])),
                run_id=_run_id(run),
                resume="allow",
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


class End:
    """The end of training, signalled on standard input: DONE if training succeeded, then closed in any case.

    A thread waits for it, and kills this process if it has not exited `patience_seconds` later.
    """

    def __init__(self, patience_seconds: float) -> None:
        self.came, self.went_well, self.patience_seconds = threading.Event(), False, patience_seconds
        threading.Thread(target=self._await, daemon=True).start()

    def _await(self) -> None:
        self.went_well = sys.stdin.buffer.read() == DONE
        self.came.set()
        time.sleep(self.patience_seconds)
        os.kill(os.getpid(), signal.SIGKILL)


def follow(run: Path, after: int, is_evaluated: bool, end: threading.Event) -> Iterator[Metrics]:
    """Yields the lines beyond step `after` as they are written, until training has ended.

    An evaluation of that step itself is yielded unless it was shown before (`is_evaluated`).
    """
    rest, is_last = b"", False
    with (run / METRICS_FILE).open("rb") as file:
        while not is_last:
            is_last = end.wait(POLL_SECONDS)
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in (parse_line(text, METRICS_FILE) for text in lines):
                is_postponed = line.step == after and line.kind == "evaluation" and not is_evaluated
                if line.step > after or is_postponed:
                    yield line


def show(run: Path, after: int, is_evaluated: bool, end: End) -> str:
    """Shows the run in the tracker of its settings until training ends; returns where to see it, "" without a line."""
    settings = tomllib.loads((run / SETTINGS).read_text(encoding="utf-8"))
    chosen = settings.pop("tracking")
    tracker: WandbRun | TensorBoardRun | None = None
    for line in follow(run, after, is_evaluated, end.came):
        if tracker is None and chosen["tracker"] == "wandb":
            tracker = WandbRun(run, chosen, settings)
        tracker = tracker or TensorBoardRun(run, settings, after)
        tracker.show(line)
    return tracker.finish(end.went_well) if tracker else ""


def main() -> None:
    """Runs the tracker's process; only its last line reaches the terminal, not what libraries print."""
    ignore_stop_signals()
    sys.stdout.flush()
    terminal = os.dup(1)
    os.dup2(2, 1)
    try:
        line = show(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", End(float(sys.argv[4])))
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training continues
        os.write(terminal, redact(f"{type(error).__name__}: {error}").encode())
        os._exit(1)  # no hook of the tracker's client may hold the process
    os.write(terminal, redact(line).encode())


if __name__ == "__main__":
    main()
