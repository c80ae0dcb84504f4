"""Isolated documents from training to release: measured, resumed, recorded, proven and stated on the card."""

from dataclasses import replace

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

import longmlm
from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.errors import CheckpointError
from longmlm.model.mlm import MlmObjective
from longmlm.settings.evaluate import EvaluateConfig, EvaluateRecipe
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.settings.pretrain import Start
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages.evaluate import evaluate
from longmlm.stages.extend import extend
from longmlm.stages.release import release
from longmlm.training.run_folder import best_checkpoint
from tests.support.tiny import LONG_POSITIONS, held_out, tiny_folder, tiny_rows, with_fresh_process_state
from tests.support.training import (
    assert_same_metrics,
    assert_same_model,
    losses,
    train_until,
    with_recipe,
    with_runtime,
)

FP32 = EvaluateRecipe(precision="no")


@pytest.mark.parametrize("window", [None, 4])
def test_documents_stay_isolated_until_the_model_is_released(window, settings, train, tmp_path, monkeypatch):
    base = tiny_folder(tmp_path / "base")
    rows, long = tiny_rows(tmp_path, base), tmp_path / "long"
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
    evaluate(EvaluateConfig(rows=str(rows), output=str(tmp_path / "evaluation"), recipe=FP32, **models))
    with_fresh_process_state()
    evaluated = read_evaluation(tmp_path / "evaluation" / Evaluation.FILE)
    assert evaluated.isolated == ("long_after", "long_after_cut")
    assert evaluated.accuracy("long_after") == pytest.approx(read_provenance(best).trained.accuracy, abs=0.5)
    page = (tmp_path / "evaluation" / "index.html").read_text()
    assert "whole rows (each document by itself)" in page and "no token attends to another document" in page
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
    sample, losses_of_sample = [held_out(rows)[number] for number in range(len(held_out(rows)))], []
    for about in (read_provenance(best), replace(read_provenance(best), trained=None)):
        artifact.write(best / Provenance.FILE, about)
        model, tokenizer = AutoModelForMaskedLM.from_pretrained(best), AutoTokenizer.from_pretrained(best)
        losses_of_sample.append(longmlm.evaluate(model, sample, tokenizer, recipe=FP32).whole.loss)
    assert losses_of_sample[0] == pytest.approx(evaluated.measured["long_after"].whole.loss, rel=1e-6)
    assert losses_of_sample[0] != pytest.approx(losses_of_sample[1], rel=1e-4)


def test_a_run_with_isolated_documents_resumes_as_if_it_had_not_stopped(settings, train, uninterrupted, tmp_path):
    isolated = with_recipe(settings, isolate_documents=True)
    whole = train(replace(isolated, run=str(tmp_path / "whole")))
    assert losses(whole) != losses(uninterrupted)
    resumed = train(train_until(isolated, 6))
    assert_same_model(resumed, whole, 12)
    assert_same_metrics(resumed, whole)
    with pytest.raises(CheckpointError, match="isolate_documents was True, is False; name a new run folder"):
        train(settings)


def test_isolation_does_not_depend_on_the_micro_batch(settings, train, tmp_path):
    isolated = with_recipe(settings, isolate_documents=True, dropout=0.0, num_steps=4)
    found = [
        losses(train(replace(with_runtime(isolated, rows_per_micro_batch=rows), run=str(tmp_path / str(rows)))))
        for rows in (1, 8)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
