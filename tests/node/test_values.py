from __future__ import annotations

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowmark.errors import Rejected
from lowmark.node.settings import from_text, from_toml, size_bytes


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1B", 1),
        ("256MiB", 268_435_456),
        ("256 mib", 268_435_456),
        ("64KiB", 65_536),
        ("64KB", 64_000),
        ("1_000GB", 10**12),
        ("2TiB", 2 * 2**40),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["256M", "1.5GiB", "-1KiB", "KiB", "12", "", "1 KiB more"])
def test_a_size_that_could_be_misread_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="is not a size"):
        size_bytes(text)


@given(st.integers())
def test_a_whole_number_means_the_same_in_the_file_and_in_the_environment(number: int) -> None:
    from_file = from_toml(number, kind=int, is_size=False)
    assert from_text(str(number), kind=int, is_size=False) == from_file == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_means_the_same_in_the_file_and_in_the_environment(number: float) -> None:
    from_file = from_toml(number, kind=float, is_size=False)
    assert from_text(repr(number), kind=float, is_size=False) == from_file == number


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, int),
        ("7", int),
        (7.0, int),
        (True, float),
        (float("nan"), float),
        (float("inf"), float),
        (1, bool),
        ("true", bool),
        (7, str),
        ([1], int),
    ],
)
def test_a_file_gives_each_field_its_own_type_or_is_refused(value: object, kind: type) -> None:
    with pytest.raises(Rejected):
        from_toml(value, kind=kind, is_size=False)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("many", int), ("1.5", int), ("64KiB", int), ("nan", float), ("", float), ("maybe", bool)],
)
def test_text_that_is_not_of_the_type_is_refused(text: str, kind: type) -> None:
    with pytest.raises(Rejected):
        from_text(text, kind=kind, is_size=False)


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("0", False), ("False", False)])
def test_truth_has_few_spellings_in_the_environment(text: str, expected: bool) -> None:
    assert from_text(text, kind=bool, is_size=False) is expected


def test_a_whole_number_will_do_where_any_number_is_wanted() -> None:
    value = from_toml(3, kind=float, is_size=False)
    assert (value, type(value)) == (3.0, float)


def test_only_a_field_in_bytes_takes_units() -> None:
    assert from_toml("1KiB", kind=int, is_size=True) == 1024
    with pytest.raises(Rejected, match="is not a whole number"):
        from_toml("1KiB", kind=int, is_size=False)


def test_a_choice_is_taken_in_any_case_and_the_choices_are_listed() -> None:
    assert from_toml("RED", kind=Colour, is_size=False) is Colour.RED
    with pytest.raises(Rejected) as refused:
        from_text("green", kind=Colour, is_size=False)
    assert refused.value.hint == "Use one of: red, blue."
