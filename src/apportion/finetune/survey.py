"""Probes of every way to train, and the steps of the whole decoder that follow from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from apportion import models
from apportion.errors import InputError
from apportion.finetune import probe
from apportion.finetune.probe import Kind
from apportion.finetune.timeline import Moment, Place, Timeline, timeline
from apportion.finetune.trace import Trace
from apportion.finetune.ways import Way
from apportion.meter import meter_of

Progress = Callable[[float], None]


class Survey:
    """Probes of one model.

    Attributes:
        weights: bytes of the whole decoder's parameters and buffers.
        trained: bytes of its trainable parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        kinds: Sequence[Kind],
        length: int,
        loss_share: float,
        rounds: int,
        progress: Progress,
    ) -> None:
        self.model = model
        self.kinds = kinds
        self.length = length
        self.loss_share = loss_share
        self.rounds = rounds
        self.progress = progress
        self.weights, self.trained = probe.whole_bytes(model, kinds)
        self.largest = max(
            p.numel() * p.element_size() for p in model.parameters() if p.requires_grad
        )

    def timelines(
        self, ways: Sequence[Way], batch: int
    ) -> tuple[dict[str, Timeline], dict[str, str]]:
        """Every way's step, by name; the ways that the model refuses, and why.

        Raises:
            InputError: it refuses all.
        """
        inputs = probe.inputs_for(self.model, batch, self.length, self.loss_share)
        refused: dict[str, str] = {}
        runs: dict[tuple[str, int], list[Trace]] = {}
        steps, done = (self.rounds + 2) * len(ways) * len(self.kinds), 0
        with probe.undisturbed(self.model):
            # Ways take turns, so that a slow spell of the machine hits all of them.
            for turn in range(self.rounds + 2):
                for way in ways:
                    for number in range(len(self.kinds)):
                        if way.name not in refused:
                            try:
                                trace = self._probe(way, number, inputs, metered=turn == 1)
                            except InputError as error:
                                refused[way.name] = str(error)
                            else:
                                runs.setdefault((way.name, number), []).append(trace)
                        done += 1
                        self.progress(done / steps)
        if len(refused) == len(ways):
            raise InputError(refused[ways[0].name])
        found = {
            way.name: self._timeline([runs[way.name, k] for k in range(len(self.kinds))])
            for way in ways
            if way.name not in refused
        }
        return found, refused

    def largest_batch(self, way: Way, batch: int, budget: int) -> int:
        """The most samples with which a way fits, fewer than `batch`; 0: none."""
        low, high = 0, batch - 1
        with probe.undisturbed(self.model):
            while low < high:
                middle = (low + high + 1) // 2
                inputs = probe.inputs_for(self.model, middle, self.length, self.loss_share)
                traces = [
                    [self._probe(way, k, inputs, metered=m) for m in (False, True)]
                    for k in range(len(self.kinds))
                ]
                fits = self.bytes_at(self._timeline(traces).peak) <= budget
                low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _probe(self, way: Way, kind: int, inputs: dict[str, Tensor], metered: bool) -> Trace:
        excerpt = probe.excerpt_for(self.model, self.kinds[kind], self.kinds)
        with (
            probe.only(self.model, excerpt),
            probe.prepared(self.model, way.settings, way.checkpoints),
        ):
            if way.settings is not None:
                probe.learn(self.model, self.loss_share)
            if not metered:
                return probe.run(self.model, inputs, None)
            with meter_of(models.tensor_device(self.model)) as meter:
                return probe.run(self.model, inputs, meter)

    def _timeline(self, runs: Sequence[Sequence[Trace]]) -> Timeline:
        """The whole decoder's; of every kind a warm-up, a metered trace, and timed ones."""
        places: dict[int, Place] = {}
        for kind, (_, metered, *timed) in zip(self.kinds, runs, strict=True):
            trace = metered.with_seconds(timed or [metered])
            excerpt = probe.excerpt_for(self.model, kind, self.kinds)
            for number in kind.members:
                at = excerpt.first if number == 0 else excerpt.steady
                places[number] = Place(trace, at, kind.gradient_bytes)
        in_order = [places[number] for number in range(len(places))]
        return timeline(in_order, self.trained, self._workspace())

    def bytes_at(self, moment: Moment) -> int:
        """All bytes at a point of the step: weights and AdamW's two states with it."""
        return self.weights + 2 * self.trained + moment.total

    def _workspace(self) -> int:
        """What AdamW makes and frees: the root of the second moments, and its quotient.

        One parameter after the other on a processor, all in one call on a GPU.
        """
        device = models.tensor_device(self.model)
        return self.trained if device.type == "cuda" else 2 * self.largest

    def update_seconds(self) -> float:
        """AdamW's time, from an update of copies of one layer's parameters."""
        kind = max(self.kinds, key=lambda kind: kind.gradient_bytes)
        layer = models.decoder_layers(self.model)[kind.examples[0]]
        copies = [nn.Parameter(p.detach().clone()) for p in layer.parameters() if p.requires_grad]
        if not copies:
            return 0.0
        for each in copies:
            each.grad = torch.zeros_like(each)
        optimizer = torch.optim.AdamW(copies)
        optimizer.step()
        start = time.perf_counter()
        optimizer.step()
        took = time.perf_counter() - start
        return took * self.trained / sum(c.numel() * c.element_size() for c in copies)
