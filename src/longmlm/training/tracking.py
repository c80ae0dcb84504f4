"""Metrics to metrics.jsonl, the record of a run, and from there to Weights & Biases or TensorBoard.

The tracker runs in a process of its own that reads metrics.jsonl as it grows. So whatever it does, it fails, hangs or
waits for a network, training neither fails nor waits; and it shows what the record says.
"""

import json
import math
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from longmlm.errors import TrainingError
from longmlm.folders import PARTIAL, write_json
from longmlm.processes import ignore_stop_signals

METRICS = "metrics.jsonl"
SETTINGS = "settings.toml"
TRACKER = "tracker.json"
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
SECRET_NAME = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
SECRET_LENGTH = 8  # shorter values are words like `true`
USER_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")


def append(run: Path, line: dict[str, Any]) -> None:
    """Adds one line."""
    with (run / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(run: Path) -> list[dict[str, Any]]:
    """Returns the lines written so far; a line that a crash tore is left out."""
    path = run / METRICS
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        with suppress(ValueError):
            found += [json.loads(line)] if line.endswith("\n") else []
    return found


def forget_after(run: Path, step: int) -> None:
    """Drops the lines beyond `step`, which a resumed run is going to write again."""
    kept = [line for line in read(run) if line["step"] <= step]
    aside = run / f"{METRICS}{PARTIAL}"
    aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    aside.replace(run / METRICS)


def require(tracker: Literal["wandb", "tensorboard"] | None) -> None:
    """Raises TrainingError when the tracker is not installed."""
    found = tracker and find_spec(tracker)
    if tracker and (found is None or found.origin is None):  # a folder of that name is none
        raise TrainingError(
            f"tracking.tracker is {tracker}, which is not installed: pip install 'longmlm[{tracker}]', or leave it out"
        )


@contextmanager
def tracked(run: Path, tracker: str | None, after: int) -> Iterator[None]:
    """Shows the lines beyond step `after` in the tracker while the block runs, and says in one line how that ended.

    A tracker that has not come to its end PATIENCE_SECONDS after the block is ended.
    """
    if tracker is None:
        yield
        return
    command = [sys.executable, "-P", "-m", "longmlm.training.tracking", str(run), str(after)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, bufsize=0, start_new_session=True)
    except OSError as error:
        tqdm.write(_failure(tracker, str(error)))
        yield
        return
    told = threading.Thread(target=_tell, args=(process, tracker), daemon=True)
    told.start()
    assert process.stdin is not None
    try:
        yield
        with suppress(BrokenPipeError):
            process.stdin.write(b"done")
    finally:
        process.stdin.close()
        told.join(PATIENCE_SECONDS)
        process.kill()
        told.join()


def _tell(process: subprocess.Popen[bytes], tracker: str) -> None:
    assert process.stdout is not None
    with process.stdout as pipe:
        said, code = pipe.read().decode(errors="replace").strip(), process.wait()
    if code == -signal.SIGKILL:
        said = f"killed, or without an answer for {PATIENCE_SECONDS:.0f} s at the end"
    if code or said:
        tqdm.write(_failure(tracker, said or f"exit code {code}") if code else said)


def _failure(tracker: str, reason: str) -> str:
    return f"{tracker} failed ({reason}); the run does without it, {METRICS} has every figure"


def figures(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a line of metrics under the names that trackers show them by; `step` is left out."""
    if "held_out" not in line:
        named = {f"train/{key}": value for key, value in line.items() if key != "step"}
    else:
        whole, blocks = line["held_out"]["whole"], line["held_out"]["blocks"]
        others = {key: line.get(key) for key in ("base_cut", "recovered_at_step", "recovered_at_tokens")}
        named = {f"held_out/{key}": value for key, value in {**whole, **others}.items()}
        named |= {f"held_out/block_{index}": block["accuracy"] for index, block in enumerate(blocks)}
    return {key: float(value) for key, value in named.items() if value is not None and math.isfinite(value)}


def predictions(line: Mapping[str, Any]) -> list[dict[str, str | float]]:
    """Returns a row of a table for each masked place in a line of metrics: context, truth, guesses in percent."""
    rows = []
    for example in line.get("examples", ()):
        row: dict[str, str | float] = {"row": str(example["row_id"]), "place": str(example["place"])}
        row |= {key: example[key] for key in ("before", "truth", "after")}
        for rank, (guess, probability) in enumerate(example["guesses"], 1):
            row |= {f"guess {rank}": guess, f"percent {rank}": 100 * probability}
        rows.append(row)
    return rows


class WandbRun:
    """A run at Weights & Biases, offline unless its client is logged in; the same id after every resume."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        """Starts it; what the client would note about machine, code and environment is switched off."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_DATA_DIR", str(run / "wandb"))
        os.environ.setdefault("WANDB_CACHE_DIR", str(run))
        import wandb

        chosen = settings["tracking"]
        mode = wandb.setup().settings.mode
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            mode = "offline"
        self.run = wandb.init(
            config={key: value for key, value in settings.items() if key != "tracking"},
            settings=wandb.Settings(
                mode=mode,
                root_dir=str(run),
                project=chosen["project"],
                entity=chosen.get("entity"),
                run_name=chosen.get("name", "/".join(run.absolute().parts[-2:])),
                run_id=_run_id(run),
                resume="allow",
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
        self.client = wandb

    def show(self, line: Mapping[str, Any]) -> None:
        """Shows a line of metrics; W&B's own step counts lines, ours is the axis of every curve."""
        shown: dict[str, Any] = {"step": line["step"], **figures(line)}
        if rows := predictions(line):
            shown["predictions"] = self.client.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self.run.log(shown)

    def finish(self, went_well: bool) -> str:
        """Ends it, and returns where it is."""
        self.run.finish(exit_code=0 if went_well else 1)
        self.client.teardown()
        if self.run.offline:
            return f"wandb: offline; `wandb sync {Path(self.run.dir).parent}` uploads what is new"
        return f"wandb: {self.run.url}"


class TensorBoardRun:
    """A folder of TensorBoard's events; those beyond the step that a run resumes from are hidden."""

    def __init__(self, run: Path, settings: Mapping[str, Any], after: int) -> None:
        """Opens it."""
        from torch.utils.tensorboard import SummaryWriter

        self.folder = run / "tensorboard"
        self.writer = SummaryWriter(str(self.folder), purge_step=after + 1)
        content = json.dumps({key: value for key, value in settings.items() if key != "tracking"}, indent=4)
        self.writer.add_text("settings", "".join(f"    {line}\n" for line in content.splitlines()), after + 1)

    def show(self, line: Mapping[str, Any]) -> None:
        """Shows a line of metrics, predictions as text."""
        for name, value in figures(line).items():
            self.writer.add_scalar(name, value, line["step"])
        if rows := predictions(line):
            table = [list(rows[0]), ["---"] * len(rows[0])]
            table += [
                [f"{x:.1f}" if isinstance(x, float) else " ".join(x.split()) for x in row.values()] for row in rows
            ]
            cells = ("".join(f"| {cell.replace('|', '&#124;')} " for cell in row) + "|" for row in table)
            self.writer.add_text("predictions", "\n".join(cells), line["step"])
        self.writer.flush()

    def finish(self, _went_well: bool) -> str:
        """Closes it, and returns how to look at it."""
        self.writer.close()
        return f"tensorboard: `tensorboard --logdir {self.folder}` shows this run"


def _run_id(run: Path) -> str:
    """Returns the id that a run keeps in its folder for life."""
    with suppress(OSError, ValueError, KeyError):
        return json.loads((run / TRACKER).read_text(encoding="utf-8"))["id"]
    new = secrets.token_hex(4)
    write_json(run / TRACKER, {"id": new})
    return new


def follow(run: Path, after: int) -> Iterator[dict[str, Any]]:
    """Yields the lines beyond step `after` as they come, until something or an end comes on standard input."""
    rest = b""
    with (run / METRICS).open("rb") as file:
        while True:
            ended = bool(select.select([sys.stdin], [], [], POLL_SECONDS)[0])
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in map(json.loads, lines):
                if line["step"] > after:
                    yield line
            if ended:
                return


def show(run: Path, after: int) -> str:
    """Shows the run in the tracker of its settings until training ends; returns where, or nothing without a line."""
    settings = tomllib.loads((run / SETTINGS).read_text(encoding="utf-8"))
    tracker: WandbRun | TensorBoardRun | None = None
    for line in follow(run, after):
        if tracker is None:
            is_wandb = settings["tracking"]["tracker"] == "wandb"
            tracker = WandbRun(run, settings) if is_wandb else TensorBoardRun(run, settings, after)
        tracker.show(line)
    return tracker.finish(sys.stdin.buffer.read() == b"done") if tracker else ""


def blotted(text: str) -> str:
    """Returns the text without line breaks, the values of secret variables, and names and passwords in addresses."""
    for name, value in os.environ.items():
        if SECRET_NAME.search(name) and len(value) >= SECRET_LENGTH:
            text = text.replace(value, "***")
    return USER_IN_ADDRESS.sub("", " ".join(text.split()))[:300]


def main() -> None:
    """Runs the tracker's process; only its last line reaches the terminal, not what libraries print."""
    ignore_stop_signals()
    sys.stdout.flush()
    terminal = os.dup(1)
    os.dup2(2, 1)
    try:
        line = show(Path(sys.argv[1]), int(sys.argv[2]))
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
        os.write(terminal, blotted(f"{type(error).__name__}: {error}").encode())
        os._exit(1)  # no hook of the tracker's client may hold the process
    os.write(terminal, blotted(line).encode())


if __name__ == "__main__":
    main()
