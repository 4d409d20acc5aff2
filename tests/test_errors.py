"""What the foundation's errors say, and that nothing hides behind them."""

from __future__ import annotations

import sys
import warnings

import pytest

import apportion
from apportion.errors import (
    InputError,
    InputWarning,
    MissingExtraError,
    WeakFitError,
    command_line,
    option,
    require,
)


def test_all_input_errors_are_caught_as_one():
    assert issubclass(InputError, ValueError)
    for error in (MissingExtraError, WeakFitError):
        assert issubclass(error, InputError)
    assert issubclass(InputWarning, UserWarning)


def test_require_imports_what_is_there():
    assert require("json.decoder", "plot") is sys.modules["json.decoder"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inner.part"])
def test_require_names_the_package_and_the_extra(module):
    with pytest.raises(MissingExtraError) as error:
        require(module, "plot")
    assert "'no_such_package'" in str(error.value)
    assert "pip install 'apportion[plot]'" in str(error.value)


def test_require_does_not_blame_the_user_for_a_broken_package(tmp_path, monkeypatch):
    """A package that is there but lacks one of its own is not a missing extra of ours."""
    (tmp_path / "broken_package.py").write_text("import no_such_dependency\n")
    (tmp_path / "failing_package.py").write_text("raise OSError('no library')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        require("broken_package", "plot")
    with pytest.raises(OSError, match="no library"):
        require("failing_package", "plot")


@pytest.mark.parametrize(
    ("given", "python", "shell"),
    [
        (("max_epochs",), "max_epochs", "--max-epochs"),
        (("bootstrap", 1000), "bootstrap=1000", "--bootstrap 1000"),
        (("params", 1e6), "params=1e6", "--params 1e6"),
        (("force", True), "force=True", "--force"),
        (("law", "transfer"), 'law="transfer"', "--law transfer"),
        (("tokens", ...), "tokens=…", "--tokens …"),
        (("floors", {"a": 0.1}), 'floors={"a": 0.1, …}', "--floor a=0.1,…"),
        (("paths", {"a": ...}), 'paths={"a": …, …}', "--paths a=…"),
    ],
)
def test_an_option_is_named_as_the_reader_gives_it(given, python, shell):
    assert option(*given) == python
    with command_line({"floors": "floor"}):
        assert option(*given) == shell
    assert option(*given) == python


def test_names_of_the_command_line_end_with_it_also_after_an_error():
    with pytest.raises(InputError), command_line({}):
        raise InputError(option("force", True))
    assert option("force", True) == "force=True"


def test_an_unknown_capability_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'pretraining'"):
        _ = apportion.pretraining


def test_warnings_are_errors_here():
    with pytest.raises(InputWarning, match="said"):
        warnings.warn("said", InputWarning, stacklevel=1)
