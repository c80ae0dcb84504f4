"""A model for your own domain: writes a pipeline file for a corpus, shows the plan, and runs every stage.

    python examples/domain_corpus.py google-bert/bert-base-uncased 'corpus/*.jsonl' --length 1536 --output out/domain

Each line of the .jsonl files is an object with the document in "text". After an interruption,
run the same command again. The released folder is OUTPUT/release; the report page is OUTPUT/evaluation/index.html.
"""

import argparse
import subprocess
import sys
from pathlib import Path


def longmlm(*arguments: str) -> str:
    """Runs a command of longmlm and returns what it prints; its progress is shown."""
    process = subprocess.run(
        [sys.executable, "-m", "longmlm", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if process.returncode:
        sys.exit(process.returncode)  # the command has printed one line that says what to do
    return process.stdout


def main() -> None:
    """Parses the command line and runs the pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or hub name of the base model")
    parser.add_argument("corpus", nargs="+", help="paths or globs of the text")
    parser.add_argument("--length", type=int, default=1536, help="positions of the long model")
    parser.add_argument("--output", default="out/domain", help="folder for all results")
    parser.add_argument("--language", default="en", help="ISO 639-1 code of the corpus's language")
    parser.add_argument("overrides", nargs=argparse.REMAINDER, help="settings of the stages, after --")
    options = parser.parse_args()

    # The pipeline file names model, corpus, length and output; all other settings follow from these. It is written
    # once: edit it to change a setting for good.
    pipeline = Path(options.output).with_suffix(".toml")
    if not pipeline.exists():
        pipeline.parent.mkdir(parents=True, exist_ok=True)
        base = ("--model", options.model, "--length", str(options.length), "--output", options.output)
        pipeline.write_text(
            longmlm("init", *base, "--language", options.language, "--corpus", *options.corpus), encoding="utf-8"
        )
    overrides = [word for word in options.overrides if word != "--"]

    # What it will take: tokens, epochs, memory, disk and hours.
    print(longmlm("plan", str(pipeline), *overrides))

    # All stages, from text to release. A model that has not recovered is not released: train it longer.
    print(longmlm("run", str(pipeline), *overrides))


if __name__ == "__main__":
    main()
