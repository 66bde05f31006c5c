# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034 # the lists are for the scripts that read this file
# For run.sh and quickstart.sh, which read it with ".": installs the Debian packages that are missing. Says what it does.

NL_BUILD_PACKAGES="gcc libc6-dev meson ninja-build pkg-config libuv1-dev libwebsockets-dev libwebsockets-evlib-uv
  libmsgpack-dev libinih-dev libsystemd-dev libjson-c-dev libssl-dev uthash-dev libutf8proc-dev"
NL_BROKER_PACKAGES="python3 python3-websockets python3-msgpack"
NL_TEST_PACKAGES="libcmocka-dev python3-pytest socat jq openssl systemd util-linux procps valgrind libc6-dbg"

# Prints those of the given packages that are not installed.
nl_missing() {
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

# Installs those of the given packages that are missing. Needs root, or sudo, only if there are some.
nl_install() {
    missing=$(nl_missing "$@")
    if [ -z "$missing" ]; then
        return 0
    fi
    sudo=
    if [ "$(id -u)" != 0 ]; then
        sudo=sudo
    fi
    # shellcheck disable=SC2086 # a list of words
    echo "installing:" $missing
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq update
    # shellcheck disable=SC2086 # a list of words
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends -y $missing >/dev/null
}

# Configures (once) and builds in the folder $1; the rest are options for meson.
nl_build() {
    folder=$1
    shift
    if [ ! -f "$folder/build.ninja" ]; then
        meson setup "$folder" "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; return 1; }
        rm -f "$folder.log"
    fi
    ninja --quiet -C "$folder"
}
