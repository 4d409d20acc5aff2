"""Write constraints.txt: the exact version of everything that the extra `dev` installs here.

Run it in the environment whose versions are to be kept: `make constraints`. Packages that happen to
be installed but that nothing of ours requires are left out.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("dev", "ray", "finetune", "prefill", "bench")
# pip's own tools come with the environment, not with the package.
LEFT_OUT = {"pip", "setuptools", "wheel"}


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(
    name: str, extras: frozenset[str], found: dict[str, str], seen: set[tuple[str, frozenset[str]]]
) -> None:
    """Add what `name[extras]` requires here, and what that requires, to `found`."""
    key = (normalise(name), extras)
    if key in seen:
        return
    seen.add(key)
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return  # an extra that is not installed here keeps its range from pyproject.toml
    # The local part (+cpu) names one build; a constraint must admit the others.
    found[normalise(name)] = installed.version.split("+")[0]
    for line in installed.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in (*extras, "")):
            closure(requirement.name, frozenset(requirement.extras), found, seen)


def main() -> None:
    # From the file, not from the installed metadata, which is as old as the last installation.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    for line in lines:
        requirement = Requirement(line)
        if normalise(requirement.name) == "apportion":
            lines.extend(line for extra in requirement.extras for line in extras[extra])
        else:
            closure(requirement.name, frozenset(requirement.extras), found, seen)
    lines = [f"{name}=={found[name]}" for name in sorted(found) if name not in LEFT_OUT]
    text = "# Written by `make constraints`; the versions that the tests last passed with.\n"
    (ROOT / "constraints.txt").write_text(text + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"constraints.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
