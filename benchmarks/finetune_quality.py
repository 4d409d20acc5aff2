"""What each mode loses: eval loss after fine-tuning SmolLM2-135M, learning rate tuned per mode.

    python finetune_quality.py TASK        runs what is missing of a task, resumes after a kill
    python finetune_quality.py --summary   the table of what has been run

Tasks, all on real text: `language` adapts to another language (every token carries loss),
`completion` continues passages of a technical manual (at most a fifth of the tokens carry loss),
`classify` names the language family of a passage. Every mode takes the same batches in the same
order; `fewer` trains on a part of each, for equal time. Gradient checkpointing, and micro-batches
with it, have plain's gradient and share its runs. Full fine-tuning with AdamW, autocast to bfloat16
over float32 weights; the learning rate is chosen on seed 0 from three, then two more seeds are run
at it. One row a run. Several processes may run side by side, each with modes of its own.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apportion import finetune as ft
from finetune_setup import load, text
from harness import ledger, newest, record, show

PROSE = Path.home() / ".cache" / "apportion" / "multilingual-sweep" / "text"
STEPS, BATCH, LENGTH = 80, 4, 256
HELD_OUT = 48
RATES = (6e-5, 1.2e-4, 2e-4)
SPARSE: dict[str, Any] = {"rest": "4bit", "backward": "sparse"}
MODES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ladder 4bit": {"keep": 0.25, "rest": "4bit", "backward": "full"},
    "sparse 0.25": {**SPARSE, "keep": 0.25},
    "sparse 0.5": {**SPARSE, "keep": 0.5},
    # TokenTune's way: drawn, and nothing flows through what is dropped.
    "random 0.25": {"keep": 0.25, "rest": "drop", "backward": "sparse", "saliency": "random"},
    "published": {"keep": 0.25, "saliency": "published"},
}
# Samples of each batch: 2 of 4 take half of plain's time, as sparse 0.25 about does.
FEWER = {"fewer 2 of 4": 2, "fewer 3 of 4": 3}
COLUMNS = ("task", "mode", "rate", "seed", "steps", "batch", "length", "labelled")
NAME = "finetune_quality"


def pieces(tokenizer: Any, task: str) -> tuple[Tensor, Tensor]:
    """All samples of a task, (samples, length), and their labels; shuffled the same way always."""
    make = {"language": _language, "completion": _completion, "classify": _classify}[task]
    ids, labels = make(tokenizer)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(7))
    wanted = order[: HELD_OUT + STEPS * BATCH]
    if len(wanted) < HELD_OUT + STEPS * BATCH:
        # A small source is seen more than once; what is held out never is.
        more = order[HELD_OUT:].repeat(20)[: STEPS * BATCH]
        wanted = torch.cat([order[:HELD_OUT], more])
    return ids[wanted], labels[wanted]


def _rows(tokenizer: Any, prose: str, length: int) -> Tensor:
    ids = torch.tensor(tokenizer(prose)["input_ids"])
    return ids[: len(ids) // length * length].view(-1, length)


def _language(tokenizer: Any) -> tuple[Tensor, Tensor]:
    prose = (PROSE / "romance" / "fr.txt").read_text(encoding="utf-8")
    ids = _rows(tokenizer, prose[200_000:900_000], LENGTH)
    return ids, ids.clone()


def _completion(tokenizer: Any) -> tuple[Tensor, Tensor]:
    prompt = tokenizer("Continue this passage of the Python manual:\n")["input_ids"]
    ids = _rows(tokenizer, text(), LENGTH - len(prompt))
    ids = torch.cat([torch.tensor(prompt).expand(len(ids), -1), ids], dim=1)
    return ids, torch.where(torch.arange(LENGTH) >= LENGTH - LENGTH // 5, ids, -100)


def _classify(tokenizer: Any) -> tuple[Tensor, Tensor]:
    kept, labelled = [], []
    for family in sorted(path.name for path in PROSE.iterdir() if path.is_dir()):
        answer = tokenizer(f"\nFamily: {family.replace('_', '-')}")["input_ids"]
        prose = "".join(
            path.read_text(encoding="utf-8")[50_000:150_000]
            for path in sorted((PROSE / family).glob("*.txt"))
        )
        rows = _rows(tokenizer, prose, LENGTH - len(answer))[:400]
        ids = torch.cat([rows, torch.tensor(answer).expand(len(rows), -1)], dim=1)
        # Of the answer, what comes after "Family:" is to be predicted.
        kept.append(ids)
        labelled.append(torch.where(torch.arange(LENGTH) >= LENGTH - len(answer) + 3, ids, -100))
    return torch.cat(kept), torch.cat(labelled)


def train(task: str, mode: str, rate: float, seed: int, steps: int) -> dict[str, Any]:
    """One run; its row."""
    torch.manual_seed(seed)
    model, tokenizer = load()
    ids, labels = pieces(tokenizer, task)
    train_ids, train_labels = ids[HELD_OUT:], labels[HELD_OUT:]
    order = torch.randperm(len(train_ids), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min(1.0, (k + 1) / warm) * max(0.05, 1 - k / steps)
    )
    held_out = ids[:HELD_OUT], labels[:HELD_OUT]
    before = untrained(task, model, *held_out)
    settings = MODES.get(mode)
    handle = None if settings is None else ft.attach(model, **settings, seed=seed)
    samples = FEWER.get(mode, BATCH)
    start = time.perf_counter()
    for k in range(steps):
        rows = order[k * BATCH : k * BATCH + samples]
        ids, labels = train_ids[rows], train_labels[rows]
        if handle is None:
            loss = exact_loss(model, ids, labels)
        else:
            with autocast():
                loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - start
    if handle is not None:
        handle.detach()
    after = evaluate(model, *held_out)
    row: dict[str, Any] = dict(
        zip(COLUMNS, (task, mode, rate, seed, steps, BATCH, LENGTH), strict=False)
    )
    row["labelled"] = round(float((train_labels[:, 1:] != -100).float().mean()), 3)
    row |= {"eval_before": round(before, 5), "eval_after": round(after, 5)}
    return row | {"seconds": round(seconds, 1), "threads": torch.get_num_threads()}


def autocast() -> Any:
    """The precision of all runs."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def exact_loss(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    """Of the plain model, in chunks."""
    with autocast():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return ft.chunked_loss(hidden, labels, ft.Head(None, model.lm_head), autocast=autocast)


def evaluate(model: Any, ids: Tensor, labels: Tensor) -> float:
    """Mean loss of the held-out samples' labelled tokens."""
    model.eval()
    total = count = 0.0
    with torch.no_grad():
        for start in range(0, len(ids), 4):
            part, wanted = ids[start : start + 4], labels[start : start + 4]
            number = int((wanted[:, 1:] != -100).sum())
            loss = exact_loss(model, part, wanted)
            total, count = total + float(loss) * number, count + number
    model.train()
    return total / count


