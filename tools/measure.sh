#!/usr/bin/env bash
# Checks and measures a build in one call: the small model answers at both instruction set levels, then `runtime bench` of the small model and
# of a synthetic 0.8B shape at the thread counts given (default: 2 and all). Works on a build folder or on a folder that carries bin/,
# plugins/, share/ and lib/ to another machine.
#
#     tools/measure.sh [FOLDER] [THREADS ...]
set -uo pipefail
cd "$(dirname "$0")/.."
folder="${1:-build/release}"
shift || true
threads=("$@")
[ ${#threads[@]} -gt 0 ] || threads=(2 "$(nproc)")
[ -d "$folder/lib" ] && export LD_LIBRARY_PATH="$PWD/$folder/lib"
runtime="$folder/bin/runtime"
lscpu | grep -E "Model name|^CPU\(s\)|L2|L3" || true

for isa in avx512bf16 avx2; do
  for dtype in float32 bfloat16; do
    chat=$("$runtime" generate --config configs/tiny-gdn.yaml --set model.compute_dtype=$dtype --set plugins.options.cpu.isa=$isa --set log.level=error --greedy --chat "What is 12 + 345?" 2>/dev/null | tail -1)
    echo "check $isa $dtype: $chat"
  done
done
for t in "${threads[@]}"; do
  echo "== $t threads"
  "$runtime" bench --config configs/tiny-gdn.yaml --set device.threads="$t" --decode-tokens 128 --repeats 5
  "$runtime" bench --config configs/bench-qwen3.5-0.8b.yaml --set device.threads="$t" --decode-tokens 48 --repeats 3
done
