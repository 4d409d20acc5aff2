"""How much text there is: tokens per family, counted from files or as the user states them.

A supply caps a family's ratio (`ratio * D <= epochs * tokens`) and gives the proportional,
temperature and UniMax mixtures. Tokens depend on the tokenizer, so a supply remembers how it was
counted; bytes and characters are kept beside them because they compare across tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.budget import parse_count
from apportion.errors import InputError, option
from apportion.files import read_json, write_json
from apportion.mixture.counting import TextCount, count_texts, text_count
from apportion.mixture.text import find_text

_KIND = "apportion supply"
_VERSION = 1
_FORM = 'romance=3B,indic=400M, {"romance": 3e9, "indic": 4e8}, or a JSON file of that form'


if TYPE_CHECKING:
    _Amounts = Mapping[str, float]
else:
    # Not generic at run time: checkers of shapes and types would look for an item to check.
    _Amounts = Mapping


@dataclass(frozen=True, eq=False)
class Supply(_Amounts):
    """Tokens per family; a mapping `{family: tokens}`.

    A supply that counts bytes only refuses to be used as a mapping, so that it cannot pass for one
    without families.

    Attributes:
        amounts: tokens of every family; empty when only bytes were counted.
        method: how the tokens were found.
        counts: what the files hold, when text was counted.
    """

    amounts: Mapping[str, float]
    method: str = "given"
    counts: tuple[TextCount, ...] = ()

    @property
    def families(self) -> tuple[str, ...]:
        """Families in order, also when only bytes were counted."""
        return tuple(self.amounts) or tuple(dict.fromkeys(one.family for one in self.counts))

    def _tokens(self) -> Mapping[str, float]:
        if not self.amounts and self.counts:
            raise InputError(
                "expected a supply in tokens; this one counts bytes only: count it again with "
                f"{option('tokenizer', 'tokenizer.json')} or {option('bytes_per_token', 4)}"
            )
        return self.amounts

    def __getitem__(self, family: str) -> float:
        return self._tokens()[family]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tokens())

    def __len__(self) -> int:
        return len(self._tokens())

    def languages(self, family: str) -> dict[str, float]:
        """Tokens of every language of a family (bytes when no tokens were counted)."""
        return {
            count.language: float(count.bytes if count.tokens is None else count.tokens)
            for count in self.counts
            if count.family == family
        }

    def bytes_per_token(self) -> dict[str, float]:
        """Mean UTF-8 bytes of a token per family; empty unless both were counted."""
        totals: dict[str, int] = {}
        for count in self.counts:
            totals[count.family] = totals.get(count.family, 0) + count.bytes
        return {
            name: totals[name] / tokens for name, tokens in self.amounts.items() if name in totals
        }

    def aligned(self, families: Sequence[str]) -> Float[np.ndarray, " families"]:
        """Tokens in the order of `families`.

        Raises:
            InputError: a family has no supply, or only bytes were counted.
        """
        missing = [family for family in families if family not in self]
        if missing:
            raise InputError(
                f"expected a supply for every family; none for {', '.join(missing)}; "
                f"got {', '.join(self) or 'nothing'}"
            )
        return np.array([self[family] for family in families], dtype=float)

    def to_frame(self) -> pd.DataFrame:
        """One row a language: family, language, documents, bytes, characters, tokens.

        A supply that was given has one row a family, with its tokens alone.
        """
        if not self.counts:
            return pd.DataFrame({"family": list(self), "tokens": list(self.amounts.values())})
        frame = pd.DataFrame([asdict(count) for count in self.counts])
        if not self.amounts:
            return frame.drop(columns="tokens")
        return frame.assign(bytes_per_token=frame["bytes"] / frame["tokens"])

    def save(self, path: str | Path) -> None:
        """Write the supply as JSON, atomically.

        Raises:
            InputError: the file cannot be written.
        """
        write_json(
            path,
            {
                "kind": _KIND,
                "version": _VERSION,
                "method": self.method,
                "tokens": dict(self.amounts),
                "texts": [asdict(count) for count in self.counts],
            },
        )

    @classmethod
    def load(cls, path: str | Path) -> Supply:
        """Read a saved supply, or a plain JSON object `{"family": tokens}`.

        Raises:
            InputError: the file cannot be read or is neither, with the key that is wrong.
        """
        value = read_json(path)
        if not isinstance(value, dict):
            raise InputError(f"{path}: expected a supply such as {_FORM}")
        if value.get("kind") != _KIND:
            return cls(_amounts(value, str(path)))
        if value.get("version") != _VERSION:
            raise InputError(
                f"{path}: expected a supply of version {_VERSION}, found version "
                f"{value.get('version')!r}; count it again with this version"
            )
        texts, tokens = value.get("texts"), value.get("tokens")
        if not isinstance(texts, list) or not isinstance(tokens, dict):
            raise InputError(f'{path}: expected "tokens" as an object and "texts" as a list')
        counts = tuple(text_count(entry, f"{path}, texts[{k}]") for k, entry in enumerate(texts))
        if not tokens and not counts:
            raise InputError(f"{path}: expected tokens of at least one family, found none")
        amounts = _amounts(tokens, str(path)) if tokens else {}
        return cls(amounts, str(value.get("method", "given")), counts)


def count(
    data: str | Path,
    tokenizer: str | Path | None = None,
    bytes_per_token: float | Mapping[str, float] | None = None,
    column: str = "text",
) -> Supply:
    """Count the text in `DIR/<family>/<language>.{txt,jsonl,parquet}`.

    Args:
        data: the folder.
        tokenizer: a `tokenizer.json`, or the folder that has it; counts tokens exactly, without
            special tokens (needs the extra `sweep`).
        bytes_per_token: without a tokenizer, estimate tokens: one number or one per family.
        column: JSON key or Parquet column of the text.

    Returns:
        Bytes and characters, and tokens when one of the two is given.

    Raises:
        InputError: as `text.find_text` and `text.documents`; both or a wrong `bytes_per_token`; a
            tokenizer that cannot be read.
    """
    if tokenizer is not None and bytes_per_token is not None:
        raise InputError(
            f"expected {option('tokenizer')} or {option('bytes_per_token')}, not both: "
            "leave one out"
        )
    files = find_text(data)
    families = list(dict.fromkeys(file.family for file in files))
    sizes = None if bytes_per_token is None else _sizes(bytes_per_token, families)
    counts = count_texts(files, tokenizer, sizes, column)
    amounts: dict[str, float] = {}
    for entry in counts:
        if entry.tokens is not None:
            amounts[entry.family] = amounts.get(entry.family, 0.0) + entry.tokens
    method = "bytes only"
    if tokenizer is not None:
        method = f"tokenizer {Path(tokenizer).name}"
    elif sizes is not None:
        method = "estimated from bytes per token"
    return Supply(amounts, method, counts)


def parse_supply(value: str | Path | Mapping[str, Any]) -> Supply:
    """A supply as the user gives it: a mapping, `"romance=3B,indic=400M"`, or a JSON file.

    Raises:
        InputError: none of these; an amount that is not a positive count.
    """
    if isinstance(value, Supply):
        return value
    if isinstance(value, Mapping):
        return Supply(_amounts(value, "supply"))
    text = str(value)
    if "=" not in text or text.endswith(".json"):
        return Supply.load(text)
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, amount = part.partition("=")
        if not equals or not name.strip() or name.strip() in pairs:
            raise InputError(
                f"expected each family once as <family>=<tokens>, such as {_FORM}; got {part!r}"
            )
        pairs[name.strip()] = amount
    return Supply(_amounts(pairs, "supply"))


def _amounts(given: Mapping[Any, Any], where: str) -> dict[str, float]:
    if not given:
        raise InputError(f"{where}: expected tokens of at least one family, such as {_FORM}")
    amounts: dict[str, float] = {}
    for name, amount in given.items():
        if not isinstance(amount, (str, int, float, np.number)) or isinstance(amount, bool):
            raise InputError(
                f"{where}: expected a number of tokens for {name!r}, such as {_FORM}; "
                f"got {type(amount).__name__}"
            )
        try:
            amounts[str(name)] = parse_count(
                amount if isinstance(amount, str) else float(amount),
                f"number of tokens for {name!r}",
            )
        except (InputError, OverflowError) as error:
            raise InputError(f"{where}: {error}") from error
    return amounts


def _sizes(given: float | Mapping[str, float], families: Sequence[str]) -> dict[str, float]:
    sizes = (
        {str(name): float(size) for name, size in given.items()}
        if isinstance(given, Mapping)
        else dict.fromkeys(families, float(given))
    )
    missing = [family for family in families if family not in sizes]
    wrong = [f"{name}: {size}" for name, size in sizes.items() if not 0 < size < math.inf]
    if missing or wrong:
        raise InputError(
            f"expected {option('bytes_per_token')} as one positive number, or one for each of "
            f"{', '.join(families)}; missing: {', '.join(missing) or 'none'}; "
            f"not positive: {', '.join(wrong) or 'none'}"
        )
    return sizes
