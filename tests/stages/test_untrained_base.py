"""A base model that predicts nothing: there is no accuracy to recover, and no stage calls it recovered."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longmlm.artifacts.accuracy import Accuracy
from longmlm.data.row import LooseRows, Maskable, Row, SpecialTokens
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ModelError
from longmlm.evaluation import frozen as frozen_module
from longmlm.evaluation.frozen import FrozenRows, check_predicts, whole
from longmlm.planning import command as planning
from longmlm.planning.command import plan
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.masking import HeldOut, Masking
from longmlm.settings.pipeline import PlanConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.stages.evaluate import evaluate
from longmlm.stages.pretrain import pretrain
from tests.support import untrained
from tests.support.tiny import LONG_POSITIONS, World, commonest_token, favour, tiny_folder

NOTHING = re.compile(
    r"error: the base model \S+/base predicts nothing: of \d+ masked tokens it predicts (\d\.\d\d) %, and always "
    r"predicting the most frequent token would be right for (\d+\.\d\d) %: check its MLM head and tokenizer, or "
    r"train it at its own length first, with extension = false\n"
)


@pytest.fixture(autouse=True)
def _refused(monkeypatch: pytest.MonkeyPatch) -> None:
    untrained.refuse(monkeypatch)


def pipeline(world: World, folder: Path) -> dict[str, object]:
    recipe = {"num_steps": 2, "batch_tokens": 200, "learning_rate": 1e-4, "precision": "no"}
    corpus = [str(world.rows.parent / "text.jsonl")]
    own = {"model": str(world.base), "corpus": corpus, "length": LONG_POSITIONS, "output": str(folder / "out")}
    return {**own, "pretrain": {"recipe": recipe}}


def test_plan_refuses_it_before_anything_is_prepared(world: World, run_here: Callable, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(planning, "cpu_tokens_per_second", lambda *_: 1000.0)
    code, output, errors = run_here(PlanConfig, plan, pipeline(world, tmp_path))
    assert (code, output) == (2, "")
    [shares] = [found.groups() for found in [NOTHING.fullmatch(errors)] if found]
    assert float(shares[0]) < float(shares[1]) / 2


def test_pretrain_refuses_it_before_the_first_step(world: World, run_here: Callable, tmp_path) -> None:
    settings = {"start": {"checkpoint": str(world.long)}, "rows": str(world.rows), "run": str(tmp_path / "run")}
    recipe = {"num_steps": 2, "batch_tokens": 200, "learning_rate": 1e-4, "precision": "no"}
    code, _, errors = run_here(PretrainConfig, pretrain, {**settings, "recipe": recipe})
    assert code == 2 and NOTHING.search(errors)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_evaluate_writes_no_comparison_with_it(world: World, run_here: Callable, tmp_path) -> None:
    models = {"base": str(world.base), "long_after": str(world.trained), "rows": str(world.rows)}
    output = tmp_path / "evaluation"
    code, _, errors = run_here(EvaluateConfig, evaluate, {**models, "output": str(output)})
    assert code == 2 and NOTHING.search(errors)
    assert not output.exists()


def test_at_its_own_length_a_model_may_begin_with_nothing(world: World, run_here: Callable, tmp_path) -> None:
    """As one does whose new head was just trained."""
    base = tiny_folder(tmp_path / "base", num_positions=LONG_POSITIONS)
    after = favour(
        tiny_folder(tmp_path / "after", num_positions=LONG_POSITIONS),
        commonest_token(world.rows, load_vocabulary(str(base))),
    )
    settings = {"base": str(base), "long_after": str(after), "rows": str(world.rows)}
    code, _, _ = run_here(EvaluateConfig, evaluate, {**settings, "output": str(tmp_path / "evaluation")})
    assert code == 0
    assert "Better than the base model" in (tmp_path / "evaluation" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("accuracy", "is_refused"), [(0.0, True), (75.0, True), (75.1, False), (None, False)])
def test_always_naming_the_commonest_selected_token_is_what_a_model_must_beat(accuracy, is_refused) -> None:
    """Of 400 tokens, of which a fraction just below one is selected, 300 are 7."""
    special = SpecialTokens(cls=0, sep=2, mask=4, pad=1, unk=3, all=(0, 1, 2, 3, 4))
    is_maskable = np.arange(20) > 4
    row = Row(np.array([0, *[7] * 300, *[8] * 100, 2]), np.array([1]), np.array([3]))
    maskable, settings = Maskable(is_maskable, np.flatnonzero(is_maskable), 4), Masking(selected_fraction=0.9999)
    frozen = FrozenRows(LooseRows((row,)), HeldOut(masking=settings), maskable, special)
    assert frozen_module.commonest_share(frozen, whole) == 75.0
    base = Accuracy(accuracy, None, None, 400)
    if is_refused:
        with pytest.raises(ModelError, match=rf"MODEL predicts nothing: of 400 .* {accuracy:.2f} %.* 75\.00 %: check"):
            check_predicts(base, frozen, whole, "MODEL")
    else:
        check_predicts(base, frozen, whole, "MODEL")
    check_predicts(replace(base, num_selected=199), frozen, whole, "MODEL")  # too few to tell
