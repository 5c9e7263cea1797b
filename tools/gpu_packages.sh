#!/usr/bin/env bash
# For a GPU machine without Debian's packages, without root or without a network: on a machine that has them, puts the
# headers and libraries that the build takes from those packages into build/gpu-packages.tar.xz, of about 12 MB. Carry
# it there in the working tree, where tools/gpu.sh unpacks and uses it. What is left to that machine is a C++ compiler
# (GCC 12 or newer), CMake, Ninja, CUDA and PyTorch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=build/gpu-packages.tar.xz
packages=(libfmt-dev libfmt9 nlohmann-json3-dev libcli11-dev libeigen3-dev libboost-context1.74-dev
  libboost-context1.74.0 libdnnl-dev libdnnl2 ocl-icd-libopencl1 libxxhash-dev libgtest-dev libgmock-dev
  librapidcheck-dev libbenchmark-dev libbenchmark1debian)

for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || {
    echo "gpu_packages: the package $package is not installed; tools/setup.sh installs what is needed" >&2
    exit 2
  }
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
files() {
  dpkg -L "${packages[@]}" | grep -E '^/usr/(include|lib|share/cmake|share/eigen3|share/pkgconfig)/'
  # Of Boost, whose headers take ten times the rest, what the one header that is used includes.
  echo '#include <boost/context/fiber.hpp>' | g++ -std=c++20 -x c++ -M - | grep -oE '/usr/include/boost/[^ ]+'
  find /usr/lib/x86_64-linux-gnu/cmake -path '*/[Bb]oost*' \
    \( -path '*/Boost-*' -o -path '*/BoostDetectToolset*' -o -path '*/boost_headers*' \)
}
mkdir -p build
files | sort -u | while read -r file; do
  [ -d "$file" ] && [ ! -L "$file" ] || echo "${file#/}"
done >"$folder/list"
tar -C / --owner=0 --group=0 -cJf "$folder/packages.tar.xz" -T "$folder/list"
mv "$folder/packages.tar.xz" "$target"
size=$(du -h "$target" | cut -f 1)
echo "gpu_packages: $(wc -l <"$folder/list") files of ${#packages[@]} packages are in $target, $size."
