"""Checks before the first stage what would otherwise stop a pipeline hours later: settings, heads, the release."""

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longmlm.artifacts.provenance import Extension, ModelSource, Provenance
from longmlm.artifacts.rows import RowsManifest, Split, read_rows_manifest, shards_of
from longmlm.data.languages import check_language
from longmlm.errors import ConfigError, FolderError, ModelError, PositionsError, ReleaseError
from longmlm.folders import MANIFEST
from longmlm.hubs.datasets import rows_on_hub
from longmlm.hubs.licences import check_licence
from longmlm.model.facts import ModelFacts, facts_of
from longmlm.model.families import check_reads_pairs, longformer_problem, num_parameters
from longmlm.processes import num_started_processes
from longmlm.runtime.launch_command import Launched, launched, starts_deepspeed
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline, RunConfig
from longmlm.settings.release import ReleaseConfig, ReleaseRecipe
from longmlm.settings.results import result_of
from longmlm.staleness import is_complete
from longmlm.training.run_folder import CHECKPOINTS, continuations_of, list_checkpoints, newest_state

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")  # identifiers of hubs
MAX_ONNX_BYTES = 2**31 - 2**25  # of weights: Protocol Buffers files are limited to 2 GiB, and the graph takes a few MB
ONNX_PACKAGES = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The models and rows that settings name, each model read once; what its `pipeline` makes may be absent."""

    pipeline: ResolvedPipeline | None = None
    facts_of: Callable[..., ModelFacts] = field(default_factory=lambda: cache(facts_of))

    @property
    def launch(self) -> str | None:
        """How the pipeline starts its training; None for a single process, and without a pipeline."""
        return self.pipeline.launch if self.pipeline else None

    def is_made(self, name: str) -> bool:
        """Returns whether a stage of the pipeline writes the folder that a setting names."""
        stages = self.pipeline.stages.values() if self.pipeline else ()
        return os.path.realpath(name) in {os.path.realpath(result_of(stage)) for stage in stages}

    def is_given(self, name: str) -> bool:
        """Returns whether a model must exist already and is quick to check: a run's checkpoints take long to verify."""
        return not self.is_made(name) and not (Path(name) / CHECKPOINTS).is_dir()

    def model(self, name: str | None, revision: str | None = None, needs_weights: bool = True) -> ModelFacts | None:
        """Returns the facts about a model; None without a name, or unless it `is_given`. A plan needs no weights."""
        if name is None or not self.is_given(name):
            return None
        facts = self.facts_of(name, revision)
        if needs_weights and not isinstance(self.pipeline, PlanConfig):
            facts.check_weights()
        return facts

    def base(self, config: ResolvedPipeline) -> ModelFacts | None:
        """Returns the facts about the model that a pipeline extends or, without an extension, trains."""
        if config.extend:
            return self.model(config.extend.base, config.extend.revision, needs_weights=False)
        return self.model(config.pretrain.start.checkpoint, config.pretrain.start.revision, needs_weights=False)

    def rows(self, name: str, splits: Collection[Split]) -> RowsManifest | None:
        """Returns the manifest of rows that have these splits; None for rows that are still to be made, or on a hub."""
        is_to_make = self.is_made(name) and not (Path(name) / RowsManifest.FILE).is_file()
        if is_to_make or rows_on_hub(name) is not None:
            return None
        manifest = read_rows_manifest(Path(name))
        for split in splits:
            shards_of(manifest, split, Path(name))
        return manifest


def training_processes(config: ResolvedPipeline) -> Launched:
    """Returns the processes in which training is started, by the launch or in `num_processes` of the settings."""
    started = Launched(num_processes=1) if config.launch is None else launched(config.launch)
    return started._replace(num_processes=config.pretrain.runtime.num_processes or started.num_processes)


