#!/usr/bin/env bash
# The whole pipeline on the bundled model and text, offline: a RoBERTa of 128 positions is extended to 384.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
rm -rf out/demo

echo "== prepare: pack novels that the model has not seen into rows of 384 tokens"
longmlm prepare configs/prepare/demo.toml

echo "== extend: 128 trained positions to 384"
longmlm extend configs/extend/demo.toml

echo "== evaluate: base model and long model before training"
longmlm evaluate configs/evaluate/demo.toml

echo "== pretrain: continue until the lost accuracy is recovered"
accelerate launch --config_file configs/accelerate/single.yaml pretrain.py configs/pretrain/demo.toml

echo "== evaluate: the same, and the long model after training"
longmlm evaluate configs/evaluate/demo.toml --long-after out/demo/run --run out/demo/run

echo "== release: export, verify and describe the long model"
longmlm release configs/release/demo.toml

echo "== summary"
python pipelines/summarize_demo.py out/demo
