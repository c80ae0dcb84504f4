"""Pipeline files: the one that `init` prints for a model, and those that come with the package."""

import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import tomli_w

from longmlm.artifacts.rows import check_rows_fit_positions
from longmlm.config import parse
from longmlm.data.files import files_of
from longmlm.data.languages import check_language
from longmlm.errors import DataError, ModelUnavailableError, UnavailableError
from longmlm.model.facts import ModelFacts, facts_of
from longmlm.model.families import attention_note, shares_layers
from longmlm.options import explanations, sections
from longmlm.settings.extend import ExtendRecipe
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline, recommended
from longmlm.settings.release import ReleaseRecipe
from longmlm.settings.shipped import BUNDLED, PACKAGE, SHIPPED, bundled_resolved
from longmlm.settings.tables import Table, merged
from longmlm.training.run_folder import likely_best_checkpoint

SCHEMA = (
    "longmlm.schema.json"  # in the folder of the pipeline file, so that both can be moved, and no network is needed
)
HEAD = f"""\
#:schema ./{SCHEMA}
# Editors with TOML support complete and check this file if its schema is in the same folder: longmlm schema > {SCHEMA}
#
# {Pipeline.__doc__}
# Run it with: longmlm run FILE"""
NOTE = "# Default settings of the stages: remove the # to change one; `longmlm run FILE --help` explains the others."
DEFAULTS = Pipeline.__dataclass_fields__
OF_TEXT = ("language", "text_field", "text_fields")  # base keys that both files of a model without a head have
RELEASED = (  # settings of a release that the file lists
    "weights",
    "sentence_transformer",
    "onnx",
    "allow_unrecovered",
    "allow_worse_short_texts",
)


def init(arguments: Sequence[str]) -> str:
    """Returns a pipeline file with the base keys from the options, after checking them; may print notes.

    For a model without an MLM head that is to be extended, it is the first of two files, which trains a head.
    """
    base = parse(Pipeline, arguments, "longmlm init", {"output": "out/mine"})
    return pipeline_file(base, checked_model(base))


def checked_model(base: Pipeline) -> ModelFacts | None:
    """Returns the facts about the model of a pipeline; checks the language, the length and the model.

    Raises a UserError if one of them is unusable. If the hub does not respond or the corpus is missing, prints a note.
    """
    check_language(base.language)
    try:
        files_of(base.corpus)
    except DataError as error:
        _note(f"{error}; the pipeline needs its corpus when it runs")
    if base.model is None:
        return None
    try:
        facts = facts_of(likely_best_checkpoint(bundled_resolved(base.model)), base.revision)
        if facts.num_positions is None:
            return None
        recipe = ExtendRecipe(num_positions=base.length)
        if base.extension:
            facts.check_extends(recipe)
        else:
            check_rows_fit_positions(base.length, facts.num_positions, facts.shown)
        if facts.has_head is not False and base.extension:
            _note(attention_note(recipe, facts.num_positions, facts.config))
    except (ModelUnavailableError, UnavailableError) as error:
        _note(f"the model was not checked; longmlm plan and longmlm run will check it: {error}")
        return None
    return facts


def _note(text: str) -> None:
    if text:
        print(f"note: {text}", file=sys.stderr)


def pipeline_file(base: Pipeline, about: ModelFacts | None = None) -> str:
    """Returns a pipeline file with these base keys; the recommended settings of the stages are commented out.

    The docstring of each setting is a comment above it. If the model has no MLM head, the file trains a new one.
    """
    given: Table = {"pretrain": {"start": {"new_head": True}}} if about and about.has_head is False else {}
    lines = [HEAD]
    if about and given and base.extension:
        lines += ["#", *_two_steps(base, about)]
        base = replace(base, length=int(about.num_positions or 0), extension=False)
    elif about and shares_layers(about.config) and base.extension:
        given = {"extend": {"recipe": {"initialisation": "fitted"}}}
    for name, text in explanations(Pipeline).items():
        value = getattr(base, name)
        is_default = name not in ("corpus", "output") and value == DEFAULTS[name].default
        assignment = _assignment(name, "..." if value is None else value)
        lines += ["", f"# {text}", f"#{assignment}" if is_default else assignment]
    lines += ["", NOTE]
    kinds = {item.name: part for item in fields(ResolvedPipeline) for part in sections(item)}
    defaults = {item.name: item.default for item in fields(ReleaseRecipe) if item.name in RELEASED}
    release = {
        "recipe": {**defaults, "sentence_transformer": "mean"},
        "card": {"license": (about and about.licence) or "apache-2.0"},
    }
    for stage, table in merged(merged(recommended(base, given), {"release": release}), given).items():
        lines += _tables(stage, kinds[stage], table, given.get(stage, {}))
    if about:
        says = f"says {about.licence}" if about.licence else "is not known to state one: set it before you publish"
        at = next(at for at, line in enumerate(lines) if line.startswith("#license"))
        lines.insert(at, f"# The card of {base.model} {says}.")
    return "\n".join(lines).replace(f"{PACKAGE / 'bundled'}/", BUNDLED)


def _two_steps(base: Pipeline, about: ModelFacts) -> Iterator[str]:
    """Yields comments for a model without an MLM head: what this file does, and the command for the second file."""
    kind = f"{'an encoder' if about.modules is None else 'a sentence encoder'} without an MLM head"
    yield f"# {base.model} is {kind}. It can be extended to {base.length} positions once it has one, so this is"
    yield f"# the first of two files: it trains a head at the model's own {about.num_positions} positions. The second:"
    options = {"model": f"{base.output}/release", "corpus": base.corpus, "length": base.length}
    options |= {name: value for name in OF_TEXT if (value := getattr(base, name)) != DEFAULTS[name].default}
    options |= {"output": f"{base.output}-{base.length}"}
    words = (
        (f"--{name}", *map(str, value if isinstance(value, tuple) else [value])) for name, value in options.items()
    )
    yield f"#   longmlm init {shlex.join(word for pair in words for word in pair)} > long.toml"


def _tables(name: str, kind: type, table: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a table and its subtables, with every key commented out that is not `given`."""
    own, texts = {key: value for key, value in table.items() if not isinstance(value, dict)}, explanations(kind)
    if own:
        yield from ("", f"[{name}]")
    for key, value in own.items():
        assignment = _assignment(key, value)
        yield from (f"# {texts[key]}", assignment if key in given else f"#{assignment}")
    for item in fields(kind):
        if isinstance(table.get(item.name), dict):
            inner = next(sections(item))
            yield from _tables(f"{name}.{item.name}", inner, table[item.name], given.get(item.name, {}))


def _assignment(key: str, value: object) -> str:
    return tomli_w.dumps({key: list(value) if isinstance(value, tuple) else value}).strip()


def shipped_pipelines() -> str:
    """Returns a line for each shipped pipeline and overlay: its name and the first line of its comment."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SHIPPED.glob("*.toml"))}
    lines = {name: f"  {name:20}{text.splitlines()[0].removeprefix('# ')}" for name, text in texts.items()}
    pipelines = [name for name, text in texts.items() if "output" in tomllib.loads(text)]
    overlays = [name for name in texts if name not in pipelines]
    parts = ["pipelines: longmlm run NAME", *(lines[name] for name in pipelines)]
    parts += ["overlays: longmlm run NAME OVERLAY", *(lines[name] for name in overlays)] if overlays else []
    return "\n".join(parts)
