"""Every link inside the repository leads to a file and, if it names one, to a heading."""

from pathlib import Path

from tests.support.pages import Page

REMOTE = ("https://", "mailto:")


def test_internal_links_lead_somewhere(pages: list[Page]) -> None:
    by_path = {page.path: page for page in pages}
    links = [(page, link) for page in pages for link in page.links if not link.startswith(REMOTE)]
    assert len(links) > 40
    assert [f"{page.path.name}: {link}" for page, link in links if not _leads_somewhere(page, link, by_path)] == []


def test_anchors_are_checked(pages: list[Page], root: Path) -> None:
    by_path = {page.path: page for page in pages}
    page = by_path[root / "docs" / "stages.md"]
    assert _leads_somewhere(page, "#prepare", by_path)
    assert _leads_somewhere(page, "deploy.md", by_path)
    assert not _leads_somewhere(page, "#no-such-heading", by_path)
    assert not _leads_somewhere(page, "checkpoints.md#prepare", by_path)
    assert not _leads_somewhere(page, "no-such-page.md", by_path)


def test_pages_of_the_site_link_to_no_file_outside_it(pages: list[Page], root: Path) -> None:
    site = root / "docs"
    links = [(page, link) for page in pages if page.path.is_relative_to(site) for link in page.links]
    local = [(page, link.partition("#")[0]) for page, link in links if not link.startswith((*REMOTE, "#"))]
    outside = [(page, link) for page, link in local if not (page.path.parent / link).resolve().is_relative_to(site)]
    assert [f"{page.path.name}: {link}" for page, link in outside] == []


def test_every_experiment_and_decision_is_listed(root: Path) -> None:
    for folder in (root / "docs" / "experiments", root / "docs" / "decisions"):
        names = {path.name for path in folder.glob("0*.md")}
        assert len(names) >= 5
        assert names <= set(Page(folder / "index.md").links)


def _leads_somewhere(page: Page, link: str, by_path: dict[Path, Page]) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.path.parent / name).resolve() if name else page.path
    return target.exists() and (not anchor or anchor in by_path[target].anchors)
