"""A trained model to a verified folder with a model card, published where that is asked for."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.published import open_named_rows, pin_rows
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.folders import check_absent, new_folder, write_json
from longmlm.hubs.publish import check_can_publish, publish
from longmlm.hubs.target import publishing_target
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import at_length
from longmlm.model.loading import PROVENANCE, load_model, read_provenance, weights_sha256
from longmlm.release.candidates import refusal, step_of
from longmlm.release.export import export
from longmlm.release.follow import follow
from longmlm.release.gate import accuracy_to_tell, check_trained, read_evaluation
from longmlm.release.onnx_graph import check_onnx_installed, write_graph
from longmlm.release.proof import Proof, prove
from longmlm.release.released_folder import address_card, check_released_from
from longmlm.reports.facts import licence_of, training_of
from longmlm.reports.model_card import model_card, public_provenance
from longmlm.settings.release import ReleaseConfig
from longmlm.training import checkpoint
from longmlm.training.checkpoint import model_folder


def release(config: ReleaseConfig) -> None:
    """Releases a model, or follows a run, once what that needs is known to be here."""
    if config.recipe.onnx:
        check_onnx_installed()
    if config.publish:
        check_can_publish(publishing_target(config))
    if config.follow:
        follow_run(config, Path(config.follow))
    else:
        release_one(config)


def release_one(config: ReleaseConfig) -> None:
    """Exports, proves in a fresh process, writes the card, publishes; nothing is left when a check fails.

    What was released before with the same settings is published as it is.
    """
    output = Path(config.output)
    if not config.publish:
        check_absent(output)
    source = Path(model_folder(config.model))
    expected = {"after_sha256": weights_sha256(source)}
    provenance = read_provenance(str(source))
    check_trained(provenance, config.model)
    rows = open_named_rows(pin_rows(config.rows), "held_out")
    expected |= {"rows_sha256": rows.sha256, "base": provenance.get("base", "")}
    expected |= {"base_revision": provenance["base_revision"]} if provenance.get("base_revision") else {}
    evaluation = read_evaluation(config.evaluation, expected, "base" in provenance, config.recipe.allow_unrecovered)
    released_from = fingerprint(config, expected, evaluation)
    if output.exists():
        check_released_from(output, released_from)
    else:
        with new_folder(output, {"released_from": released_from}) as partial:
            proof = write(config, source, rows, evaluation, partial)
        print(f"reloaded with plain transformers: logits differ by {proof.largest_difference:.1e} at the most")
        if proof.onnx_difference is not None:
            print(f"model.onnx with onnxruntime: logits differ by {proof.onnx_difference:.1e} at the most")
        print(f"fill-mask on a text of {proof.text_tokens} tokens answers {proof.answer!r}")
        print(f"released: {output}")
    if config.checkpoints:
        publish_checkpoints(config, rows)
    if config.publish:
        publish_release(config, output)


def fingerprint(config: ReleaseConfig, expected: Mapping[str, str], evaluation: Mapping[str, Any]) -> str:
    """Returns by what a release is told from another: the content of model, rows and evaluation, and the settings."""
    settings = {"recipe": asdict(config.recipe), "card": asdict(config.card)}
    content = json.dumps([settings, expected, evaluation], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def write(config: ReleaseConfig, source: Path, rows: Rows, evaluation: Mapping[str, Any], folder: Path) -> Proof:
    """Writes the model in `source` as others load it, with its card, proves it, and returns the proof."""
    provenance = read_provenance(str(source))
    licence = licence_of(config.card.license, provenance)
    trained = load_model(str(source))
    vocabulary = vocabulary_of_pretrained(trained.tokenizer, str(source))
    check_rows_fit_model(rows, vocabulary, architecture_of(trained.model).num_positions)
    if config.recipe.num_positions is not None:
        trained = at_length(trained, provenance, config.recipe.num_positions)
        provenance |= {"num_positions": config.recipe.num_positions}
    export(trained, config.recipe.weights, folder, config.recipe.max_shard_size)
    if config.recipe.onnx:
        write_graph(folder)
    if (accuracy := accuracy_to_tell(folder, rows, evaluation, provenance, config)) is not None:
        provenance["trained"] |= {"exported_accuracy": accuracy}
    card = model_card(config, provenance, evaluation, rows.manifest, training_of(source), licence)
    (folder / "README.md").write_text(card, encoding="utf-8")
    proof = prove(trained, config.recipe.weights, rows, folder, provenance.get("base_positions"))
    write_json(folder / PROVENANCE, public_provenance(provenance))
    for picture in Path(config.evaluation or "").glob("*.png") if evaluation else ():
        shutil.copy(picture, folder)
    return proof


def publish_release(config: ReleaseConfig, folder: Path) -> None:
    """Publishes a released folder, its card naming the model by where it is."""
    target = replace(publishing_target(config), pull_request=config.pull_request)
    address_card(folder, target)
    print(f"published: {publish(folder, target, f'Release of {config.card.title}')}")


def publish_checkpoints(config: ReleaseConfig, rows: Rows) -> None:
    """Publishes each checkpoint of the run that is sound and not worse than its base model, as the revision step-N.

    On ModelScope that is a tag of what its one branch holds then, so the release itself is published afterwards.
    """
    for folder in checkpoint.folders(Path(config.model)):
        if reason := refusal(folder, config.recipe.allow_unrecovered):
            print(f"step {step_of(folder):,} is not published: {reason}")
        else:
            publish_step(config, folder, rows, f"step-{step_of(folder)}")


def publish_step(config: ReleaseConfig, folder_of_step: Path, rows: Rows, revision: str | None) -> None:
    """Exports, proves and publishes one checkpoint of a run, by way of a folder that is gone afterwards."""
    title, output = f"{config.card.title}, step {step_of(folder_of_step):,}", Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        with new_folder(folder) as partial:
            write(
                replace(config, card=replace(config.card, title=title), evaluation=None),
                folder_of_step,
                rows,
                {},
                partial,
            )
        target = replace(publishing_target(config), revision=revision, tag=None, mirrors=True)
        address_card(folder, target)
        print(f"published: {publish(folder, target, title)}", flush=True)


def follow_run(config: ReleaseConfig, run: Path) -> None:
    """Publishes each new best checkpoint of a run in training until that has ended."""
    rows = open_named_rows(pin_rows(config.rows), "held_out")
    follow(run, config.recipe.allow_unrecovered, lambda best: publish_step(config, best, rows, config.revision))
