"""Run tables that come with the package: our own measurements, for examples and tests."""

from __future__ import annotations

from importlib import resources

from apportion.files import read_json
from apportion.mixture.read import read_runs
from apportion.mixture.runs import RunTable
from apportion.mixture.supply import Supply


def multilingual_sweep() -> RunTable:
    """Training runs over five language families, made by `benchmarks/multilingual_sweep/`.

    Small decoders (non-embedding parameters N and tokens D as in the table) on prose from Debian's
    documentation packages; losses in nats per token of a shared byte-level vocabulary of 1,024
    entries, on held-out text of every family. The unique tokens of every family are those of the
    training text.
    """
    with resources.as_file(resources.files(__name__) / "multilingual_sweep.csv") as path:
        return read_runs(path, unique_tokens=multilingual_supply())


def multilingual_supply() -> Supply:
    """Tokens per family of the text that `multilingual_sweep` was trained on."""
    with resources.as_file(resources.files(__name__) / "multilingual_supply.json") as path:
        amounts = read_json(path)
    return Supply({str(family): float(tokens) for family, tokens in amounts.items()})
