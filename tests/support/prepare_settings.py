"""A TOML file of the prepare stage, with which the settings and the command line are tested."""

from pathlib import Path

PREPARE = """
output = "rows"

[recipe]
tokenizer = "roberta-base"
row_length = 512

[[recipe.sources]]
files = ["a.txt", "b/*.txt"]
language = "de"

[[recipe.sources]]
files = ["c.jsonl"]
"""


def written(folder: Path, name: str, content: str) -> str:
    """Returns the path of a new file with this content."""
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)
