#!/usr/bin/env bash
# One line, several launchers: mpirun, `shardproof launch` and torchrun, and srun where SLURM runs here, must give the
# same results, but for the time that they took. torchrun comes from the Python environment that tools/setup_python.sh
# makes; where there is none, the test says SKIPPED, after the others have passed, and ends with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

program=$(realpath "$1")
mpirun=$2
torchrun=${TORCHRUN-build/python/bin/torchrun}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1

line=("$program" run tests/data/goldens/flux/tiny --backend mpi --ring-degree 2 --timeout 60)

# results LAUNCHER COMMAND...: runs it and keeps what it found under the launcher's name.
results() {
  local launcher=$1
  shift
  "$@" "${line[@]}" --json "$folder/$launcher.json" >"$folder/$launcher.log" 2>&1 || {
    echo "$launcher: ended with status $?"
    cat "$folder/$launcher.log"
    exit 1
  }
  grep -v '"seconds"' "$folder/$launcher.json" >"$folder/$launcher"
  grep -q '"ROUNDING-EQUIVALENT"' "$folder/$launcher" || { echo "$launcher: nothing was verified"; exit 1; }
}

results mpirun "$mpirun" --oversubscribe -n 2
results launch "$program" launch -n 2 --
diff "$folder/mpirun" "$folder/launch"
if timeout 20 srun -n 1 true >/dev/null 2>&1; then
  for mpi in none pmix; do
    results "srun-$mpi" srun -n 2 --overcommit --mpi=$mpi
    diff "$folder/mpirun" "$folder/srun-$mpi"
  done
  echo "srun gives the same results"
fi
if [ ! -x "$torchrun" ]; then
  echo "tests/real/launchers_test.sh: Skipped"
  echo "SKIPPED: torchrun is not installed; tools/setup_python.sh makes the Python environment that has it"
  exit 77
fi
results torchrun "$torchrun" --no-python --nproc-per-node 2
diff "$folder/mpirun" "$folder/torchrun"
echo "mpirun, launch and torchrun give the same results"
