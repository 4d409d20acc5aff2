"""The checker of annotations in the test run: beartype, an int being a float (PEP 484)."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
