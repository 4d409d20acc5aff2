"""A text of 16k tokens into a memory of 2k: Apportion beside kvpress, SnapKV on both sides.

    python benchmarks/peers/against_kvpress.py reads     time and bytes
    python benchmarks/peers/against_kvpress.py loss      of the 512 tokens after the text
    python benchmarks/peers/against_kvpress.py needle    found or not, questions known and unknown
    python benchmarks/peers/against_kvpress.py --summary

SmolLM2-135M-Instruct in bfloat16. kvpress reads the whole text in one forward and compresses each
layer's cache behind it, so questions can't be known to it; its pipeline asks as its authors wrote
it. `re-rotated` moves its keys to positions without gaps. Both keep 2,048 entries. Bytes are those
of live storages at the peak, beyond the weights, counted in a read of their own for the peers,
since counting takes time. Runs in an environment of its own, with versions that kvpress allows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import environment

PEER = "kvpress==0.5.5"
environment.inside("kvpress", "kvpress", PEER, extra="prefill")

import torch
import transformers
from kvpress import (  # pyright: ignore[reportMissingImports]
    KeyRerotationPress,
    SnapKVPress,
)

from apportion import prefill as pf
from apportion.meter import LiveStorages
from apportion.prefill.evaluation import loss_after
from apportion.prefill.evaluation.score import matches
from harness import ledger, record, show
from prefill_setup import NEW_TOKENS, cases, load, manual

NAME = "prefill_kvpress"
TOKENS, KEPT, SINKS, CHUNK, AHEAD = 16_384, 2048, 4, 1024, 512
PLAIN, PEER_SIDE, ROTATED = "plain prefill", "kvpress", "kvpress, re-rotated"
OURS, ASKED = "apportion", "apportion, question known"
KEYS = ("part", "tokens", "side", "trial")


def press(tokens: int, rotated: bool = False) -> Any:
    """What keeps 2,048 of so many entries."""
    snapkv = SnapKVPress(compression_ratio=1 - KEPT / tokens)
    return KeyRerotationPress(press=snapkv) if rotated else snapkv


def reader(scorer: str | None = "snapkv", **more: Any) -> pf.Reader:
    """Ours, which keeps as many, sinks among them."""
    return pf.Reader(*load(), memory=KEPT - SINKS, chunk=CHUNK, scorer=scorer, sinks=SINKS, **more)


def cached(ids: torch.Tensor, how: Any = None) -> Any:
    """A text in a cache of transformers, as kvpress' pipeline reads it."""
    model, cache = load()[0], transformers.DynamicCache()
    with torch.no_grad():
        if how is None:
            model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
        else:
            with how(model):
                model.model(input_ids=ids, past_key_values=cache)
    return cache


def text(count: int) -> torch.Tensor:
    """So many tokens of the manual, (1, count)."""
    return torch.tensor([load()[1](manual(), verbose=False)["input_ids"][:count]])


def reads(trials: int) -> None:
    """Time and bytes, sides in turn."""
    ids = text(TOKENS)

    def ours(**more: Any) -> Callable[[], int]:
        return lambda: reader(**more).read(ids).peak_bytes

    sides: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: cached(ids),
        PEER_SIDE: lambda: cached(ids, press(TOKENS)),
        OURS: ours(),
        "apportion, fixed memory": ours(schedule="fixed", chunks="fixed"),
    }
    for trial in range(trials):
        for side, run in sides.items():
            if seen("reads", TOKENS, side, trial):
                continue
            start = time.perf_counter()
            peak = run()
            seconds = time.perf_counter() - start
            if not isinstance(peak, int):
                del peak
                with LiveStorages() as meter:
                    run()
                peak = meter.peak
            note("reads", TOKENS, side, trial, seconds=round(seconds, 3), peak_bytes=peak)


