"""Text to packed rows and a packing report, published where that is asked for."""

import tempfile
from dataclasses import replace
from pathlib import Path

from longmlm.config import to_toml
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.hubs.publish import check_can_publish, publish
from longmlm.hubs.target import publishing_target
from longmlm.release.dataset import SHARDS, write_dataset
from longmlm.reports.packing import packing_page, packing_report
from longmlm.reports.pages import write_page
from longmlm.settings.prepare import PrepareConfig


def prepare(config: PrepareConfig) -> None:
    """Writes the rows of `config.output` with a page about them, prints what they are made of, and publishes them."""
    if config.publish:
        check_can_publish(publishing_target(config))
    manifest = prepare_rows(config, load_vocabulary(config.recipe.tokenizer))
    page = Path(config.output) / "index.html"
    write_page(packing_page(manifest, f"# python -m pipelines.prepare settings.toml\n{to_toml(config)}"), page)
    print(packing_report(manifest["report"]))
    print(f"page: {page}")
    print(f"rows: {config.output}")
    if config.publish:
        publish_rows(config)


def publish_rows(config: PrepareConfig) -> None:
    """Publishes the rows as a data set, by way of a folder that is gone afterwards."""
    output = Path(config.output)
    target = replace(publishing_target(config, "dataset"), owns=SHARDS)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        folder.mkdir()
        write_dataset(output, config, folder)
        print(f"published: {publish(folder, target, f'Rows of {output.name}')}")
