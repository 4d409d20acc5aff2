"""Arguments of the wrong kind in Python: one message with the right call, no riddle from inside.

In its own process, for the import hook of the tests would refuse these calls before our code.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CALLS = {
    'mx.fit("s3.csv")': 'read_runs("runs.csv")',
    'mx.diagnose("s3.csv")': 'read_runs("runs.csv")',
    'mx.compare("s3.csv")': 'read_runs("runs.csv")',
    'mx.fit(Path("s3.csv"))': "'s3.csv'",
    'mx.read_runs(["a.csv"])': "read_runs(*files)",
    "mx.fit(runs, None)": "expected a law out of",
    "mx.fit(runs, law=3)": "expected a law out of",
    'mx.fit(runs, bootstrap="20")': "a whole number as bootstrap, got '20'",
    "mx.fit(runs, bootstrap=20.5)": "a whole number as bootstrap, got 20.5",
    "mx.fit(runs, seed=None)": "a whole number as seed, got None",
    'mx.optimize("fit.json", 1e6, 1e7)': "expected a fit, got the path 'fit.json'",
    "fit.optimize(1e6, 1e7, floors=[.5])": 'floors={"romance": 0.1, …}',
    'fit.optimize(1e6, 1e7, caps="romance=.5")': "expected caps by family",
    "fit.optimize(1e6, 1e7, objective=None)": "expected an objective out of",
    'fit.predict(1e6, 1e7, "romance=1")': '{"romance": 0.6, "slavic": 0.4}',
    "fit.predict(1e6, 1e7, None)": "expected 5 ratios",
}
CODE = """
import json, sys
from pathlib import Path
import apportion.mixture as mx
from apportion.errors import InputError
from apportion.mixture.data import multilingual_sweep
runs = multilingual_sweep()
fit = mx.fit(runs)
said = {}
for call in json.load(sys.stdin):
    try:
        eval(call)
    except InputError as error:
        said[call] = str(error)
    except Exception as error:
        said[call] = repr(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What every call says."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(list(CALLS)),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("call", CALLS)
def test_the_right_call_is_said(said, call):
    assert CALLS[call] in said[call]
    assert said[call].startswith("expected ")
