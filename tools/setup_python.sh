#!/usr/bin/env bash
# Makes a Python environment with torch and diffusers in build/python, where CMake finds LibTorch and where the
# exporter's test runs; 900 MB, nothing is installed elsewhere. Where it cannot be had (no Python, no network) it says
# why and ends with 77: the build then has a stub in the place of the device of LibTorch, and the tests are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=build/python
packages=(torch==2.13.0 diffusers==0.42.1 safetensors numpy)
install_seconds=200

skip() {
  echo "setup_python: no torch and diffusers: $*"
  exit 77
}

# The CPU build of torch is a version of its own where an index has it; the plain version may bring libraries for GPUs,
# which take longer than is allowed here.
install() {
  local pip=("$environment/bin/python" -m pip --disable-pip-version-check -q install --retries 1 --timeout 15)
  "${pip[@]}" "torch==2.13.0+cpu" || "${pip[@]}" "torch==2.13.0" || return 1
  "${pip[@]}" "${packages[@]}"
}

if [ "$(cat "$environment/complete" 2>/dev/null)" = "${packages[*]}" ]; then
  echo "setup_python: nothing to install, ${packages[*]} are in $environment."
  exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
command -v python3 >/dev/null || skip "there is no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "python3 is older than 3.11"
rm -rf "$environment"
mkdir -p build
python3 -m venv "$environment" >"$log" 2>&1 ||
  skip "python3 -m venv failed (Debian has it in python3-venv): $(tail -n 1 "$log")"
status=0
timeout "$install_seconds" bash -c "$(declare -p environment packages); $(declare -f install); install" \
  >"$log" 2>&1 || status=$?
[ "$status" -ne 124 ] || skip "pip did not install ${packages[*]} within $install_seconds s"
[ "$status" -eq 0 ] || skip "pip cannot install ${packages[*]}: $(grep -m 1 -i '^error' "$log" || tail -n 1 "$log")"
echo "${packages[*]}" >"$environment/complete"
echo "setup_python: ${packages[*]} are in $environment."
