"""Messages name options as their reader gives them: keywords in Python, flags on a command line."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import typer

import apportion.mixture as mx
from apportion.cli import RENAMED, app

SRC = Path(__file__).resolve().parents[2] / "src" / "apportion"
KEYWORDS = {
    name
    for function in (
        mx.read_runs, mx.fit, mx.optimize, mx.diagnose, mx.compare, mx.design, mx.export, mx.count
    )
    for name in inspect.signature(function).parameters
}  # fmt: skip
# Messages of these are not for the command line: code that is written, laws given as objects.
OTHER = {"scripts.py", "repetition.py"}


def modules() -> list[Path]:
    return [path for path in sorted((SRC / "mixture").rglob("*.py")) if path.name not in OTHER]


def spoken(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that may be a part of a message: whatever has a space and is no docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    silent = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if " " in node.value and id(node) not in silent:
            yield node


def keyword_forms(text: str) -> list[str]:
    names = sorted(KEYWORDS, key=len, reverse=True)
    given = re.findall(rf"(?<![\w.-])(?:{'|'.join(names)})=", text)
    bare = [n for n in names if "_" in n and re.search(rf"(?<!\w){n}(?!\w)", text)]
    return [*given, *bare, *re.findall(r"\(--[a-z]+", text)]


def test_the_rule_sees_what_it_is_for():
    assert keyword_forms("fit with bootstrap=1000") == ["bootstrap="]
    assert keyword_forms("raise max_epochs") == ["max_epochs"]
    assert keyword_forms("or force it (--force)") == ["(--force"]
    assert keyword_forms("bytes_per_token_<family> and N = 3, --law x") == []


def test_no_message_spells_an_option_out():
    """Such a name would be wrong for one of the two readers; `errors.option` is right for both."""
    found = [
        f"{path.relative_to(SRC)}:{node.lineno}: {forms}"
        for path in modules()
        for node in spoken(ast.parse(path.read_text(encoding="utf-8")))
        if (forms := keyword_forms(node.value))
    ]
    assert found == []


def test_every_option_that_a_message_names_is_one_of_the_command_line():
    groups = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    verbs = [*groups["mixture"].commands.values(), groups["plan"].commands["mixture"]]
    flags = {flag for verb in verbs for parameter in verb.params for flag in parameter.opts}
    named = {
        node.args[0].value
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "option"
        and isinstance(node.args[0], ast.Constant)
    }
    assert "max_epochs" in named
    missing = {n for n in named if "--" + RENAMED.get(n, n).replace("_", "-") not in flags}
    assert missing == set()


def test_the_command_line_reads_its_own_names(apportion):
    size = ("--params", "2M", "--tokens", "20M")
    done = apportion("mixture", "optimize", "fit.json", *size, "--repetition")
    assert done.code == 1
    assert "give --supply romance=3e9,…" in done.err
    assert "supply=" not in done.err
    paths = [f"--path={name}=/{name}" for name in ("romance", "germanic", "slavic")]
    done = apportion("mixture", "export", "ratios.json", "--to", "olmo-core", *paths)
    assert "OLMo-core needs --tokens …, --batch-tokens …" in done.err
