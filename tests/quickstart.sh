#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From nothing to a message: installs what is missing, builds, starts the stand-in broker and nolagd,
# subscribes in one process, publishes from another, prints what arrived, and stops everything;
# with --keep not before Ctrl-C, so that the examples of README.md can be tried. Builds in NL_BUILD (build).
set -eu
cd "$(dirname "$0")/.."
. tests/setup.sh

build=${NL_BUILD:-build}
keep=no
case "$#:${1:-}" in
0:) ;;
1:--keep) keep=yes ;;
*)
    echo "usage: sh tests/quickstart.sh [--keep]" >&2
    exit 2
    ;;
esac

echo "== packages"
# shellcheck disable=SC2086 # lists of words
nl_install $NL_BUILD_PACKAGES $NL_BROKER_PACKAGES

echo "== build"
nl_build "$build"
nolag=$build/clients/nolag

work=$(mktemp -d)
pids=
stop() {
    for pid in $pids; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    pids=
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Waits until the command succeeds, at most 10 s; "$what" says what it waits for.
wait_for() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 100 ]; then
            echo "waited 10 s in vain for: $what" >&2
            cat "$work"/*.log >&2
            return 1
        fi
        sleep 0.1
    done
}

holds() {
    grep -q "$2" "$1" 2>/dev/null
}

echo "== the stand-in broker"
tests/broker/nolag-devbroker --port 0 --auth tests/broker/auth.json >"$work/broker.log" 2>&1 &
pids="$! $pids"
what="the stand-in broker listens"
wait_for holds "$work/broker.log" '^ready '
url=$(sed -n 's/^ready //p' "$work/broker.log")
echo "$url"

echo "== nolagd"
umask 077
printf 'tok-alice\n' >"$work/token"
cat >"$work/nolagd.conf" <<CONF
[session default]
url = $url
token_file = $work/token
CONF
"$build/daemon/nolagd" --config "$work/nolagd.conf" --socket "$work/nolagd.sock" 2>"$work/nolagd.log" &
pids="$! $pids"
what="nolagd is connected"
wait_for holds "$work/nolagd.log" 'connected'
export NOLAGD_SOCKET="$work/nolagd.sock"
"$nolag" status

echo "== one process subscribes to demo/ops/events, another publishes"
"$nolag" sub -t demo/ops/events -C 1 -W 10 --verbose -d >"$work/received" 2>"$work/sub.log" &
subscriber=$!
what="the subscription is made"
wait_for holds "$work/sub.log" '^nolag: subscribed'
"$nolag" pub -t demo/ops/events -m '{"text":"hello from another process"}'
wait "$subscriber"
echo "received: $(cat "$work/received")"

if [ "$keep" = yes ]; then
    echo "== running until Ctrl-C; in another terminal, for the examples of README.md:"
    echo "export NOLAGD_SOCKET=$work/nolagd.sock PATH=$(cd "$build" && pwd)/clients:\$PATH"
    wait
fi

echo "== stop"
stop
echo "done"
