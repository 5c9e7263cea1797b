#!/usr/bin/env bash
# 100,000 mutated files of every kind through every reader, under the address and undefined-behaviour sanitizers.
# Usage: tools/fuzz.sh [COUNT] [SEED]. A finding keeps its file and ends the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
count=${1-100000}
seed=${2-1}
tools/setup.sh
cmake --preset asan >/dev/null
cmake --build --preset asan --target fuzz_files -j "$(nproc)" >/dev/null
for target in safetensors config case plan index trace flight_record; do
  build/asan/tests/fuzz/fuzz_files "$target" "$count" "$seed"
done
