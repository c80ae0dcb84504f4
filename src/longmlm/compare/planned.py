"""The trials of a comparison: the pipeline as given, with an arm and values merged over it, in a folder of its own.

OUTPUT/compare/trials/ARM/VALUES/seed-42/
    trial.toml              its pipeline, which longmlm run runs
    run/ evaluation/ ...    what that wrote; weights are removed once the trial has finished
"""

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import tomli_w

from longmlm.artifacts.artifact import sha256_of_json
from longmlm.artifacts.evaluation import Evaluation
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.artifacts.run import RunSummary
from longmlm.compare.comparison import Arm
from longmlm.compare.settings import ComparedPipeline
from longmlm.config import resolved_pipeline
from longmlm.errors import ConfigError
from longmlm.experiments.experiment import Trial, Values
from longmlm.experiments.processes import TRIAL, PlannedTrial
from longmlm.folders import MANIFEST
from longmlm.settings.effects import settings_without_effect
from longmlm.settings.extend import USED_BY
from longmlm.settings.pipeline import ResolvedPipeline, StageName, recommended
from longmlm.settings.publishing import Publishing, redacted_settings
from longmlm.settings.results import result_of, result_settings
from longmlm.settings.tables import Table, leaves, merged, table_at, table_of, without
from longmlm.staleness import made_from
from longmlm.training.run_folder import CHECKPOINTS

FOLDER = "compare"
RESULTS = (("run", RunSummary.FILE), ("evaluation", Evaluation.FILE))  # in the folder of a trial, of its last stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The pipeline of a trial, as tables and resolved, and its folder.

    The tables leave out what has no effect in the pipeline.
    """

    trial: Trial
    folder: Path
    tables: Table
    pipeline: ResolvedPipeline

    @property
    def rows(self) -> Path:
        """The manifest of the rows that it is trained on."""
        return Path(self.pipeline.prepare.output) / MANIFEST

    def planned(self) -> PlannedTrial:
        """Returns how the trial runs; the hash of its rows is part of its key once they are packed."""
        run, evaluation = (self.folder / name / file for name, file in RESULTS)
        key = {f"settings or inputs of {name}": sha256 for name, sha256 in self._stages().items()}
        if self.rows.is_file():
            key["rows"] = read_rows_manifest(self.rows.parent).sha256
        is_evaluated = "evaluate" in self.pipeline.stages
        is_missing_weights = run.is_file() and not (evaluation.is_file() or (run.parent / CHECKPOINTS).is_dir())
        return PlannedTrial(
            name=self.trial.name,
            folder=self.folder,
            key=key,
            files={TRIAL: tomli_w.dumps(redacted_settings(self.tables))},
            module="longmlm",
            arguments=("run", str(self.folder / TRIAL)),
            training="run",
            result="/".join(RESULTS[is_evaluated]),
            missing="its weights, which evaluate needs, are gone" if is_evaluated and is_missing_weights else "",
        )

    def _stages(self) -> dict[str, str]:
        """Returns a hash per stage of all that its result, and the accuracies on record, depend on, whatever the paths.

        It does not depend on text, which the rows stand for.
        """
        every, stages = self.pipeline.pretrain.runtime.evaluate_every_steps, self.pipeline.stages
        made = [str(result_of(stage)) for stage in stages.values()]
        keys = {name: made_from(stage, skipped=made).key for name, stage in stages.items()}
        keys["pretrain"]["evaluate_every_steps"] = str(every)
        return {name: sha256_of_json(content) for name, content in keys.items()}


def variant(config: ComparedPipeline, trial: Trial) -> Variant:
    """Returns a variant of the pipeline; raises ConfigError if it is no valid one."""
    arm, folder = trial.arm, trial.folder_in(Path(config.output) / FOLDER)
    recipe = {"recipe": {"seed": trial.seed}}
    own: Table = {
        "output": str(folder),
        "until": config.compare.until,
        "pretrain": {**recipe, "runtime": {"stop_when_recovered": False}},
    }
    tables = merged(_with_values(config, _without_results(config), arm, trial.values), own)
    if tables.get("extension", True):
        tables = merged(tables, {"extend": recipe})
    resolved = _resolved(arm, tables)
    _check_effects(config, arm, resolved)
    if config.compare.until not in resolved.stages:
        raise ConfigError(f"arm {arm}: until = evaluate, but there is no base model with an MLM head to compare with")
    tables = merged(tables, rows_tables(config, resolved))
    pipeline = _resolved(arm, tables)
    return Variant(trial=trial, folder=folder, tables=_used(tables, pipeline), pipeline=pipeline)


def _check_effects(config: ComparedPipeline, arm: str, resolved: ResolvedPipeline) -> None:
    """Raises ConfigError for a setting of an arm that changes none of its trials."""
    unused = dict(settings_without_effect(resolved))
    for name in dict(leaves(config.compare.arms[arm])):
        if name in unused:
            raise ConfigError(f"arm {arm}: {name}: {unused[name]}")
        if (stage := name.partition(".")[0]) in get_args(StageName) and stage not in resolved.stages:
            raise ConfigError(
                f"arm {arm}: {name}: it has no effect, since trials end with {config.compare.until}: remove it"
            )


def best_pipeline(config: ComparedPipeline, best: Arm) -> Table:
    """Returns the user's pipeline with an arm and the values chosen for it."""
    tables = _with_values(config, config.tables, best.name, best.values)
    rows = rows_tables(config, resolved := _resolved(best.name, tables))
    return _used(merged(tables, rows) if rows["rows"] != resolved.prepare.output else tables, resolved)


