#!/usr/bin/env bash
# Installs what is missing to build shardproof on Debian, and checks the processor. Safe to run again: when nothing is
# missing it only says so. Works as root, or as a user who may use sudo. With --missing it prints the packages that are
# missing, one a line, and does nothing.
set -euo pipefail

packages=(
  build-essential g++ cmake ninja-build ccache                 # compiler and build
  libfmt-dev nlohmann-json3-dev libcli11-dev                   # text, JSON, command line
  libeigen3-dev libboost-context-dev                           # reference arithmetic, simulated ranks
  libdnnl-dev libxxhash-dev                                    # float32 products, checksums
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev # tests and benchmarks
  libopenmpi-dev openmpi-bin                                   # real ranks: processes of mpirun
  python3-venv                                                 # the exporter's test against the real package
)

fail() {
  echo "setup: $*" >&2
  exit 2
}

check_processor() {
  [ "$(uname -m)" = x86_64 ] || fail "this processor is '$(uname -m)'; expected x86_64 with AVX2 and FMA."
  local flag missing=()
  for flag in avx2 fma bmi2 f16c; do
    grep -qw "$flag" /proc/cpuinfo || missing+=("$flag")
  done
  [ ${#missing[@]} -eq 0 ] || fail "the processor lacks ${missing[*]}; AVX2, FMA, BMI2 and F16C are needed."
}

# Prints the packages of the list above that are not installed.
missing_packages() {
  local package
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || echo "$package"
  done
}

install_packages() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "these packages are missing and neither root nor sudo is at hand; as root: apt-get install -y $*"
    as_root=(sudo)
  fi
  echo "setup: installing $*"
  "${as_root[@]}" apt-get update -qq || fail "apt-get update failed; are the package sources and the network in order?"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    fail "apt-get could not install: $*"
}

case "${1-}" in
  "") ;;
  --missing)
    command -v dpkg-query >/dev/null || exit 0
    missing_packages
    exit 0
    ;;
  *)
    echo "usage: tools/setup.sh [--missing]      --missing only prints what is missing" >&2
    exit 2
    ;;
esac

check_processor
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this script knows Debian's package manager only; install the counterparts of: ${packages[*]}"

mapfile -t missing < <(missing_packages)
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: nothing to install, all ${#packages[@]} packages are there."
  exit 0
fi
install_packages "${missing[@]}"
mapfile -t missing < <(missing_packages)
[ ${#missing[@]} -eq 0 ] || fail "still missing after the installation: ${missing[*]}"
echo "setup: done."
