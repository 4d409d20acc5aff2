"""What a scorer sees of one layer after one chunk, and what it says about it.

After a step's own attention the layer holds old memory and chunk; the scorer says how much each
entry is worth keeping, for each key head. Larger means more. Who is kept is decided by the caller,
who knows how many; sinks it always keeps and padding it never does, whatever their scores.

Attention is calculated again from the queries that a scorer needs, a few rows at a time, so that
never more than `BLOCK` probabilities exist at once; they take the place of their scores.
Refused: taking the model's own attention, which would forbid fused attention and hold a square.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from apportion.errors import InputError

BLOCK = 2**21
"""Probabilities in a block, over all heads and samples; one row of queries where that is more."""

Observes = Literal["none", "window", "chunk"]


@dataclass(frozen=True)
class View:
    """One layer at one step, after the step's own attention; entries in the order of the text,
    padding before or behind it.

    Attributes:
        queries: rows of the chunk that observe, rotated, heads that share a key head together; None
            where the scorer observes none.
        keys, values: old memory, then the chunk; keys rotated to where the step saw them.
        memory: how many of the entries are old memory.
        budget: how many entries will be kept, sinks not among them.
        scaling, softcap: of the attention scores; `softcap` 0: none.
        real: False for padding.
        first_row: row of the chunk of the first observing query. Row r of the chunk sees old memory
            and the chunk's rows up to r.
        order: of the entries in the text, any increasing numbers; heads remember different ones.
        carried: sums that the scorer kept for each entry from earlier steps, zero for new ones.
        generator: for scorers that draw.
        questions: queries of the user's questions, placed after the chunk: they see every entry.
        sinks: so many of the first real entries are kept anyway.
    """

    queries: Float[Tensor, "batch keyheads group rows size"] | None
    keys: Float[Tensor, "batch keyheads entries size"]
    values: Float[Tensor, "batch keyheads entries valuesize"]
    memory: int
    budget: int
    scaling: float
    softcap: float
    real: Bool[Tensor, "batch entries"]
    first_row: int
    order: Int[Tensor, "batch keyheads entries"]
    carried: Mapping[str, Float[Tensor, "batch keyheads entries"]]
    generator: torch.Generator
    questions: Float[Tensor, "batch keyheads group questionrows size"] | None = None
    sinks: int = 0

    @property
    def chunk(self) -> int:
        """Rows of the chunk."""
        return self.keys.shape[2] - self.memory

    @cached_property
    def padded(self) -> bool:
        """Whether any entry is padding."""
        return not bool(self.real.all())


@dataclass(frozen=True)
class Scores:
    """What a scorer says of one layer.

    Attributes:
        values: float32 and finite; those of padding mean nothing.
        keep: entries to keep whatever their score, fewer than the budget; None: no such.
        carried: the sums of `Scorer.carries`, this step included.
    """

    values: Float[Tensor, "batch keyheads entries"]
    keep: Bool[Tensor, "batch keyheads entries"] | None = None
    carried: Mapping[str, Float[Tensor, "batch keyheads entries"]] = field(default_factory=dict)


class Scorer(ABC):
    """A rule that says which entries are worth remembering.

    Attributes:
        name: as the user writes it.
        paper: where the rule comes from.
        observes: which of the chunk's queries it needs; `"window"`: the last `window`.
        window: rows of that window, fewer where the chunk is shorter.
        carries: names of the sums that it keeps for every entry from step to step.
        asks: whether it scores by the user's questions where there are any.
        remembers: False: nothing but sinks outlives a chunk.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    observes: Observes = "none"
    window: int = 64
    carries: tuple[str, ...] = ()
    asks: bool = False
    remembers: bool = True

    @abstractmethod
    def score(self, view: View) -> Scores:
        """Score old memory and chunk of one layer."""