def check_settings(config: ResolvedPipeline) -> None:
    """Raises ConfigError for settings of the training that do not fit the pipeline or its launch."""
    runtime, launch = config.pretrain.runtime, config.launch
    started = 1 if launch is None else launched(launch).num_processes
    if config.pretrain.dry_run:
        raise ConfigError("pretrain.dry_run writes no run for the next stages: use longmlm pretrain FILE --dry-run")
    if config.pretrain.more_steps is not None:
        raise ConfigError("pretrain.more_steps is for longmlm pretrain: pass --more-steps N to longmlm run instead")
    if runtime.stop_when_recovered and not config.extension:
        raise ConfigError(
            "pretrain.runtime.stop_when_recovered is for extended models, and extension = false: remove it"
        )
    if launch and config.pretrain.recipe.precision == "fp16" and starts_deepspeed(launch):
        raise ConfigError(
            f"pretrain.recipe.precision is fp16, which DeepSpeed's backend does not support, and launch = {launch!r} "
            "starts it: set precision to bf16 or no, or launch to ddp"
        )
    if started is not None and runtime.num_processes not in (None, started):
        starts = f"launch = {launch!r} starts {started} processes: make them agree, or remove num_processes"
        alone = 'launch is not set, so one process would train: remove it, or set launch, such as "ddp"'
        raise ConfigError(
            f"pretrain.runtime.num_processes is {runtime.num_processes}, but {starts if launch else alone}"
        )
    if launch is None and isinstance(config, RunConfig) and num_started_processes() > 1:
        raise ConfigError(
            "a launcher's variables are in the environment, such as WORLD_SIZE, but longmlm run starts training by "
            'itself: start it without a launcher and set launch, such as "ddp", or unset them'
        )


def check_can_continue(config: ResolvedPipeline) -> None:
    """Raises a UserError if --more-steps is given for a run that has not finished, or whose inputs are gone."""
    if not isinstance(config, RunConfig) or config.more_steps is None:
        return
    if "pretrain" not in config.stages:
        raise ConfigError(
            f"--more-steps adds steps to pretrain, but until = {config.until} ends before pretrain: remove one of them"
        )
    continuations_of(replace(config.pretrain, more_steps=config.more_steps), newest_state(Path(config.pretrain.run)))
    for name in ("extend", "prepare"):
        if name in config.stages and not is_complete(config.stages[name]):
            raise FolderError(
                f"--more-steps continues a run with the same rows and the same extended model, but {name}'s result "
                f"{result_of(config.stages[name])} is gone: restore it, or name another output to start over"
            )


def check_heads(config: ResolvedPipeline, inputs: Inputs) -> None:
    """Raises ModelError if the model has no MLM head or pair head, and the pipeline needs one and trains no new one."""
    start, extend = config.pretrain.start, config.extend
    if list_checkpoints(result_of(config.pretrain)) or (extend and result_of(extend).exists()):
        return
    base = inputs.base(config)
    if base is None or base.config is None:
        return
    if config.pretrain.recipe.pairs:
        check_reads_pairs(base.config, base.shown, _extension(config, base))
        if base.has_pair_head and base.has_head and start.new_head:
            raise ModelError(
                f"{base.shown} has an MLM head and a pair head, so new_head has no effect: remove new_head"
            )
        if base.has_pair_head is False and not start.new_head:
            raise ModelError(
                f"{base.shown} has no pair head: take a checkpoint that has one, add the lines [pretrain.start] and "
                "new_head = true, to train a new one, or remove [pretrain.recipe.pairs]"
            )
    if (extend.recipe.new_head if extend else start.new_head) or base.has_head is not False:
        return
    remedy = (
        f", and only a model with a trained one can be made long: take a checkpoint that has one, or train a head "
        f"first, in a pipeline of its own with the lines extension = false, length = {base.num_positions}, "
        "[pretrain.start] and new_head = true, and set model to its release"
        if extend
        else ": take a checkpoint that has one, or add the lines [pretrain.start] and new_head = true, to train a new "
        "head first"
    )
    raise ModelError(f"{base.shown} has no MLM head{remedy}")


