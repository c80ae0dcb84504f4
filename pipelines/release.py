"""A trained model to a verified folder with a model card."""

import shutil
from pathlib import Path

from longmlm.config import run_stage
from longmlm.release.config import ReleaseConfig


def release(config: ReleaseConfig) -> None:
    """Exports, proves in a fresh process, writes the card; nothing is left when a check fails."""
    from longmlm.data.rows import open_rows
    from longmlm.data.vocabulary import vocabulary_of_pretrained
    from longmlm.folders import MANIFEST, new_folder, refuse_existing, sha256_of, write_json
    from longmlm.model.batches import refuse_unreadable
    from longmlm.model.extension import at_length
    from longmlm.model.loading import PROVENANCE, load_model, read_provenance, weights_sha256
    from longmlm.release.card import model_card, public_provenance, read_evaluation, refuse_untrained
    from longmlm.release.export import export, prove
    from longmlm.training.checkpoint import model_folder

    output = Path(config.output)
    refuse_existing(output)
    source = Path(model_folder(config.model))
    expected = {"after_sha256": weights_sha256(source)}
    provenance = read_provenance(str(source))
    refuse_untrained(provenance, config.model)
    rows = open_rows(Path(config.rows), "held_out")
    expected |= {"rows_sha256": sha256_of(Path(config.rows) / MANIFEST), "base": provenance.get("base", "")}
    evaluation = read_evaluation(config.evaluation, expected, "base" in provenance, config.allow_unrecovered)
    trained = load_model(str(source))
    refuse_unreadable(rows, vocabulary_of_pretrained(trained.tokenizer, config.model), trained.model)
    if config.num_positions is not None:
        trained = at_length(trained, provenance, config.num_positions)
        provenance |= {"num_positions": config.num_positions}
    with new_folder(output) as partial:
        export(trained, config.weights, partial)
        proof = prove(trained, config.weights, rows, partial)
        card = model_card(config, provenance, evaluation, rows.manifest["report"])
        (partial / "README.md").write_text(card, encoding="utf-8")
        write_json(partial / PROVENANCE, public_provenance(provenance))
        for picture in Path(config.evaluation or "").glob("*.png") if evaluation else ():
            shutil.copy(picture, partial)
    print(f"reloaded with plain transformers: logits differ by {proof.largest_difference:.1e} at the most")
    print(f"fill-mask on a text of {proof.text_tokens} tokens answers {proof.answer!r}")
    print(f"released: {output}")


def main() -> None:
    """Runs the stage from the command line."""
    run_stage(ReleaseConfig, release)


if __name__ == "__main__":
    main()
