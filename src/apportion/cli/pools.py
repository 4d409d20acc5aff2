"""The options that say where many jobs are carried out, for every command that has them."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer

PANEL = "Where it is done"


def _option(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=PANEL)


Kind = Annotated[Literal["local", "ray"], _option("Processes of this machine, or a Ray cluster.")]
Address = Annotated[
    str | None, _option("The Ray cluster: auto, or host:port; else one on this machine.")
]
Workers = Annotated[
    int | None,
    _option("Jobs at once [default: 2 runs, 1 copy of a model; on Ray what there is room for]."),
]
Threads = Annotated[int | None, _option("Of each job; on Ray so many CPUs are reserved.")]


def executor_of(
    kind: str,
    address: str | None,
    workers: int | None,
    threads: int | None,
    stay: bool = False,
) -> Any:
    """An executor; with `stay`, workers that load once what their jobs share.

    Raises:
        InputError: an address without Ray, or numbers below 1.
    """
    from apportion.errors import InputError
    from apportion.execution import LocalExecutor, RayExecutor

    if kind == "ray":
        return RayExecutor(address, workers, threads or 1, stay=stay)
    if address is not None:
        raise InputError("expected --executor ray with --address; add it, or leave --address out")
    if not stay:
        return LocalExecutor(2 if workers is None else workers, 1 if threads is None else threads)
    if workers in (None, 1) and threads is None:
        return None  # here: one copy of the model, in this process
    count = 1 if workers is None else workers
    every = max(1, (os.cpu_count() or 1) // max(1, count))
    return LocalExecutor(count, every if threads is None else threads)
