"""A model with a window from extend to release: trained, resumed, evaluated and proven with its window."""

from dataclasses import replace

import pytest
from transformers import AutoConfig

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import read_provenance
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.window import Window
from longmlm.model.window_attention import window_of
from longmlm.reports.card_code import Address, LoadingCode
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.settings.pretrain import Start
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages.evaluate import evaluate
from longmlm.stages.extend import extend
from longmlm.stages.release import release
from longmlm.training.run_folder import best_checkpoint
from tests.support.tiny import LONG_POSITIONS, tiny_folder, tiny_rows, with_fresh_process_state
from tests.support.training import with_recipe


@pytest.mark.parametrize("window", [Window(4, 2), Window(4, 2, num_layers=1)], ids=str)
def test_the_window_goes_from_extend_to_the_proof_of_a_release(settings, train, tmp_path, monkeypatch, capsys, window):
    base = tiny_folder(tmp_path / "base")
    rows, long = tiny_rows(tmp_path, base), tmp_path / "long"
    attention = {"attention_window": 4, "num_global_tokens": 2, "local_layers": window.num_layers}
    recipe = ExtendRecipe(num_positions=LONG_POSITIONS, **attention)
    extend(ExtendConfig(base=str(base), output=str(long), recipe=recipe))
    seen = set()
    predict = MlmObjective.predict
    monkeypatch.setattr(
        MlmObjective, "predict", lambda self, batch: seen.add(window_of(self.model)) or predict(self, batch)
    )
    start = replace(settings, rows=str(rows), start=Start(checkpoint=str(long)))
    run = train(replace(with_recipe(start, num_steps=2, warmup_steps=1), run=str(tmp_path / "run")))
    assert seen == {window, None}  # None: the base model
    best = best_checkpoint(run)
    assert Window.of(read_provenance(best).extension) == window_of(load_model(str(best)).model) == window
    models = {"base": str(base), "long_before": str(long), "long_after": str(best)}
    evaluate(EvaluateConfig(rows=str(rows), output=str(tmp_path / "evaluation"), **models))
    with_fresh_process_state()
    evaluated = read_evaluation(tmp_path / "evaluation" / Evaluation.FILE)
    capsys.readouterr()
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
    assert "reloaded with plain transformers: outputs differ by at most" in capsys.readouterr().out
    config = AutoConfig.from_pretrained(tmp_path / "released")
    widths = [8, 8 if window.num_layers is None else 80]
    assert (config.model_type, config.attention_window, config.num_global_tokens) == ("longformer", widths, 2)
    card = (tmp_path / "released" / "README.md").read_text()
    assert "must be 1 for the first 2 tokens" in card
    layers = " in the lowest layer, and to the whole text in the others." if window.num_layers else "."
    assert f"attends to 4 tokens on each side{layers}" in card
    assert LoadingCode("load_longformer.md").on_card(Address("released")) in card
    exported = read_provenance(tmp_path / "released").trained.exported_accuracy
    assert exported == pytest.approx(evaluated.accuracy("long_after"), abs=1.0)
