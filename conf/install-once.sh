#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs FILE into FOLDER unless it is there already. Run by meson install.
set -eu
file=$1
target=${DESTDIR:-}$2/${file##*/}

if [ -e "$target" ]; then
    echo "keeping $target"
else
    install -d -m 0755 "${target%/*}"
    install -m 0644 "$file" "$target"
fi
