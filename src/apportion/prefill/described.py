"""Settings, scorers and traces as plain JSON, and back.

What comes back may have been forged, so everything is checked; whatever a check raises beside
`InputError`, the caller takes for damage.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from apportion.errors import InputError
from apportion.prefill.context import Step
from apportion.prefill.reader import Reader, Settings
from apportion.prefill.schedule import SCHEDULES, Schedule
from apportion.prefill.scorers import SCORERS, Scorer

_COUNTS = ("memory", "chunk", "sinks")
_MOST = 2**62


def plain_scorer(scorer: Scorer) -> dict[str, Any]:
    """Name and parameters of a scorer; of a class of the user's, where it is."""
    kind = type(scorer)
    if SCORERS.get(kind.name) is not kind:
        return {"name": scorer.name, "class": _place(scorer)}
    held: Any = scorer
    given: dict[str, Any] = {}
    for name in inspect.signature(kind).parameters:
        if name == "inner":
            value: Any = plain_scorer(held.inner)
        elif name in ("pool", "pooling"):
            value = held.pooling.width if name == "pool" else held.pooling.kind
        elif name == "window":
            # None where the whole chunk is it.
            value = held.window or None
        else:
            value = getattr(held, name)
        given[name] = value
    return {"name": scorer.name, **given}


def scorer_of(plain: Any, own: Scorer | None) -> Scorer:
    """The scorer that `plain_scorer` describes.

    Args:
        plain: its description.
        own: the reader's; a class of the user's is taken from there.

    Raises:
        InputError: a class that the reader has not, or parameters that are none.
    """
    if "class" in plain:
        if own is None or _place(own) != plain["class"]:
            raise InputError(
                f"expected a reader with the scorer that the context was read with, an object of "
                f"{plain['class']}; make the reader with one"
            )
        return own
    kind = SCORERS[plain["name"]]
    parameters = inspect.signature(kind).parameters
    given = {name: value for name, value in plain.items() if name != "name"}
    if given.keys() != parameters.keys():
        raise ValueError(f"parameters of {plain['name']}")
    if "inner" in given:
        given["inner"] = scorer_of(given["inner"], own)
    for name in ("window", "pool"):
        if given.get(name) is not None and whole(given[name]) < 1:
            raise ValueError(name)
    return kind(**given)


def plain_schedule(schedule: Schedule) -> dict[str, str]:
    """Name of a schedule; of a class of the user's, where it is."""
    if SCHEDULES.get(schedule.name) is type(schedule):
        return {"name": schedule.name}
    return {"name": schedule.name, "class": _place(schedule)}


def schedule_of(plain: Any, own: Schedule) -> Schedule:
    """The schedule that `plain_schedule` describes; arguments as for `scorer_of`.

    Raises:
        InputError: a class that the reader has not.
    """
    if "class" not in plain:
        return SCHEDULES[plain["name"]]()
    if _place(own) != plain["class"]:
        raise InputError(
            f"expected a reader with the schedule that the context was read with, an object of "
            f"{plain['class']}; make the reader with one"
        )
    return own


def plain_settings(settings: Settings) -> dict[str, Any]:
    """What a reader was asked for."""
    scorer: Any = settings.scorer
    return {
        **{field.name: getattr(settings, field.name) for field in fields(settings)},
        "schedule": plain_schedule(settings.schedule),
        "scorer": None if scorer is None else plain_scorer(scorer),
    }


def reader_of(
    plain: Mapping[str, Any], decided: Mapping[str, int | None], reader: Reader
) -> Reader:
    """The reader with the settings that `plain_settings` describes; itself where they are its own.

    Args:
        plain: memory and chunk are those that the budget has led to.
        decided: `Reader.given`.
        reader: with the model.

    Raises:
        InputError: settings that its model can't be read with.
    """
    own = reader.settings
    if plain == plain_settings(own) and decided == reader.given:
        return reader
    current: Any = own.scorer
    scorer, given = plain["scorer"], dict(plain)
    if given.keys() != {field.name for field in fields(own)}:
        raise ValueError("settings")
    for name in _COUNTS:
        whole(given[name])
    if type(given["seed"]) is not int or not -(2**63) <= given["seed"] < 2**64:
        raise ValueError("seed")
    given["schedule"] = schedule_of(plain["schedule"], own.schedule)
    given["scorer"] = None if scorer is None else scorer_of(scorer, current)
    other = Reader(reader.model, reader.tokenizer, **given)
    for name in ("memory", "chunk"):
        if decided[name] is not None and whole(decided[name]) < 1:
            raise ValueError(name)
    twin = copy.copy(reader)
    twin.settings, twin.given = other.settings, dict(decided)
    return twin


def plain_trace(trace: Sequence[Step], compressed: Sequence[int]) -> dict[str, list[Any]]:
    """A trace, a column for each figure."""
    return {
        "start": [step.start for step in trace],
        "tokens": [step.tokens for step in trace],
        "memory": [step.memory for step in trace],
        "retained": [[step.retained[layer] for layer in compressed] for step in trace],
        "seconds": [step.seconds for step in trace],
        "peak_bytes": [step.peak_bytes for step in trace],
        "memory_bytes": [step.memory_bytes for step in trace],
    }


def trace_of(plain: Mapping[str, Any], compressed: Sequence[int], layers: int) -> list[Step]:
    """The trace that `plain_trace` describes; at least one step."""
    columns = [plain[name] for name in ("start", "tokens", "memory", "retained", "seconds",
                                        "peak_bytes", "memory_bytes")]  # fmt: skip
    found: list[Step] = []
    at = 0
    for start, tokens, memory, retained, seconds, peak, held in zip(*columns, strict=True):
        if whole(start) != at or whole(tokens) < 1 or len(memory) != layers:
            raise ValueError("trace")
        at += tokens
        shares = dict(zip(compressed, map(finite, retained), strict=True))
        found.append(
            Step(
                start=start,
                tokens=tokens,
                memory=[whole(each) for each in memory],
                retained=shares,
                seconds=finite(seconds),
                peak_bytes=whole(peak),
                memory_bytes=whole(held),
            )
        )
    if not found:
        raise ValueError("trace")
    return found


def whole(value: Any) -> int:
    """A whole number, not negative, that fits 64 bits; ValueError otherwise."""
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} is no count")
    return value


def finite(value: Any) -> float:
    """A finite number, not negative; ValueError otherwise."""
    if type(value) not in (int, float) or not 0 <= value < _MOST or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _place(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
