"""state.json and summary.json: what is written is read back, older formats are upgraded or refused with a remedy."""

import json
from dataclasses import asdict, replace

import pytest

from longmlm.artifacts.artifact import dump, load
from longmlm.artifacts.run import CheckpointState, MicroBatch, RunSummary, TrainState
from longmlm.errors import ArtifactError
from longmlm.settings.pretrain import PretrainRecipe

STATE = TrainState(step=5, cursor=50, tokens=500, base_cut=41.0, accuracy=40.0, evaluated_at_step=4)
RECIPE = PretrainRecipe(num_steps=9, batch_tokens=100, learning_rate=1e-4)


def old_state(**rows: object) -> dict:
    """Returns state.json from before format 1."""
    recipe = asdict(RECIPE)
    held_out = {**recipe.pop("held_out"), "rows_per_batch": 16}
    depends_on = {
        "recipe": recipe,
        "start": {"checkpoint": "x"},
        "rows": {"settings": {}, **rows},
        "held_out": held_out,
    }
    return {"state": asdict(STATE), "depends_on": depends_on}


def test_a_state_is_read_back():
    micro_batch = MicroBatch(num_rows=4, num_processes=2, device="cpu", is_recomputed=False)
    state = replace(STATE, micro_batch=micro_batch)
    saved = CheckpointState(state=state, recipe=RECIPE, rows_sha256="abc", rows="hf:a/b@c", precision="bf16")
    assert load(CheckpointState, json.dumps(dump(saved)), "state.json") == saved


def test_a_state_from_before_format_1_keeps_progress_recipe_and_rows():
    saved = load(CheckpointState, json.dumps(old_state(sha256="abc")), "state.json")
    assert (saved.state, saved.recipe, saved.rows_sha256) == (STATE, RECIPE, "abc")
    assert (saved.rows, saved.precision) == (None, None)


@pytest.mark.parametrize(
    ("content", "names"),
    [(old_state(), "start.checkpoint"), ({"state": {}}, "state.json"), ({**asdict(STATE), "format": 9}, "newer")],
)
def test_a_state_that_cannot_be_used_is_refused_in_a_line(content, names):
    with pytest.raises(ArtifactError, match=names) as error:
        load(CheckpointState, json.dumps(content), "state.json")
    assert "state.json" in str(error.value) and "\n" not in str(error.value)


def test_a_state_from_before_the_micro_batch_was_recorded_is_read():
    content = dump(CheckpointState(state=STATE, recipe=RECIPE, rows_sha256="abc"))
    del content["state"]["micro_batch"]
    assert load(CheckpointState, json.dumps(content), "state.json").state == STATE


def test_an_unknown_key_of_the_progress_is_refused():
    content = dump(CheckpointState(state=STATE, recipe=RECIPE, rows_sha256="abc"))
    content["state"]["steps"] = 5
    with pytest.raises(ArtifactError, match=r"state\.steps"):
        load(CheckpointState, json.dumps(content), "state.json")


def test_a_summary_from_before_format_1_is_read():
    old = {**asdict(STATE), "train_tokens_per_second": 10.5, "num_processes": 2, "peak_memory_bytes": 7}
    summary = load(RunSummary, json.dumps(old), "summary.json")
    assert (summary.state, summary.num_processes, summary.train_tokens_per_second) == (STATE, 2, 10.5)
