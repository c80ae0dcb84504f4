"""What was measured to a model card."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from longmlm.artifacts.rows import RowsManifest
from longmlm.reports.evaluation import cells, explanation
from longmlm.reports.facts import Licence, Training, corpora, datasets
from longmlm.reports.packing import packing_table
from longmlm.reports.tables import Table, markdown_table
from longmlm.settings.release import ReleaseConfig

NOT_RECOVERED = (
    "**Not recovered: on whole rows this model tells fewer tokens than its base model on rows cut to its length.**"
)


def model_card(
    config: ReleaseConfig,
    provenance: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    rows: RowsManifest,
    training: Training,
    licence: Licence,
) -> str:
    """Returns README.md: metadata, how to load, what was measured, how it was made; `rows` is their manifest."""
    key = "base" if "base" in provenance else "started_from"
    data = ModelCardData(
        language=list(config.card.languages),
        license=licence.identifier,
        license_name=licence.name,
        license_link=licence.link,
        library_name="transformers",
        pipeline_tag="fill-mask",
        base_model=provenance[key] if provenance.get(f"{key}_revision") else None,
        datasets=datasets(rows) or None,
        tags=["masked-lm", "long-context"] if "base" in provenance else ["masked-lm"],
        model_name=config.card.title,
        eval_results=_results(config, evaluation, provenance) or None,
    )
    parts = [f"# {config.card.title}", config.card.description, _making(provenance), _usage(config, provenance)]
    if evaluation:
        parts.append(_measurements(evaluation, _exported(provenance)))
    elif (accuracy := (provenance.get("trained") or {}).get("accuracy")) is not None:
        exported = _exported(provenance)
        parts.append(_one_figure(accuracy if exported is None else exported, training.base_cut, "base" in provenance))
    parts += [_training(config, training), _data(config, rows), _limits(config, provenance)]
    told = f", as its base model {public_name(provenance, key)}" if licence.is_of_base else ""
    parts.append(f"## Licence\n\n{licence.name or licence.identifier}{told}")
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def addressed(card: str, hub: str, name: str, revision: str | None = None) -> str:
    """Returns the card with the code that loads the model from the hub, "hf" or "ms", or else from a folder."""
    card = re.sub(r"```python\n.*?```", lambda _: _code(hub, name, revision), card, count=1, flags=re.DOTALL)
    return re.sub(r"```python\nimport onnx.*?```", lambda _: _onnx_code(hub, name, revision), card, flags=re.DOTALL)


def _code(hub: str, name: str, revision: str | None = None) -> str:
    revised = f', revision="{revision}"' if revision else ""
    lines = ["from transformers import pipeline", "", f'fill_mask = pipeline("fill-mask", model="{name}"{revised})']
    if hub == "ms":
        lines[:1] = ["from modelscope_hub import HubApi", *lines[:1]]
        lines[-1:] = [
            f'folder = HubApi().download_repo("{name}", "model"{revised})',
            'fill_mask = pipeline("fill-mask", model=str(folder))',
        ]
    lines.append('print(fill_mask(f"This is {fill_mask.tokenizer.mask_token}.")[0]["token_str"])')
    return "\n".join(["```python", *lines, "```"])


def _onnx_code(hub: str, name: str, revision: str | None = None) -> str:
    revised = f', revision="{revision}"' if revision else ""
    imports, fetch, place = [], [], f'"{name}"{revised}'
    if hub == "ms":
        imports, place = ["from modelscope_hub import HubApi"], "folder"
        fetch = [f'folder = str(HubApi().download_repo("{name}", "model"{revised}))']
    lines = [
        "import onnxruntime",
        *imports,
        "from transformers import AutoTokenizer",
        "from transformers.utils import cached_file",
        "",
        *fetch,
        f"tokenizer = AutoTokenizer.from_pretrained({place})",
        f'session = onnxruntime.InferenceSession(cached_file({place}, filename="model.onnx"))',
        'inputs = dict(tokenizer([f"This is {tokenizer.mask_token}."], return_tensors="np"))',
        'inputs.pop("token_type_ids", None)',
        '[logits] = session.run(["logits"], inputs)',
        'print(tokenizer.decode(logits[inputs["input_ids"] == tokenizer.mask_token_id][0].argmax()))',
    ]
    return "\n".join(["```python", *lines, "```"])


def public_name(provenance: Mapping[str, Any], key: str) -> str:
    """Returns a model of the hub, which has a revision, as it is, and of a local folder the last part of its path."""
    model = provenance[key]
    return model if provenance.get(f"{key}_revision") else Path(model).name


def public_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what longmlm.json of a release says: without the places of local folders."""
    named = {key: public_name(provenance, key) for key in ("base", "started_from") if provenance.get(key)}
    return {**provenance, **named}


