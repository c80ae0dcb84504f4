"""What training will take, by the arithmetic that a run uses."""

import sys
from dataclasses import replace

import pytest

from longmlm.config import parse
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.model.cost import Cost, Work
from longmlm.planning.estimate import (
    LIBRARY_BYTES,
    Machine,
    evaluations_as_steps,
    memory_bytes,
    prepare_time,
    training_plan,
)
from longmlm.planning.size import CorpusSize, RowsSize, estimated_rows
from longmlm.runtime.memory import KEPT_BYTES
from longmlm.settings.masking import HeldOut
from longmlm.settings.pipeline import PlanConfig
from longmlm.settings.pretrain import PretrainRecipe, PretrainRuntime
from longmlm.settings.shipped import PACKAGE

ROWS = RowsSize(num_tokens=90_000, train_rows=900, held_out_rows=100, mean_fill=0.5, is_exact=True)
COST = Cost(
    flop_per_token=1e9,
    state_bytes=1600,
    row_bytes=100,
    evaluation_row_bytes=10,
    checkpoint_bytes=1200,
)
WORK = Work(200, 0.15, is_half=True, has_gpu=True)
MACHINE = Machine("one GPU", memory_bytes=4000, num_processes=2, tokens_per_second=1000.0, speed_source="")
RECIPE = PretrainRecipe(num_steps=90, batch_tokens=5000, learning_rate=1e-3, held_out=HeldOut(max_rows=75))
RUNTIME = PretrainRuntime(evaluate_every_steps=30)


def test_a_plan_with_numbers():
    plan = training_plan(ROWS, COST, WORK, MACHINE, RECIPE, RUNTIME)
    assert (plan.rows_per_step, plan.tokens_per_step) == (50, 5000)  # rows hold 100 tokens each
    assert (plan.num_tokens, plan.epochs) == (90 * 5000, 5.0)
    assert plan.rows_per_micro_batch == 18  # 85 % of 4,000 bytes hold the state and 18 rows; a rank has 25
    assert plan.memory_bytes == 1600 + 18 * 100
    steps = 90 + 5 * (75 / 50) / 3  # 3 evaluations and 2 more, of 75 rows, forward only
    assert plan.hours == pytest.approx(steps * 50 * 200 / 1000 / 3600)
    assert evaluations_as_steps(90, RUNTIME, 75 / 50) == pytest.approx(2.5)


def test_sources_are_seen_as_often_as_their_weights_say():
    rows = replace(ROWS, sources={"novels": (600, 60_000), "laws": (300, 15_000)})
    even = training_plan(rows, COST, WORK, MACHINE, RECIPE, RUNTIME)
    assert even.seen == {"novels": (5.0, pytest.approx(0.8)), "laws": (5.0, pytest.approx(0.2))}
    plan = training_plan(rows, COST, WORK, MACHINE, replace(RECIPE, weights={"laws": 2.0}), RUNTIME)
    (novels, of_novels), (laws, of_laws) = plan.seen.values()
    assert laws == pytest.approx(2 * novels) and of_novels + of_laws == pytest.approx(1)
    assert novels * 600 + laws * 300 == pytest.approx(90 * plan.rows_per_step)
    assert plan.rows_per_step == 56  # a row has 90 tokens: half of the rows are of either source
    assert training_plan(ROWS, COST, WORK, MACHINE, RECIPE, RUNTIME).seen == {}


@pytest.mark.parametrize(("setting", "expected"), [(4, 4), (64, 25)])
def test_a_micro_batch_that_is_set_is_kept_up_to_the_share_of_a_rank(setting, expected):
    plan = training_plan(ROWS, COST, WORK, MACHINE, RECIPE, replace(RUNTIME, rows_per_micro_batch=setting))
    assert plan.rows_per_micro_batch == expected
    assert plan.memory_bytes == 1600 + expected * 100


def test_a_cpu_holds_libraries_freed_blocks_and_the_copy_of_a_checkpoint_as_well():
    work = replace(WORK, has_gpu=False)
    few, many, more = (memory_bytes(COST, work, num_rows) for num_rows in (1, 20, KEPT_BYTES))
    assert few == LIBRARY_BYTES + 1600 + 100 + 100 + 1200
    assert many == LIBRARY_BYTES + 1600 + 2000 + 2000 + 1200
    assert more == LIBRARY_BYTES + 1600 + 100 * KEPT_BYTES + KEPT_BYTES + 1200
    assert memory_bytes(COST, WORK, 1) == 1700


def test_no_row_fits_into_too_little_memory():
    plan = training_plan(ROWS, COST, WORK, replace(MACHINE, memory_bytes=1900), RECIPE, RUNTIME)
    assert plan.rows_per_micro_batch == 0
    assert plan.memory_bytes == 1700


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(PACKAGE / "bundled" / "roberta-mini"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "prepare 23.8 min (1 worker, an assumed 700,000 tokens/s each with gigatoken)"),
        ("--prepare.runtime.encoder tokenizers", "prepare 1.1 h (1 worker, an assumed 250,000 tokens/s each with tok"),
        ("--prepare.runtime.num-workers 10", "prepare 2.4 min (10 workers, "),
        ("--prepare.runtime.num-workers 1000", "prepare 0.2 min (125 workers, "),  # a slice each
        ("--prepare.runtime.executor ray", "prepare 23.8 min divided by the CPUs of the Ray cluster (an assumed 700"),
        ("--prepare.runtime.executor ray --prepare.runtime.num-workers 10", "prepare 2.4 min (10 workers, "),
        ("--prepare.recipe.duplicates near", "prepare 27.5 min (1 worker, an assumed 700,000 tokens/s each with giga"),
        ("--prepare.recipe.prevent-leaks", "prepare 27.5 min"),
        ("--prepare.recipe.duplicates exact", "prepare 24.8 min"),
    ],
)
def test_the_time_of_prepare_follows_from_encoder_workers_and_the_search_for_copies(
    options, expected, vocabulary, monkeypatch
):
    config = parse(PlanConfig, ["--model", "m", "--corpus", "x", "--length", "512", "--output", "o", *options.split()])
    corpus, rows = CorpusSize(1, 4 * 10**9, 4 * 10**9, (10**9,)), estimated_rows((10**9,), config.prepare.recipe)
    said = prepare_time(config, corpus, rows, vocabulary)
    assert said.startswith(expected) and ("after a search" in said) == (config.prepare.recipe.sought != "keep")
    assert prepare_time(config, corpus, replace(rows, is_exact=True), vocabulary) == "prepare is done"
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert "250,000 tokens/s each with tokenizers" in prepare_time(config, corpus, rows, vocabulary)
    assert "250,000 tokens/s each with tokenizers" in prepare_time(config, corpus, rows, None)
