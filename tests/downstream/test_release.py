"""The release of fine-tuned models: what it writes, verifies, prints and refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.downstream.comparison import compared
from longmlm.downstream.page import add_comparison
from longmlm.downstream.planned import TrialConfig
from longmlm.downstream.settings import Arm
from longmlm.errors import ReleaseError
from longmlm.folders import verify
from longmlm.model.loading import load_encoder
from longmlm.release import export
from longmlm.reports.card_code import Address, LoadingCode
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages.release import release
from tests.downstream.compared_arms import failed_trial
from tests.downstream.compared_arms import task as compared_task
from tests.downstream.finetuning import Run, labelling, model, result_of, run, settings
from tests.support.tiny import LONG_POSITIONS, prove_in_this_process, tiny_extension, tiny_folder

__all__ = ["labelling", "model", "run", "settings"]

CARD = ReleaseCard(title="News", license="apache-2.0", data=("made-up sentences, CC0",))


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first test starts the process that proves a release."""
    if request.function is not test_a_classifier_is_released_with_a_card:
        prove_in_this_process(monkeypatch)


def released(trial: Path, **changes: object) -> Path:
    """Releases the model of a trial, and returns the folder."""
    output = trial.with_name("release")
    release(ReleaseConfig(**{"model": str(trial), "output": str(output), "card": CARD, **changes}))
    return output