def _results(config: ReleaseConfig, evaluation: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[EvalResult]:
    trained, accuracy = provenance.get("trained") or {}, _exported(provenance)
    if accuracy is None:
        accuracy = evaluation["measured"]["long_after"]["whole"]["accuracy"] if evaluation else trained.get("accuracy")
    if accuracy is None:
        return []
    return [
        EvalResult(
            task_type="fill-mask",
            dataset_type="held-out-rows",
            dataset_name=f"held-out documents of {', '.join(config.card.data) or 'the corpus'}",
            metric_type="accuracy",
            metric_name="masked-token accuracy (%)",
            metric_value=round(accuracy, 2),
        )
    ]


def _making(provenance: Mapping[str, Any]) -> str:
    trained = provenance.get("trained") or {}
    steps = f"{trained.get('steps', 0):,} steps, {trained.get('tokens', 0):,} tokens"
    for before in provenance.get("trained_before", ()):
        steps += f", after {before['steps']:,} steps on {before['tokens']:,} tokens in an earlier run"
    on_rows = f"on rows of {trained.get('row_length')} tokens: {steps}."
    if not {"base", "started_from"} & provenance.keys():
        return f"Pretrained from scratch with longmlm {on_rows}"
    if "base" not in provenance:
        name, commit = public_name(provenance, "started_from"), provenance.get("started_from_revision") or "local"
        return f"`{name}` (revision {commit}), pretrained further with longmlm {on_rows}"
    return (
        f"`{public_name(provenance, 'base')}` (revision {provenance['base_revision'] or 'local'}) with its table of "
        f"{provenance['base_positions']} trained positions stretched to {provenance['num_positions']} by longmlm "
        f"({provenance['initialisation']}, alpha {provenance['alpha']}), then pretrained {on_rows}"
    )


def _usage(config: ReleaseConfig, provenance: Mapping[str, Any]) -> str:
    trained = (provenance.get("trained") or {}).get("row_length")
    length = provenance.get("num_positions", trained)
    beyond = ""
    if length != trained:
        beyond = f" It was trained and measured on rows of {trained} tokens; at other lengths nothing was measured."
        if length > trained and provenance.get("mode") == "generated":
            beyond += (
                " Its positions beyond that follow from the base rows by the formula, and no text has passed them."
            )
    return (
        f"## Use\n\n{_code('', Path(config.output).name)}\n\n"
        f"A stock transformers checkpoint: no remote code. It reads up to {length} tokens.{beyond}{_onnx(config)}"
    )


def _exported(provenance: Mapping[str, Any]) -> float | None:
    """Returns the accuracy of the released files themselves, where they were measured."""
    return (provenance.get("trained") or {}).get("exported_accuracy")


def _onnx(config: ReleaseConfig) -> str:
    if not config.recipe.onnx:
        return ""
    return (
        "\n\nWithout torch, `model.onnx` (fp32) gives the same logits. It takes ids and attention mask, and no token "
        f"types: they are all 0.\n\n{_onnx_code('', Path(config.output).name)}"
    )


def _measurements(evaluation: Mapping[str, Any], exported: float | None) -> str:
    base_cut = evaluation["measured"]["base_cut"]["whole"]["accuracy"]
    is_lost = exported is not None and base_cut is not None and exported < base_cut
    verdict = f"{NOT_RECOVERED}\n\n" if is_lost or not evaluation["gains"]["recovered"] else ""
    again = "" if exported is None else f" These files, loaded again, tell {exported:.2f} % of the whole rows' tokens."
    curve = "\n\n![Recovery in training](recovery.png)" if evaluation["curve"] else ""
    return (
        f"## Accuracy\n\n{verdict}{evaluation['num_rows']:,} held-out rows of {evaluation['row_length']} tokens, one "
        f"frozen mask each. {explanation(evaluation)}{again}\n\n{markdown_table(cells(evaluation))}\n\n"
        f"![Accuracy by block of positions](blocks.png){curve}"
    )


def _one_figure(accuracy: float, base_cut: float | None, is_long: bool) -> str:
    told = f"{accuracy:.2f} % of the selected tokens of held-out rows are told right"
    if base_cut is None:
        unknown = " What its base model tells was not measured." if is_long else ""
        return f"## Accuracy\n\n{told}.{unknown}"
    verdict = f"{NOT_RECOVERED}\n\n" if accuracy < base_cut else ""
    return f"## Accuracy\n\n{verdict}{told}; the base model tells {base_cut:.2f} % on rows cut to its length."


def _training(config: ReleaseConfig, training: Training) -> str:
    hours = f" for {training.seconds / 3600:,.1f} hours" if training.seconds else ""
    on = f" on {config.card.hardware}" if config.card.hardware else ""
    when = f"Trained{hours}{on}." if hours or on else ""
    table = markdown_table(Table(["setting", "value"], [[name, str(value)] for name, value in training.recipe.items()]))
    told = [when] * bool(when) + [table] * bool(training.recipe)
    return "\n\n".join(["## Training", *told]) if told else ""


def _data(config: ReleaseConfig, rows: RowsManifest) -> str:
    lines = "\n".join(f"- {line}" for line in config.card.data or corpora(rows))
    packed = markdown_table(packing_table(rows.report))
    return f"## Data\n\n{lines}\n\nPacked rows, training and held-out documents apart:\n\n{packed}"


def _limits(config: ReleaseConfig, provenance: Mapping[str, Any]) -> str:
    length = (provenance.get("trained") or {}).get("row_length")
    return (
        "## Limits\n\n"
        f"- It was trained on rows of {length} tokens in {', '.join(config.card.languages)}; other lengths, languages "
        "and kinds of text were not measured.\n"
        "- Accuracy is that of filling in masks chosen at random in documents of the same corpus that training did not "
        "see; it says little of other tasks, for which the model has to be tuned.\n"
        "- What its text holds of error and prejudice, it may repeat."
    )
