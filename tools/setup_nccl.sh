#!/usr/bin/env bash
# Fetches what the NCCL communicator is compiled with and loads, NCCL and the CUDA runtime, the headers of NVTX, and
# CUPTI, as Python packages into build/nccl, where CMake finds them; 290 MB, nothing is installed elsewhere. Where they
# cannot be had (no Python, no network) it says why and ends with 77: the build then has a stub in their place, and its
# tests are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=build/nccl
packages=(nvidia-nccl-cu13==2.30.7 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
  nvidia-nvtx==13.0.85 nvidia-cuda-cupti==13.0.85)
install_seconds=100

skip() {
  echo "setup_nccl: no NCCL communicator: $*"
  exit 77
}

log=$(mktemp)
trap 'rm -rf "$log" "$folder.partial" "$folder.python"' EXIT
if [ "$(cat "$folder/complete" 2>/dev/null)" = "${packages[*]}" ]; then
  echo "setup_nccl: nothing to fetch, ${packages[*]} are in $folder."
  exit 0
fi
command -v python3 >/dev/null || skip "there is no python3"
rm -rf "$folder" "$folder.partial" "$folder.python"
mkdir -p build
python3 -m venv "$folder.python" >"$log" 2>&1 ||
  skip "python3 -m venv failed (Debian has it in python3-venv): $(tail -n 1 "$log")"
status=0
timeout "$install_seconds" "$folder.python/bin/python" -m pip --disable-pip-version-check -q install --no-deps \
  --retries 1 --timeout 15 --target "$folder.partial" "${packages[@]}" >"$log" 2>&1 || status=$?
[ "$status" -ne 124 ] || skip "pip did not install ${packages[*]} within $install_seconds s"
[ "$status" -eq 0 ] || skip "pip cannot install ${packages[*]}: $(grep -m 1 -i '^error' "$log" || tail -n 1 "$log")"
echo "${packages[*]}" >"$folder.partial/complete"
mv "$folder.partial" "$folder"
echo "setup_nccl: ${packages[*]} are in $folder."
