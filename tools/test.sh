#!/usr/bin/env bash
# The demo, then every test: the release build, the fast tests and the goldens again under the address and
# undefined-behaviour sanitizers, and simulated ranks on several workers under the thread sanitizer. With --full the
# slow tests run too. Ends with the closing lines of the test runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

release_tests=release
release_title="all tests but the slow ones, release build"
case "${1-}" in
  "") ;;
  --full)
    release_tests=all
    release_title="all tests, release build"
    ;;
  *)
    echo "usage: tools/test.sh [--full]      --full also runs the tests labelled slow" >&2
    exit 2
    ;;
esac

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# build CONFIGURE_PRESET [--target NAME]: configures, and builds what the tests of that preset need or the target.
build() {
  local start=$SECONDS
  echo "test: building the tests, preset $* (minutes, without a compiler cache)"
  cmake --preset "$1" >"$logs/configure" 2>&1 || { cat "$logs/configure" >&2; exit 2; }
  cmake --build --preset "$@" -j "$(nproc)" >"$logs/build" 2>&1 || { cat "$logs/build" >&2; exit 2; }
  echo "test: built in $((SECONDS - start)) s"
}

# run_tests TEST_PRESET: runs them all, keeps the log, and remembers a failure.
failed=0
run_tests() {
  ctest --preset "$1" 2>&1 | tee "$logs/$1.log" | grep -vE '^ +Start +[0-9]+:' || failed=1
}

# closing_lines TITLE CONFIGURE_PRESET TEST_PRESET: why tests were skipped, and what ctest said at the end of a run.
closing_lines() {
  echo
  echo "== $1"
  sed -n '/: Skipped$/{n;s/^/skipped: /;p}' "build/$2/Testing/Temporary/LastTest.log"
  sed -n '/% tests passed/,$p' "$logs/$3.log"
}

tools/setup.sh  # the next two need a package of it
tools/setup_nccl.sh || [ $? -eq 77 ]
tools/setup_python.sh || [ $? -eq 77 ]
tools/demo.sh
build release
run_tests "$release_tests"
build asan
run_tests asan
build tsan --target simulation_test
run_tests tsan-workers

closing_lines "simulated ranks on several workers, thread sanitizer" tsan tsan-workers
closing_lines "fast tests and goldens, address and undefined-behaviour sanitizers" asan asan
closing_lines "$release_title" release "$release_tests"
echo
if [ "$failed" -eq 0 ]; then
  echo "test: every test run passed"
else
  echo "test: FAILED, see '(Failed)' and '(Timeout)' in the lists above" >&2
fi
exit "$failed"
