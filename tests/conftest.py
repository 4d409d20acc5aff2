"""What every test runs under: checked shapes, no network, no display, bounded fuzzing.

The import hook must be in place before `apportion` is first imported, so it stands at the top.
"""

from __future__ import annotations

import os

import hypothesis
from jaxtyping import install_import_hook

install_import_hook("apportion", "typecheck.checked")

os.environ["MPLBACKEND"] = "Agg"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

pytest_plugins = ["fuzzing"]

# A slow or shared machine must not turn a right answer into a failure, and two runs of one commit
# must agree; only `make fuzz` looks for new examples.
slow = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "test", deadline=None, derandomize=True, database=None, suppress_health_check=slow
)
hypothesis.settings.register_profile(
    "fuzz", deadline=None, print_blob=True, suppress_health_check=slow
)
hypothesis.settings.load_profile("fuzz" if "APPORTION_FUZZ" in os.environ else "test")
