"""Attention of a chunk over memory and itself, without a mask where none is needed.

Rows of a chunk see all of memory, and of the chunk what is not after them. A mask for that would be
chunk x (memory + chunk), and fused attention is slower with one. So the two parts are attended
separately, memory without a mask and the chunk causally, and merged by the logarithms of their
sums, as parts of one softmax are (Milakov & Gimelshein, 2018). Questions of the user stand after
the chunk: each sees memory, the whole chunk and its own rows, and nobody sees it.

Where a mask is needed (sliding windows), where scores are capped, and on devices whose fused
attention keeps its sums to itself, one mask over both parts is made instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

BLOCK = 2**22
"""Scores that are held at once where they are capped."""

_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # pyright: ignore


@dataclass(frozen=True)
class Entries:
    """Keys, rotated, and values.

    Attributes:
        real: False for padding; None: all are.
    """

    keys: Float[Tensor, "batch keyheads entries size"]
    values: Float[Tensor, "batch keyheads entries valuesize"]
    real: Bool[Tensor, "batch entries"] | None = None

    def __len__(self) -> int:
        return self.keys.shape[2]

    def is_real(self) -> Bool[Tensor, "batch entries"]:
        """`real`, also where all are."""
        if self.real is not None:
            return self.real
        return torch.ones(len(self.keys), len(self), dtype=torch.bool, device=self.keys.device)

    def followed(self, new: Entries) -> Entries:
        """These, then others."""
        real = None
        if self.real is not None or new.real is not None:
            real = torch.cat([self.is_real(), new.is_real()], dim=1)
        keys = torch.cat([self.keys, new.keys], dim=2)
        return Entries(keys, torch.cat([self.values, new.values], dim=2), real)

    def part(self, start: int, end: int) -> Entries:
        """The entries from `start` up to `end`, as views."""
        if start == 0 and end == len(self):
            return self
        real = None if self.real is None else self.real[:, start:end]
        return Entries(self.keys[:, :, start:end], self.values[:, :, start:end], real)


@dataclass(frozen=True)
class Rules:
    """What a layer's attention does to its scores.

    Attributes:
        scaling: factor of the scores.
        softcap: they are capped smoothly at; 0: not.
        window: entries that a row sees, itself among them; None: all before it.
    """

    scaling: float
    softcap: float = 0.0
    window: int | None = None


def attend(
    queries: Float[Tensor, "batch heads rows size"],
    seen: Sequence[Entries],
    chunk: Entries,
    rules: Rules,
    questions: Sequence[int] = (),
) -> Float[Tensor, "batch heads rows valuesize"]:
    """Attention of a chunk's rows, and of the questions' after them.

    Args:
        queries: rotated; heads that share a key head are neighbours.
        seen: what every row sees (within the window), in the order of the text; none may be empty.
        chunk: one entry a row.
        rules: of the layer.
        questions: rows of each question; they are the last rows.

    Returns:
        What the rows gather. A padded row sees itself and real entries: its numbers mean nothing.
    """
    whole = sum(map(len, seen)) + len(chunk)
    windowed = rules.window is not None and rules.window < whole
    same = chunk.keys.shape[3] == chunk.values.shape[3]
    if queries.device.type == "cpu" and same and not windowed and not rules.softcap:
        return _in_parts(queries, seen, chunk, rules.scaling, questions)
    return _masked(queries, seen, chunk, rules, questions)


def _in_parts(
    queries: Tensor,
    seen: Sequence[Entries],
    chunk: Entries,
    scaling: float,
    questions: Sequence[int],
) -> Tensor:
    rows = queries.shape[2] - sum(questions)
    text = chunk.part(0, rows)
    parts = [_causal(queries[:, :, :rows] if questions else queries, text, scaling)]
    start = rows
    for count in questions:
        asked = slice(start, start + count)
        own = _causal(queries[:, :, asked], chunk.part(start, start + count), scaling)
        parts.append(_merge(own, _open(queries[:, :, asked], text, scaling)))
        start += count
    found = parts[0]
    if questions:
        found = (torch.cat([x for x, _ in parts], 2), torch.cat([y for _, y in parts], 2))
    for part in seen:
        found = _merge(found, _open(queries, part, scaling))
    return found[0]


# What rows gather, and the logarithm of the sum that it was divided by.
Part = tuple[Float[Tensor, "batch heads rows size"], Float[Tensor, "batch heads rows"]]


def _causal(queries: Tensor, own: Entries, scaling: float) -> Part:
    if own.real is None:
        return _fused(queries, own.keys, own.values, 0.0, True, scale=scaling)
    sees = torch.ones(len(own), len(own), dtype=torch.bool, device=queries.device).tril()
    sees = sees & (own.real[:, None, :] | torch.eye(len(own), dtype=torch.bool))
    bias = _bias(sees[:, None], queries)
    return _fused(queries, own.keys, own.values, 0.0, False, attn_mask=bias, scale=scaling)


def _open(queries: Tensor, seen: Entries, scaling: float) -> Part:
    """Every row sees every real entry."""
    bias = None
    if seen.real is not None:
        bias = _bias(seen.real[:, None, None, :], queries)
        bias = bias.expand(-1, 1, queries.shape[2], -1)
    found, log = _fused(queries, seen.keys, seen.values, 0.0, False, attn_mask=bias, scale=scaling)
    if seen.real is not None:
        # The kernel says 0 where nothing was seen.
        log = log.masked_fill(~seen.real.any(dim=1)[:, None, None], float("-inf"))
    return found, log


def _merge(a: Part, b: Part) -> Part:
    """Two parts of one softmax; each row of `a` has seen something."""
    (x, log_x), (y, log_y) = a, b
    share = torch.sigmoid(log_y - log_x)[..., None]
    found = torch.lerp(x.float(), y.float(), share.float()).to(x.dtype)
    return found, torch.logaddexp(log_x, log_y)


def _bias(sees: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(sees.shape, dtype=like.dtype).masked_fill_(~sees, float("-inf"))


def _masked(
    queries: Tensor,
    seen: Sequence[Entries],
    chunk: Entries,
    rules: Rules,
    questions: Sequence[int],
) -> Tensor:
    keys = torch.cat([*(part.keys for part in seen), chunk.keys], dim=2)
    values = torch.cat([*(part.values for part in seen), chunk.values], dim=2)
    sees = visible(seen, chunk, rules.window, questions)
    if rules.softcap:
        return _capped(queries, keys, values, sees, rules)
    group = queries.shape[1] // keys.shape[1]
    return functional.scaled_dot_product_attention(
        queries,
        keys.repeat_interleave(group, dim=1),
        values.repeat_interleave(group, dim=1),
        attn_mask=sees[:, None],
        scale=rules.scaling,
    )


def _capped(queries: Tensor, keys: Tensor, values: Tensor, sees: Tensor, rules: Rules) -> Tensor:
    """Blocks of rows, in float32."""
    batch, heads, rows, size = queries.shape
    kept, entries = keys.shape[1:3]
    group = heads // kept
    grouped = queries.view(batch, kept, group, rows, size)
    out = queries.new_empty(batch, kept, group, rows, values.shape[3])
    step = block_rows(batch * heads, entries)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        scores = grouped[:, :, :, part].float() @ keys[:, :, None].float().transpose(3, 4)
        scores = torch.tanh(scores * (rules.scaling / rules.softcap)) * rules.softcap
        scores.masked_fill_(~sees[:, None, None, part], float("-inf"))
        out[:, :, :, part] = torch.softmax(scores, dim=-1).to(values.dtype) @ values[:, :, None]
        del scores  # before the next ones are made
    return out.view(batch, heads, rows, -1)


def block_rows(heads: int, entries: int) -> int:
    """Rows whose capped scores are held together, if there are as many.

    Args:
        heads: of queries, over all samples.
        entries: that they see.
    """
    return max(1, BLOCK // (heads * entries))


def visible(
    seen: Sequence[Entries],
    chunk: Entries,
    window: int | None = None,
    questions: Sequence[int] = (),
) -> Bool[Tensor, "batch rows entries"]:
    """What each row of a chunk sees of what came before and of the chunk, as `attend` has it."""
    device = chunk.keys.device
    held, rows = sum(map(len, seen)), len(chunk)
    # Which question a row belongs to, 0 for the text, and where it stands in what it sees.
    text = rows - sum(questions)
    owner = torch.zeros(rows, dtype=torch.int64, device=device)
    place = torch.arange(rows, device=device)
    start = text
    for number, count in enumerate(questions, 1):
        owner[start : start + count] = number
        place[start : start + count] = text + torch.arange(count, device=device)
        start += count
    own = (owner[:, None] == owner) | (owner == 0)
    own = own & (place[:, None] >= place)
    old = torch.ones(rows, held, dtype=torch.bool, device=device)
    if window is not None:
        own = own & (place[:, None] - place < window)
        old = place[:, None] + held - torch.arange(held, device=device) < window
    own, old = own[None], old[None]
    if chunk.real is not None:
        own = own & (chunk.real[:, None, :] | torch.eye(rows, dtype=torch.bool, device=device))
    if any(part.real is not None for part in seen):
        old = old & torch.cat([part.is_real() for part in seen], dim=1)[:, None, :]
    batch = max(len(own), len(old))
    return torch.cat([old.expand(batch, -1, -1), own.expand(batch, -1, -1)], dim=2)
