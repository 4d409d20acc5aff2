"""In which order samples are trained on, and how they become a batch.

The order of a whole run is drawn once from the seed, so that a resumed run sees what it would have
seen. The batch with the longest sample comes first: if memory does not suffice, that shows at
step 0, not after an hour.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from apportion.finetune.encode import Sample
from apportion.finetune.tokens import IGNORED


def order(lengths: Sequence[int], items: int, batch: int, seed: int) -> Int[np.ndarray, " items"]:
    """Indices of the samples of a run, epoch after epoch, each in an order of its own.

    Args:
        lengths: tokens of each sample.
        items: how many samples the run takes.
        batch: samples of a batch.
        seed: of the run.
    """
    count = len(lengths)
    epochs = -(-items // count)
    drawn = [np.random.default_rng([seed, epoch]).permutation(count) for epoch in range(epochs)]
    found = np.concatenate(drawn)[:items]
    longest = int(np.argmax(np.asarray(lengths)[found]))
    start = longest // batch * batch
    # Whole batches change places; the last one, if short, gives its samples to the first.
    size = min(batch, items - start)
    first, later = found[:size].copy(), found[start : start + size].copy()
    found[:size], found[start : start + size] = later, first
    return found.astype(np.int64)


class Run(Dataset[Sample]):
    """The samples of a run in their order."""

    def __init__(self, samples: Sequence[Sample], indices: Int[np.ndarray, " items"]) -> None:
        self.samples = samples
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[int(self.indices[index])]


class Collate:
    """Samples as tensors, padded on the right to the longest."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, samples: list[Sample]) -> dict[str, Tensor]:
        """(batch, length) each: `input_ids`, `attention_mask`, `labels`."""
        shape = (len(samples), max(len(sample.ids) for sample in samples))
        ids = torch.full(shape, self.pad)
        mask = torch.zeros(shape, dtype=torch.int64)
        labels = torch.full(shape, IGNORED)
        for row, sample in enumerate(samples):
            own = torch.from_numpy(sample.ids.astype(np.int64))
            ids[row, : len(own)] = own
            mask[row, : len(own)] = 1
            for start, end in sample.spans:
                labels[row, start:end] = own[start:end]
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def place_of(samples: Sequence[Sample], ids: Sequence[int]) -> str | None:
    """Where the sample with these token ids stands."""
    wanted = np.asarray(ids)
    for sample in samples:
        if np.array_equal(sample.ids, wanted):
            return sample.where
    return None


def digest(samples: Sequence[Sample]) -> str:
    """A hash of what is trained on, whatever the files are called."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(sample.ids.astype("<i4").tobytes())
        found.update(json.dumps(sample.spans).encode())
    return found.hexdigest()
