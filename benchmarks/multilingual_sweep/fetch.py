"""Packages from the configured Debian mirror, checked by sha256; nothing is installed."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from extract import PackageError


@dataclass(frozen=True)
class Candidate:
    """What the mirror would deliver for a package now."""

    package: str
    version: str
    sha256: str
    size: int


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackageError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def update_lists() -> None:
    """Refresh the mirror's package lists.

    Raises
    ------
    PackageError
        When apt is absent, or the lists cannot be fetched.
    """
    if shutil.which("apt-get") is None:
        raise PackageError(
            "apt-get is not installed: run this on Debian or Ubuntu (a container does)"
        )
    _run(["apt-get", "update", "-qq"])


def candidates(packages: list[str]) -> dict[str, Candidate]:
    """The mirror's version of each package; packages it lacks are absent from the answer."""
    found: dict[str, Candidate] = {}
    command = ["apt-cache", "show", "--no-all-versions", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for stanza in done.stdout.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|SHA256|Size): (\S+)$", stanza, re.M))
        if len(fields) == 4:
            found[fields["Package"]] = Candidate(
                fields["Package"], fields["Version"], fields["SHA256"], int(fields["Size"])
            )
    return found


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(candidate: Candidate, folder: Path) -> Path:
    """The package in `folder`, fetched unless a file with the right sha256 is there already.

    Raises
    ------
    PackageError
        When the download fails or its sha256 is not the mirror's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{candidate.package}_*.deb"
    for path in sorted(folder.glob(pattern)):
        if path.stat().st_size == candidate.size and sha256_of(path) == candidate.sha256:
            return path
        path.unlink()
    _run(["apt-get", "download", f"{candidate.package}={candidate.version}"], folder)
    for path in folder.glob(pattern):
        if sha256_of(path) == candidate.sha256:
            return path
    raise PackageError(f"{candidate.package} {candidate.version}: the download has another sha256")
