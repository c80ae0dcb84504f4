"""Read the settings of a stage or a pipeline from TOML files and the command line; write them back as TOML."""

import functools
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from longmlm.errors import ConfigError, system_error
from longmlm.escaping import read_user_text
from longmlm.options import Option, given_options, options_of, sections
from longmlm.processes import MPI, has_parent, is_launched
from longmlm.settings.effects import base_keys_without_effect
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline, RunConfig, absent_stages, disagreements, stage_tables
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.publishing import HIDDEN, Publishing
from longmlm.settings.shipped import SHIPPED, bundled_resolved
from longmlm.settings.tables import OPTION_ONLY, Table, merged, nested, table_at, table_of, with_home
from longmlm.training.run_folder import likely_best_checkpoint
from longmlm.validation import adapter_of, json_of, problem, validated

Config = TypeVar("Config")
RUN_SETTINGS = {  # settings that may name a run folder, for its best checkpoint; other stages choose it themselves
    ExtendConfig: ("base",),
    PrepareConfig: ("recipe.tokenizer",),
    PretrainConfig: ("start.tokenizer",),
    ResolvedPipeline: ("model", "extend.base", "evaluate.base", "prepare.recipe.tokenizer", "pretrain.start.tokenizer"),
}
BASE_KEYS = frozenset(item.name for item in fields(Pipeline))
OWN = "own settings"  # key of the settings of a command that is no stage, beside the keys of its pipeline
STAGES = {section: item.name for item in fields(ResolvedPipeline) for section in sections(item)}
PLACEHOLDER = Pipeline(model="MODEL", corpus=("TEXT",), length=1536, output="OUTPUT")  # for base keys with errors
EXAMPLE = "What follows from base keys is shown for model = MODEL, corpus = TEXT, length = 1536 and output = OUTPUT."


