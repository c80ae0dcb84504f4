"""Prints the losses of twenty steps, fp32 on one thread, made by the commands of a source tree: golden.py TREE."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel
from transformers import RobertaTokenizer

NUM_STEPS = 20
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

PREPARE = """
output = "rows"
[recipe]
tokenizer = "tokenizer"
row_length = 64
held_out_fraction = 0.2
sources = [{files = ["text.jsonl"]}]
"""

PRETRAIN = f"""
run = "run"
rows = "rows"
start = {{architecture = "model.json", tokenizer = "tokenizer"}}

[recipe]
num_steps = {NUM_STEPS}
batch_tokens = 512
learning_rate = 1e-3
warmup_steps = 5
dropout = 0.0
precision = "no"

[runtime]
rows_per_micro_batch = 3
num_threads = 1
log_every_steps = 1
evaluate_every_steps = {NUM_STEPS}
save_every_steps = {NUM_STEPS}
"""

ARCHITECTURE = {
    "model_type": "roberta",
    "vocab_size": len(SPECIAL) + 256,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
}


def golden_losses(tree: Path) -> list[float]:
    """Returns the loss of each step of a small untrained model, made by the commands of the source tree `tree`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        _run(["-m", "longmlm", "prepare", "prepare.toml"], tree, folder)
        _run([str(tree / "pretrain.py"), "pretrain.toml"], tree, folder)
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line["targets"]["mlm"]["loss"] for line in lines if "targets" in line]


def write_inputs(folder: Path) -> None:
    """Writes a tokenizer, text, an architecture, prepare.toml and pretrain.toml into the folder."""
    generator = random.Random(0)
    words = ["".join(generator.choices("aeiounrst", k=generator.randint(2, 6))) for _ in range(40)]
    sentences = [" ".join(generator.choices(words, k=generator.randint(3, 8))).capitalize() + "." for _ in range(900)]
    documents = [{"text": " ".join(sentences[start : start + 30])} for start in range(0, len(sentences), 30)]
    (folder / "text.jsonl").write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    (folder / "prepare.toml").write_text(PREPARE)
    (folder / "pretrain.toml").write_text(PRETRAIN)
    (folder / "model.json").write_text(json.dumps(ARCHITECTURE))
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *sorted(ByteLevel.alphabet())])}
    RobertaTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder / "tokenizer")


def _run(command: list[str], tree: Path, folder: Path) -> None:
    changes = {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")} | changes
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[-2:]} exited with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    losses = golden_losses(Path(sys.argv[1]).resolve())
    print(json.dumps({"losses": [loss.hex() for loss in losses]}, indent=2))
