"""The rules of the source tree as one function of a module's name and text.

`violations` is tested on made-up modules in `test_imports.py` before it judges the real ones.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60

FOUNDATION = {
    "apportion.budget",
    "apportion.errors",
    "apportion.execution",
    "apportion.files",
    "apportion.meter",
    "apportion.models",
}

# Packages whose files each hold one method: such a file imports what all of them share, no sibling.
METHODS = {
    "apportion.mixture.laws": {"base", "powers"},
    "apportion.finetune.saliency": {"base"},
    "apportion.prefill.schedule": {"base", "chunks"},
    "apportion.prefill.scorers": {"base"},
}

# What a package's base takes from outside of it: plain helpers that know nothing of methods.
BASE_ALSO = {"apportion.finetune.saliency.base": {"apportion.finetune.rows"}}

# Own modules that a module may import; the longest matching prefix decides.
INTERNAL: dict[str, set[str]] = {
    "apportion": {"apportion.mixture", "apportion.finetune", "apportion.prefill"},
    "apportion.errors": set(),
    "apportion.budget": {"apportion.errors"},
    "apportion.files": {"apportion.errors"},
    "apportion.meter": set(),
    "apportion.execution": {"apportion.execution", "apportion.errors"},
    "apportion.models": {
        "apportion.models",
        "apportion.errors",
        "apportion.budget",
        "apportion.files",
    },
    "apportion.mixture": {"apportion.mixture"} | FOUNDATION,
    "apportion.finetune": {"apportion.finetune"} | FOUNDATION,
    "apportion.prefill": {"apportion.prefill"} | FOUNDATION,
    "apportion.report": {"apportion.report"} | FOUNDATION,
    "apportion.cli": {
        "apportion.cli",
        "apportion.mixture",
        "apportion.finetune",
        "apportion.prefill",
        "apportion.report",
    }
    | FOUNDATION,
}

# Third-party modules that may be imported at module level; the longest matching prefix decides.
AT_TOP: dict[str, set[str]] = {
    "apportion": set(),
    "apportion.meter": {"torch"},
    "apportion.models": {"jaxtyping", "torch", "transformers"},
    "apportion.mixture": {"jaxtyping", "numpy", "pandas", "pyarrow", "pydantic", "scipy"},
    "apportion.mixture.laws": {"jaxtyping", "numpy", "scipy"},
    "apportion.mixture.sweep": {
        "jaxtyping",
        "numpy",
        "pandas",
        "pyarrow",
        "pydantic",
        "safetensors",
        "scipy",
        "tokenizers",
        "torch",
    },
    "apportion.finetune": {"jaxtyping", "numpy", "torch"},
    "apportion.finetune.callback": {"jaxtyping", "numpy", "torch", "transformers"},
    "apportion.prefill": {"jaxtyping", "numpy", "torch"},
    "apportion.prefill.cache": {"jaxtyping", "numpy", "torch", "transformers"},
    "apportion.report": {"jaxtyping", "jinja2", "numpy", "pandas"},
    "apportion.cli": {"rich", "typer"},
}

# Modules that are imported nowhere else, not even inside a function.
ONLY_IN: dict[str, set[str]] = {
    "torch": {
        "apportion.budget",
        "apportion.execution",
        "apportion.meter",
        "apportion.models",
        "apportion.mixture.sweep",
        "apportion.finetune",
        "apportion.prefill",
    },
    "transformers": {
        "apportion.models",
        "apportion.finetune.callback",
        "apportion.prefill.cache",
    },
    "jinja2": {"apportion.report"},
    "typer": {"apportion.cli"},
}

# These run code that a data file brings along.
UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_METHODS = {"query", "read_pickle", "to_pickle", "unsafe_load"}


@dataclass(frozen=True)
class Import:
    """One import: the dotted module, its line, and whether it runs when the file is imported."""

    module: str
    line: int
    top: bool


@cache
def modules() -> dict[str, Path]:
    """Every module under src by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def extras() -> dict[str, set[str]]:
    """Packages that each extra brings, the core under `""`; extras of extras resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists: dict[str, list[str]] = {"": project["dependencies"], **project["optional-dependencies"]}

    def resolve(extra: str) -> set[str]:
        names: set[str] = set()
        for line in lists[extra]:
            requirement = Requirement(line)
            if requirement.name == project["name"]:
                names.update(*(resolve(inner) for inner in requirement.extras))
            else:
                names.add(requirement.name)
        return names

    return {extra: resolve(extra) | set(map(_bare, lists[""])) for extra in lists}


def violations(name: str, source: str) -> list[str]:
    """What breaks a rule in the module `name` with that text, one line each; empty when none."""
    tree = ast.parse(source)
    found = [*_imports(name, tree), *_unsafe(tree), *_sizes(source, tree)]
    return [f"{name}:{line}: {what}" for line, what in sorted(found)]


def _bare(line: str) -> str:
    return Requirement(line).name


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def _rule(table: dict[str, set[str]], name: str) -> set[str]:
    return table[max((prefix for prefix in table if _within(name, prefix)), key=len)]


def _imports(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for item in _imported(tree):
        root = item.module.split(".")[0]
        if root == "apportion":
            if not _own_allowed(name, item.module):
                yield item.line, f"may not import {item.module}"
        elif root in UNSAFE_MODULES:
            yield item.line, f"{root} runs code from data files"
        elif root not in sys.stdlib_module_names:
            yield from _third_party(name, root, item)


def _own_allowed(name: str, target: str) -> bool:
    if target == "apportion":  # the package's version; loads nothing else
        return True
    for package, shared in METHODS.items():
        inner = name.removeprefix(package + ".")
        if _within(name, package) and inner != name:
            common = {f"{package}.{part}" for part in shared}
            allowed = common | {"apportion.budget", "apportion.errors"} | BASE_ALSO.get(name, set())
            return target in allowed - {name}
    return any(_within(target, prefix) for prefix in _rule(INTERNAL, name))


def _third_party(name: str, root: str, item: Import) -> Iterator[tuple[int, str]]:
    places = ONLY_IN.get(root)
    if places is not None and not any(_within(name, place) for place in places):
        yield item.line, f"{root} belongs into {', '.join(sorted(places))} only"
    elif item.top and root not in _rule(AT_TOP, name):
        yield item.line, f"{root} must be imported inside the function that needs it"


def _imported(tree: ast.Module) -> Iterator[Import]:
    inside: set[ast.AST] = set()
    typing_only: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside.update(ast.walk(node))
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            typing_only.update(part for statement in node.body for part in ast.walk(statement))
    for node in ast.walk(tree):
        for module in _names(node):
            yield Import(module, node.lineno, node not in inside and node not in typing_only)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            yield "apportion.<relative import: write the full name>"
            return
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in modules() else str(node.module)
    elif isinstance(node, ast.Call) and _called(node) in {"require", "import_module"}:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant):
            yield str(first.value)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def required(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The (module, extra) of every call of `require` with literal arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "require":
            values = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if len(values) == 2:
                yield str(values[0]).split(".")[0], str(values[1])


def _unsafe(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        plain = isinstance(node.func, ast.Name)
        name, text = _called(node), ast.unparse(node.func)
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if (plain and name in UNSAFE_CALLS) or text in {"pd.eval", "pandas.eval"}:
            yield node.lineno, f"{text} runs text as code"
        elif not plain and name in UNSAFE_METHODS:
            yield node.lineno, f"{text} runs text or data as code"
        if text == "torch.load" and given.get("weights_only") != "True":
            yield node.lineno, "torch.load without weights_only=True runs code from the file"
        if text in {"yaml.load", "yaml.full_load"}:
            yield node.lineno, f"{text} builds objects: use yaml.safe_load"
        for word in ("trust_remote_code", "allow_pickle", "shell"):
            if given.get(word, "False") != "False":
                yield node.lineno, f"{word} must stay off"


def _sizes(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield lines, f"{lines} lines: a file has at most {MAX_FILE_LINES}; does it do one job?"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = int(node.end_lineno or 0) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                length -= int(first.end_lineno or 0) - first.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield (
                    node.lineno,
                    f"{node.name} has {length} lines without its docstring, "
                    f"at most {MAX_FUNCTION_LINES} fit a screen",
                )
