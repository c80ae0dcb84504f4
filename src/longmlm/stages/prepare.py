"""Text to packed rows and a packing report, published where that is asked for."""

import tempfile
from pathlib import Path

from longmlm.config import to_toml
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.hubs.publish import publish, require
from longmlm.hubs.target import Repository
from longmlm.release.dataset import SHARDS, write_dataset
from longmlm.reports.packing import packing_page, packing_report
from longmlm.reports.pages import PAGE_FILE, write_page
from longmlm.settings.prepare import PrepareConfig


def prepare(config: PrepareConfig) -> None:
    """Writes the rows of `config.output` with a page about them, prints what they are made of, and publishes them."""
    if config.publish:
        require(config.publish)
    manifest = prepare_rows(config, load_vocabulary(config.recipe.tokenizer))
    page = Path(config.output) / PAGE_FILE
    write_page(packing_page(manifest, f"# longmlm prepare settings.toml\n{to_toml(config)}"), page)
    print(packing_report(manifest["report"]))
    print(f"page: {page}")
    print(f"rows: {config.output}")
    if config.publish:
        publish_rows(config, config.publish)


def publish_rows(config: PrepareConfig, target: str) -> None:
    """Publishes the rows as a data set, by way of a folder that is gone afterwards."""
    output = Path(config.output)
    repository = Repository(
        config.hub_repository or "", config.public, config.revision, config.tag, owns=SHARDS, kind="dataset"
    )
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        folder.mkdir()
        write_dataset(output, config, folder)
        print(f"published: {publish(folder, target, repository, f'Rows of {output.name}')}")
