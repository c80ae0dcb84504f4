#!/usr/bin/env bash
# Measures longmlm on one GPU in under ten minutes and prints the table last: the attention kernel in use, bf16 compared
# with fp32, tokens/s and MFU, compiled compared with eager, and the largest micro-batches in 24 GB with the memory that
# they take.
#
#   benchmarks/gpu.sh                 on the first visible GPU
#   benchmarks/gpu.sh --device cpu    small shapes, to check this script without a GPU
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1

case "$*" in
  '') python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    { echo 'error: torch sees no GPU: install a CUDA build, or add --device cpu to check the script' >&2; exit 2; } ;;
  '--device cpu') export CUDA_VISIBLE_DEVICES='' ;;
  *) echo 'usage: benchmarks/gpu.sh [--device cpu]' >&2; exit 2 ;;
esac

mkdir -p out
: > out/gpu.jsonl
# Each part and its time limit in seconds, imports included; what a part measured before its limit is kept. With 5 s to
# kill each part they take at most 555 s: 45 s are left for the check before and the table after.
for part in kernels:50 parity:55 speed:100 compiled:155 memory:170; do
  timeout --kill-after 5 "${part#*:}" python benchmarks/gpu.py "${part%:*}" >> out/gpu.jsonl ||
    echo "warning: the part ${part%:*} failed or took more than ${part#*:} s" >&2
done
python benchmarks/gpu.py table out/gpu.jsonl
