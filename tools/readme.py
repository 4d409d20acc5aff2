"""The README's commands and what they print.

    python tools/readme.py            carry out every command and write its output below it
    python tools/readme.py --check    only say what differs

A block marked ```console holds commands (`$ …`, continued by a backslash), each followed by its
output. Commands that start with `apportion` or `python` are carried out, in order, from the
project's root copied to a temporary folder; others (`make`, `pip`) are left alone. A line `…`
stands for lines that are left out: in --check it matches any number of them, and writing keeps what
it hides hidden as long as the lines around it still stand in the output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```console\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
WIDTH = "100"
# A number may differ by this much: other processors and libraries round otherwise.
RELATIVE = 0.02
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Command:
    """One command of a block: its lines, and the lines of output below it."""

    lines: tuple[str, ...]
    output: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The command as a shell takes it."""
        text = " ".join(line.rstrip("\\").strip() for line in self.lines)
        return shlex.split(text.removeprefix("$ "))

    @property
    def carried_out(self) -> bool:
        """Whether it is one of ours."""
        return self.words[0] in ("apportion", "python")


def commands(block: str) -> list[Command]:
    """The commands of a block."""
    found: list[tuple[list[str], list[str]]] = []
    open_command = False
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(([line], []))
            open_command = line.endswith("\\")
        elif open_command:
            found[-1][0].append(line)
            open_command = line.endswith("\\")
        else:
            found[-1][1].append(line)
    return [Command(tuple(lines), tuple(output)) for lines, output in found]


def carry_out(words: list[str], folder: Path) -> list[str]:
    """What a command prints on stdout, as lines; stderr is shown when it fails."""
    ours = ["-c", "from apportion.cli import main; main()"] if words[0] == "apportion" else []
    done = subprocess.run(
        [sys.executable, *ours, *words[1:]],
        cwd=folder,
        env={**os.environ, "COLUMNS": WIDTH},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)} left with {done.returncode}:\n{done.stderr}")
    return done.stdout.strip("\n").splitlines()


def agrees(shown: tuple[str, ...] | list[str], real: list[str]) -> bool:
    """Whether shown lines are the real ones; `…` matches any lines, numbers nearly agree."""
    lines = [line.rstrip() for line in shown if line.strip()]
    rest = [line.rstrip() for line in real if line.strip()]
    place = 0
    skipped = False
    for line in lines:
        if line.strip() == "…":
            skipped = True
            continue
        while place < len(rest) and not _same(line, rest[place]):
            if not skipped:
                return False
            place += 1
        if place == len(rest):
            return False
        place, skipped = place + 1, False
    return skipped or place == len(rest)


def _same(one: str, other: str) -> bool:
    # Runs of blanks follow the widths of numbers.
    texts = [" ".join(_NUMBER.sub("#", line).split()) for line in (one, other)]
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=False)
    return texts[0] == texts[1] and all(
        abs(float(a) - float(b)) <= RELATIVE * max(abs(float(a)), abs(float(b))) for a, b in pairs
    )


def renew(text: str, check: bool = False) -> tuple[str, list[str]]:
    """The README with real output, and the commands whose output was another."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in ("src", "examples", "benchmarks"):
            (folder / path).symlink_to(ROOT / path)

        def block(match: re.Match[str]) -> str:
            lines: list[str] = []
            for command in commands(match[1]):
                output = list(command.output)
                if command.carried_out:
                    real = carry_out(command.words, folder)
                    if not agrees(output, real):
                        wrong.append(shlex.join(command.words))
                        output = output if check else [*real, ""]
                lines += [*command.lines, *output]
            return "```console\n" + "\n".join(lines).rstrip("\n") + "\n```"

        return BLOCK.sub(block, text), wrong


def main() -> None:
    """Write or check."""
    path, check = ROOT / "README.md", "--check" in sys.argv
    text, wrong = renew(path.read_text(encoding="utf-8"), check)
    for command in wrong:
        print(f"{'differs' if check else 'renewed'}: {command}")
    if not check:
        path.write_text(text, encoding="utf-8")
    sys.exit(bool(wrong) and check)


if __name__ == "__main__":
    main()
