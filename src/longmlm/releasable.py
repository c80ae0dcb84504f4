"""Checks before training that the result can be released: licence, positions, window, modules, size."""

import re
from pathlib import Path
from types import SimpleNamespace

from longmlm.artifacts.provenance import Extension, ModelSource, Provenance, read_provenance
from longmlm.data.languages import check_language
from longmlm.errors import ConfigError, FolderError, PositionsError, ReleaseError
from longmlm.folders import MANIFEST
from longmlm.hubs.licences import check_licence
from longmlm.hubs.model_files import MODULES, module_folders
from longmlm.hubs.models import commit_of, config_of_model, file_of_model, is_folder
from longmlm.model.families import longformer_problem, num_parameters
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.release import ReleaseRecipe

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")  # identifiers of hubs
MAX_ONNX_BYTES = 2**31 - 2**25  # of weights: Protocol Buffers files are limited to 2 GiB, and the graph takes a few MB


def check_is_release(folder: Path) -> None:
    """Raises FolderError if a folder in place of a release is something else, which is never replaced."""
    if not (folder / MANIFEST).is_file():
        raise FolderError(f"{folder} exists and is no release: move it away, or name another folder")


def check_releasable(config: ResolvedPipeline, model: str | None) -> None:
    """Raises a UserError if the release stage would refuse the model that the other stages make."""
    release, revision = config.release, config.revision if config.extend else config.pretrain.start.revision
    if release.publish and release.target().is_hub:
        _check_card(config, model)
    extension = _extension(config, model)
    if release.recipe.num_positions is not None and (extension is None or extension.mode != "generated"):
        raise PositionsError(
            "release.recipe.num_positions needs extend.recipe.mode = generated, since other models have only the "
            "positions that were trained: remove it"
        )
    described = None if model is None else config_of_model(model, revision, needs_weights=False)
    if extension and extension.attention_window is not None:
        _check_window(extension, release.recipe, described)
    if model is not None and release.recipe.sentence_transformer and (path := file_of_model(model, revision, MODULES)):
        check_has_no_modules(module_folders(path.parent) or ())
    num_positions = release.recipe.num_positions or config.length
    size = num_parameters(described, num_positions) if release.recipe.onnx and described else None
    if size is not None and 4 * size > MAX_ONNX_BYTES:
        raise ReleaseError(onnx_problem(4 * size))


def _extension(config: ResolvedPipeline, model: str | None) -> Extension | None:
    """Returns how the model will be or was extended; base_positions is 0, since it is not known here."""
    if config.extend and config.extend.recipe.num_positions is not None:
        return Extension.of(config.extend.recipe, ModelSource(name=str(model)), 0)
    return read_provenance(model).extension if model is not None and is_folder(model) else None


def _check_card(config: ResolvedPipeline, model: str | None) -> None:
    """Raises a UserError if a hub would refuse the card for its languages, or for a wrong or missing licence."""
    card, about = config.release.card, Provenance()
    if card.license is not None and not LICENCE.fullmatch(card.license):
        raise ConfigError(
            f"release.card.license = {card.license!r} is not an identifier of a licence: write one such as apache-2.0, "
            "or other"
        )
    for language in card.languages:
        check_language(language)
    if model is not None:
        commit = None if is_folder(model) else commit_of(model, config.revision)
        before = Provenance() if commit or config.extend else read_provenance(model)
        about = before.of_run(ModelSource(name=model, revision=commit))
    try:
        check_licence(card, about)
    except ReleaseError as error:
        raise ConfigError(str(error)) from None


def _check_window(extension: Extension, recipe: ReleaseRecipe, described: SimpleNamespace | None) -> None:
    """Raises ReleaseError for files that cannot be written, if the window does not cover all positions."""
    window, num_global = extension.attention_window or 0, extension.num_global_tokens
    if window + num_global >= extension.num_positions - 1:
        return
    check_window_files(num_global, recipe)
    if described is not None and (problem := longformer_problem(described)):
        raise ReleaseError(window_problem(problem))


def check_window_files(num_global: int, recipe: ReleaseRecipe) -> None:
    """Raises ReleaseError for files that cannot be written for a model with a window and `num_global` tokens."""
    if recipe.onnx:
        raise ReleaseError("ONNX files cannot be written for a model with a window: remove recipe.onnx")
    if num_global and recipe.sentence_transformer:
        raise ReleaseError(
            "the model has global tokens, which sentence-transformers cannot pass to a Longformer: remove "
            "recipe.sentence_transformer, or extend the base model with num_global_tokens = 0"
        )


def window_problem(problem: str) -> str:
    """Returns the error message for a model with a window that cannot be exported as a Longformer."""
    return (
        f"a model with a window is exported as a Longformer, and this one cannot be: {problem}. Extend the base model "
        "without attention_window"
    )


def onnx_problem(num_bytes: int) -> str:
    """Returns the error message for a model that is too large for ONNX."""
    return (
        f"onnx/mlm.onnx would have {num_bytes / 1e9:.1f} GB, and its format is limited to 2 GB: set recipe.onnx = false"
    )


def check_has_no_modules(modules: tuple[str, ...]) -> None:
    """Raises ReleaseError if modules of sentence-transformers would be added to a model that has some."""
    if modules:
        raise ReleaseError(
            f"the model already has sentence-transformers modules ({', '.join(modules)}): remove "
            "recipe.sentence_transformer"
        )
