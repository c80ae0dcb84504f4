"""Isolated documents from training to release: measured, resumed, recorded, proven and stated on the card."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

import longmlm
from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import CheckpointError
from longmlm.model.mlm import MlmObjective
from longmlm.settings.evaluate import EvaluateConfig, EvaluateRecipe
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.settings.masking import HeldOut
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.settings.pretrain import Start
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages.evaluate import evaluate
from longmlm.stages.extend import extend
from longmlm.stages.release import release
from longmlm.training.run_folder import best_checkpoint
from tests.support.families import demo_texts
from tests.support.tiny import LONG_POSITIONS, prove_in_this_process, tiny_folder, with_fresh_process_state
from tests.support.training import (
    assert_same_model,
    losses,
    train_until,
    with_recipe,
    with_runtime,
)

RECIPE = EvaluateRecipe(precision="no", held_out=HeldOut(max_rows=20))  # as in the run


def short_documents(folder: Path, tokenizer: Path, row_length: int) -> Path:
    """Packs documents of 40 characters into rows, of which each holds several, and returns their folder."""
    texts = [text[begin : begin + 40] for text in demo_texts()[:24] for begin in range(0, len(text), 40)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "short.jsonl").write_text(lines, encoding="utf-8")
    sources = (Source(files=(str(folder / "short.jsonl"),)),)
    recipe = PrepareRecipe(tokenizer=str(tokenizer), row_length=row_length, sources=sources, held_out_fraction=0.25)
    prepare_rows(recipe, load_vocabulary(str(tokenizer)), folder / "rows")
    return folder / "rows"


@pytest.mark.parametrize("window", [None, 4])
def test_documents_stay_isolated_until_the_model_is_released(window, settings, train, tmp_path, monkeypatch):
    base = tiny_folder(tmp_path / "base")
    rows, long = short_documents(tmp_path, base, LONG_POSITIONS), tmp_path / "long"
    recipe = ExtendRecipe(num_positions=LONG_POSITIONS, attention_window=window, initialisation="tile")
    extend(ExtendConfig(base=str(base), output=str(long), recipe=recipe))
    read, predict = [], MlmObjective.predict
    monkeypatch.setattr(
        MlmObjective,
        "predict",
        lambda self, batch: (
            read.append((self.isolates_documents, bool(batch.isolated_lengths))) or predict(self, batch)
        ),
    )
    start = replace(settings, rows=str(rows), start=Start(checkpoint=str(long)), run=str(tmp_path / "run"))
    run = train(with_recipe(start, num_steps=2, warmup_steps=1, isolate_documents=True))
    best = best_checkpoint(run)
    assert set(read) == {(True, True), (False, False)}  # the second is the base model
    assert read_provenance(best).isolates_documents and not read_provenance(long).isolates_documents
    models = {"base": str(base), "long_before": str(long), "long_after": str(best)}
    evaluate(EvaluateConfig(rows=str(rows), output=str(tmp_path / "evaluation"), recipe=RECIPE, **models))
    with_fresh_process_state()
    evaluated = read_evaluation(tmp_path / "evaluation" / Evaluation.FILE)
    assert evaluated.isolated == ("long_after", "long_after_cut")
    assert evaluated.accuracy("long_after") == pytest.approx(read_provenance(best).trained.accuracy)
    page = (tmp_path / "evaluation" / "index.html").read_text()
    assert "whole rows (each document by itself)" in page and "no token attends to another document" in page
    prove_in_this_process(monkeypatch)
    release(
        ReleaseConfig(
            model=str(best),
            rows=str(rows),
            output=str(tmp_path / "released"),
            evaluation=str(tmp_path / "evaluation"),
            card=ReleaseCard(title="tiny", license="mit"),
            recipe=ReleaseRecipe(allow_unrecovered=True),
        )
    )
    released = read_provenance(tmp_path / "released")
    assert released.isolates_documents
    assert released.trained.exported_accuracy == pytest.approx(evaluated.accuracy("long_after"), abs=1e-6)
    assert "no token attended to another document of its row" in (tmp_path / "released" / "README.md").read_text()
    held_out, losses_of_sample = open_rows(rows, "held_out"), []
    for about in (read_provenance(best), replace(read_provenance(best), trained=None)):
        artifact.write(best / Provenance.FILE, about)
        model, tokenizer = AutoModelForMaskedLM.from_pretrained(best), AutoTokenizer.from_pretrained(best)
        sample = [held_out[number] for number in range(len(held_out))]
        losses_of_sample.append(longmlm.evaluate(model, sample, tokenizer, recipe=RECIPE).whole.loss)
    assert losses_of_sample[0] == pytest.approx(evaluated.measured["long_after"].whole.loss, rel=1e-6)
    assert losses_of_sample[0] != pytest.approx(losses_of_sample[1], rel=1e-4)


def test_a_run_with_isolated_documents_resumes_as_if_it_had_not_stopped(settings, train, inputs, tmp_path):
    rows = short_documents(tmp_path, inputs / "tokenizer", 32)
    few = with_recipe(replace(settings, rows=str(rows)), num_steps=4, warmup_steps=1)
    few = with_runtime(few, evaluate_every_steps=2, save_every_steps=2)
    isolated = with_recipe(few, isolate_documents=True)
    whole = train(replace(isolated, run=str(tmp_path / "whole")))
    resumed = train(train_until(isolated, 3))
    assert_same_model(resumed, whole, 4)
    assert losses(resumed) == losses(whole) != losses(train(replace(few, run=str(tmp_path / "other"))))
    with pytest.raises(CheckpointError, match="isolate_documents was True, is False; name a new run folder"):
        train(few)
