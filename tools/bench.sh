#!/usr/bin/env bash
# Every figure of speed and memory that the README states, measured anew, one row each with its bar. Run it on a machine
# that does nothing else. With --build the time of a clean build is measured too (in a folder of its own, without the
# compiler cache). Exit status 1 if a figure misses its bar.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

with_build=no
case "${1-}" in
  "") ;;
  --build) with_build=yes ;;
  *)
    echo "usage: tools/bench.sh [--build]      --build also measures a clean build with all tests" >&2
    exit 2
    ;;
esac

# Runs a command and shows its output only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "bench: failed: $*" >&2
    exit 2
  fi
  rm -f "$log"
}

missed=0
# measure COMMAND...: prints its rows, and remembers a figure that misses its bar.
measure() {
  local code=0
  echo
  "$@" || code=$?
  [ "$code" -le 1 ] || { echo "bench: failed with status $code: $*" >&2; exit 2; }
  [ "$code" -eq 0 ] || missed=1
}

clean_build() {
  local folder seconds
  folder=$(mktemp -d)
  seconds=$(date +%s)
  CCACHE_DISABLE=1 quietly cmake --preset release -B "$folder"
  CCACHE_DISABLE=1 quietly cmake --build "$folder" -j "$(nproc)"
  seconds=$(($(date +%s) - seconds))
  rm -rf "$folder"
  echo "Clean build with all tests and benchmarks, $(nproc) cores, without compiler cache"
  if [ "$seconds" -le 360 ]; then
    echo "  $seconds s at most 360: holds"
  else
    echo "  $seconds s at most 360: MISSES"
    return 1
  fi
}

tools/setup.sh
quietly cmake --preset release
quietly cmake --build --preset release -j "$(nproc)"
bench=build/release/bench
export SHARDPROOF_PMI_LIBRARY=$PWD/build/release/app/libshardproof_pmi.so  # for programs that are not beside it

processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
echo "Processor: $processor, $(nproc) cores; load before: $(cut -d' ' -f1 /proc/loadavg)"
measure bench/compare_torch build/release
measure "$bench/simulation_overhead"
measure env OMP_NUM_THREADS=1 "$bench/recorder_cost"
[ ! -x "$bench/mpi_speed" ] || measure build/release/app/shardproof launch -n 2 -- "$bench/mpi_speed" ulysses
measure "$bench/verification_rate" tests/data/goldens/flux/tiny
measure "$bench/many_ranks"
measure "$bench/field_product"
measure "$bench/loading"
[ "$with_build" = no ] || measure clean_build
echo
[ "$missed" -eq 0 ] && echo "bench: every bar holds" || echo "bench: some figures MISS their bar"
exit "$missed"
