#!/usr/bin/env bash
# Makes .venv in the checkout and installs the package with everything the tests need, in the exact
# versions of constraints.txt. Called by the Makefile when pyproject.toml or constraints.txt changed.
set -euo pipefail
cd "$(dirname "$0")/.."

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if usable "$name"; then
            echo "$name"
            return
        fi
    done
    echo "expected Python 3.11 or newer, found $(python3 --version 2>&1 || true);" \
        "install it, or name it: make PYTHON=/path/to/python3.11 ..." >&2
    return 1
}

make_venv() {
    local python=$1 tools
    if "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv .venv; then
        return
    fi
    # Debian ships venv without ensurepip; virtualenv brings its own pip.
    tools=$(mktemp -d)
    "$python" -m pip install --quiet --target "$tools" virtualenv
    PYTHONPATH="$tools" "$python" -m virtualenv --quiet --clear .venv
    rm -rf "$tools"
}

if ! usable .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    make_venv "$(find_python)"
fi

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }

# Asked for by itself and by exact version, so that pip takes the small build for processors where
# one is offered instead of the newest build with all its GPU libraries.
pip_install "$(grep '^torch==' constraints.txt)"
# The build backend comes from constraints.txt too, hence no isolated build.
pip_install --constraint constraints.txt hatchling editables
pip_install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
