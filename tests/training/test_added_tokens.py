"""A model with added tokens: rows, a run from it, and an evaluation against its base model with the same tokens."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from longmlm.artifacts.evaluation import read_evaluation
from longmlm.artifacts.provenance import read_provenance
from longmlm.data.rows import open_rows
from longmlm.errors import DataError
from longmlm.model.loading import load_model
from longmlm.settings.evaluate import EvaluateConfig, EvaluateRecipe
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.settings.pretrain import Start
from longmlm.stages.evaluate import evaluate
from longmlm.stages.extend import extend
from longmlm.training.run_folder import checkpoint_folder
from tests.support.families import NUM_POSITIONS
from tests.support.tiny import LONG_POSITIONS, tiny_folder, tiny_rows
from tests.support.training import evaluation_lines, with_recipe

KINDS = [
    ("roberta", 1, LONG_POSITIONS),
    ("bert", 0, NUM_POSITIONS),
    ("deberta", 0, NUM_POSITIONS),
    ("eurobert", 3, NUM_POSITIONS),
]


@pytest.fixture(params=KINDS, ids=[family for family, *_ in KINDS])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, int]:
    """A base model, that with more tokens, which occur in the text, and the positions of the latter."""
    family, pad, num_positions = request.param
    base = tiny_folder(tmp_path / family, family, pad)
    (tmp_path / "terms.txt").write_text("of the\nin the\nto the\n", encoding="utf-8")
    recipe = ExtendRecipe(add_tokens=str(tmp_path / "terms.txt"), num_positions=num_positions)
    extend(ExtendConfig(base=str(base), output=str(tmp_path / "more"), recipe=recipe))
    return base, tmp_path / "more", num_positions


def test_new_tokens_are_packed_trained_and_evaluated(settings, folders, train, tmp_path) -> None:
    base, more, num_positions = folders
    start = Start(checkpoint=str(more))
    with pytest.raises(DataError, match="made with another tokenizer"):
        train(replace(settings, rows=str(tiny_rows(tmp_path / "old", base, num_positions)), start=start))
    rows = tiny_rows(tmp_path / "rows", more, num_positions)
    opened, size = open_rows(rows, "train"), len(AutoTokenizer.from_pretrained(base))
    tokens = np.concatenate([opened[row_id].input_ids for row_id in range(len(opened))])
    assert (tokens >= size).sum() > 50
    run = train(with_recipe(replace(settings, rows=str(rows), start=start), num_steps=16, learning_rate=3e-3))
    models = [load_model(str(folder)).model for folder in (more, checkpoint_folder(run, 16))]
    before, after = (model.get_input_embeddings().weight.detach() for model in models)
    assert ((before - after)[size:].abs().amax(1) > 1e-4).all()

    names = {"base": str(base), "long_before": str(more), "long_after": str(run)}
    recipe = EvaluateRecipe(precision="no", held_out=settings.recipe.held_out)
    evaluate(EvaluateConfig(rows=str(rows), output=str(tmp_path / "evaluation"), recipe=recipe, **names))
    measured = read_evaluation(tmp_path / "evaluation" / "evaluation.json")
    accuracy = {view: measured.accuracy(view) for view in measured.measured}
    is_longer = num_positions > NUM_POSITIONS
    assert ("base_chunks" in accuracy) == is_longer
    if is_longer:  # the run measures the base model by itself, with the same tokens
        [bases] = {(line.base_chunks, line.base_cut) for line in evaluation_lines(run)}
        assert bases == pytest.approx((accuracy["base_chunks"], accuracy["base_cut"]))
        assert all(line.base_chunks_error is not None and line.recovery is not None for line in evaluation_lines(run))
    else:
        assert accuracy["base_cut"] == pytest.approx(accuracy["long_before"], abs=0.2)
    assert read_provenance(checkpoint_folder(run, 16)).added_tokens.num_added == 3
