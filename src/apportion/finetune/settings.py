"""What the user asks of the sparse backward, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from apportion.budget import parse_bytes
from apportion.errors import InputError
from apportion.finetune.saliency import Saliency, get_saliency
from apportion.finetune.tokens import SINKS

Rest = Literal["8bit", "4bit", "drop"]
Backward = Literal["full", "sparse", "auto"]
Choose = Literal["start", "forward", "backward"]
Per = Literal["model", "layer"]
Loss = Literal["chunked", "model"]
REST: dict[str, Rest] = {"8bit": "8bit", "4bit": "4bit", "drop": "drop"}
BACKWARD: dict[str, Backward] = {"full": "full", "sparse": "sparse", "auto": "auto"}
CHOOSE: dict[str, Choose] = {"start": "start", "forward": "forward", "backward": "backward"}
PER: dict[str, Per] = {"model": "model", "layer": "layer"}
LOSS: dict[str, Loss] = {"chunked": "chunked", "model": "model"}
Word = TypeVar("Word")

# Rows that a full backward stores exactly when not told: the sinks, and one in this many.
ROWS_PER_EXACT = 64
# Where no more rows than this share carry loss, a full backward keeps so many in 8 bits, those with
# loss first: the gradient rests on them. With more, 8 bits for a part of them would gain little.
FINE_UP_TO = 0.2
# A sparse backward pays while the rows with loss are at most this share of those it keeps: then it
# keeps them all, and what they attend to. Beyond, fewer samples in the same time have the better
# gradient: at keep 0.25 beyond 0.2 of all rows with loss, at keep 0.5 beyond 0.4, where it is a tie
# (benchmarks/results/finetune_frontier.csv).
LOSS_OF_KEPT = 0.8


@dataclass(frozen=True)
class TopP:
    """Keep the smallest set of rows whose saliency reaches a share of its sum, up to a cap.

    The largest set of the batch decides for all samples, so shapes follow the data; the cap bounds
    them.

    Attributes:
        share: of the saliency, in (0, 1].
        cap: keep ratio that is never exceeded, in (0, 1].
    """

    share: float = 0.8
    cap: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("cap", self.cap)):
            _in_unit("TopP's " + name, value, f"TopP(share=0.8, cap=0.5) with {name}={value!r}")


@dataclass(frozen=True)
class Settings:
    """Checked settings; `attach` documents them."""

    keep: float | TopP
    budget: int | None
    saliency: Saliency
    published: bool
    rest: Rest
    backward: Backward
    choose: Choose
    per: Per
    loss: Loss
    exact: float | None
    seed: int

    @property
    def bits(self) -> int | None:
        """Of the rows that are not exact; None: they are dropped."""
        return None if self.rest == "drop" else int(self.rest[0])

    @property
    def cap(self) -> float:
        """The largest keep ratio."""
        return self.keep.cap if isinstance(self.keep, TopP) else self.keep

    @property
    def everything(self) -> bool:
        """Whether every row is kept, exactly."""
        return not isinstance(self.keep, TopP) and self.keep >= 1

    def backward_for(self, loss_share: float) -> Literal["full", "sparse"]:
        """Which backward a batch gets.

        Args:
            loss_share: its rows with loss, of the real ones.
        """
        if self.everything:
            return "full"
        if self.backward != "auto":
            return self.backward
        if self.rest == "drop" or sparse_pays(self.cap, loss_share):
            return "sparse"
        return "full"

    def with_rows(self, exact: int, length: int) -> Settings:
        """The settings of a batch whose budget allows so many exact rows."""
        ratio = exact / length
        return replace(self, keep=ratio, exact=ratio)

    def fine_rows(self, loss_share: float, backward: Literal["full", "sparse"]) -> float:
        """Share of rows stored in 8 bits where the others have 4.

        Args:
            loss_share: rows of the batch with loss, of the real ones.
            backward: which one the batch gets.
        """
        asked = self.everything or self.exact is not None or self.bits != 4
        if asked or backward == "sparse" or loss_share > FINE_UP_TO:
            return 0.0
        return FINE_UP_TO

    def exact_rows(self, length: int, backward: Literal["full", "sparse"]) -> float:
        """Share of rows stored in the model's dtype."""
        if self.everything:
            return 1.0
        if self.exact is not None:
            return self.exact
        if backward == "sparse" and not isinstance(self.keep, TopP):
            return self.keep
        return min(1.0, max(SINKS / length, 1 / ROWS_PER_EXACT))


def sparse_pays(keep: float, loss_share: float) -> bool:
    """Whether a sparse backward beats training on fewer samples in the same time.

    Args:
        keep: share of rows that it computes.
        loss_share: rows with loss, of all.
    """
    return loss_share <= LOSS_OF_KEPT * keep + 1e-9


def check(
    keep: float | TopP | str,
    saliency: str | Saliency,
    rest: str,
    backward: str,
    choose: str,
    per: str,
    loss: str,
    exact: float | None,
    seed: int,
) -> Settings:
    """Settings from the user's words.

    Raises:
        InputError: a value outside its range, or two that exclude each other.
    """
    budget, ratio = _keep(keep)
    if exact is not None:
        _in_unit("exact", exact, "for example exact=0.02, or leave it out")
    published = saliency == "published"
    rule = get_saliency("last-query" if published else saliency)
    settings = Settings(
        keep=ratio,
        budget=budget,
        saliency=rule,
        published=published,
        rest=_one_of("rest", rest, REST),
        backward=_one_of("backward", backward, BACKWARD),
        choose=_one_of("choose", choose, CHOOSE),
        per=_one_of("per", per, PER),
        loss=_one_of("loss", loss, LOSS),
        exact=exact,
        seed=seed,
    )
    _check_together(settings)
    return settings


def _one_of(name: str, value: str, allowed: Mapping[str, Word]) -> Word:
    if value not in allowed:
        raise InputError(
            f"expected {name} of {', '.join(map(repr, allowed))}; got {name}={value!r}"
        )
    return allowed[value]


def _keep(keep: float | TopP | str) -> tuple[int | None, float | TopP]:
    if isinstance(keep, str):
        # The ratio follows from the shapes of the first batch.
        return parse_bytes(keep), 0.999
    if not isinstance(keep, TopP):
        _in_unit("keep", keep, "for example keep=0.25, keep=TopP(0.8, cap=0.5) or keep='200MB'")
    return None, keep


def _in_unit(name: str, value: object, example: str) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if not 0 < number <= 1:
        raise InputError(f"expected {name} in (0, 1], got {value!r}; {example}")


def _check_together(settings: Settings) -> None:
    if settings.published:
        return
    if settings.rest == "drop" and settings.budget is not None:
        raise InputError(
            "expected rest='8bit' or '4bit' with a byte budget, got rest='drop'; give a keep ratio "
            "such as keep=0.25, or rest='4bit'"
        )
    if settings.rest == "drop" and not settings.everything:
        if settings.backward == "full":
            raise InputError(
                "expected rest='8bit' or '4bit' for a full backward, got rest='drop', which leaves "
                "nothing to compute the dropped rows from; use backward='sparse', or keep=1"
            )
        if settings.choose != "start":
            raise InputError(
                f"expected choose='start' with rest='drop', got choose={settings.choose!r}: rows "
                "can't be chosen later when they have been dropped; use rest='4bit', or "
                "choose='start'"
            )
    if settings.choose == "backward" and settings.per == "model":
        raise InputError(
            "expected per='layer' with choose='backward', got per='model': the upstream gradient "
            "of a layer is known only when the layers above are done; add per='layer', or use "
            "choose='forward'"
        )
