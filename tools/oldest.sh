#!/usr/bin/env bash
# Runs what depends on transformers with the oldest release that pyproject.toml allows. The
# environment is .venv with that release over it.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=$(sed -nE 's/^prefill = .*"transformers>=([0-9.]+)".*/\1/p' pyproject.toml)
folder=.venv-oldest
if [ "$(cat "$folder/.installed" 2>/dev/null)" != "$oldest" ]; then
    rm -rf "$folder"
    .venv/bin/python -m venv "$folder"
    packages=$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    .venv/bin/python -c 'import site; print(site.getsitepackages()[0])' >"$packages/newest.pth"
    # Whatever patch of it: the first of a minor release may never have been made.
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "transformers==$oldest.*"
    echo "$oldest" >"$folder/.installed"
fi
"$folder/bin/python" -c 'import transformers; print("transformers", transformers.__version__)'
PYTHONPATH=$PWD/src OMP_NUM_THREADS=1 "$folder/bin/python" -m pytest -n 2 --dist loadfile \
    tests/prefill tests/finetune tests/contract tests/cli/test_ask.py "$@"
