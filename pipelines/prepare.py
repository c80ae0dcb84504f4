"""Text to packed rows and a packing report."""

from longmlm.config import run_stage
from longmlm.data.config import PrepareConfig


def prepare(config: PrepareConfig) -> None:
    """Writes the rows of `config.output` and prints what they are made of."""
    from longmlm.data.engine import prepare_rows
    from longmlm.data.vocabulary import load_vocabulary
    from longmlm.pages import packing_report

    manifest = prepare_rows(config, load_vocabulary(config.tokenizer))
    print(packing_report(manifest["report"]))
    print(f"rows: {config.output}")


def main() -> None:
    """Runs the stage from the command line."""
    run_stage(PrepareConfig, prepare)


if __name__ == "__main__":
    main()
