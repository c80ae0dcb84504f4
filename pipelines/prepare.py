"""Text to packed rows and a packing report."""

from pathlib import Path

from longmlm.config import run_stage, to_toml
from longmlm.data.config import PrepareConfig


def prepare(config: PrepareConfig) -> None:
    """Writes the rows of `config.output` with a page about them, and prints what they are made of."""
    from longmlm.data.engine import prepare_rows
    from longmlm.data.report import packing_page, packing_report
    from longmlm.data.vocabulary import load_vocabulary
    from longmlm.pages import write_page

    manifest = prepare_rows(config, load_vocabulary(config.tokenizer))
    page = Path(config.output) / "index.html"
    write_page(packing_page(manifest, f"# python -m pipelines.prepare settings.toml\n{to_toml(config)}"), page)
    print(packing_report(manifest["report"]))
    print(f"page: {page}")
    print(f"rows: {config.output}")


def main() -> None:
    """Runs the stage from the command line."""
    run_stage(PrepareConfig, prepare)


if __name__ == "__main__":
    main()
