#!/usr/bin/env bash
# Checks and measures a build in one call: the small models answer at both instruction set levels, then `runtime bench` of the small models
# and of two synthetic shapes at the thread counts given (default: 2 and all). Works on a build folder or on a folder that carries bin/,
# lib/ (libraries, and plugins in lib/deltart/plugins), share/ and testdata/models/tiny-kda to another machine. Kernel tests found in bin/
# run first.
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

[ -f "$folder/lib/deltart/plugins/librt_cpu.so" ] && export RT_TEST_CPU_PLUGIN="$PWD/$folder/lib/deltart/plugins/librt_cpu.so"
for test in gemm gated_delta gated_delta_channel linear_mixer latent_attention moe cpu_plugin; do
  [ -x "$folder/bin/${test}_test" ] && echo "${test}_test: $("$folder/bin/${test}_test" 2>&1 | tail -1)"
done
small=("models/zoo/tiny-gdn" "$folder/testdata/models/tiny-kda")
for model in "${small[@]}"; do
  for isa in avx512bf16 avx2; do
    for dtype in float32 bfloat16; do
      chat=$("$runtime" generate --config configs/tiny-gdn.yaml --set model.path="$PWD/$model" --set model.compute_dtype=$dtype --set plugins.options.cpu.isa=$isa --set log.level=error --greedy --chat "What is 12 + 345?" 2>/dev/null | tail -1)
      echo "check $(basename "$model") $isa $dtype: $chat"
    done
  done
done
for t in "${threads[@]}"; do
  echo "== $t threads"
  for model in "${small[@]}"; do
    "$runtime" bench --config configs/tiny-gdn.yaml --set model.path="$PWD/$model" --set device.threads="$t" --decode-tokens 128 --repeats 5
  done
  for shape in qwen3.5-0.8b kimi-linear-4l; do
    "$runtime" bench --config configs/bench-$shape.yaml --set device.threads="$t" --decode-tokens 48 --repeats 3
  done
done
