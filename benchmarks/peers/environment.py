"""An environment of its own for every peer, made once: their requirements clash with ours.

Apportion runs in it too, from this checkout, with whatever versions the peer allows, so that all
sides of a comparison run in one process and take turns. The peer may want an older transformers
than Apportion promises to work with; what is compared is what works there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = Path.home() / ".cache" / "apportion" / "peers"
TORCH = "torch==2.13.0"
"""Asked for exactly: other requests fetch a build for GPUs of several gigabytes."""


def python(name: str, *requirements: str) -> Path:
    """The interpreter of an environment that has `requirements`; made where it is missing."""
    wanted = [TORCH, *requirements]
    mark = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()[:10]
    folder = HOME / f"{name}-{mark}"
    found = folder / "bin" / "python"
    if (folder / "whole").exists():
        return found
    print(f"installing {' '.join(wanted)} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    for some in (wanted[:1], wanted):
        subprocess.run([found, "-m", "pip", "install", "--quiet", *some], check=True)
    (folder / "whole").touch()
    return found


def needs(extra: str) -> list[str]:
    """What Apportion needs for an extra, but for transformers, whose version the peer decides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
    # The same of pandas: the benchmarks don't use what its newest releases changed.
    names = ("transformers", "torch", "pandas")
    return [line for line in wanted if not line.startswith(names)]


def inside(module: str, name: str, *requirements: str, extra: str) -> None:
    """Go on in the environment that has `module`: the script begins again there.

    Args:
        module: of the peer; where it can be found, this is the environment.
        name: of the environment.
        requirements: of the peer.
        extra: of Apportion that is used.
    """
    sys.path.insert(0, str(ROOT / "src"))
    if find_spec(module) is None:
        found = python(name, *requirements, *needs(extra))
        os.execv(found, [str(found), *sys.argv])
