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


def test_an_unknown_capability_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'pretraining'"):
        _ = apportion.pretraining


def test_warnings_are_errors_here():
    with pytest.raises(InputWarning, match="said"):
        warnings.warn("said", InputWarning, stacklevel=1)
