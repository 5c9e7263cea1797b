#!/usr/bin/env bash
# On a machine with a GPU: configures, builds what runs on GPUs, runs those tests (ctest -L gpu) and two real ranks with
# LibTorch over NCCL, and packs all logs and results into one archive below build/gpu-results. Made to end within ten
# minutes on a machine with an H100 or H200 and 16 cores that has CUDA 13, and a CUDA build of PyTorch 2.11 or newer in
# the Python that runs as python3 (or $PYTHON). Debian's packages come from the machine, or from the archive of
# tools/gpu_packages.sh, if it lies in build. Where something is missing it says what, and ends with 77; --check says
# only that. Ends with 1 if a step failed; what it left is packed all the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON-python3}
build=build/gpu
archive=build/gpu-packages.tar.xz
program=$build/app/shardproof
export_dir=tests/data/goldens/flux/tiny

case "${1-}" in
  "" | --check) ;;
  *)
    echo "usage: tools/gpu.sh [--check]      --check only says what is missing" >&2
    exit 2
    ;;
esac

# Prints one line for each thing that is missing.
missing_things() {
  nvidia-smi -L >/dev/null 2>&1 || echo "a GPU with its driver: nvidia-smi -L fails"
  if [ -e "$archive" ]; then
    local tool
    for tool in g++ cmake ninja; do command -v "$tool" >/dev/null || echo "$tool"; done
  else
    # What GPUs do not need: processes of mpirun, a Python environment of our own, a compiler cache.
    tools/setup.sh --missing | grep -vE '^(libopenmpi-dev|openmpi-bin|python3-venv|ccache)$' |
      sed 's|.*|the Debian package &: tools/setup.sh installs it, or tools/gpu_packages.sh elsewhere packs it|' || true
  fi
  if ! command -v "$python" >/dev/null; then
    echo "Python: there is no $python"
  elif ! "$python" -c 'import sys, torch; sys.exit(not torch.version.cuda)' >/dev/null 2>&1; then
    echo "a CUDA build of PyTorch in $python: import torch fails, or torch.version.cuda is None"
  elif ! "$python" -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11))' \
    >/dev/null 2>&1; then
    echo "PyTorch 2.11 or newer in $python"
  fi
}

missing=$(missing_things)
if [ -n "$missing" ]; then
  sed 's/^/gpu: missing: /' <<<"$missing"
  echo "gpu: nothing was run on a GPU"
  exit 77
fi
[ "${1-}" != --check ] || { echo "gpu: nothing is missing"; exit 0; }

# The last line: some installations say something when they are imported.
torch=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)' 2>/dev/null | tail -n 1)
results=build/gpu-results/$(date +%Y%m%d-%H%M%S)
mkdir -p "$results"
failed=0
cupti=()

# step SECONDS NAME COMMAND...: runs it with that limit, keeps its output in NAME.log, and says how it ended.
step() {
  local seconds=$1 name=$2 start=$SECONDS status=0
  shift 2
  { echo "\$ $*"; timeout --kill-after=5 "$seconds" "$@" 2>&1; } >"$results/$name.log" || status=$?
  [ "$status" -eq 0 ] || failed=1
  echo "gpu: $name: status $status, $((SECONDS - start)) s" | tee -a "$results/summary.txt"
  return "$status"
}

machine() {
  nvidia-smi
  nvidia-smi topo -m || true
  git log -1 --format=%H || true
  "$python" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())'
}
export -f machine
export python

# NCCL, the CUDA runtime and CUPTI are those that PyTorch brought; only the headers of crt/ are not among them, and come
# from the toolkit or from Triton. Where anything is missing, tools/setup_nccl.sh fetches all.
nccl_root=$PWD/$build-nccl
site=$(dirname "$torch")
brought=$site/nvidia
crt=
for folder in "$brought/cu13/include" "${CUDA_HOME-/usr/local/cuda}/include" /usr/local/cuda/include \
  "$site/triton/backends/nvidia/include"; do
  if [ -z "$crt" ] && [ -e "$folder/crt/host_defines.h" ]; then crt=$folder/crt; fi
