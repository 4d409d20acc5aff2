"""What is written on a command line, read by itself: shares from files that are not text."""

from __future__ import annotations

from pathlib import Path

import pytest

from apportion.cli.values import shares
from apportion.errors import InputError


@pytest.mark.parametrize("name", ["ratios.csv", "ratios.json"])
def test_a_binary_file_of_ratios_is_named_without_the_words_of_a_codec(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"family,ratio\n\xff\xfe\x00")
    with pytest.raises(InputError, match=r"a byte that is not UTF-8 at offset 13") as caught:
        shares(str(path))
    assert str(path) in str(caught.value)
    assert "codec" not in str(caught.value)


@pytest.mark.parametrize("name", ["ratios.csv", "ratios.json"])
def test_a_byte_order_mark_is_read_past(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = "family,ratio\na,.25\nb,.75\n" if path.suffix == ".csv" else '{"a": 0.25, "b": 0.75}'
    path.write_text(text, encoding="utf-8-sig")
    assert shares(str(path)) == {"a": 0.25, "b": 0.75}
