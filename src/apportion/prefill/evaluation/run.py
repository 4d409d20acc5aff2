"""Answers from bounded memory beside those of full context and of the last tokens alone.

Every method reads the same texts and is asked the same questions; right is an answer that contains
the right one, generated greedily. A saving without such a row beside it says nothing: a memory that
does no better than its own last tokens has only forgotten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from apportion.errors import InputError, option
from apportion.prefill.evaluation.case import Case, cases_of
from apportion.prefill.evaluation.held import Held, Said, exactly, in_memory, say
from apportion.prefill.evaluation.score import matches, wilson
from apportion.prefill.reader import Reader

KNOWN = ("each", "together", "none")
Ids = Int[Tensor, " _"]


@dataclass(frozen=True)
class Row:
    """Cases of one task, length and depth under one method.

    Attributes:
        task, length, depth: of the cases; `length` is the mean where they name none.
        method: a reader's name, or `full`, `last M`, `last M + c`.
        scorer: what chose the entries; empty for the last three.
        memory: entries that are kept, sinks not among them.
        chunk: c; 0 where the method has none.
        known: `each`, `together` or `none`, see `evaluate`; empty where nothing could depend on it.
        correct: answers that contain the right one.
        trials: answers.
        low, high: interval of correct / trials, of 95 % (Wilson).
        peak_bytes: most that was alive in a read or an answer, beyond the weights.
        seconds: of reading and answering, a trial.
    """

    task: str
    length: int
    depth: float | None
    method: str
    scorer: str
    memory: int
    chunk: int
    known: str
    correct: int
    trials: int
    low: float
    high: float
    peak_bytes: int
    seconds: float

    @property
    def share(self) -> float:
        """Of the answers, those that are right."""
        return self.correct / self.trials


def evaluate(
    model: nn.Module,
    tokenizer: Any,
    cases: Iterable[Case | tuple[str, str, str]],
    readers: Mapping[str, Mapping[str, Any] | int | None],
    known: str = "each",
    baselines: bool = True,
    max_new_tokens: int = 16,
    each: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Ask the same questions of several memories.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        cases: what to ask: triples (text, question, answer), or `Case`s.
        readers: by a name of yours, the options of a `Reader`, such as
            `{"IM": {"memory": 1024, "chunk": 512, "scorer": "query"}}`; besides them `parts`: read
            the text in so many, the context being extended. A number instead of options: so many
            last tokens alone, read exactly; None: all of the text.
        known: `"each"`: a question observes a reading of its own; `"together"`: all questions of a
            text observe one reading; `"none"`: the text is read once, and asked about afterwards.
        baselines: also full context, and for every M (and c) of the readers the last M and M + c
            tokens alone, all read exactly.
        max_new_tokens: most tokens of an answer.
        each: called with every row as soon as it is there.

    Raises:
        InputError: no cases, or options that are none.
    """
    if known not in KNOWN:
        raise InputError(f"expected {option('known')} of {', '.join(KNOWN)}; got {known!r}")
    if max_new_tokens < 1:
        raise InputError(f"expected max_new_tokens of 1 or more, got {max_new_tokens}")
    # Of this one only model and prompt are used.
    plain = Reader(model, tokenizer, memory=1, chunk=1, sinks=0)
    trials = _Trials(plain, cases_of(cases), max_new_tokens)
    methods = [_method(name, how, plain, known) for name, how in readers.items()]
    if baselines:
        bounded = [method for method in methods if isinstance(method, _Bounded)]
        methods = [*_lasts(plain, bounded), *methods]
    rows: list[Row] = []
    for method in methods:
        for row in trials.rows(method):
            rows.append(row)
            if each is not None:
                each(row)
    return rows


class _Method(ABC):
    """A way to read a text before questions are asked."""

    def __init__(self, name: str, scorer: str, memory: int, chunk: int, known: str) -> None:
        self.name, self.scorer, self.known = name, scorer, known
        self.memory, self.chunk = memory, chunk

    @abstractmethod
    def read(self, opening: Ids, text: Ids, questions: Sequence[Ids]) -> Held:
        """Opening and text in memory."""


class _Last(_Method):
    """The end of the text, or all of it, exactly; the prompt's opening stays before it."""

    def __init__(
        self, name: str, reader: Reader, kept: int | None = None, memory: int = 0, chunk: int = 0
    ) -> None:
        super().__init__(name, "", memory, chunk, "")
        self.reader, self.kept = reader, kept

    def read(self, opening: Ids, text: Ids, questions: Sequence[Ids]) -> Held:
        if self.kept is not None:
            # As many tokens in all as the reader keeps entries.
            text = text[-max(1, self.kept - len(opening)) :]
        return exactly(self.reader, torch.cat([opening, text]))


