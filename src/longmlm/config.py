"""Reads the settings of a stage or a pipeline from TOML files and the command line."""

import functools
import inspect
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_origin

from longmlm.errors import ConfigError, system_error
from longmlm.escaping import read_user_text
from longmlm.options import STAGES, base_options, given_options, named_arguments, options_of, usage_of
from longmlm.processes import MPI, has_parent, is_launched
from longmlm.settings.effects import base_keys_without_effect
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import (
    DERIVED,
    PLACEHOLDER,
    Pipeline,
    PipelineReader,
    ResolvedPipeline,
    RunConfig,
    absent_stages,
    stage_tables,
)
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.publishing import HIDDEN, Publishing
from longmlm.settings.shipped import SHIPPED, bundled_resolved
from longmlm.settings.tables import OPTION_ONLY, Table, leaves, merged, nested, table_at, with_arrays, with_home
from longmlm.training.run_folder import likely_best_checkpoint
from longmlm.validation import adapter_of, problem, validated

Config = TypeVar("Config")
BASE_KEYS = frozenset(item.name for item in fields(Pipeline))
READ_MODELS = (ExtendConfig, PrepareConfig, PretrainConfig, ResolvedPipeline)  # others choose a run's checkpoint
IS_DERIVED = "cannot be set in a pipeline, which derives it from model, revision, length, output and rows: set those"
EXAMPLE = "What follows from base keys is shown for model = MODEL, corpus = TEXT, length = 1536 and output = OUTPUT."


def parse(
    kind: type[Config], arguments: Sequence[str], program: str = "longmlm", defaults: Mapping[str, Any] | None = None
) -> Config:
    """Returns the settings from TOML files, merged in order and overridden by `--section.field value` options.

    The files describe the stage, or a pipeline from which its settings are derived; the options are the stage's, and
    those of a pipeline's keys that the stage does not have. Both override `defaults`. Raises ConfigError with the file
    or option, the key, and the key that was probably meant.
    """
    paths, options, usage = _files_and_options(kind, arguments)
    content = functools.reduce(merged, map(_toml, paths), dict(defaults or {}))
    _check_adds_no_steps(content, paths, f"--{OPTION_ONLY.replace('_', '-')} N")
    base, own = _given(kind, content, options, f"{program} {usage}")
    if kind is PretrainConfig and _is_pipeline(kind, content):
        _note_launch({**content, **base}.get("launch"), paths)
    try:
        return _checked(_settings(kind, merged(content, base), own))
    except ConfigError as error:
        if not paths:
            raise ConfigError(_with_options_named(str(error))) from None
        if _is_valid(kind, content):  # an option is wrong
            raise
        raise ConfigError(f"{_names_of(paths)}: {error}") from None


def _settings(kind: Any, content: Table, own: Table, allows_unused: bool = False) -> Any:
    """Returns the settings that the content of files describes, with the command's `own` settings over them."""
    own = _with_paths(kind, own)
    if issubclass(kind, ResolvedPipeline):
        return _pipeline(kind, content, own, allows_unused)
    if not _is_pipeline(kind, content):
        return _alone(kind, merged(content, own), allows_unused)
    if issubclass(kind, PipelineReader):
        pipeline = _pipeline(ResolvedPipeline, content, {}, allows_unused)
        return _alone(kind, merged(kind.of_pipeline(pipeline, own), own), allows_unused)
    stage = STAGES[kind]
    pipeline = _pipeline(ResolvedPipeline, content, {stage: own}, allows_unused)
    if (config := getattr(pipeline, stage)) is None:
        raise ConfigError(f"the pipeline has no stage {stage}: {absent_stages(pipeline, content)[stage]}")
    return config


def _alone(kind: Any, content: Table, allows_unused: bool) -> Any:
    """Returns the settings that are described without a pipeline."""
    content = bundled_resolved(_with_paths(kind, content))
    users_names = {item.name for item in fields(kind) if get_origin(item.type) is dict}  # a name may be a number
    own = {key: value if key in users_names else with_arrays(value) for key, value in content.items()}
    return validated(kind, own, [], allows_unused)


def _pipeline(kind: type[ResolvedPipeline], content: Table, own: Table, allows_unused: bool) -> Any:
    """Returns a pipeline with the settings of all stages: those given, and those that follow from the base keys."""
    problems = [problem(name, IS_DERIVED) for name, _ in leaves(content) if name in DERIVED]  # in pydantic's form
    content = merged(_with_paths(kind, content), own)
    tables = _derived(content, problems)
    if kind.HAS_TRIALS:
        problems += [problem("tables", "remove it: longmlm fills it in")] if "tables" in content else []
        tables["tables"] = {name: value for name, value in content.items() if name in BASE_KEYS | {*STAGES.values()}}
    return validated(kind, tables, problems, allows_unused)