def attention_blocks(
    view: View, queries: Float[Tensor, "batch keyheads group rows size"], first_row: int
) -> Iterator[Float[Tensor, "batch keyheads group block entries"]]:
    """Attention of some queries over all entries, a block of query rows at a time, in float32.

    Args:
        view: one layer.
        queries: of the chunk's rows from `first_row` on, or of questions after the chunk.
        first_row: `view.chunk` for questions.

    Yields:
        Probabilities; all zero in a row that is padding itself or sees nothing.
    """
    batch, heads, group, rows, _ = queries.shape
    step = block_rows(batch * heads * group, view.keys.shape[2])
    awake = asking(view, rows, first_row) if view.padded else None
    for start in range(0, rows, step):
        end = min(start + step, rows)
        # Nothing of a block is held here while it is looked at, or when the next one is made.
        yield _attention(
            view,
            queries[:, :, :, start:end],
            first_row + start,
            None if awake is None else awake[:, start:end],
        )


def block_rows(heads: int, entries: int) -> int:
    """Rows of queries that are looked at together, if there are as many.

    Args:
        heads: of queries, over all samples.
        entries: that they see.
    """
    return max(1, BLOCK // (heads * entries))


def _attention(
    view: View,
    queries: Float[Tensor, "batch keyheads group block size"],
    first_row: int,
    awake: Bool[Tensor, "batch block"] | None,
) -> Float[Tensor, "batch keyheads group block entries"]:
    """Attention of a block whose first row is `first_row`; `awake` where something is padded."""
    scores = _scores(view, queries)
    rows, entries = queries.shape[3], view.keys.shape[2]
    if awake is not None:  # padding may hold anything
        scores.nan_to_num_()
        sees = view.real[:, None, :] & awake[:, :, None]
        # Added: filling under a mask that all heads share takes twenty times as long.
        scores.add_(torch.where(sees, 0.0, float("-inf"))[:, None, None])
    # Old memory, and of the chunk what stands before the block, all of its rows see.
    hidden = view.memory + first_row + 1
    if hidden < entries:
        after = scores.new_full((rows, entries), float("-inf"))[:, hidden:].triu_()
        scores[..., hidden:].add_(after)
    attention = torch.softmax(scores, dim=-1, out=scores)
    # A padded row sees nothing; its shares are zero, not NaN.
    return attention if awake is None else attention.nan_to_num_(0.0)


def _scores(
    view: View, queries: Float[Tensor, "batch keyheads group block size"]
) -> Float[Tensor, "batch keyheads group block entries"]:
    batch, heads, group, block, size = queries.shape
    entries = view.keys.shape[2]
    # In bfloat16 the products of it are three times as fast, and as near as the model's own eager
    # attention; float16 could overflow.
    narrow = torch.bfloat16 if view.keys.dtype == torch.bfloat16 else torch.float32
    q = (queries.to(torch.float32) * view.scaling).to(narrow)
    q = q.reshape(batch, heads, group * block, size)
    scores = (q @ view.keys.to(narrow).transpose(2, 3)).to(torch.float32)
    if view.softcap > 0:
        scores.div_(view.softcap).tanh_().mul_(view.softcap)
    return scores.view(batch, heads, group, block, entries)


def asking(view: View, rows: int, first_row: int) -> Bool[Tensor, "batch rows"]:
    """Which query rows are not padding; those after the chunk never are."""
    own = view.real[:, view.memory + first_row : view.memory + first_row + rows]
    return functional.pad(own, (0, rows - own.shape[1]), value=True)


def received(
    view: View, queries: Float[Tensor, "batch keyheads group rows size"], first_row: int
) -> Float[Tensor, "batch keyheads entries"]:
    """Attention that each entry gets from some queries, summed over rows and grouped heads."""
    total = torch.zeros(view.order.shape, device=view.keys.device)
    for attention in attention_blocks(view, queries, first_row):
        total += attention.sum(dim=(2, 3))
        del attention  # before the next one is made
    return total


def highest(
    view: View, queries: Float[Tensor, "batch keyheads group rows size"], first_row: int
) -> Float[Tensor, "batch keyheads entries"]:
    """The most attention that each entry gets from one row of one head among some queries."""
    most = torch.zeros(view.order.shape, device=view.keys.device)
    for attention in attention_blocks(view, queries, first_row):
        torch.maximum(most, attention.amax(dim=(2, 3)), out=most)
        del attention  # before the next one is made
    return most


def seen_by(view: View, rows: int, first_row: int) -> Float[Tensor, "batch entries"]:
    """How many of the chunk's observing rows see each entry, padded rows not among them."""
    awake = asking(view, rows, first_row).to(torch.float32)
    # From this row on; nobody after the last.
    later = functional.pad(awake.flip(1).cumsum(1).flip(1), (0, 1))
    enters = torch.arange(view.keys.shape[2], device=awake.device) - view.memory - first_row
    return later[:, enters.clamp(0, rows)]


def newest(view: View, count: int) -> Bool[Tensor, "batch keyheads entries"]:
    """The last `count` real entries in the text."""
    if view.padded:
        behind = view.real.flip(1).cumsum(dim=1).flip(1)
        return (view.real & (behind <= count))[:, None, :].expand(view.order.shape)
    keep = torch.zeros_like(view.order, dtype=torch.bool)
    keep[:, :, max(0, keep.shape[2] - count) :] = True
    return keep


def recent(view: View, window: int) -> Bool[Tensor, "batch keyheads entries"]:
    """The newest entries, at most half of what will be kept.

    Half, since while memory grows a whole window may be all there is room for, and nothing but
    recent text would get through.
    """
    return newest(view, min(window, view.budget // 2))


def sunk(view: View) -> Bool[Tensor, "batch keyheads entries"]:
    """The sinks among the entries."""
    if view.padded:
        first = view.real & (view.real.cumsum(dim=1) <= view.sinks)
        return first[:, None, :].expand(view.order.shape)
    found = torch.zeros_like(view.order, dtype=torch.bool)
    found[:, :, : view.sinks] = True
    return found


@dataclass(frozen=True)
class Pooling:
    """Scores spread to neighbours in the text, over old memory and chunk alike.

    A question attends to the phrase that it repeats; the answer beside it is remembered only where
    the pool is wide enough. Sinks and padding neither give nor take: a sink's huge attention would
    keep whatever stands behind it for good.

    Attributes:
        width: entries of a pool, odd; 1: none.
        kind: `"max"` or `"average"`.
    """

    width: int = 21
    kind: str = "max"

    def __post_init__(self) -> None:
        if self.width < 1 or self.width % 2 == 0:
            raise InputError(
                f"expected an odd width of the pool such as pool=21, or pool=1 for none; "
                f"got pool={self.width}"
            )
        if self.kind not in ("max", "average"):
            raise InputError(f"expected pooling='max' or 'average', got {self.kind!r}")

    def __call__(
        self, scores: Float[Tensor, "batch keyheads entries"], view: View
    ) -> Float[Tensor, "batch keyheads entries"]:
        """The pooled scores; sinks and padding keep theirs."""
        if self.width == 1:
            return scores
        # Padding and sinks stand at the ends, so the others' neighbours are those in the text.
        outside = sunk(view) | ~view.real[:, None, :] if view.padded else sunk(view)
        side = self.width // 2
        if self.kind == "max":
            pooled = functional.max_pool1d(
                scores.masked_fill(outside, float("-inf")), self.width, stride=1, padding=side
            )
        else:
            given = scores.masked_fill(outside, 0.0)
            pooled = functional.avg_pool1d(given, self.width, 1, side)
            inside = (~outside).to(scores.dtype)
            pooled = pooled / functional.avg_pool1d(inside, self.width, 1, side)
        return torch.where(outside, scores, pooled)
