#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What machines can say about the sources: clang-format, clang-tidy, cppcheck, shellcheck. Not part of run.sh: it takes
# some minutes and large packages. Exit status 0 when all are content.
# shellcheck disable=SC2086,SC2046,SC2317 # lists of words; functions called by name
set -u
cd "$(dirname "$0")/.." || exit 2
. tests/setup.sh
# shellcheck disable=SC2086 # lists of words
nl_install $NL_BUILD_PACKAGES libcmocka-dev clang clang-tidy clang-format cppcheck shellcheck || exit 2

failed=0
check() {
    echo "== $1"
    shift
    "$@" || failed=1
}

sources=$(git ls-files '*.c')
all=$(git ls-files '*.c' '*.h')
nl_build build-lint >/dev/null || exit 2

# shellcheck disable=SC2086 # lists of words, here and below
check clang-format clang-format --dry-run -Werror $all
tidy() {
    # shellcheck disable=SC2086
    printf '%s\n' $sources | grep -v '^tests/' | xargs -P "$(nproc)" -n 4 clang-tidy -p build-lint --quiet 2>/dev/null
}
check clang-tidy tidy
check cppcheck cppcheck --quiet --error-exitcode=1 --inline-suppr --enable=warning,portability --std=c11 \
    --suppress=missingIncludeSystem --suppress=nullPointerRedundantCheck --suppress=unknownMacro \
    --include=/usr/include/uthash.h --include=/usr/include/utlist.h \
    --library=posix -D_GNU_SOURCE -I. $(printf '%s\n' $sources | grep -v '^tests/')
check shellcheck shellcheck -x $(git ls-files '*.sh')
[ "$failed" = 0 ] && echo "clean"
exit "$failed"
