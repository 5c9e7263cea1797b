#!/usr/bin/env bash
# Tests tools/export_model.py with torch and diffusers in the Python environment of tools/setup_python.sh, which makes
# it the first time. Where that cannot be had (no Python, no network) it says SKIPPED and the reason, and ends with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=$(realpath "${1-build/release/app/shardproof}")
[ -x "$program" ] || { echo "test_export: '$program' is not built" >&2; exit 2; }

status=0
said=$(tools/setup_python.sh) || status=$?
if [ "$status" -eq 77 ]; then
  # The lines have the form in which GoogleTest reports a skip, so that tools/test.sh finds the reason.
  echo "tools/test_export.sh: Skipped"
  echo "SKIPPED: $said"
fi
[ "$status" -eq 0 ] || exit "$status"
SHARDPROOF=$program OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 \
  build/python/bin/python tests/tools/export_model_test.py
