"""`make demo`: from training runs to sampling ratios, a mini-sweep, fine-tuning, a long text read.

Every step is one command line, printed as it is carried out; output goes to `demo-output/`. The
runs are our own sweep over five language families, which comes with the package. The mini-sweep
trains four small models on text that every machine with Python and numpy has. Fine-tuning is that
of SmolLM2-135M on Python's manual: a few steps of each way to train it, side by side. At the end it
reads twice its own reach of that manual in bounded memory, and answers a question.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pandas as pd

from apportion.budget import format_count
from apportion.cli import run
from apportion.mixture import write_runs
from apportion.mixture.data import multilingual_supply, multilingual_sweep

OUT = Path("demo-output")
LAW = "transfer"
SIZE = "--params 2.4M --tokens 4M"
SHAPE, TOKENS = "64x1x2x168", 49_152
BYTES = 400_000
MIXTURES = {
    "even": (1 / 3, 1 / 3, 1 / 3),
    "english": (0.7, 0.15, 0.15),
    "python": (0.15, 0.7, 0.15),
    "c": (0.15, 0.15, 0.7),
}


def step(title: str, *lines: str) -> None:
    """Say what comes, then carry out command lines as a shell would."""
    print(f"\n\n=== {title}", flush=True)
    for line in lines:
        print(f"\n$ {line}\n", flush=True)
        code = run(shlex.split(line)[1:])
        if code:
            sys.exit(code)


def write_text(folder: Path) -> None:
    """Three kinds of real text: Python's manual, its library's source, numpy's C headers."""
    library = sorted(Path(os.__file__).parent.glob("*.py"))
    headers = sorted(Path(np.get_include()).rglob("*.h"))
    texts = {
        "english": "\n".join(topics[name] for name in sorted(topics)),
        "python": "\n".join(path.read_text("utf-8", errors="replace") for path in library[::3]),
        "c": "\n".join(path.read_text("utf-8", errors="replace") for path in headers),
    }
    for family, text in texts.items():
        (folder / family).mkdir(parents=True, exist_ok=True)
        (folder / family / "text.txt").write_text(text[:BYTES], encoding="utf-8")


def write_plan(path: Path) -> None:
    """One size, one budget, four mixtures."""
    rows = [
        {"run": name, "shape": SHAPE, "tokens": TOKENS, "seed": 0}
        | dict(zip(("ratio_english", "ratio_python", "ratio_c"), ratios, strict=True))
        for name, ratios in MIXTURES.items()
    ]
    pd.DataFrame(rows).to_csv(path, index=False)


def main() -> None:
    """The whole demo."""
    began = time.monotonic()
    OUT.mkdir(exist_ok=True)
    runs, supply = multilingual_sweep(), multilingual_supply()
    write_runs(runs, OUT / "runs.csv")
    supply.save(OUT / "supply.json")
    print(f"Our own sweep: {runs}")
    print("Text: " + ", ".join(f"{name} {format_count(n)} tokens" for name, n in supply.items()))

    step("1. Do the runs support the law?", f"apportion mixture diagnose {OUT}/runs.csv")
    step(
        "2. Fit the law that it names, with intervals",
        f"apportion mixture fit {OUT}/runs.csv --law {LAW} --bootstrap 200 -o {OUT}/fit.json",
    )
    step(
        "3. Which law predicts mixtures that it has not seen?",
        f"apportion mixture compare {OUT}/runs.csv --law family --law {LAW} --law chinchilla "
        "--holdout unseen-mixtures:0.2",
    )
    step(
        "4. Sampling ratios for a larger run",
        f"apportion mixture optimize {OUT}/fit.json {SIZE} --supply {OUT}/supply.json "
        f"--max-epochs 4 -o {OUT}/ratios.json",
        f"apportion mixture export {OUT}/ratios.json --to megatron "
        + " ".join(f"--path {family}=/data/{family}" for family in runs.families),
    )
    step(
        "5. The page",
        f"apportion mixture report {OUT}/fit.json {SIZE} --supply {OUT}/supply.json "
        f"--max-epochs 4 -o {OUT}/page.html",
    )

    write_text(OUT / "text")
    write_plan(OUT / "plan.csv")
    step(
        "6. A live sweep: four small models on three kinds of text from this machine",
        f"apportion mixture count {OUT}/text",
        f"apportion mixture sweep --data {OUT}/text --plan {OUT}/plan.csv --out {OUT}/mini.csv "
        "--vocab 512 --validation-tokens 8192 --no-compile",
    )
    mini = pd.read_csv(OUT / "mini.csv").set_index("run").loc[list(MIXTURES)]
    print("\nLoss in nats per token on held-out text (the more of a kind, the lower its loss):\n")
    print(mini.filter(like="loss_").to_string(float_format="{:.3f}".format))

    print("\n\n=== 7. Fine-tuning: what a step takes, and what it loses\n", flush=True)
    import demo_finetune

    demo_finetune.main()
    step(
        "8. The same before anything runs: what would fit?",
        f"apportion plan finetune {demo_finetune.smollm2.folder()} --full --batch 2 "
        "--length 256 --loss-share 0.2 --memory 3GB --rounds 1",
    )

    print("\n\n=== 9. A manual read in bounded memory, and a question about it\n", flush=True)
    import demo_prefill

    demo_prefill.main()
    print(f"\nDone in {time.monotonic() - began:.0f} s. The page: {(OUT / 'page.html').resolve()}")


if __name__ == "__main__":
    main()
