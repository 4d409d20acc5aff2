"""Real prose in five language families, from Debian packages: the text of the multilingual sweep.

    python benchmarks/multilingual_sweep/prepare.py

writes OUT/<family>/<language>.txt, UTF-8, one paragraph a line, in a shuffled but fixed order,
and beside OUT a provenance.json with every package's version, sha256 and licence and every
language's size. The two tables sources.csv and sizes.csv beside this script hold the same for the
record; the text itself stays on the machine. Needs apt and dpkg, installs nothing. Running it
again fetches only packages the mirror has renewed.

The languages of a family are deduplicated together, and against English: what a translation left
in English falls out there.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from extract import PackageError, extract
from fetch import Candidate, candidates, download, update_lists
from languages import FAMILIES, LANGUAGES, Language, normalise_locale
from prose import select, shuffled
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sources import SOURCES, Source

from apportion.errors import InputError
from apportion.files import atomic_write, write_text

HERE = Path(__file__).resolve().parent
# Part of the cached folders' names: raise it when extraction changes, and old ones go unused.
EXTRACTION = 2
SEED = 0
SMALLEST_FILE = 40_000  # bytes; a language with less is left out


def default_out() -> Path:
    """The text folder under $APPORTION_CACHE, or ~/.cache/apportion."""
    cache = os.environ.get("APPORTION_CACHE") or "~/.cache/apportion"
    return Path(cache).expanduser() / "multilingual-sweep" / "text"


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


def extracted_folder(work: Path, candidate: Candidate) -> Path:
    """Where the paragraphs of one version of a package are kept."""
    return work / "extracted" / f"{candidate.package}-{candidate.sha256[:12]}-v{EXTRACTION}"


def take_package(source: Source, candidate: Candidate, work: Path, keep: bool) -> str:
    """Fetch a package and keep its paragraphs, a file a language; done already: nothing to do."""
    folder = extracted_folder(work, candidate)
    if folder.is_dir():
        return candidate.package
    path = download(candidate, work / "packages")
    texts: dict[str, list[str]] = {}
    for language, paragraph in extract(path, source):
        if len(paragraph) >= LANGUAGES[language].shortest:
            texts.setdefault(language, []).append(paragraph)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        filled = Path(beside) / "filled"
        filled.mkdir()
        for language, paragraphs in texts.items():
            _write(filled / f"{language}.txt", paragraphs)
        filled.replace(folder)
    if not keep:
        path.unlink()
    return candidate.package


def take_all(
    sources: list[Source],
    found: dict[str, Candidate],
    work: Path,
    keep: bool,
    jobs: int,
    console: Console,
) -> None:
    """All packages, with progress; the first that fails stops the rest and is named."""
    columns = (
        TextColumn("packages"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(jobs) as pool:
        task = progress.add_task("", total=len(sources))
        tasks = [pool.submit(take_package, s, found[s.package], work, keep) for s in sources]
        try:
            for done in as_completed(tasks):
                progress.update(task, advance=1, description=done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def paragraphs_of(language: Language, folders: list[Path]) -> list[str]:
    """Every paragraph extracted for a language, package after package."""
    paragraphs: list[str] = []
    for folder in folders:
        path = folder / f"{language.code}.txt"
        if path.is_file():
            paragraphs += path.read_text(encoding="utf-8").split("\n")[:-1]
    return paragraphs


def write_family(
    family: str, folders: list[Path], english: list[str], seen_english: set[bytes], out: Path
) -> list[dict[str, str | int]]:
    """The family's files; returns a row of sizes for each language."""
    seen = set(seen_english)
    rows: list[dict[str, str | int]] = []
    for language in (language for language in LANGUAGES.values() if language.family == family):
        kept = (
            english
            if language.code == "en"
            else select(paragraphs_of(language, folders), language, seen)
        )
        size = sum(len(paragraph.encode()) + 1 for paragraph in kept)
        if size < SMALLEST_FILE:
            continue
        _write(out / family / f"{language.code}.txt", shuffled(kept, language, SEED))
        characters = sum(len(paragraph) + 1 for paragraph in kept)
        rows.append(
            {
                "family": family,
                "language": language.code,
                "bytes": size,
                "characters": characters,
                "paragraphs": len(kept),
            }
        )
    wanted = {f"{row['language']}.txt" for row in rows}
    for stale in (out / family).glob("*.txt"):
        if stale.name not in wanted:
            stale.unlink()
    return rows