def check_releasable(config: ResolvedPipeline, inputs: Inputs) -> None:
    """Raises a UserError if the release stage would refuse the model that the other stages make."""
    release = config.release
    if "release" not in config.stages or result_of(release).exists():
        return
    if release.publish and release.target().is_hub:
        _check_card(config, inputs)
    recipe, base = release.recipe, inputs.base(config)
    extension = _extension(config, base)
    if recipe.num_positions is not None and (extension is None or extension.mode != "generated"):
        raise PositionsError(
            "release.recipe.num_positions needs extend.recipe.mode = generated, since other models have only the "
            "positions that were trained: remove it"
        )
    window, num_global = (extension.attention_window, extension.num_global_tokens) if extension else (None, 0)
    if extension and window is not None and window + num_global < extension.num_positions - 1:
        check_window_files(num_global, recipe)
        if base and base.config:
            check_longformer(base.config)
    if base and recipe.sentence_transformer:
        check_has_no_modules(base.modules or ())
    if base and base.config and recipe.onnx:
        check_onnx_size(4 * (num_parameters(base.config, recipe.num_positions or config.length) or 0))


def _extension(config: ResolvedPipeline, base: ModelFacts | None) -> Extension | None:
    """Returns how the model will be or was extended; base_positions is 0, since it is not known here."""
    if config.extend and config.extend.recipe.num_positions is not None:
        return Extension.of(config.extend.recipe, ModelSource(name=config.extend.base), 0)
    return base.provenance.extension if base else None


def _check_card(config: ResolvedPipeline, inputs: Inputs) -> None:
    """Raises a UserError if a hub would refuse the card for its languages, or for a wrong or missing licence."""
    card = config.release.card
    if card.license is not None and not LICENCE.fullmatch(card.license):
        raise ConfigError(
            f"release.card.license = {card.license!r} is not an identifier of a licence: write one such as apache-2.0, "
            "or other"
        )
    for language in card.languages:
        check_language(language)
    base = inputs.base(config) if card.license is None else None
    try:
        check_licence(card, base.history(config.extend is not None) if base else Provenance())
    except ReleaseError as error:
        raise ConfigError(str(error)) from None


def check_is_release(folder: Path) -> None:
    """Raises FolderError if a folder in place of a release is something else, which is never replaced."""
    if not (folder / MANIFEST).is_file():
        raise FolderError(f"{folder} exists and is not a release: move it away, or name another folder")


def check_has_rows(config: ReleaseConfig) -> str:
    """Returns the rows that a masked language model is released with; raises ReleaseError if none are named."""
    if config.rows is None:
        raise ReleaseError("rows is missing: name the folder of rows that the model was trained on")
    return config.rows


def check_onnx_installed() -> None:
    """Raises ReleaseError unless the packages that write and run ONNX are installed."""
    if missing := [name for name in ONNX_PACKAGES if not find_spec(name)]:
        raise ReleaseError(
            f"recipe.onnx = true needs {missing[0]}, which is not installed: pip install 'longmlm[onnx]'"
        )


def check_window_files(num_global: int, recipe: ReleaseRecipe) -> None:
    """Raises ReleaseError for files that cannot be written for a model with a window and `num_global` tokens."""
    if recipe.onnx:
        raise ReleaseError("ONNX files cannot be written for a model with a window: remove recipe.onnx")
    if num_global and recipe.sentence_transformer:
        raise ReleaseError(
            "the model has global tokens, which sentence-transformers cannot pass to a Longformer: remove "
            "recipe.sentence_transformer, or extend the base model with num_global_tokens = 0"
        )


def check_longformer(config: Any, has_mlm_head: bool = True) -> None:
    """Raises ReleaseError if Longformer cannot compute what a model with this config and a window does."""
    if problem := longformer_problem(config, has_mlm_head):
        raise ReleaseError(
            f"a model with a window is exported as a Longformer, and this one cannot be: {problem}. Extend the base "
            "model without attention_window"
        )


def check_onnx_size(num_bytes: int) -> None:
    """Raises ReleaseError for weights that are too large for ONNX."""
    if num_bytes > MAX_ONNX_BYTES:
        raise ReleaseError(
            f"onnx/mlm.onnx would be {num_bytes / 1e9:.1f} GB, but the format is limited to 2 GB: set recipe.onnx = "
            "false"
        )


def check_has_no_modules(modules: tuple[str, ...]) -> None:
    """Raises ReleaseError if modules of sentence-transformers would be added to a model that has some."""
    if modules:
        raise ReleaseError(
            f"the model already has sentence-transformers modules ({', '.join(modules)}): remove "
            "recipe.sentence_transformer"
        )
