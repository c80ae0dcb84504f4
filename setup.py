"""The description on a package index: README.md with links that lead somewhere from there."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
WITHOUT_REPOSITORY = "\nThe pages of the documentation are in `docs/` of the source distribution.\n"


def description(readme: str, repository: str | None) -> str:
    """Returns the README with links into the repository; without its address, with their texts and no pictures."""
    if repository is None:
        return RELATIVE.sub(lambda link: "" if link[1] else link[2], readme) + WITHOUT_REPOSITORY
    return RELATIVE.sub(
        lambda link: f"{link[1]}[{link[2]}]({repository}/{'raw' if link[1] else 'blob'}/HEAD/{link[3]})", readme
    )


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=description(
            (ROOT / "README.md").read_text(encoding="utf-8"), project["urls"].get("Repository")
        ),
        long_description_content_type="text/markdown",
    )