def loss(trials: int) -> None:
    """Mean loss of the tokens that follow a text, in nats."""
    model, everything = load()[0], text(10**9)[0]
    step = (len(everything) - TOKENS - AHEAD) // max(1, trials - 1)
    for trial in range(trials):
        ids = everything[trial * step :][: TOKENS + AHEAD]
        before, ahead = ids[:TOKENS], ids[TOKENS:]

        def after_peer(rotated: bool, before: Any = before, ahead: Any = ahead) -> float:
            cache = cached(before[None], press(TOKENS, rotated))
            start = KEPT if rotated else TOKENS
            places = torch.arange(start, start + AHEAD)[None]
            with torch.no_grad():
                out = model(input_ids=ahead[None], past_key_values=cache, position_ids=places)
            logits = out.logits[0, :-1].float()
            return float(torch.nn.functional.cross_entropy(logits, ahead[1:]))

        def after_ours(before: Any = before, ahead: Any = ahead) -> float:
            context = reader().read(before[None])
            # Without the first token ahead, of which the other sides give no logits.
            whole, first = loss_after(context, ahead), loss_after(context, ahead[:1])
            return (whole * AHEAD - first) / (AHEAD - 1)

        for side, run in (
            (PEER_SIDE, lambda: after_peer(False)),
            (ROTATED, lambda: after_peer(True)),
            (OURS, after_ours),
        ):
            if not seen("loss", TOKENS, side, trial):
                note("loss", TOKENS, side, trial, value=round(run(), 5))


def needle(trials: int) -> None:
    """Whether an answer contains the number that a sentence in the text says."""
    model, tokenizer = load()
    pipe = transformers.pipeline("kv-press-text-generation", model=model, tokenizer=tokenizer)
    most = NEW_TOKENS["needle"]
    for tokens in (6144, TOKENS):
        depths = [(k + 0.5) / trials for k in range(trials)]
        for trial, case in enumerate(cases("needle", tokens, 1, depths, first=500)):
            given: Any = {"max_new_tokens": most, "max_context_length": 10**9}

            def peer(how: Any, case: Any = case, given: Any = given) -> str:
                return pipe(case.text, question="\n\n" + case.question, press=how, **given)[
                    "answer"
                ]

            def ours(known: bool, case: Any = case) -> str:
                context = reader(None).read(case.text, [case.question] if known else [])
                return context.ask(case.question, max_new_tokens=most).text

            for side, run in (
                (PEER_SIDE, lambda n=tokens: peer(press(n))),
                (ROTATED, lambda n=tokens: peer(press(n, True))),
                (OURS, lambda: ours(False)),
                (ASKED, lambda: ours(True)),
            ):
                if not seen("needle", tokens, side, trial):
                    found = matches(run(), case.answer)
                    note("needle", tokens, side, trial, value=int(found))


def seen(*key: Any) -> bool:
    """Whether the ledger has a row."""
    return any(tuple(row[k] for k in KEYS) == tuple(map(str, key)) for row in ledger(NAME))


def note(*key: Any, **found: Any) -> None:
    """A row into the ledger."""
    row = dict(zip(KEYS, key, strict=True))
    row |= {"seconds": "", "peak_bytes": "", "value": ""} | found
    row |= {"threads": torch.get_num_threads(), "peer": PEER}
    row["transformers"] = transformers.__version__
    print(*row.values(), flush=True)
    record(NAME, [row])


def summary() -> list[dict[str, Any]]:
    """Medians of time and bytes, means of loss and of needles found."""
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in ledger(NAME):
        groups.setdefault((row["part"], row["tokens"], row["side"]), []).append(row)
    out: list[dict[str, Any]] = []
    for (part, tokens, side), own in groups.items():
        line: dict[str, Any] = {"part": part, "tokens": tokens, "side": side, "trials": len(own)}
        for name in ("seconds", "peak_bytes"):
            values = [float(row[name]) for row in own if row[name]]
            line[name] = round(statistics.median(values), 3) if values else ""
        values = [float(row["value"]) for row in own if row["value"]]
        line["value"] = round(statistics.fmean(values), 4) if values else ""
        out.append(line)
    return out


def main() -> None:
    """Run what is missing of one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", nargs="*", choices=["reads", "loss", "needle", []])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trials", type=int, help="3 reads, 4 losses, 8 needles a length")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.summary:
        for part in options.part or ("reads", "loss", "needle"):
            run, trials = {"reads": (reads, 3), "loss": (loss, 4), "needle": (needle, 8)}[part]
            run(options.trials or trials)
    show(summary())


if __name__ == "__main__":
    main()
