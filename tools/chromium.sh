#!/usr/bin/env bash
# One test opens the report page in a headless browser: sees to it that `chromium` is there.
set -euo pipefail

command -v chromium >/dev/null && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
        echo "expected the command chromium, found none, and this user may not install it;" \
            "install it by hand: apt-get install chromium" >&2
        exit 1
    fi
    root=(sudo -n)
fi
if ! command -v apt-get >/dev/null; then
    echo "expected the command chromium, found neither it nor apt-get; install Chromium by hand" >&2
    exit 1
fi
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends chromium >/dev/null
