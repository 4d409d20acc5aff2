"""One set of sampling ratios in the form of several trainers.

    python examples/export_to_trainers.py [ratios.json]

The file is what `apportion mixture optimize … -o ratios.json` wrote, or {"romance": 0.3, …}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import apportion.mixture as mx
from apportion.errors import InputError

RATIOS = {"germanic": 0.2, "indic": 0.25, "romance": 0.2, "sino_tibetan": 0.15, "slavic": 0.2}


def main(path: str | None = None, out: str | Path = "trainers") -> None:
    """Write one file a trainer into `out`, and say which trainer refuses what."""
    ratios: Mapping[str, float] = RATIOS
    if path is not None:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        ratios = content.get("ratios", content)
    folder = Path(out)
    folder.mkdir(exist_ok=True)
    for trainer in mx.TRAINERS:
        try:
            text = mx.export(
                ratios,
                trainer,
                {family: f"/data/{family}" for family in ratios},
                tokens="20B",
                supply=dict.fromkeys(ratios, "10B"),
                max_epochs=4,
                sequence_length=4096,
                batch_tokens=4_194_304,
                # Share of tokens here, of examples there: documents of 800 tokens on average.
                tokens_per_example=dict.fromkeys(ratios, 800.0),
                out=folder / f"{trainer}.txt",
            )
        except InputError as error:
            print(f"{trainer}: refused, {error}")
        else:
            print(f"{trainer}: {len(text.splitlines())} lines in {folder / trainer}.txt")
            if trainer == "megatron":
                print(text)


if __name__ == "__main__":
    main(*sys.argv[1:2])
