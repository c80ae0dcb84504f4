"""A checkpoint to a long checkpoint."""

from pathlib import Path

from longmlm.folders import check_absent
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import Provenance, check_extendable, write_extension
from longmlm.model.loading import load_model, read_provenance
from longmlm.settings.extend import ExtendConfig


def extend(config: ExtendConfig) -> None:
    """Writes the long checkpoint and prints what it consists of."""
    output = Path(config.output)
    check_absent(output)
    base = load_model(config.base, config.revision, config.recipe.new_head, config.recipe.seed)
    check_extendable(read_provenance(config.base, base.revision), config.base)
    provenance = Provenance(
        base=config.base,
        base_revision=base.revision,
        base_positions=architecture_of(base.model).num_positions,
        num_positions=config.recipe.num_positions,
        initialisation=config.recipe.initialisation,
        alpha=config.recipe.alpha,
        seed=config.recipe.seed,
        mode=config.recipe.mode,
    )
    report = write_extension(base, provenance, output)
    for note in base.notes:
        print(note)
    how = f"{config.recipe.initialisation}, {config.recipe.mode}"
    print(f"positions: {provenance.base_positions} -> {provenance.num_positions}, {how}")
    print(f"root mean square of a row's entries: trained {report.trained_rows_rms:.4f}, new {report.new_rows_rms:.4f}")
    print(f"largest change of a logit on inputs of up to {provenance.base_positions} tokens: {report.largest_change}")
    print(f"long checkpoint: {output}")
