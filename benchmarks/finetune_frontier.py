"""Where a sparse backward pays: its gradient beside that of fewer samples, by the share with loss.

Whoever wants steps of half the time can train on half the samples instead; a sparse backward has to
beat that. For shares of tokens with loss from a few to all, the cosine to the exact gradient of the
batch is taken for sparse backwards and for the exact gradients of a part of the samples. The
latter's cosine at the sparse backward's own time (as measured by finetune_modes.py) is read off
between whole numbers of samples. The largest share at which both keep ratios win is what
`settings.SPARSE_UP_TO` says.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import numpy as np
import torch

from finetune_setup import attached, cosine, layer_gradient, load, once, samples
from harness import arguments, newest, record, show

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
KEEPS = (0.25, 0.5)


def times_of_plain() -> dict[str, float]:
    """The sparse sides' time, by the last run of finetune_modes.py."""
    rows = newest("finetune_modes", "data", "side")
    return {
        row["side"]: float(row["time_of_plain"])
        for row in rows
        if row["data"] == "completions" and row["time_of_plain"]
    }


def cosines(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, float]:
    """Of every side, to the gradient of the whole batch."""
    batch = len(inputs["input_ids"])
    found: dict[str, float] = {}
    # Samples have as many labels each, so a part's gradient is the mean of its samples'.
    parts = [torch.zeros(0)] * batch
    for k in range(batch):
        once(model, {name: x[k : k + 1] for name, x in inputs.items()}, "plain")
        gradient = layer_gradient(model)
        parts[k] = gradient if k == 0 else parts[k - 1] + gradient
    for count, gradient in enumerate(parts, 1):
        found[f"fewer {count}"] = cosine(gradient, parts[-1])
    for keep in KEEPS:
        with attached(model, f"sparse {keep}"):
            once(model, inputs, "sparse")
        found[f"sparse {keep}"] = cosine(layer_gradient(model), parts[-1])
    return found


def main() -> None:
    """Measure, show and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--batch", type=int, default=4)
        parser.add_argument("--length", type=int, default=256)

    options = arguments(__doc__, rounds=3, add=add)
    times = times_of_plain()
    model, tokenizer = load()
    rows = []
    for share in SHARES:
        labelled = max(1, round(share * options.length))
        every = [
            cosines(model, samples(tokenizer, options.batch, options.length, labelled, seed))
            for seed in range(options.rounds)
        ]
        middle = {side: statistics.median(found[side] for found in every) for side in every[0]}
        row: dict[str, Any] = {"share": share, "batches": options.rounds}
        row |= {side: round(value, 4) for side, value in middle.items()}
        counts = range(1, options.batch + 1)
        for keep in KEEPS:
            time = times[f"sparse {keep}"]
            equal = np.interp(time * options.batch, counts, [middle[f"fewer {c}"] for c in counts])
            row[f"fewer at time of {keep}"] = round(float(equal), 4)
            row[f"gain {keep}"] = round(middle[f"sparse {keep}"] - float(equal), 4)
        rows.append(row)
        show([row])
        sys.stdout.flush()
    pays = [r["share"] for r in rows if all(r[f"gain {keep}"] > 0 for keep in KEEPS)]
    print(f"both sparse backwards beat fewer samples of equal time up to {max(pays, default=0)}")
    if not options.dry:
        print(record("finetune_frontier", rows))


if __name__ == "__main__":
    main()