def test_a_classifier_is_released_with_a_card(
    settings: TrialConfig, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = run(replace(settings, num_epochs=2))
    output = released(trial)
    assert "reloaded with plain transformers as AutoModelForSequenceClassification: outputs" in capsys.readouterr().out
    verify(output)
    stock = AutoModelForSequenceClassification.from_pretrained(output)
    labels = {*stock.config.id2label.values()}
    assert labels == {label for one in result_of(trial).predictions for label in one.truth}
    predict = pipeline("text-classification", model=str(output), truncation=True)
    assert predict("A long text. " * 100)[0]["label"] in labels
    card = ModelCard.load(output / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("text-classification", "apache-2.0")
    assert card.data.eval_results and card.data.eval_results[0].metric_name == "accuracy (%)"
    assert (
        "fine-tuned with longmlm for document classification" in card.text and "- made-up sentences, CC0" in card.text
    )
    assert "It reads the first 32 tokens of a text" in card.text and "| learning_rate | 0.005 |" in card.text
    assert "| precision | no |" in card.text
    assert card.data.language is None and "language" not in card.text, "nothing says which language the documents have"
    assert LoadingCode("load_task.md", "text-classification").on_card(Address(output.name)) in card.text
    assert "fill" not in card.text
    released(trial)
    assert "already holds this release" in capsys.readouterr().out
    released(trial, recipe=ReleaseRecipe(weights="bf16"))
    assert AutoModelForSequenceClassification.from_pretrained(output).dtype == torch.bfloat16


def windowed(folder: Path, family: str, pad: int, num_global: int) -> str:
    """Writes a tiny extended model whose tokens attend to four tokens on each side, and returns its folder."""
    tiny_folder(folder, family, pad, num_positions=LONG_POSITIONS)
    extension = tiny_extension("base", attention_window=4, num_global_tokens=num_global)
    artifact.write(folder / Provenance.FILE, Provenance(extension=extension))
    return str(folder)


def test_a_classifier_with_a_window_is_released_as_a_longformer(
    settings: TrialConfig, run: Run, tmp_path: Path
) -> None:
    arm = Arm(model=windowed(tmp_path / "long", "roberta", 1, num_global=1))
    trial = run(replace(settings, num_epochs=1, arm=arm))
    output = released(trial, recipe=ReleaseRecipe(weights="bf16"))
    stock = AutoModelForSequenceClassification.from_pretrained(output, dtype=torch.float32)
    own = load_encoder(str(trial / "model"), AutoModelForSequenceClassification)
    assert (stock.config.model_type, stock.config.attention_window) == ("longformer", [8, 8])
    assert stock.config.id2label == own.model.config.id2label
    tokens = torch.randint(10, 290, (2, LONG_POSITIONS), generator=torch.Generator().manual_seed(1))
    expected = own.model.to(torch.bfloat16).float().eval()(tokens).logits
    torch.testing.assert_close(stock(tokens).logits, expected, rtol=1e-4, atol=1e-4)
    short = pipeline("text-classification", model=str(output), truncation=True)("A text.")
    assert short[0]["label"] in own.model.config.id2label.values()
    again = run(replace(settings, num_epochs=1, arm=Arm(model=str(output))), "again")
    release(ReleaseConfig(model=str(again), output=str(tmp_path / "release-again"), card=CARD))
    retrained = AutoModelForSequenceClassification.from_pretrained(tmp_path / "release-again")
    assert retrained.config.attention_window == [8, 8]


def test_a_labeller_with_a_window_is_released_if_it_has_no_global_tokens(
    labelling: TrialConfig, run: Run, tmp_path: Path
) -> None:
    arm = replace(labelling.arm, model=windowed(tmp_path / "long", "bert", 0, num_global=0))
    output = released(run(replace(labelling, num_epochs=1, arm=arm)))
    assert AutoModelForTokenClassification.from_pretrained(output).config.model_type == "longformer"
    arm = replace(arm, model=windowed(tmp_path / "global", "bert", 0, num_global=1))
    trial = run(replace(labelling, num_epochs=1, arm=arm), "other")
    with pytest.raises(
        ReleaseError, match=r"^the model has 1 global token, .* num_global_tokens = 0 and fine-tune that"
    ):
        release(ReleaseConfig(model=str(trial), output=str(tmp_path / "refused"), card=CARD))
    assert not (tmp_path / "refused").exists()


def test_a_family_that_longformer_cannot_compute_is_refused(settings: TrialConfig, run: Run, tmp_path: Path) -> None:
    arm = Arm(model=windowed(tmp_path / "long", "albert", 0, num_global=1))
    with pytest.raises(ReleaseError, match="Longformer has no albert layers"):
        released(run(replace(settings, num_epochs=1, arm=arm)))


def test_an_altered_export_is_not_released(settings: TrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, save = run(replace(settings, num_epochs=1)), export.save_model

    def altered(model: object, tokenizer: object, carried: object, folder: Path, **options: object) -> None:
        save(model, tokenizer, carried, folder, **options)
        weights = load_file(folder / "model.safetensors")
        save_file(
            {**weights, "classifier.bias": weights["classifier.bias"] + 1},
            folder / "model.safetensors",
            {"format": "pt"},
        )

    monkeypatch.setattr(export, "save_model", altered)
    with pytest.raises(ReleaseError, match=r"its export is not faithful: outputs differ by 1\.00e\+00"):
        released(trial)
    assert not trial.with_name("release").exists()


def test_what_cannot_be_released_is_refused(settings: TrialConfig, run: Run, tmp_path: Path) -> None:
    tfidf = run(replace(settings, arm=Arm(), learning_rate=None, num_epochs=None), "tfidf")
    with pytest.raises(ReleaseError, match="TF-IDF is not a transformers model"):
        released(tfidf)
    trial = run(replace(settings, num_epochs=1, arm=replace(settings.arm, reads="chunks", length=24)))
    with pytest.raises(ReleaseError, match="no class of transformers pools the vectors of chunks"):
        released(trial)
    trial = run(replace(settings, num_epochs=1), "other")
    for changes, message in (
        ({"recipe": ReleaseRecipe(onnx=True)}, "recipe.onnx is for masked language models"),
        ({"rows": "rows"}, "rows is for masked language models"),
    ):
        with pytest.raises(ReleaseError, match=message):
            released(trial, **changes)
    (trial / "model").rename(trial / "elsewhere")
    with pytest.raises(ReleaseError, match="has no model: release the trial of its arm that keeps one"):
        released(trial)
    with pytest.raises(ReleaseError, match="rows is missing: name the folder of rows"):
        released(tmp_path / "no-trial")


def test_a_labeller_is_released_with_the_code_that_reads_windows(labelling: TrialConfig, run: Run) -> None:
    trial = run(replace(labelling, num_epochs=1))
    output = released(trial / "model", recipe=ReleaseRecipe(weights="bf16"))
    stock = AutoModelForTokenClassification.from_pretrained(output)
    assert stock.dtype == torch.bfloat16 and "B-red" in stock.config.id2label.values()
    text = (output / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: token-classification" in text and "in windows of 24 tokens that overlap by half" in text
    option = 'aggregation_strategy="simple", stride=11)'
    assert "for sequence labelling: blue, red." in text and option in text
    find = pipeline("token-classification", model=str(output), aggregation_strategy="simple", stride=11)
    assert isinstance(find("A long text. " * 100), list)


def test_the_card_has_the_comparison_and_a_changed_one_makes_a_new_release(
    settings: TrialConfig, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = run(replace(settings, num_epochs=1, arm=replace(settings.arm, reads="last")))
    tokenizer, text = AutoTokenizer.from_pretrained(released(trial)), "the sea and " * 40 + "a lake"
    kept = tokenizer(text, truncation=True)["input_ids"]
    assert len(kept) == 32 and kept[1:-1] == tokenizer(text, add_special_tokens=False)["input_ids"][-30:]
    facts = compared_task(["first", "second"], labels=("blue", "red"))
    add_comparison(trial, compared(facts, [result_of(trial)], []))
    text = (released(trial) / "README.md").read_text(encoding="utf-8")
    assert "already holds this release" not in capsys.readouterr().out
    assert "differences are to `first`, in points:" in text and "| first |" in text
    add_comparison(trial, compared(facts, [result_of(trial)], [failed_trial("second")]))
    released(trial)
    assert "already holds this release" in capsys.readouterr().out, "the card does not show failed trials"
    add_comparison(trial, None)
    assert "All arms" not in (released(trial) / "README.md").read_text(encoding="utf-8"), "it was not compared"
