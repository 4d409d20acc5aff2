"""Who may import whom, what an import costs, and what the source never does."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from source_rules import MAX_FILE_LINES, MAX_FUNCTION_LINES, extras, modules, required, violations

MODULES = modules()

# A module, a line of it, and what must be said about it.
FORBIDDEN = [
    ("apportion.mixture.fit", "from apportion.finetune import plan", "may not import"),
    ("apportion.mixture.fit", "import apportion.cli", "may not import"),
    ("apportion.mixture.fit", "from apportion.report import page", "may not import"),
    ("apportion.report.page", "from apportion.mixture import fit", "may not import"),
    ("apportion.errors", "from apportion.files import write_text", "may not import"),
    ("apportion.budget", "from apportion import mixture", "may not import"),
    ("apportion.mixture.laws.x", "from apportion.mixture.laws.family import Family", "may not"),
    ("apportion.mixture.laws.x", "from apportion.mixture.laws import LAWS", "may not import"),
    ("apportion.mixture.laws.x", "from apportion.mixture.runs import RunTable", "may not import"),
    ("apportion.mixture.laws.base", "from apportion.mixture.laws.family import Family", "may not"),
    ("apportion.mixture.fit", "from . import runs", "write the full name"),
    ("apportion.mixture.laws.x", "import pandas", "inside the function"),
    ("apportion.mixture.fit", "import torch", "belongs into"),
    ("apportion.mixture.fit", "def f():\n    import torch", "belongs into"),
    ("apportion.mixture.fit", "def f():\n    require('torch', 'sweep')", "belongs into"),
    ("apportion.mixture.plot", "import matplotlib.pyplot as plt", "inside the function"),
    ("apportion.execution.on_ray", "import ray", "inside the function"),
    ("apportion.mixture.sweep.train", "import transformers", "belongs into"),
    ("apportion.mixture.baseline", "from lightgbm import LGBMRegressor", "inside the function"),
    ("apportion.mixture.export", "import datasets", "inside the function"),
    ("apportion.mixture.export", "if True:\n    import datasets", "inside the function"),
    ("apportion.mixture.plot", "def f():\n    import jinja2", "belongs into"),
    ("apportion.budget", "import torch", "inside the function"),
    ("apportion", "import numpy", "inside the function"),
    ("apportion.cli.main", "import numpy", "inside the function"),
    ("apportion.files", "import pickle", "runs code"),
    ("apportion.files", "def f():\n    from dill import loads", "runs code"),
    ("apportion.mixture.fit", "x = eval('1')", "runs text as code"),
    ("apportion.mixture.fit", "exec('1')", "runs text as code"),
    ("apportion.mixture.fit", "pd.eval('1')", "runs text as code"),
    ("apportion.mixture.fit", "frame.query(text)", "runs text or data as code"),
    ("apportion.mixture.fit", "pd.read_pickle(path)", "runs text or data as code"),
    ("apportion.mixture.fit", "np.load(path, allow_pickle=True)", "must stay off"),
    ("apportion.mixture.sweep.train", "torch.load(path)", "weights_only"),
    ("apportion.mixture.sweep.train", "torch.load(path, weights_only=False)", "weights_only"),
    ("apportion.models", "load(name, trust_remote_code=True)", "must stay off"),
    ("apportion.models", "load(name, trust_remote_code=flag)", "must stay off"),
    ("apportion.mixture.export", "yaml.load(text)", "safe_load"),
    ("apportion.mixture.sweep.train", "subprocess.run(text, shell=True)", "must stay off"),
    ("apportion.files", "x = 1\n" * (MAX_FILE_LINES + 1), "at most"),
    ("apportion.files", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES, "fit a screen"),
]

ALLOWED = [
    (
        "apportion.cli.main",
        "import typer\nfrom apportion.mixture import fit\nimport apportion.report",
    ),
    (
        "apportion.mixture.fit",
        "from apportion.mixture.laws import LAWS\nimport numpy, scipy.optimize",
    ),
    ("apportion.mixture.fit", "from apportion.errors import InputError\nfrom apportion import x"),
    ("apportion.mixture.laws.x", "from apportion.mixture.laws.base import Law\nimport numpy as np"),
    ("apportion.mixture.plot", "def f():\n    plt = require('matplotlib.pyplot', 'plot')"),
    ("apportion.mixture.sweep.train", "import torch"),
    ("apportion.mixture.sweep.train", "torch.load(path, weights_only=True)\nmodel.eval()"),
    ("apportion.budget", "def f():\n    import torch"),
    ("apportion.mixture.plot", "if TYPE_CHECKING:\n    from matplotlib.figure import Figure"),
    ("apportion.report.page", "import jinja2\nload(name, trust_remote_code=False)"),
    ("apportion.prefill.cache", "import torch, transformers"),
    ("apportion.files", "def f():\n    '''" + "x\n" * 200 + "'''\n    return 1"),
]


@pytest.mark.parametrize(("name", "source", "said"), FORBIDDEN)
def test_rules_catch(name, source, said):
    found = violations(name, source)
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_rules_allow(name, source):
    assert violations(name, source) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_source_keeps_the_rules(name):
    assert violations(name, MODULES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_named_extras_bring_what_is_required(name):
    for module, extra in required(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        assert extra in extras(), f"{name} names the extra {extra!r}, which does not exist"
        assert module in {re.sub("-", "_", package) for package in extras()[extra]}


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded(imported: str, *unwanted: str) -> str:
    return fresh(f"import sys, {imported}; print(*sorted(set(sys.modules) & {set(unwanted)!r}))")


def test_import_loads_nothing_heavy():
    heavy = ("torch", "transformers", "scipy", "pandas", "numpy", "typer", "matplotlib")
    assert loaded("apportion", *heavy) == ""
    assert loaded("apportion, numpy", *heavy) == "numpy"  # the check itself can see one


@pytest.mark.parametrize("module", ["apportion.mixture", "apportion.mixture.laws", "apportion.cli"])
def test_mixture_and_command_line_load_neither_torch_nor_plots(module):
    optional = ("torch", "transformers", "matplotlib", "ray", "datasets", "lightgbm", "tokenizers")
    assert loaded(module, *optional) == ""


def test_import_takes_less_than_150_ms():
    code = (
        "import time; start = time.perf_counter(); import apportion; "
        "print(time.perf_counter() - start)"
    )
    # The least of several: what else the machine is doing only ever adds time.
    assert min(float(fresh(code)) for _ in range(7)) < 0.150


def test_capabilities_are_imported_when_used():
    code = (
        "import sys, apportion; before = 'apportion.mixture' in sys.modules; apportion.mixture; "
        "print(before, 'apportion.mixture' in sys.modules, 'mixture' in dir(apportion))"
    )
    assert fresh(code) == "False True True"
    assert fresh("import apportion; print(hasattr(apportion, 'nonsense'))") == "False"
