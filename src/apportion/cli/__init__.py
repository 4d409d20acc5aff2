"""The command line: every command parses, calls one public function, and prints what it returned.

Exit codes: 0 fine, 1 the input is wrong (one message on stderr, no traceback), 2 usage, 130 stopped
by Ctrl-C, 141 the reader of stdout went away. Importing this module loads typer and nothing else;
what a command needs is imported when it runs.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence

import typer

from apportion.cli import ask, finetune, mixture, plan, prefill
from apportion.cli.output import STOPPED, note, stopped
from apportion.cli.overwrite import guarded
from apportion.errors import InputError, InputWarning, command_line

# Keywords of the functions whose options have other names.
RENAMED = {
    "caps": "cap",
    "fixed": "fix",
    "floors": "floor",
    "laws": "law",
    "metrics": "metric",
    "mixtures": "beside",
    "paths": "path",
}

app = typer.Typer(
    name="apportion",
    help="Share out a fixed budget over the life of a language model.",
    epilog="\b\nEach capability lists its commands:\n  $ apportion mixture --help",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(mixture.app, name="mixture")
for _name, _command, _examples in (
    ("finetune", finetune.finetune, finetune.EXAMPLES),
    ("prefill", guarded("prefill", prefill.prefill), prefill.EXAMPLES),
    ("ask", ask.ask, ask.EXAMPLES),
):
    # \b keeps the help from filling the lines up.
    _epilog = "\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in _examples)
    app.command(_name, epilog=_epilog)(_command)
app.add_typer(plan.app, name="plan")


def _version(wanted: bool) -> bool:
    if wanted:
        import apportion

        typer.echo(f"apportion {apportion.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_version, is_eager=True
    ),
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line (without the program's name); returns the exit code."""
    command = typer.main.get_command(app)
    # Where it is installed, PEFT imports it, and it tells of kernels that it could do without.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with warnings.catch_warnings(), command_line(RENAMED):
        warnings.simplefilter("always", InputWarning)
        warnings.showwarning = _show_warning
        try:
            command.main(list(arguments), prog_name="apportion")
        except InputError as error:
            note(f"error: {error}")
            return 1
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0
            if code == STOPPED:
                stopped()
            return code
        except (KeyboardInterrupt, typer.Abort):
            stopped()
            return STOPPED
    return 0


def main() -> None:
    """The entry point `apportion`."""
    sys.exit(run(sys.argv[1:]))


def _show_warning(message: Warning | str, category: type[Warning], *rest: object) -> None:
    """A remark about the input as one line; any other warning keeps its name."""
    name = "note" if issubclass(category, InputWarning) else category.__name__
    note(f"{name}: {message}")
