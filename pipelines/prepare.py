"""Text to packed rows and a packing report, published where that is asked for."""

import tempfile
from pathlib import Path

from longmlm.config import run_stage, to_toml
from longmlm.data.config import PrepareConfig


def prepare(config: PrepareConfig) -> None:
    """Writes the rows of `config.output` with a page about them, prints what they are made of, and publishes them."""
    from longmlm.data.engine import prepare_rows
    from longmlm.data.report import packing_page, packing_report
    from longmlm.data.vocabulary import load_vocabulary
    from longmlm.pages import write_page
    from longmlm.release.publish import require

    if config.publish:
        require(config.publish)
    manifest = prepare_rows(config, load_vocabulary(config.tokenizer))
    page = Path(config.output) / "index.html"
    write_page(packing_page(manifest, f"# python -m pipelines.prepare settings.toml\n{to_toml(config)}"), page)
    print(packing_report(manifest["report"]))
    print(f"page: {page}")
    print(f"rows: {config.output}")
    if config.publish:
        publish_rows(config, config.publish)


def publish_rows(config: PrepareConfig, target: str) -> None:
    """Publishes the rows as a data set, by way of a folder that is gone afterwards."""
    from longmlm.release.dataset import SHARDS, write_dataset
    from longmlm.release.hub import Repository
    from longmlm.release.publish import publish

    output = Path(config.output)
    repository = Repository(config.hub or "", config.public, config.revision, config.tag, owns=SHARDS, kind="dataset")
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        folder.mkdir()
        write_dataset(output, config, folder)
        print(f"published: {publish(folder, target, repository, f'Rows of {output.name}')}")


def main() -> None:
    """Runs the stage from the command line."""
    run_stage(PrepareConfig, prepare)


if __name__ == "__main__":
    main()
