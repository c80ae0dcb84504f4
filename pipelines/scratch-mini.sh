#!/usr/bin/env bash
# The bundled model from scratch, from the text in src/longmlm/bundled/text: tokenizer, rows, pretraining, release. About 50 minutes
# on 2 cores; the same command resumes after an interruption. Its result is the model in src/longmlm/bundled/roberta-mini.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1
out=out/scratch-mini

[ -d $out/tokenizer ] || python pipelines/train_tokenizer.py src/longmlm/bundled/text/scratch.jsonl.zst 8192 128 $out/tokenizer
longmlm prepare configs/prepare/scratch-mini.toml
accelerate launch --config_file configs/accelerate/single.yaml pretrain.py configs/pretrain/scratch-mini.toml
rm -rf $out/roberta-mini
longmlm release configs/release/scratch-mini.toml