def _derived(content: Table, problems: list[Any]) -> Table:
    """Returns a pipeline file's content with the tables of all stages; appends errors in base keys to `problems`."""
    import pydantic

    base, base_table = PLACEHOLDER, {key: with_arrays(content[key]) for key in BASE_KEYS & content.keys()}
    try:
        base = adapter_of(Pipeline).validate_json(json.dumps(base_table, default=str), strict=True)
    except pydantic.ValidationError as error:
        problems += error.errors(include_url=False)
        base_table = asdict(base)
    given = {key: value for key, value in content.items() if key not in BASE_KEYS}
    problems += [problem(name, reason) for name, reason in base_keys_without_effect(base, given)]
    for stage, reason in absent_stages(base, given).items():
        if given.pop(stage, None):
            problems.append(problem(stage, f"remove the table of this stage: {reason}"))
    tables = stage_tables(base, given)
    return {**base_table, **tables, **{name: with_arrays(tables[name]) for name in STAGES.values() if name in tables}}


def _with_paths(kind: type, content: Table) -> Table:
    """Returns settings with the home folder in place of ~, and a best checkpoint in place of a run named as a model.

    Raises CheckpointError if the run has no checkpoint.
    """
    return _with_checkpoints(with_home(content)) if issubclass(kind, READ_MODELS) else with_home(content)


def _with_checkpoints(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _with_checkpoints(item, name) for name, item in value.items()}
    is_model = key in ("model", "base", "tokenizer") and isinstance(value, str)
    return likely_best_checkpoint(value) if is_model else value


@contextmanager
def _naming_files(paths: Sequence[Path]) -> Iterator[None]:
    """Puts the names of the files before the message of a ConfigError in the block."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{_names_of(paths)}: {error}" if paths else str(error)) from None


def _with_options_named(message: str) -> str:
    named = re.sub(r"[\w.]+(?= is missing)", lambda name: f"--{name[0].replace('_', '-')}", message)
    return named + ("; a TOML file with these settings may come first" if " is missing" in message else "")


def _files_and_options(kind: type, arguments: Sequence[str]) -> tuple[list[Path], list[str], str]:
    """Returns the files, the options with the settings that stand among the files, and the usage of the arguments."""
    split_at = next((index for index, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    words, options, usage = arguments[:split_at], arguments[split_at:], "[FILE.toml ...]"
    paths = [_path(name) for name in words]
    if not issubclass(kind, PipelineReader):
        return paths, [*options], usage
    others = [name for name, path in zip(words, paths, strict=True) if not _is_toml_path(path)]
    named = named_arguments(kind.ARGUMENTS, others, options)
    return [path for path in paths if _is_toml_path(path)], [*named, *options], f"{usage} {usage_of(kind.ARGUMENTS)}"


def _is_toml_path(path: Path) -> bool:
    """Returns whether an argument names a TOML file; a text with spaces may end in .toml too."""
    return path.suffix == ".toml" and (not re.search(r"\s", str(path)) or path.is_file())


def _given(kind: Any, content: Table, arguments: Sequence[str], usage: str) -> tuple[Table, Table]:
    """Returns what the options set: keys of a pipeline that the command does not have, and the command's own."""
    if not arguments:
        return {}, {}
    in_pipeline = {} if content else stage_tables(PLACEHOLDER, {}).get(STAGES.get(kind, ""), {})
    base = base_options(kind, content) if _is_pipeline(kind, content) else []
    is_example = bool(in_pipeline) or (issubclass(kind, ResolvedPipeline) and "length" not in content)
    listed = [*base, *options_of(kind, _help_values(kind, content), in_pipeline)]
    given = given_options(listed, arguments, usage, f"{inspect.getdoc(kind)} {EXAMPLE * is_example}")
    own = {item.name for item in fields(kind)}
    return {key: given[key] for key in given.keys() - own}, {key: given[key] for key in given.keys() & own}


def _check_adds_no_steps(content: Table, paths: Sequence[Path], remedy: str) -> None:
    """Raises ConfigError for files or tables that would add steps to a run each time they are read."""
    if any(OPTION_ONLY in table for table in (content, table_at(content, STAGES[PretrainConfig]))):
        where = f"{_names_of(paths)}: " if paths else ""
        raise ConfigError(f"{where}{OPTION_ONLY}: remove it, since a file would add steps each time; pass {remedy}")