_UNTRAINED: dict[str, float] = {}


def untrained(task: str, model: Any, ids: Tensor, labels: Tensor) -> float:
    """The loss before any step: the same in every run of a task."""
    if task not in _UNTRAINED:
        _UNTRAINED[task] = evaluate(model, ids, labels)
    return _UNTRAINED[task]


def todo(task: str, modes: list[str], seeds: int) -> list[tuple[str, float, int]]:
    """What is missing: all rates on seed 0 of every mode, then the other seeds at the best."""
    found = {
        (r["mode"], float(r["rate"]), int(r["seed"])): float(r["eval_after"])
        for r in ledger(NAME)
        if r["task"] == task and int(r["steps"]) == STEPS
    }
    missing = [(m, rate, 0) for m in modes for rate in RATES if (m, rate, 0) not in found]
    if missing:
        return missing
    best = {m: min(RATES, key=lambda rate, m=m: found[m, rate, 0]) for m in modes}
    wanted = [(m, best[m], seed) for seed in range(1, seeds) for m in modes]
    return [entry for entry in wanted if entry not in found]


def summary() -> list[dict[str, Any]]:
    """Per task and mode: the best rate, and the reduction of the eval loss beside plain's."""
    rows, times = ledger(NAME), times_of_plain()
    out = []
    for task in dict.fromkeys(r["task"] for r in rows):
        of_task = [r for r in rows if r["task"] == task]
        plain, _ = _reductions(of_task, "plain")
        for mode in dict.fromkeys(r["mode"] for r in of_task):
            own, rate = _reductions(of_task, mode)
            shared = sorted(set(own) & set(plain))
            shares = [own[s] / plain[s] for s in shared]
            out.append(
                {
                    "task": task,
                    "mode": mode,
                    "rate": rate,
                    "tuned": set(RATES) <= _rates(of_task, mode),
                    "seeds": len(shares),
                    "reduction": round(sum(own.values()) / len(own), 4),
                    "of_plain": round(sum(shares) / len(shares), 4) if shares else "",
                    "lowest": round(min(shares), 4) if shares else "",
                    "highest": round(max(shares), 4) if shares else "",
                    # A variant takes the time of its mode.
                    "time_of_plain": round(times[mode.split(",")[0]], 3),
                }
            )
    return out


def times_of_plain() -> dict[str, float]:
    """Of every mode's step; runs share the machine, so their own times say nothing."""
    measured = {
        row["side"]: float(row["time_of_plain"])
        for row in newest("finetune_modes", "data", "side")
        if row["data"] == "completions" and row["time_of_plain"]
    }
    times = {mode: measured.get(mode, measured["sparse 0.25"]) for mode in MODES}
    # All layers of the published forward run on all rows, with a graph for the kept ones.
    return {**times, **{mode: count / BATCH for mode, count in FEWER.items()}}


def _rates(rows: list[dict[str, str]], mode: str) -> set[float]:
    return {float(r["rate"]) for r in rows if r["mode"] == mode and r["seed"] == "0"}


def _reductions(rows: list[dict[str, str]], mode: str) -> tuple[dict[int, float], float]:
    """Seed to reduction of the eval loss, at the rate that is best on seed 0; that rate."""
    own = [r for r in rows if r["mode"] == mode]
    first = [r for r in own if r["seed"] == "0"]
    if not first:
        return {}, 0.0
    rate = min(first, key=lambda r: float(r["eval_after"]))["rate"]
    found = {
        int(r["seed"]): float(r["eval_before"]) - float(r["eval_after"])
        for r in own
        if r["rate"] == rate
    }
    return found, float(rate)


def main() -> None:
    """Run what is missing, one row after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("task", nargs="?", choices=["language", "completion", "classify"])
    parser.add_argument("--modes", default=",".join([*MODES, *FEWER]), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="two runs of one thread are best")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.task is not None and not options.summary:
        modes = options.modes.split(",")
        while left := todo(options.task, modes, options.seeds):
            mode, rate, seed = left[0]
            print(f"{len(left)} to do; {options.task}: {mode} at {rate:g}, seed {seed}", flush=True)
            record(NAME, [train(options.task, mode, rate, seed, STEPS)])
    show(summary())


if __name__ == "__main__":
    main()
