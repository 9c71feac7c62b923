"""Options of `format("lowmark")`: what they mean, and which are refused."""

from __future__ import annotations

import pytest

from lowmark.frames.errors import OptionRefused
from lowmark.frames.options import Options

HERE = {"path": "/data/shop", "table": "orders"}


def test_names_are_taken_in_any_case_as_spark_hands_them_on() -> None:
    found = Options.read({"PATH": "/data/shop", "Table": "orders", "maxrowspertrigger": "7"})
    assert (found.path, found.table, found.rows_max) == ("/data/shop", "orders", 7)


def test_kafkas_name_of_the_limit_is_known() -> None:
    assert Options.read({**HERE, "maxOffsetsPerTrigger": "7"}).rows_max == 7


@pytest.mark.parametrize(
    ("text", "meant"),
    [("earliest", "earliest"), ("latest", "latest"), ('{"0": 17, "1": -2}', {0: 17, 1: -2})],
)
def test_positions_are_given_as_to_kafkas_source(text: str, meant: object) -> None:
    assert Options.read({**HERE, "startingOffsets": text}).start == meant


def test_times_are_milliseconds_or_text() -> None:
    # a number below all versions would be an offset, if it were handed on as one
    millis = Options.read({**HERE, "startingTimestamp": "1700000000123"}).start
    assert millis == "2023-11-14T22:13:20.123000+00:00"
    version = 1_700_000_000_000 << 16
    assert Options.read({**HERE, "startingTimestamp": str(version)}).start == version
    assert Options.read({**HERE, "endingTimestamp": "2026-01-31T12:00:00Z"}).end == (
        "2026-01-31T12:00:00Z"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "CREATE TABLE"),
        ({"option.table": "orders", "provider": "lowmark"}, "CREATE TABLE"),
        ({"table": "orders"}, "one directory, or one server"),
        ({**HERE, "node": "n1:4711"}, "one directory, or one server"),
        ({"path": "/data/shop"}, "no table is named"),
        ({**HERE, "tabel": "x"}, "no option 'tabel'"),
        ({**HERE, "maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "2"}, "given twice"),
        ({**HERE, "maxRowsPerTrigger": "0"}, "can't be 0"),
        ({**HERE, "maxBytesPerTrigger": "much"}, "can't be 'much'"),
        ({**HERE, "columns": "id,,status"}, "columns can't be"),
        ({**HERE, "failOnDataLoss": "perhaps"}, "can't be 'perhaps'"),
        ({**HERE, "startingOffsets": "first"}, "can't be 'first'"),
        ({**HERE, "startingOffsets": '{"0": -3}'}, "startingOffsets can't be"),
        ({**HERE, "startingOffsets": '{"0": true}'}, "startingOffsets can't be"),
        ({**HERE, "startingOffsets": "[1]"}, "startingOffsets can't be"),
        ({**HERE, "startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({**HERE, "timestampAsOf": "2026-01-31", "versionAsOf": "1"}, "exclude each other"),
        ({**HERE, "versionAsOf": "1"}, "can't be 1"),
        ({**HERE, "readChangeFeed": "true", "startingVersion": "0"}, "can't be 0"),
        ({**HERE, "startingVersion": "1"}, "is for changes"),
        ({**HERE, "versionAsOf": "1", "endingOffsets": "latest"}, "exclude each other"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionRefused, match=said):
        Options.read(given)


def test_a_read_has_no_trigger_and_a_stream_no_end_and_no_time() -> None:
    with pytest.raises(OptionRefused, match="maxRowsPerTrigger is for streams"):
        Options.read({**HERE, "maxRowsPerTrigger": "1"}).for_read()
    with pytest.raises(OptionRefused, match="no end"):
        Options.read({**HERE, "endingOffsets": "latest"}).for_stream()
    with pytest.raises(OptionRefused, match="not of one time"):
        Options.read({**HERE, "versionAsOf": str(1 << 60)}).for_stream()