def pipeline_of(
    parts: Sequence[str | Path | Mapping[str, Any]], overrides: Mapping[str, Any], more_steps: object
) -> RunConfig:
    """Returns the pipeline that TOML files, names of shipped pipelines and tables describe, merged in order.

    `overrides` are merged last; a key may be a dotted name, such as pretrain.recipe.num_steps. `more_steps` are added
    to a finished run. Raises ConfigError with all errors in one line.
    """
    tables = (part if isinstance(part, Mapping) else _toml(_path(str(part))) for part in parts)
    content = functools.reduce(merged, [*tables, nested(overrides)], {})
    files = [Path(str(part)) for part in parts if not isinstance(part, Mapping)]
    _check_adds_no_steps(content, files, f"{OPTION_ONLY}=N")
    own = {} if more_steps is None else {OPTION_ONLY: more_steps}
    with _naming_files([] if overrides else files):
        return _checked(_settings(RunConfig, content, own))


def resolved_pipeline(tables: Table) -> ResolvedPipeline:
    """Returns the pipeline that these tables describe; raises ConfigError with all errors in one line.

    Settings without effect are allowed: trials set some for every arm.
    """
    return _settings(ResolvedPipeline, tables, {}, allows_unused=True)


def _note_launch(launch: object, paths: Sequence[Path]) -> None:
    """Prints how to start the processes of a pipeline's launch, unless a launcher has started this one."""
    if launch is not None and not (is_launched() or has_parent() or os.environ.keys() & MPI.keys()):
        files = " ".join(map(str, paths))
        print(
            f"note: launch = {launch!r} is only used by longmlm run; this command trains in a single process. To train "
            f"in all of them: longmlm run {files} --until pretrain",
            file=sys.stderr,
        )


def _checked(config: Any) -> Any:
    """Returns the settings; raises ConfigError if the address of `publish` was written without its password."""
    stages = config.stages.values() if isinstance(config, ResolvedPipeline) and not config.HAS_TRIALS else [config]
    for stage in stages:
        if isinstance(stage, Publishing) and HIDDEN in (stage.publish or ""):
            raise ConfigError(f"publish = {stage.publish!r}: no file holds its password or key: give the whole address")
    return config


def _help_values(kind: type, content: Table) -> Mapping[str, Any]:
    """Returns the values that --help shows: those in the files, or those derived from a pipeline."""
    if not issubclass(kind, ResolvedPipeline) and not _is_pipeline(kind, content):
        return content
    derived = _derived(content, [])  # errors are reported when the settings are resolved
    if issubclass(kind, ResolvedPipeline):
        return {key: value for key, value in derived.items() if key not in BASE_KEYS or key in content}
    return derived.get(STAGES.get(kind, ""), {})


def read(kind: type[Config], paths: Sequence[Path]) -> Config:
    """Returns the settings from TOML files. Later files override earlier ones; arrays are replaced, not merged.

    Settings without effect are allowed: records of earlier runs may have some.
    """
    content = functools.reduce(merged, map(_toml, paths), {})
    with _naming_files(paths):
        return _settings(kind, content, {}, allows_unused=True)


def _is_valid(kind: Any, content: Table) -> bool:
    with suppress(ConfigError):
        return bool(_settings(kind, content, {}))
    return False


def _names_of(paths: Sequence[Path]) -> str:
    return " + ".join(map(str, paths))


def _path(name: str) -> Path:
    """Returns the path of a file, or of the shipped pipeline or overlay with that name."""
    is_shipped = name in {path.stem for path in SHIPPED.glob("*.toml")} and not Path(name).is_file()
    return SHIPPED / f"{name}.toml" if is_shipped else Path(name)


def _toml(path: Path) -> Table:
    try:
        return tomllib.loads(read_user_text(path))
    except OSError as error:
        if system_error(error):
            raise
        reason = error.strerror if path.suffix or path.exists() else "nor a pipeline of that name in longmlm pipelines"
        raise ConfigError(f"{path}: no such TOML file ({reason})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        is_repeated = re.search("twice|[Oo]verwrite|mutate|redefine|[Dd]uplicate", str(error))
        remedy = ": put all keys of a table under one heading, each key once" if is_repeated else ""
        raise ConfigError(f"{path} is not valid TOML: {error}{remedy}") from None


def _is_pipeline(kind: type, content: Mapping[str, Any]) -> bool:
    """Returns whether the settings given for a stage are a pipeline: they have a key that only pipelines have."""
    own = {item.name for item in fields(kind)}
    has_pipeline = kind in STAGES or issubclass(kind, PipelineReader)
    return has_pipeline and bool((BASE_KEYS | set(STAGES.values())) - own & content.keys())
