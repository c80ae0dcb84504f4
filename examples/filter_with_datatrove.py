"""Filters a corpus with datatrove before longmlm prepares it: repetitive pages, lists and menus are dropped.

    python -m venv filters
    filters/bin/pip install 'datatrove[io,processing]' spacy
    filters/bin/python filter_with_datatrove.py corpus filtered

reads the .jsonl files in the folder corpus, each line {"text": "..."}, and writes filtered/kept/*.jsonl, which longmlm
reads with corpus = ["filtered/kept/*.jsonl"], and filtered/dropped/, with the reason of each document. datatrove gets
an environment of its own because it needs older versions of libraries than longmlm is tested with, such as xxhash
below 4. Its other filters (languages, personal data, lists of words) are added to the steps in the same way.
Duplicates need no filter: longmlm finds them with duplicates = "near", much faster.
"""

import argparse
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import FineWebQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def main() -> None:
    """Runs the steps; what an earlier run finished is not done again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="folder of .jsonl files")
    parser.add_argument("output", type=Path, help="folder for what is kept and what is dropped")
    parser.add_argument("--language", default="en", help="ISO 639-1 code of the corpus")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    output: Path = arguments.output
    steps = [
        JsonlReader(arguments.corpus, glob_pattern="*.jsonl"),
        GopherRepetitionFilter(language=arguments.language, exclusion_writer=dropped(output, "repetition")),
        FineWebQualityFilter(language=arguments.language, exclusion_writer=dropped(output, "quality")),
        JsonlWriter(str(output / "kept"), compression=None),
    ]
    tasks = max(1, len(list(Path(arguments.corpus).glob("*.jsonl"))))  # one file each; more tasks would be empty
    LocalPipelineExecutor(steps, tasks=tasks, workers=arguments.workers, logging_dir=str(output / "logs")).run()


def dropped(output: Path, name: str) -> JsonlWriter:
    """Returns the writer of documents that a filter drops, each with its reason in metadata.filter_reason."""
    return JsonlWriter(str(output / "dropped" / name), compression=None)


if __name__ == "__main__":
    main()
