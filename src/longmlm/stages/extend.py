"""The extend stage: writes a long checkpoint from a base model."""

from pathlib import Path

from longmlm.artifacts.provenance import Extension, ModelSource
from longmlm.folders import check_absent
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import check_extendable, write_extension
from longmlm.model.loading import load_model
from longmlm.settings.extend import ExtendConfig


def extend(config: ExtendConfig) -> None:
    """Writes the long checkpoint and prints what it consists of."""
    output, recipe = Path(config.output), config.recipe
    check_absent(output)
    base = load_model(config.base, config.revision, recipe.new_head, recipe.seed)
    check_extendable(base.provenance, config.base)
    extension = Extension(
        base=ModelSource(name=config.base, revision=base.revision),
        base_positions=architecture_of(base.model).num_positions,
        num_positions=recipe.num_positions,
        initialisation=recipe.initialisation,
        alpha=recipe.alpha,
        seed=recipe.seed,
        mode=recipe.mode,
    )
    report = write_extension(base, extension, output)
    n = extension.base_positions
    for note in (*base.notes, *base.carried.lines):
        print(note)
    if recipe.initialisation == "hierarchical" and recipe.alpha > 0.5:  # noqa: PLR2004 - where both weigh the same
        print(f"alpha = {recipe.alpha} is above 0.5: a position's block outweighs its offset within the block")
    print(f"positions: {n} -> {extension.num_positions}, {recipe.initialisation}, {recipe.mode}")
    print(f"root mean square of position rows: trained {report.trained_rows_rms:.4f}, new {report.new_rows_rms:.4f}")
    print(f"largest difference of a logit on inputs of up to {n} tokens: {report.largest_difference}")
    print(f"long checkpoint: {output}")
