"""Hook of mkdocs that ranks pages in the site's search: settings first, records and measurements last."""

from typing import Any

BOOSTS = {
    "settings.": 2.0,
    "performance": 0.001,
    "decisions/": 0.001,
    "experiments/": 0.001,
}  # by the start of the path


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Sets the factor by which the search multiplies the page's scores."""
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    return markdown
