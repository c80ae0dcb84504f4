"""The extend stage: writes a long checkpoint from a base model."""

from pathlib import Path

from transformers import PreTrainedConfig

from longmlm.artifacts.provenance import Extension, ModelSource, read_provenance
from longmlm.data.rows import open_named_rows, pin_rows
from longmlm.folders import check_absent
from longmlm.hubs.model_files import local_model_sha256
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import ExtensionReport, write_extension
from longmlm.model.families import attention_note, longformer_problem, planned_extension
from longmlm.model.loading import load_model
from longmlm.model.terms import read_terms
from longmlm.model.window import Window
from longmlm.settings.extend import ExtendConfig, ExtendRecipe


def extend(config: ExtendConfig) -> None:
    """Writes the long checkpoint and prints what it consists of."""
    output, recipe = Path(config.output), config.recipe
    check_absent(output)
    base = load_model(config.base, config.revision, recipe.new_head, recipe.seed)
    sha256 = local_model_sha256(config.base) or None
    source = ModelSource(name=config.base, revision=base.revision, sha256=sha256, requested=config.revision)
    n = architecture_of(base.model).num_positions
    extension = planned_extension(recipe, source, base.provenance, base.model.config, n)
    terms = read_terms(recipe.add_tokens, base.tokenizer, source) if recipe.add_tokens is not None else None
    rows = None if config.rows is None else open_named_rows(pin_rows(config.rows), "train")
    report = write_extension(base, extension, output, terms, rows)
    for note in (*base.notes, *base.carried.lines):
        print(note)
    if terms:
        added, skipped = terms.record.num_added, terms.record.num_skipped
        print(
            f"tokens: {added:,} added from {recipe.add_tokens}, {skipped:,} skipped (known, repeated or not decodable)"
        )
    if extension:
        extension = read_provenance(output).extension or extension  # with the record of a distillation
        describe_extension(extension, recipe, report, base.model.config)
    expected = " (expected: trained rows change)" if extension and extension.changes_trained_rows else ""
    print(f"largest difference of a logit on inputs of up to {n} tokens: {report.largest_difference:.3}{expected}")
    print(f"{'long checkpoint' if extension else 'checkpoint'}: {output}")


def describe_extension(
    extension: Extension, recipe: ExtendRecipe, report: ExtensionReport, base: PreTrainedConfig
) -> None:
    """Prints how the positions were extended."""
    if extension.alpha > 0.5:  # noqa: PLR2004 - where both weigh the same
        print(f"alpha = {extension.alpha} is above 0.5: a position's block outweighs its offset within the block")
    kind = f"{extension.description}, {extension.mode}"
    print(f"positions: {extension.base_positions} -> {extension.num_positions}, {kind}")
    if window := Window.of(extension):
        print(f"attention: {extension.attention}")
        if problem := longformer_problem(base):
            print(f"release cannot write this model unless its window covers all positions: {problem}")
        elif 0 < (window.num_layers or 0) < base.num_hidden_layers and not window.covers(extension.num_positions):
            print(
                f"release writes a Longformer that pads every text to {2 * extension.num_positions:,} tokens or more, "
                "and is many times slower than full attention: for fast inference, set initialisation = distilled "
                "instead of attention_window and local_layers"
            )
    if note := attention_note(recipe, extension.base_positions, base):
        print(note)
    print(f"root mean square of position rows: trained {report.trained_rows_rms:.4f}, new {report.new_rows_rms:.4f}")
