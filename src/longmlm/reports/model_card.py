"""What was measured to a model card."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from longmlm.artifacts.provenance import Provenance
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
    provenance: Provenance,
    evaluation: Mapping[str, Any],
    rows: Mapping[str, Any],
    training: Training,
    licence: Licence,
) -> str:
    """Returns README.md: metadata, how to load, what was measured, how it was made; `rows` is their manifest."""
    source, trained = provenance.source, provenance.trained
    data = ModelCardData(
        language=list(config.card.languages),
        license=licence.identifier,
        license_name=licence.name,
        license_link=licence.link,
        library_name="transformers",
        pipeline_tag="fill-mask",
        base_model=source.name if source and source.revision else None,
        datasets=datasets(rows) or None,
        tags=["masked-lm", "long-context"] if provenance.extension else ["masked-lm"],
        model_name=config.card.title,
        eval_results=_results(config, evaluation, provenance) or None,
    )
    parts = [f"# {config.card.title}", config.card.description, _making(provenance), _usage(config, provenance)]
    if evaluation:
        parts.append(_measurements(evaluation, _exported(provenance)))
    elif trained and trained.accuracy is not None:
        accuracy = trained.accuracy if trained.exported_accuracy is None else trained.exported_accuracy
        parts.append(_one_figure(accuracy, training.base_cut, provenance.extension is not None))
    parts += [_training(config, training), _data(config, rows), _limits(config, provenance)]
    told = f", as its base model {source.public_name}" if source and licence.is_of_base else ""
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


def _results(config: ReleaseConfig, evaluation: Mapping[str, Any], provenance: Provenance) -> list[EvalResult]:
    trained, accuracy = provenance.trained, _exported(provenance)
    if accuracy is None and evaluation:
        accuracy = evaluation["measured"]["long_after"]["whole"]["accuracy"]
    elif accuracy is None:
        accuracy = trained.accuracy if trained else None
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


def _making(provenance: Provenance) -> str:
    trained, started, extension = provenance.trained, provenance.started_from, provenance.extension
    assert trained is not None
    steps = f"{trained.steps:,} steps, {trained.tokens:,} tokens"
    for before in provenance.trained_before:
        steps += f", after {before.steps:,} steps on {before.tokens:,} tokens in an earlier run"
    on_rows = f"on rows of {trained.row_length} tokens: {steps}."
    if extension:
        return (
            f"`{extension.base.public_name}` (revision {extension.base.revision or 'local'}) with its table of "
            f"{extension.base_positions} trained positions stretched to {extension.num_positions} by longmlm "
            f"({extension.initialisation}, alpha {extension.alpha}), then pretrained {on_rows}"
        )
    if started:
        named = f"`{started.public_name}` (revision {started.revision or 'local'})"
        return f"{named}, pretrained further with longmlm {on_rows}"
    return f"Pretrained from scratch with longmlm {on_rows}"


def _usage(config: ReleaseConfig, provenance: Provenance) -> str:
    extension, trained = provenance.extension, _row_length(provenance)
    length = extension.num_positions if extension else trained
    beyond = ""
    if extension and length != trained:
        beyond = f" It was trained and measured on rows of {trained} tokens; at other lengths nothing was measured."
        if length > trained and extension.mode == "generated":
            beyond += (
                " Its positions beyond that follow from the base rows by the formula, and no text has passed them."
            )
    return (
        f"## Use\n\n{_code('', Path(config.output).name)}\n\n"
        f"A stock transformers checkpoint: no remote code. It reads up to {length} tokens.{beyond}{_onnx(config)}"
    )


def _exported(provenance: Provenance) -> float | None:
    """Returns the accuracy of the released files themselves, where they were measured."""
    return provenance.trained.exported_accuracy if provenance.trained else None


def _row_length(provenance: Provenance) -> int:
    assert provenance.trained is not None
    return provenance.trained.row_length


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


def _data(config: ReleaseConfig, rows: Mapping[str, Any]) -> str:
    lines = "\n".join(f"- {line}" for line in config.card.data or corpora(rows))
    packed = markdown_table(packing_table(rows["report"]))
    return f"## Data\n\n{lines}\n\nPacked rows, training and held-out documents apart:\n\n{packed}"


def _limits(config: ReleaseConfig, provenance: Provenance) -> str:
    length = _row_length(provenance)
    return (
        "## Limits\n\n"
        f"- It was trained on rows of {length} tokens in {', '.join(config.card.languages)}; other lengths, languages "
        "and kinds of text were not measured.\n"
        "- Accuracy is that of filling in masks chosen at random in documents of the same corpus that training did not "
        "see; it says little of other tasks, for which the model has to be tuned.\n"
        "- What its text holds of error and prejudice, it may repeat."
    )