done
rm -rf "$nccl_root"
if [ -e "$brought/nccl/include/nccl.h" ] && [ -e "$brought/cu13/include/cuda_runtime_api.h" ] && [ -n "$crt" ]; then
  mkdir -p "$nccl_root/nvidia/cu13/include"
  ln -s "$brought/nccl" "$nccl_root/nvidia/"
  ln -s "$brought/cu13/lib" "$nccl_root/nvidia/cu13/"
  ln -s "$brought"/cu13/include/* "$nccl_root/nvidia/cu13/include/"
  ln -sfn "$crt" "$nccl_root/nvidia/cu13/include/crt"
fi

pack() {
  cp "$build/CMakeCache.txt" "$results/" 2>/dev/null || true
  tar -C "$(dirname "$results")" -czf "$results.tar.gz" "$(basename "$results")"
  echo "gpu: everything is in $results.tar.gz"
}
trap pack EXIT

options=()
if [ -e "$archive" ]; then
  unpacked=$PWD/build/gpu-packages
  rm -rf "$unpacked"
  mkdir -p "$unpacked"
  tar -C "$unpacked" -xJf "$archive" || {
    echo "gpu: $archive cannot be unpacked; expected what tools/gpu_packages.sh makes" | tee "$results/summary.txt"
    exit 1
  }
  options=(-DCMAKE_PREFIX_PATH="$unpacked/usr" -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu)
  # For what these libraries need themselves.
  export LD_LIBRARY_PATH=$unpacked/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

step 30 machine bash -c machine || true
[ -e "$nccl_root" ] || step 100 setup_nccl tools/setup_nccl.sh || true
step 60 configure cmake --fresh --preset release -B "$build" -DSHARDPROOF_BUILD_BENCHMARKS=OFF \
  -DSHARDPROOF_WARNINGS_AS_ERRORS=OFF -DSHARDPROOF_TORCH_ROOT="$torch" -DNCCL_ROOT="$nccl_root" \
  ${options[@]+"${options[@]}"} || exit 1
for part in NCCL LibTorch; do
  grep -q "Found $part: " "$results/configure.log" || {
    echo "gpu: the build would be without $part, see $results/configure.log" | tee -a "$results/summary.txt"
    exit 1
  }
done
step 270 build cmake --build "$build" --target gpu_tests -j "$(nproc)" || exit 1
step 150 tests ctest --test-dir "$build" -L gpu --output-on-failure --output-junit "$PWD/$results/tests.xml" || true
# Here nothing should be skipped.
if grep -F '***Skipped' "$results/tests.log" | sed 's/^/gpu: skipped: /' | tee -a "$results/summary.txt" | grep .; then
  failed=1
fi
# Real ranks, as many GPUs as there are or one that they share; with a profile and a trace where `run` has them.
profile() {  # NAME: the options that keep what a run of that name says of itself
  printf '%s\n' --json "$results/$1.json"
  if "$program" run --help | grep -q -- --trace; then
    printf '%s\n' --warmup 2 --steps 5 --trace "$results/$1.trace.json" "${cupti[@]}"
  fi
}
# What the GPUs did, by kernel, where the build has CUPTI.
"$program" --version | grep -q 'CUPTI [0-9]' && has_cupti=yes || has_cupti=no
[ "$has_cupti" = no ] || cupti=(--cupti)
export NCCL_MULTI_RANK_GPU_ENABLE=1
run=(run "$export_dir" --device cuda --ring-degree 2 --dtype bfloat16 --case base)
mapfile -t kept < <(profile nccl)
step 40 nccl "$program" launch -n 2 -- "$program" "${run[@]}" --backend nccl "${kept[@]}" || true
mapfile -t kept < <(profile threads)
step 40 threads "$program" "${run[@]}" --backend cuda-threads "${kept[@]}" || true
step 40 verify "$program" verify "$export_dir" --device cuda --dtype float32 --tier rounding --case base \
  --json "$results/verify.json" || true
# A ring that rotates hides its exchanges behind computation: on a model of some size at most a quarter of the time of
# the GPUs may be communication alone.
exposed() {
  "$python" -c '
import json, sys
profile = json.load(open(sys.argv[1]))["profile"]
times, share = profile["times_of"], profile["exposed_share"]
print(f"exposed communication {100 * share:.1f} % of the time of the {times}, at most 25 % of the device")
sys.exit(times != "device" or share > 0.25)' "$1"
}
export -f exposed
if [ "$has_cupti" = yes ]; then
  ring=(run flux --size text=512,image=7680,heads=24,layers=2 --device cuda --dtype bfloat16 --check off)
  mapfile -t kept < <(profile overlap)
  step 60 overlap "$program" launch -n 2 -- "$program" "${ring[@]}" --ring-degree 2 --rotate-method alltoall \
    --backend nccl "${kept[@]}" && step 10 exposed bash -c "exposed '$results/overlap.json'" || true
  tail -n 1 "$results/exposed.log" 2>/dev/null | tee -a "$results/summary.txt" || true
else
  echo "gpu: overlap: not measured, this build found no CUPTI" | tee -a "$results/summary.txt"
fi
exit "$failed"
