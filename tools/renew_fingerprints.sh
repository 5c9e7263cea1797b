#!/usr/bin/env bash
# Makes verify/data/fingerprints.json anew: what each fault of the zoo computes, by which verify recognises it. About a
# minute of one processor. Usage: tools/renew_fingerprints.sh [--check [PROGRAM]]; --check only says whether the
# committed file is that of the sources, with a program that is built already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
table=verify/data/fingerprints.json
if [[ ${1-} == --check ]]; then
  program=${2-build/release/app/shardproof-zoo}
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "$program" zoo --write-fingerprints "$folder/fingerprints.json"
  cmp "$folder/fingerprints.json" "$table" && exit 0
  echo "$table is stale: tools/renew_fingerprints.sh makes it anew" >&2
  exit 1
fi
tools/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target shardproof-zoo -j "$(nproc)" >/dev/null
build/release/app/shardproof-zoo zoo --write-fingerprints "$table"
git --no-pager diff --stat -- "$table"
