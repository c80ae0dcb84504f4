"""A checkpoint to a long checkpoint."""

from pathlib import Path

from longmlm.config import run_stage
from longmlm.model.config import ExtendConfig


def extend(config: ExtendConfig) -> None:
    """Writes the long checkpoint and prints what it consists of."""
    from longmlm.folders import refuse_existing
    from longmlm.model.architecture import architecture_of
    from longmlm.model.extension import Provenance, refuse_second_extension, write_extension
    from longmlm.model.loading import load_model, read_provenance

    output = Path(config.output)
    refuse_existing(output)
    base = load_model(config.base, config.revision, config.new_head, config.seed)
    refuse_second_extension(read_provenance(config.base, base.revision), config.base)
    provenance = Provenance(
        base=config.base,
        base_revision=base.revision,
        base_positions=architecture_of(base.model).num_positions,
        num_positions=config.num_positions,
        initialisation=config.initialisation,
        alpha=config.alpha,
        seed=config.seed,
        mode=config.mode,
    )
    report = write_extension(base, provenance, output)
    for note in base.notes:
        print(note)
    how = f"{config.initialisation}, {config.mode}"
    print(f"positions: {provenance.base_positions} -> {provenance.num_positions}, {how}")
    print(f"root mean square of a row's entries: trained {report.trained_rows_rms:.4f}, new {report.new_rows_rms:.4f}")
    print(f"largest change of a logit on inputs of up to {provenance.base_positions} tokens: {report.largest_change}")
    print(f"long checkpoint: {output}")


def main() -> None:
    """Runs the stage from the command line."""
    run_stage(ExtendConfig, extend)


if __name__ == "__main__":
    main()