def parse(
    kind: type[Config], arguments: Sequence[str], program: str = "longmlm", defaults: Mapping[str, Any] | None = None
) -> Config:
    """Returns the settings from TOML files, merged in order and overridden by `--section.field value` options.

    The files describe the stage, or a pipeline from which its settings are derived; the options are the stage's, and
    those of a pipeline's keys that the stage does not have. Both override `defaults`. A class may name settings in
    ARGUMENTS, whose values stand among the files: the last is for the last name, the others for the first. Raises
    ConfigError with the file or option, the key, and the key that was probably meant.
    """
    split_at = next((index for index, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    words, options, usage = arguments[:split_at], arguments[split_at:], "[FILE.toml ...]"
    paths = [_path(name) for name in words]
    if names := getattr(kind, "ARGUMENTS", ()):
        others = [name for name, path in zip(words, paths, strict=True) if not _is_toml_path(path)]
        paths, usage = [path for path in paths if _is_toml_path(path)], f"{usage} {_usage(names)}"
        options = [*_named_arguments(names, others, options), *options]
    content = functools.reduce(merged, map(_toml, paths), dict(defaults or {}))
    _check_adds_no_steps(content, paths, f"--{OPTION_ONLY.replace('_', '-')} N")
    tables = merged(content, _given(kind, content, options, f"{program} {usage}"))
    try:
        if kind is PretrainConfig and _is_pipeline(kind, content):
            _note_launch(tables.get("launch"), paths)
        return _checked(_resolved(kind, tables))
    except ConfigError as error:
        if paths:
            raise ConfigError(str(error) if _is_valid(kind, content) else f"{_names_of(paths)}: {error}") from None
        options_missing = re.sub(r"[\w.]+(?= is missing)", lambda name: f"--{name[0].replace('_', '-')}", str(error))
        hint = "; a TOML file with these settings may come first" if " is missing" in options_missing else ""
        raise ConfigError(options_missing + hint) from None


def _is_toml_path(path: Path) -> bool:
    """Returns whether an argument names a TOML file; a text with spaces may end in .toml too."""
    return path.suffix == ".toml" and (not re.search(r"\s", str(path)) or path.is_file())


def _usage(names: Sequence[str]) -> str:
    *lists, last = (name.upper() for name in names)
    return " ".join([*(f"[{name} ...]" for name in lists), f"[{last}]"])


def _named_arguments(names: Sequence[str], words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns positional arguments as options: the last one with the last name, the others with the first name."""
    *lists, name = names
    given = [*(words[-1:] if lists else words), *(word for word in options if word.partition("=")[0] == f"--{name}")]
    if words and len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are both {name}: name one")
    before = [f"--{lists[0]}", *words[:-1]] if lists and words[:-1] else []
    return [*before, *(f"--{name}={word}" for word in words[-1:])]


def _given(kind: Any, content: Table, arguments: Sequence[str], usage: str) -> Table:
    """Returns what the options set: the settings of a stage, and in a pipeline also the pipeline's other keys."""
    if not arguments:
        return {}
    in_pipeline = {} if content else stage_tables(PLACEHOLDER, {}).get(STAGES.get(kind, ""), {})
    listed, is_pipeline = options_of(kind, _help_values(kind, content), in_pipeline), _is_pipeline(kind, content)
    base = base_options(kind, content) if is_pipeline else []
    is_example = bool(in_pipeline) or (issubclass(kind, ResolvedPipeline) and "length" not in content)
    given = given_options([*base, *listed], arguments, usage, f"{inspect.getdoc(kind)} {EXAMPLE * is_example}")
    own = {item.name: given.pop(item.name) for item in fields(kind) if is_pipeline and item.name in given}
    return given | ({STAGES.get(kind, OWN): own} if own else {})


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
    try:
        return _checked(_resolved(RunConfig, content | ({} if more_steps is None else {OPTION_ONLY: more_steps})))
    except ConfigError as error:
        raise ConfigError(f"{_names_of(files)}: {error}" if files and not overrides else str(error)) from None


def base_options(kind: Any, content: Table) -> list[Option]:
    """Returns the options for a pipeline's base keys, if the command takes pipeline files."""
    unused = {"until"} if kind is PretrainConfig else {"until", "launch"}
    has_pipeline = kind in STAGES or hasattr(kind, "of_pipeline")
    return [one for one in options_of(Pipeline, content, {}) if one.setting not in unused] if has_pipeline else []


def resolved_pipeline(tables: Table) -> ResolvedPipeline:
    """Returns the pipeline that these tables describe; raises ConfigError with all errors in one line.

    Settings without effect are allowed: trials set some for every arm.
    """
    return _resolved(ResolvedPipeline, tables, allows_unused=True)


def _note_launch(launch: object, paths: Sequence[Path]) -> None:
    """Prints how to start the processes of a pipeline's launch, unless a launcher has started this one."""
    if launch is not None and not (is_launched() or has_parent() or os.environ.keys() & MPI.keys()):
        files = " ".join(map(str, paths))
        print(
            f"note: launch = {launch!r} is only used by longmlm run; this command trains in a single process. To start "
            f"all of them: longmlm run {files} --until pretrain",
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
    try:
        return _resolved(kind, content, allows_unused=True)
    except ConfigError as error:
        raise ConfigError(f"{_names_of(paths)}: {error}") from None


def _is_valid(kind: Any, content: Table) -> bool:
    with suppress(ConfigError):
        return bool(_resolved(kind, content))
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
    has_pipeline = kind in STAGES or hasattr(kind, "of_pipeline")
    return has_pipeline and bool((BASE_KEYS | set(STAGES.values())) - own & content.keys())


def _resolved(kind: Any, content: Table, allows_unused: bool = False) -> Any:
    """Returns the settings of this kind, validated; raises ConfigError with all errors in one line.

    A setting without effect is an error unless `allows_unused`.
    """
    content = with_home(content)
    is_pipeline_command = issubclass(kind, ResolvedPipeline)
    if not (_is_pipeline(kind, content) or is_pipeline_command):
        return validated(kind, bundled_resolved(_with_checkpoints(content, kind)), [], allows_unused)
    content = _with_checkpoints(content, ResolvedPipeline)
    problems: list[Any] = []  # in pydantic's form
    own = content.pop(OWN, {}) if hasattr(kind, "of_pipeline") else {}
    derived = _derived(content, problems)
    if is_pipeline_command and kind.HAS_TRIALS:
        if "tables" in content:
            problems.append(problem("tables", "remove it: longmlm fills it in"))
        added = {item.name for item in fields(kind)} - {item.name for item in fields(ResolvedPipeline)}
        derived["tables"] = {key: value for key, value in content.items() if key not in added}
    pipeline = validated(kind if is_pipeline_command else ResolvedPipeline, derived, problems, allows_unused)
    if hasattr(kind, "of_pipeline"):
        return validated(kind, bundled_resolved(merged(kind.of_pipeline(pipeline, own), own)), [])
    if is_pipeline_command:
        if contradictions := "; ".join(disagreements(pipeline)):
            raise ConfigError(contradictions)
        return pipeline
    config = getattr(pipeline, STAGES[kind])
    if config is None:
        raise ConfigError(f"the pipeline has no stage {STAGES[kind]}: {absent_stages(pipeline, content)[STAGES[kind]]}")
    return config


def _with_checkpoints(content: Table, kind: type) -> Table:
    """Returns settings in which the path of a run's best checkpoint takes the place of a run folder.

    Raises CheckpointError if the run has no checkpoint.
    """
    names = RUN_SETTINGS.get(kind, ())
    if "model" in names and content.get("model") == table_at(content, "pretrain", "start").get("checkpoint"):
        names = (*names, "pretrain.start.checkpoint")
    for name in names:
        *tables, last = name.split(".")
        value = table_at(content, *tables).get(last)
        if isinstance(value, str) and (path := likely_best_checkpoint(value)) != value:
            content = merged(content, table_of(name, path))
    return content


def _derived(content: Table, problems: list[Any]) -> Table:
    """Returns a pipeline file's content with the tables of all stages; appends errors in base keys to `problems`."""
    import pydantic

    base_table = {key: value for key, value in content.items() if key in BASE_KEYS}
    base = PLACEHOLDER
    try:
        base = adapter_of(Pipeline).validate_json(json_of(base_table), strict=True)
    except pydantic.ValidationError as error:
        problems += error.errors(include_url=False)
        base_table = asdict(base)
    given = {key: value for key, value in content.items() if key not in BASE_KEYS}
    problems += [problem(name, reason) for name, reason in base_keys_without_effect(base, given)]
    for stage, reason in absent_stages(base, given).items():
        if given.pop(stage, None):
            problems.append(problem(stage, f"remove the table of this stage: {reason}"))
    return {**base_table, **stage_tables(base, given)}