def write_tables(
    rows: list[dict[str, str | int]], packages: list[dict[str, str]], folder: Path
) -> None:
    """sizes.csv and sources.csv."""
    for name, table in (("sizes.csv", rows), ("sources.csv", packages)):
        with atomic_write(folder / name) as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)


def _needed(families: list[str]) -> list[Source]:
    """Sources that can hold text of the families, or English; a source per locale names its own."""
    needed = []
    for source in SOURCES:
        locale = source.package.removeprefix("libreoffice-help-").removeprefix("libreoffice-l10n-")
        locale = locale.removeprefix("firefox-esr-l10n-").removeprefix("gimp-help-")
        code = normalise_locale(locale.removeprefix("manpages-").removesuffix("-dev"))
        if code is None or code == "en" or LANGUAGES[code].family in families:
            needed.append(source)
    return needed


def prepare(
    families: list[str], out: Path, keep: bool, jobs: int, console: Console
) -> dict[str, object]:
    """Fetch, extract and write everything; returns the provenance."""
    work = out.parent
    update_lists()
    sources = _needed(families)
    found = candidates([source.package for source in sources])
    missing = [source.package for source in sources if source.package not in found]
    if missing:
        console.print(f"[yellow]the mirror lacks {', '.join(missing)}: going on without")
    sources = [source for source in sources if source.package in found]
    if not sources:
        raise PackageError(
            "the mirror has none of the packages: Debian 12 (bookworm) has all of them"
        )
    take_all(sources, found, work, keep, jobs, console)
    folders = [extracted_folder(work, found[source.package]) for source in sources]
    seen_english: set[bytes] = set()
    english = select(paragraphs_of(LANGUAGES["en"], folders), LANGUAGES["en"], seen_english)
    rows: list[dict[str, str | int]] = []
    for family in families:
        rows += write_family(family, folders, english, seen_english, out)
        total = sum(int(row["bytes"]) for row in rows if row["family"] == family)
        console.print(f"{family}: {total / 1e6:.1f} MB")
    packages = [
        {"package": c.package, "version": c.version, "sha256": c.sha256, "licence": source.licence}
        for source, c in ((source, found[source.package]) for source in sources)
    ]
    provenance: dict[str, object] = {"seed": SEED, "packages": packages, "sizes": rows}
    _write(work / "provenance.json", [json.dumps(provenance, indent=1)])
    if list(families) == list(FAMILIES):
        write_tables(rows, packages, HERE)
    return provenance


def main() -> int:
    """Command line; 0 fine, 1 a package or the mirror fails, 2 usage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=default_out(), help="default: %(default)s")
    parser.add_argument("--families", default=",".join(FAMILIES), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="packages at a time (default: 2)")
    parser.add_argument(
        "--keep-packages", action="store_true", help="keep the .deb files (about 0.8 GB)"
    )
    parser.add_argument("--json", action="store_true", help="print the provenance as JSON")
    arguments = parser.parse_args()
    families = [name.strip() for name in arguments.families.split(",")]
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        parser.error(
            f"--families takes some of {','.join(FAMILIES)}; unknown: {', '.join(unknown)}"
        )
    console = Console(stderr=True)
    if shutil.which("dpkg-deb") is None:
        console.print("[red]dpkg-deb is not installed: run this on Debian or Ubuntu")
        return 1
    try:
        provenance = prepare(
            families, arguments.out, arguments.keep_packages, arguments.jobs, console
        )
    except (PackageError, InputError, OSError) as error:
        console.print(f"[red]{error}", highlight=False)
        return 1
    if arguments.json:
        print(json.dumps(provenance, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
