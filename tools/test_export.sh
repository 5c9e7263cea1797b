#!/usr/bin/env bash
# Tests tools/export_model.py with torch and diffusers in a Python environment of its own, build/python, which it makes
# the first time. Where that cannot be had (no Python, no network) it says SKIPPED and the reason, and ends with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=$(realpath "${1-build/release/app/shardproof}")
environment=build/python
packages=(torch==2.13.0 diffusers==0.42.1 safetensors numpy)
install_seconds=100

# The lines have the form in which GoogleTest reports a skip, so that tools/test.sh finds the reason.
skip() {
  echo "tools/test_export.sh: Skipped"
  echo "SKIPPED: $*"
  exit 77
}

# The CPU build of torch is a version of its own where an index has it; the plain version may bring libraries for GPUs,
# which take longer than is allowed here.
install() {
  local pip=("$environment/bin/python" -m pip --disable-pip-version-check -q install --retries 1 --timeout 15)
  "${pip[@]}" "torch==2.13.0+cpu" || "${pip[@]}" "torch==2.13.0" || return 1
  "${pip[@]}" "${packages[@]}"
}

make_environment() {
  command -v python3 >/dev/null || skip "there is no python3"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "python3 is older than 3.11"
  rm -rf "$environment"
  mkdir -p build
  python3 -m venv "$environment" >"$log" 2>&1 ||
    skip "python3 -m venv failed (Debian has it in python3-venv): $(tail -n 1 "$log")"
  local status=0
  timeout "$install_seconds" bash -c "$(declare -p environment packages); $(declare -f install); install" \
    >"$log" 2>&1 || status=$?
  [ "$status" -ne 124 ] || skip "pip did not install ${packages[*]} within $install_seconds s"
  [ "$status" -eq 0 ] || skip "pip cannot install ${packages[*]}: $(grep -m 1 -i '^error' "$log" || tail -n 1 "$log")"
  echo "${packages[*]}" >"$environment/complete"
}

[ -x "$program" ] || { echo "test_export: '$program' is not built" >&2; exit 2; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
[ "$(cat "$environment/complete" 2>/dev/null)" = "${packages[*]}" ] || make_environment
SHARDPROOF=$program OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 \
  "$environment/bin/python" tests/tools/export_model_test.py
