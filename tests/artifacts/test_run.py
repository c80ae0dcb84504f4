"""state.json: what is written is read back, an unknown key is refused."""

import json
from dataclasses import replace

import pytest

from longmlm.artifacts.artifact import dump, load
from longmlm.artifacts.run import CheckpointState, MicroBatch, TrainState
from longmlm.errors import ArtifactError
from longmlm.settings.pretrain import PretrainRecipe

STATE = TrainState(step=5, cursor=50, tokens=500, base_cut=41.0, accuracy=40.0, evaluated_at_step=4)
RECIPE = PretrainRecipe(num_steps=9, batch_tokens=100, learning_rate=1e-4)


def test_a_state_is_read_back():
    micro_batch = MicroBatch(num_rows=4, num_processes=2, device="cpu", is_recomputed=False)
    state = replace(STATE, micro_batch=micro_batch)
    saved = CheckpointState(state=state, recipe=RECIPE, rows_sha256="abc", rows="hf:a/b@c", precision="bf16")
    assert load(CheckpointState, json.dumps(dump(saved)), "state.json") == saved


def test_an_unknown_key_of_the_progress_is_refused():
    content = dump(CheckpointState(state=STATE, recipe=RECIPE, rows_sha256="abc"))
    content["state"]["steps"] = 5
    with pytest.raises(ArtifactError, match=r"state\.steps"):
        load(CheckpointState, json.dumps(content), "state.json")
