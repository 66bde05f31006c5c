#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sets up what is missing, builds with warnings as errors, runs every test, and ends with one line
# "N passed, N failed". Exit status 0 only when none failed.
#
# Suites of their own, of which this runs a short form or nothing: see README.md.
set -u
cd "$(dirname "$0")/.." || exit 2
. tests/setup.sh

passed=0
failed=0

step() {
    printf '== %s\n' "$*"
}

# Adds the numbers of a pytest or meson log to the totals. A run that ended badly without a failed test counts as one.
count() {
    p=$1
    f=$2
    status=$3
    if [ "$status" != 0 ] && [ "$f" = 0 ]; then
        f=1
    fi
    passed=$((passed + p))
    failed=$((failed + f))
}

# cmocka's own counts: "[  PASSED  ] N test(s)." and "[  FAILED  ] N test(s), ..." per program.
run_unit() {
    build=$1
    log=$build/unit.log
    shift
    meson test -C "$build" --no-rebuild --verbose --suite unit "$@" >"$log" 2>&1
    status=$?
    p=$(sed -n 's/.*\[  PASSED  \] \([0-9]*\) test(s)\..*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    f=$(sed -n 's/.*\[  FAILED  \] \([0-9]*\) test(s), listed.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    if [ "$status" != 0 ]; then
        grep -vE '^\[ +(RUN|OK) ' "$log" | tail -n 60
    fi
    echo "$p passed, $f failed"
    count "$p" "$f" "$status"
}

run_pytest() {
    log=$(mktemp)
    NL_BUILD=$PWD/$1 /usr/bin/python3 -m pytest -q -p no:cacheprovider "$2" >"$log" 2>&1
    status=$?
    summary=$(tail -n 1 "$log")
    p=$(printf '%s\n' "$summary" | sed -n 's/.*[^0-9]*\b\([0-9][0-9]*\) passed.*/\1/p')
    f=$(printf '%s\n' "$summary" | sed -n 's/.*\b\([0-9][0-9]*\) failed.*/\1/p')
    e=$(printf '%s\n' "$summary" | sed -n 's/.*\b\([0-9][0-9]*\) error.*/\1/p')
    s=$(printf '%s\n' "$summary" | sed -n 's/.*\b\([0-9][0-9]*\) skipped.*/\1/p')
    if [ "$status" != 0 ]; then
        tail -n 120 "$log"
    fi
    echo "${p:-0} passed, $((${f:-0} + ${e:-0})) failed"
    # A test that did not run is not a test that passed.
    count "${p:-0}" "$((${f:-0} + ${e:-0} + ${s:-0}))" "$status"
    rm -f "$log"
}

step "packages"
# shellcheck disable=SC2086 # lists of words
nl_install $NL_BUILD_PACKAGES $NL_BROKER_PACKAGES $NL_TEST_PACKAGES || exit 2

step "build (build-test, warnings as errors)"
nl_build build-test -Dwerror=true -Dtests=enabled || { echo "0 passed, 1 failed"; exit 1; }

step "build (build-asan, address and undefined behaviour sanitizers)"
nl_build build-asan -Dwerror=true -Dtests=enabled -Db_sanitize=address,undefined -Db_lundef=false ||
    { echo "0 passed, 1 failed"; exit 1; }

step "unit tests, under the sanitizers"
run_unit build-asan

step "unit tests, under valgrind"
run_unit build-test --timeout-multiplier 10 \
    --wrapper "valgrind --quiet --error-exitcode=99 --leak-check=full --child-silent-after-fork=yes"

step "the stand-in broker against the recordings of the real one"
run_pytest build-test tests/broker

step "integration tests, daemon under the sanitizers"
run_pytest build-asan tests/integration

step "quick start"
if sh tests/quickstart.sh >build-test/quickstart.log 2>&1 &&
    grep -q 'received: demo/ops/events {"text":"hello from another process"}' build-test/quickstart.log; then
    echo "1 passed, 0 failed"
    count 1 0 0
else
    cat build-test/quickstart.log
    count 0 1 1
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
