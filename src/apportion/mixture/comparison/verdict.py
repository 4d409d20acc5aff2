"""From errors on held-out runs to a recommendation, with the doubt that belongs to it.

Laws are compared in pairs on the same held-out runs: what makes a run hard is then common to both
sides. The interval of a difference comes from drawing these runs again. Refused: calling the
smaller mean the better law; on a dozen runs the order of two good laws is mostly luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from apportion.budget import counted
from apportion.mixture.comparison.scores import cells_with_order, mixture_rank, rank_correlation

_DRAWS = 2000
_TAIL = 0.025
# With fewer runs a bootstrap interval is far too narrow to call anything significant.
_FEWEST_RUNS = 6
# With fewer mixtures runs are drawn one by one instead of by mixture.
_FEWEST_MIXTURES = 8
# With a larger relative error a law tells mixtures apart by chance: they differ by a few per cent.
_UNUSABLE = 0.1
# A law must predict this share of what the most general one predicts to enter the choice.
_COVERAGE = 0.9


@dataclass(frozen=True)
class Candidate:
    """Predictions of one law (or baseline); NaN where it cannot say anything."""

    name: str
    baseline: bool
    parameters: int | None
    predicted: Float[np.ndarray, "runs targets"]


@dataclass(frozen=True)
class Verdict:
    """The recommendation.

    Attributes:
        best: the law that predicts best, whether or not it is good enough to be used; None when no
            law could be judged.
        significant: whether its lead over the second law is beyond chance; None with one law only.
        text: all of it in words; the first words say whether to use it.
        beats_baselines: whether its lead over the best baseline is beyond chance; None without one.
    """

    best: str | None
    significant: bool | None
    text: str
    beats_baselines: bool | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Contest:
    """What is compared: a cost per candidate (less is better) and its value in every draw."""

    cost: dict[str, float]
    drawn: dict[str, Float[np.ndarray, " draws"]]
    runs: int
    rank: bool

    def show(self, name: str) -> str:
        if self.rank:
            return f"rank correlation {-self.cost[name]:.3f}"
        return f"mean relative error {self.cost[name]:.2%}"

    def lead(self, first: str, second: str) -> tuple[float, float, float]:
        """By how much `first` is better than `second`, and the interval of that."""
        drawn = self.drawn[second] - self.drawn[first]
        low, high = np.nanquantile(drawn, [_TAIL, 1.0 - _TAIL])
        return self.cost[second] - self.cost[first], float(low), float(high)

    def words(self, first: str, second: str) -> tuple[str, bool]:
        """The lead in words, and whether it is beyond chance."""
        lead, low, high = self.lead(first, second)
        scale, unit, digits = (1.0, "", 3) if self.rank else (100.0, " points", 2)
        span = (
            f"{scale * lead:.{digits}f}{unit}, 95% interval {scale * low:.{digits}f} to "
            f"{scale * high:.{digits}f}"
        )
        if self.runs < _FEWEST_RUNS:
            return f"{span}; {self.runs} held-out runs are too few to call it real", False
        if low > 0 or high < 0:
            return f"{span}: significant", True
        return f"{span}: no significant difference", False


def judge(
    candidates: Sequence[Candidate],
    observed: Float[np.ndarray, "runs targets"],
    cells: Int[np.ndarray, " runs"],
    mixtures: Int[np.ndarray, " runs"],
    rank_only: bool = False,
    seed: int = 0,
) -> Verdict:
    """Which law to use, by error, or by the order of mixtures where levels cannot carry over.

    Args:
        candidates: what was fitted.
        observed: held-out losses.
        cells, mixtures: the (N, D) and the mixture of every held-out run, as numbers.
        rank_only: the fitted runs have one N or D and the held-out ones another.
        seed: of the draws.
    """
    taking, known, notes = _eligible(candidates, observed)
    laws = [each for each in taking if not each.baseline]
    if not laws:
        return Verdict(None, None, " ".join(["No law could be judged on these runs.", *notes]))
    contest = (
        _by_rank(taking, observed, known, cells, mixtures, seed)
        if rank_only
        else _by_error(taking, observed, known, mixtures, seed)
    )
    notes = [*_common(taking, known, contest), *notes]
    if not contest.cost.keys() & {law.name for law in laws}:
        return Verdict(
            None,
            None,
            "No law could be judged: fewer than three mixtures at one (N, D) are held out.",
        )
    order = sorted(
        (law for law in laws if law.name in contest.cost), key=lambda x: contest.cost[x.name]
    )
    best = order[0].name
    against = _against_baselines(contest, best, taking)
    words = [f"{_opening(contest, best, against)} on {counted(contest.runs, 'held-out run')}."]
    significant = None
    if len(order) > 1:
        second = order[1]
        lead, significant = contest.words(best, second.name)
        words.append(f"The lead over {second.name} ({contest.show(second.name)}) is {lead}.")
        fewer = (second.parameters or 0) < (order[0].parameters or 0)
        if not significant and fewer:
            words.append(f"{second.name} has fewer parameters and may serve as well.")
    words += [against.text] if against.text else []
    return Verdict(best, significant, " ".join([*words, *notes]), against.beaten)


@dataclass(frozen=True)
class _Against:
    """The best law beside the best baseline: whether it beats it for certain, and in words."""

    beaten: bool | None
    text: str
    worse: bool = False


def _opening(contest: _Contest, best: str, against: _Against) -> str:
    """The first words, which many will not read beyond: to use the law, or not to."""
    shown = contest.show(best)
    if against.worse:
        return f"No law beats the baselines: the best, {best}, reaches {shown}"
    if not contest.rank and contest.cost[best] > _UNUSABLE:
        return f"No law is good enough: the best, {best}, reaches {shown}"
    return f"Use {best}: {shown}"


def _against_baselines(contest: _Contest, best: str, taking: Sequence[Candidate]) -> _Against:
    rivals = [each.name for each in taking if each.baseline and each.name in contest.cost]
    if not rivals:
        return _Against(None, "")
    rival = min(rivals, key=contest.cost.__getitem__)
    lead, significant = contest.words(best, rival)
    shown = f"best baseline, {rival} ({contest.show(rival)})"
    if contest.cost[rival] >= contest.cost[best]:
        return _Against(significant, f"The lead over the {shown}, is {lead}.")
    if significant:
        text = f"The {shown}, predicts better ({lead}): these runs support none of the laws."
        return _Against(False, text, worse=True)
    return _Against(False, f"It does not beat the {shown}: {lead}.")


def _eligible(
    candidates: Sequence[Candidate], observed: np.ndarray
) -> tuple[list[Candidate], Bool[np.ndarray, "runs targets"], list[str]]:
    """Candidates that predict nearly everything, what all of them predict, and who was left out."""
    share = {each.name: float(np.isfinite(each.predicted).mean()) for each in candidates}
    # Baselines predict everything; the bar is what laws can do.
    most = max((share[each.name] for each in candidates if not each.baseline), default=0.0)
    taking = [each for each in candidates if share[each.name] >= max(_COVERAGE * most, 1e-9)]
    known = np.ones(observed.shape, dtype=bool)
    for each in taking:
        known &= np.isfinite(each.predicted)
    notes = [
        f"{each.name} was left out of the choice: it predicts {share[each.name]:.0%} of "
        "the losses (it says nothing at a ratio of 0)."
        for each in candidates
        if each not in taking
    ]
    return taking, known, notes


def _common(
    taking: Sequence[Candidate], known: Bool[np.ndarray, "runs targets"], contest: _Contest
) -> list[str]:
    """That the choice rests on a part of what was held out, and how much of it each law predicts.

    Baselines are not counted up: they predict everything.
    """
    if known.all():
        return []
    counts = ", ".join(
        f"{each.name} {int(np.isfinite(each.predicted).sum())}"
        for each in taking
        if not each.baseline
    )
    what = f"{contest.runs} runs" if contest.rank else f"{int(known.sum())} losses"
    return [
        f"This rests on the {what} that all of these predict, out of {known.size} held-out losses "
        f"({len(known)} runs); each predicts: {counts}."
    ]


def _by_error(
    taking: Sequence[Candidate],
    observed: np.ndarray,
    known: np.ndarray,
    mixtures: np.ndarray,
    seed: int,
) -> _Contest:
    rows = known.any(axis=1)
    weights = _draws(mixtures[rows], seed)
    cost: dict[str, float] = {}
    drawn: dict[str, np.ndarray] = {}
    for each in taking:
        error = np.where(known, np.abs(each.predicted / observed - 1.0), 0.0)
        per_run = error[rows].sum(axis=1) / known[rows].sum(axis=1)
        cost[each.name] = float(per_run.mean())
        drawn[each.name] = weights @ per_run / weights.sum(axis=1)
    return _Contest(cost, drawn, int(rows.sum()), rank=False)


def _by_rank(
    taking: Sequence[Candidate],
    observed: np.ndarray,
    known: np.ndarray,
    cells: np.ndarray,
    mixtures: np.ndarray,
    seed: int,
) -> _Contest:
    """The order of the mean loss, within every (N, D)."""
    rows = known.all(axis=1)
    cells, mixtures, seen = cells[rows], mixtures[rows], observed[rows].mean(axis=1)
    generator = np.random.default_rng(seed)
    places = [
        mine[generator.integers(len(mine), size=(_DRAWS, len(mine)))]
        for mine in cells_with_order(cells, mixtures)
    ]
    cost: dict[str, float] = {}
    drawn: dict[str, np.ndarray] = {}
    for each in taking:
        mean = each.predicted[rows].mean(axis=1)
        value = mixture_rank(mean, seen, cells, mixtures)
        if np.isnan(value):
            continue  # all mixtures predicted alike
        cost[each.name] = -value
        drawn[each.name] = -np.mean([rank_correlation(mean[at], seen[at]) for at in places], axis=0)
    return _Contest(cost, drawn, int(rows.sum()), rank=True)


def _draws(mixtures: np.ndarray, seed: int) -> Float[np.ndarray, "draws runs"]:
    """Weights of runs in every draw; runs of one mixture are drawn together."""
    groups = np.unique(mixtures, return_inverse=True)[1].reshape(-1)
    if groups.max() + 1 < _FEWEST_MIXTURES:
        groups = np.arange(len(mixtures))
    generator = np.random.default_rng(seed)
    return generator.exponential(size=(_DRAWS, int(groups.max()) + 1))[:, groups]
