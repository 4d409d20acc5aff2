"""What a scorer sees of one layer after one chunk, and what it says about it.

After a step's own attention the layer holds old memory and chunk; the scorer says how much each
entry is worth keeping, for each key head. Larger means more. Who is kept is decided by the caller,
who knows how many; sinks it always keeps and padding it never does, whatever their scores.

Attention is calculated again from the queries that a scorer needs, a few rows at a time, so that
never more than `BLOCK` probabilities exist at once, and as many scores that they come from.
Refused: taking the model's own attention, which would forbid fused attention and hold a square.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from apportion.errors import InputError

BLOCK = 2**20
"""Probabilities in a block, over all heads and samples; one row of queries where that is more."""

PIECE = 512
"""Entries whose keys are widened to float32 at once."""

Observes = Literal["none", "window", "chunk"]


@dataclass(frozen=True)
class View:
    """One layer at one step, after the step's own attention.

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
    entries = view.keys.shape[2]
    step = block_rows(batch * heads * group, entries)
    # The chunk's row at which an entry comes into sight; old memory always is.
    enters = torch.arange(entries, device=view.keys.device) - view.memory
    awake = asking(view, rows, first_row)
    for start in range(0, rows, step):
        end = min(start + step, rows)
        at = torch.arange(first_row + start, first_row + end, device=enters.device)
        # Nothing of a block is held here while it is looked at, or when the next one is made.
        yield _attention(
            view,
            queries[:, :, :, start:end],
            view.real[:, None, :] & (enters <= at[:, None]) & awake[:, start:end, None],
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
    sees: Bool[Tensor, "batch block entries"],
) -> Float[Tensor, "batch keyheads group block entries"]:
    scores = _scores(view, queries)
    padded = not bool(view.real.all())
    if padded:  # which may hold anything
        scores.nan_to_num_()
    # Added: filling under a mask that all heads share takes twenty times as long.
    scores.add_(torch.where(sees, 0.0, float("-inf"))[:, None, None])
    attention = torch.softmax(scores, dim=-1)
    # A padded row sees nothing; its shares are zero, not NaN.
    return attention.nan_to_num_(0.0) if padded else attention


def _scores(
    view: View, queries: Float[Tensor, "batch keyheads group block size"]
) -> Float[Tensor, "batch keyheads group block entries"]:
    batch, heads, group, block, size = queries.shape
    entries = view.keys.shape[2]
    q = queries.to(torch.float32).reshape(batch, heads, group * block, size) * view.scaling
    scores = torch.empty(batch, heads, group * block, entries, device=q.device)
    for start in range(0, entries, PIECE):
        piece = slice(start, min(start + PIECE, entries))
        scores[..., piece] = q @ view.keys[:, :, piece].to(torch.float32).transpose(2, 3)
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
    return _end_of(view, count, largest=True)


def recent(view: View, window: int) -> Bool[Tensor, "batch keyheads entries"]:
    """The newest entries, at most half of what will be kept.

    Half, since while memory grows a whole window may be all there is room for, and nothing but
    recent text would get through.
    """
    return newest(view, min(window, view.budget // 2))


def sunk(view: View) -> Bool[Tensor, "batch keyheads entries"]:
    """The sinks among the entries."""
    return _end_of(view, view.sinks, largest=False)


def _end_of(view: View, count: int, largest: bool) -> Bool[Tensor, "batch keyheads entries"]:
    bound = torch.iinfo(view.order.dtype)
    last = bound.min if largest else bound.max
    real = view.real[:, None, :]
    order = view.order.masked_fill(~real, last)
    found = order.topk(min(count, order.shape[2]), dim=2, largest=largest).indices
    return torch.zeros_like(order, dtype=torch.bool).scatter_(2, found, True) & real


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
        pooled = view.real[:, None, :] & ~sunk(view)
        bound = torch.iinfo(view.order.dtype).min
        # In the order of the text, what is not pooled before everything.
        turn = view.order.masked_fill(~pooled, bound).argsort(dim=2, stable=True)
        x, inside = scores.gather(2, turn), pooled.gather(2, turn)
        side = self.width // 2
        if self.kind == "max":
            y = functional.max_pool1d(
                x.masked_fill(~inside, float("-inf")), self.width, stride=1, padding=side
            )
        else:
            y = functional.avg_pool1d(x * inside, self.width, 1, side)
            y = y / functional.avg_pool1d(inside.to(x.dtype), self.width, 1, side)
        return torch.empty_like(x).scatter_(2, turn, torch.where(inside, y, x))
