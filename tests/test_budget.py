"""Amounts as the user writes them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.budget import (
    counted,
    format_bytes,
    format_count,
    parse_bytes,
    parse_count,
    parse_params,
    parse_tokens,
)
from apportion.errors import InputError
from fuzzing import examples


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.2B", 1.2e9),
        ("1.2b", 1.2e9),
        ("1.2G", 1.2e9),
        ("400k", 4e5),
        ("400 K", 4e5),
        (" 85M ", 8.5e7),
        ("15T", 1.5e13),
        ("5e10", 5e10),
        ("5E+10", 5e10),
        ("2.5e3M", 2.5e9),
        (".5B", 5e8),
        ("3.", 3.0),
        ("+7", 7.0),
        ("1,200,000", 1.2e6),
        ("1_200_000.5", 1200000.5),
        (50_000, 5e4),
        (1.5e9, 1.5e9),
    ],
)
def test_counts(text, value):
    assert parse_count(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5GB", 1_500_000_000),
        ("1.5 gb", 1_500_000_000),
        ("2GiB", 2_147_483_648),
        ("200MB", 200_000_000),
        ("1KiB", 1024),
        ("3TB", 3_000_000_000_000),
        ("512", 512),
        ("512b", 512),
        ("0.1kB", 100),
        (4096, 4096),
    ],
)
def test_bytes(text, value):
    got = parse_bytes(text)
    assert got == value
    assert isinstance(got, int)


@pytest.mark.parametrize(
    "text",
    ["", "B", "1.2X", "1.2GB", "1 2", "1.2.3", "twelve", "nan", "inf", "1e", "0x10", "1..2", "²"],
)
def test_what_is_no_count_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"expected a count such as 1\.2B, 400k or 5e10") as error:
        parse_count(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["1,5B", "1,50", "12,3456", "1,,000", "1_5", ",5", "1,000,00"])
def test_a_comma_that_could_be_a_decimal_point_is_refused(text):
    with pytest.raises(InputError, match="expected a count"):
        parse_count(text)


@pytest.mark.parametrize("text", ["0", "-3B", "1e400", "0k", "1e-400"])
def test_counts_are_positive_and_finite(text):
    with pytest.raises(InputError, match="expected a count, positive and finite, such as"):
        parse_count(text)


def test_less_than_a_byte_is_refused():
    with pytest.raises(InputError, match="one byte at least"):
        parse_bytes("0.4B")


def test_amounts_beyond_any_model_are_refused():
    assert (parse_params("1e15"), parse_tokens("1e18")) == (1e15, 1e18)
    for parse, text in ((parse_params, "1.1e15"), (parse_tokens, "1e30"), (parse_params, 1e300)):
        with pytest.raises(InputError, match="of at most"):
            parse(text)
    for parse in (parse_params, parse_tokens):
        with pytest.raises(InputError, match="got 'lots'"):
            parse("lots")


def test_one_is_no_plural():
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [counted(n, "family", "families") for n in (1, 5)] == ["1 family", "5 families"]


def test_the_message_names_what_was_asked_for():
    with pytest.raises(InputError, match="expected tokens such as"):
        parse_count("many", what="tokens")
    with pytest.raises(InputError, match=r"expected an amount of bytes such as 1\.5GB"):
        parse_bytes("1.5B2")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.2e9, "1.2B"),
        (397e6, "397M"),
        (5e10, "50B"),
        (999_999, "1M"),
        (999_949, "999.9k"),
        (999_949_999, "999.9M"),
        (1e12, "1T"),
        (1000, "1k"),
        (999, "999"),
        (0.25, "0.25"),
        (-1500, "-1.5k"),
        (0, "0"),
    ],
)
def test_format_count(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_500_000_000, "1.5 GB"), (999, "999 B"), (1000, "1 kB"), (2**20, "1.049 MB"), (0, "0 B")],
)
def test_format_bytes(value, text):
    assert format_bytes(value) == text


@given(st.floats(min_value=1e-3, max_value=1e18))
def test_formatting_loses_no_more_than_four_digits(value):
    assert parse_count(format_count(value)) == pytest.approx(value, rel=5.001e-4)


@given(st.integers(min_value=1, max_value=10**18))
def test_formatted_bytes_are_read_back(value):
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=5.001e-4)


@pytest.mark.fuzz
@settings(max_examples=examples(200))
@given(st.text() | st.from_regex(r"[0-9.,_e+-]{0,12} ?[a-zA-Z]{0,3}"))
def test_any_text_is_an_amount_or_an_input_error(text):
    for parse in (parse_count, parse_bytes):
        try:
            value = parse(text)
        except InputError:
            continue
        assert value > 0


def test_parameters_and_tokens_are_named_in_full():
    with pytest.raises(InputError, match=r"expected a number of tokens such as 1\.2B"):
        parse_tokens("many")
    with pytest.raises(InputError, match=r"expected a number of parameters, positive and finite"):
        parse_params("0")


def test_counts_beyond_trillions_are_powers_of_ten():
    assert format_count(1e17) == "1e17"
    assert format_count(5e15) == "5000T"