class _Bounded(_Method):
    """A reader with its options."""

    def __init__(self, name: str, plain: Reader, options: Mapping[str, Any], known: str) -> None:
        given = dict(options)
        self.parts = given.pop("parts", 1)
        if not isinstance(self.parts, int) or self.parts < 1:
            raise InputError(f"expected parts of 1 or more, got parts={self.parts!r}")
        self.reader = Reader(plain.model, plain.tokenizer, **given)
        scorer = self.reader.settings.scorer_for((True,) if known != "none" else ())
        settings = self.reader.settings
        super().__init__(
            name,
            scorer.name,
            settings.memory,
            settings.chunk,
            known if scorer.asks else "none",
        )

    def read(self, opening: Ids, text: Ids, questions: Sequence[Ids]) -> Held:
        ids = torch.cat([opening, text])
        return in_memory(self.reader, ids, questions, self.parts)


def _method(name: str, how: Mapping[str, Any] | int | None, plain: Reader, known: str) -> _Method:
    if how is None:
        return _Last(name, plain)
    if isinstance(how, int):
        return _Last(name, plain, how, how)
    return _Bounded(name, plain, how, known)


def _lasts(reader: Reader, bounded: Sequence[_Bounded]) -> Iterator[_Method]:
    """Full context, and the last tokens for each size of the readers."""
    yield _Last("full", reader)
    sizes = dict.fromkeys((m.memory, m.chunk, m.reader.settings.sinks) for m in bounded)
    for memory, sinks in dict.fromkeys((memory, sinks) for memory, _, sinks in sizes):
        yield _Last("last M", reader, memory + sinks, memory)
    for memory, chunk, sinks in sizes:
        yield _Last("last M + c", reader, memory + chunk + sinks, memory, chunk)


class _Trials:
    """Cases in token ids, and what comes of them."""

    def __init__(self, reader: Reader, cases: Sequence[Case], most: int) -> None:
        self.reader, self.most = reader, most
        prompt = reader.with_prompt()
        self.opening = torch.tensor(prompt.opening(), dtype=torch.int64)
        texts = dict.fromkeys(case.text for case in cases)
        self.texts = {text: torch.tensor(prompt.context(text)) for text in texts}
        self.asked = [(case, self._question(case)) for case in cases]

    def rows(self, method: _Method) -> list[Row]:
        """One for each task, length and depth, in the order of the cases."""
        groups: dict[tuple[str, int | None, float | None], list[tuple[Case, Said]]] = {}
        for case, said in self._answers(method):
            groups.setdefault((case.task, case.length, case.depth), []).append((case, said))
        return [self._row(method, group) for group in groups.values()]

    def _answers(self, method: _Method) -> Iterator[tuple[Case, Said]]:
        """Each case with its answer, whose time has its share of the reading in it."""
        for together in self._readings(method):
            text = self.texts[together[0][0].text]
            observing = [] if method.known in ("", "none") else [ids for _, ids in together]
            held = method.read(self.opening, text, observing)
            for case, ids in together:
                said = say(self.reader, held, ids, self.most)
                peak = max(said.peak_bytes, held.peak_bytes)
                yield case, Said(said.text, peak, said.seconds + held.seconds / len(together))

    def _readings(self, method: _Method) -> Iterator[list[tuple[Case, Ids]]]:
        """Cases that share a reading."""
        if method.known == "each":
            yield from ([one] for one in self.asked)
            return
        for text in self.texts:
            yield [one for one in self.asked if one[0].text == text]

    def _question(self, case: Case) -> Ids:
        ids = self.reader.question(case.question)
        if not case.opening:
            return ids
        prompt = self.reader.with_prompt()
        # Behind "Answer:" a blank is missing, behind the header of a chat's turn none.
        gap = "" if prompt.chat else " "
        opening = torch.tensor(prompt.context(gap + case.opening), device=ids.device)
        return torch.cat([ids, opening])

    def _row(self, method: _Method, group: Sequence[tuple[Case, Said]]) -> Row:
        case = group[0][0]
        correct = sum(matches(said.text, one.answer) for one, said in group)
        low, high = wilson(correct, len(group))
        lengths = [len(self.opening) + len(self.texts[one.text]) for one, _ in group]
        return Row(
            task=case.task,
            length=round(sum(lengths) / len(lengths)) if case.length is None else case.length,
            depth=case.depth,
            method=method.name,
            scorer=method.scorer,
            memory=method.memory,
            chunk=method.chunk,
            known=method.known,
            correct=correct,
            trials=len(group),
            low=low,
            high=high,
            peak_bytes=max(said.peak_bytes for _, said in group),
            seconds=sum(said.seconds for _, said in group) / len(group),
        )