def combinations(config: ComparedPipeline, arm: str) -> list[Values]:
    """Returns every combination of the values to try for an arm; a single empty one if there are none.

    An arm that is not extended has no settings of the extend stage to try.
    """
    searched = config.compare.values
    if _leaves_extension_out(config, arm):
        searched = {name: values for name, values in searched.items() if not name.startswith(("extend.", "length"))}
    return [dict(zip(searched, values, strict=True)) for values in itertools.product(*searched.values())]


def rows_tables(config: ComparedPipeline, pipeline: ResolvedPipeline) -> Table:
    """Returns where all stages find the rows of a pipeline: pipelines with the same prepare settings share them."""
    folder = config.prepare.output
    if pipeline.prepare.recipe != config.prepare.recipe:
        name = sha256_of_json(result_settings(pipeline.prepare)["recipe"])[:8]
        folder = str(Path(config.output) / FOLDER / f"rows-{name}")
    return {"rows": folder}


def _without_results(config: ComparedPipeline) -> Table:
    """Returns the pipeline as given, without where its results go: shared rows, trackers, hubs and the release."""
    tables = {name: value for name, value in config.tables.items() if name not in ("release", "rows")}
    for stage, names in {"prepare": [item.name for item in fields(Publishing)], "pretrain": ["tracking"]}.items():
        if stage in tables:
            tables[stage] = {name: value for name, value in tables[stage].items() if name not in names}
    return tables


def _with_values(config: ComparedPipeline, tables: Table, arm: str, values: Mapping[str, Any]) -> Table:
    """Returns a pipeline's tables with those of the arm, and then the values, merged over them."""
    overlay = config.compare.arms[arm]
    if _leaves_extension_out(config, arm):
        terms = table_at(tables, "extend", "recipe").get("add_tokens")
        tables = {name: table for name, table in tables.items() if name != "extend"}
        tables |= {"extend": {"recipe": {"add_tokens": terms}}} if terms else {}
    own = functools.reduce(merged, itertools.starmap(table_of, values.items()), overlay)
    given = merged(tables, own)
    initialisation = table_at(merged(recommended(config, given), given), "extend", "recipe").get("initialisation")
    for name, users in USED_BY.items():  # an arm cannot remove what only the pipeline's own initialisation uses
        if initialisation not in users and name not in table_at(own, "extend", "recipe"):
            tables = without(tables, f"extend.recipe.{name}")
    if arm == config.compare.control:
        tables = merged(tables, {"pretrain": {"recipe": {"batch_tokens": config.pretrain.recipe.batch_tokens}}})
    return merged(tables, own)


def _leaves_extension_out(config: ComparedPipeline, arm: str) -> bool:
    return config.extension and config.compare.arms[arm].get("extension") is False


def _used(tables: Table, pipeline: ResolvedPipeline) -> Table:
    """Returns the tables without settings that have no effect in this pipeline, such as the seed of a fixed table."""
    return functools.reduce(without, (name for name, _ in settings_without_effect(pipeline)), tables)


def _resolved(arm: str, tables: Table) -> ResolvedPipeline:
    try:
        return resolved_pipeline(tables)
    except ConfigError as error:
        raise ConfigError(f"arm {arm}: {error}") from None
