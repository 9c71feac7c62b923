"""Options of `format("lowmark")`: what they mean, and which are refused."""

from __future__ import annotations

import json

import pytest

from lowmark.frames.errors import OptionRefused
from lowmark.frames.options import Options, Times

HERE = {"path": "/data/shop", "table": "orders"}


def test_names_are_taken_in_any_case_as_spark_hands_them_on() -> None:
    found = Options.read({"PATH": "/data/shop", "Table": "orders", "maxrowspertrigger": "7"})
    assert (found.path, found.table, found.rows_max) == ("/data/shop", "orders", 7)


def test_kafkas_name_of_the_limit_is_known() -> None:
    assert Options.read({**HERE, "maxOffsetsPerTrigger": "7"}).rows_max == 7


def test_what_spark_and_platforms_add_by_themselves_is_no_mistake_of_the_user() -> None:
    # given what Spark hands on to a sink of a query that has a name, and to one of saveAsTable
    query = {"queryname": "orders_in", "checkpointlocation": "/data/checkpoint"}
    platform = {"__v1_save_as_table_overwrite": "true", "databricks.anything": "1"}
    # then a write is what its user has said
    meant = Options.write(HERE, stream=True)
    assert Options.write({**HERE, **query, **platform}, stream=True) == meant
    assert Options.write({**HERE, **query, **platform}) == meant
    assert Options.read({**HERE, **platform}) == Options.read(HERE)
    # and so it is if options of other sinks say what this one does in any case
    same = {"mergeSchema": "False", "overwriteSchema": "false", "outputMode": "append"}
    assert Options.write({**HERE, **same}, stream=True) == meant
    for name in same:
        with pytest.raises(OptionRefused, match=f"{name} can't be 'true' in a write to a table"):
            Options.write({**HERE, name: "true"})
    # and several paths are no typing error
    with pytest.raises(OptionRefused, match="one table, and several paths were given"):
        Options.read({"paths": '["/a","/b"]', "table": "orders"})


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


def test_times_by_partition_are_milliseconds_as_kafkas_source_has_them() -> None:
    text = '{"0": 1700000000123, "2": 0}'
    found = Options.read({**HERE, "startingOffsetsByTimestamp": text})
    assert found.start == Times({0: 1_700_000_000_123 << 16, 2: 0}, strategy="error")
    assert found.reads_log
    # a row's time is a time, too
    version = 1_700_000_000_000 << 16 | 3
    text = json.dumps({"1": version})
    assert Options.read({**HERE, "endingOffsetsByTimestamp": text}).end == Times({1: version})


def test_the_strategy_is_for_starts_by_time_and_an_error_by_partition_if_not_given() -> None:
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    found = Options.read({**HERE, **strategy, "startingOffsetsByTimestamp": '{"0": 5}'})
    assert found.start == Times({0: 5 << 16}, strategy="latest")
    # a time for all partitions has none, unless it is given
    assert Options.read({**HERE, "startingTimestamp": "1700000000123"}).start == (
        "2023-11-14T22:13:20.123000+00:00"
    )
    for text in ("1700000000123", "2023-11-14T22:13:20.123Z"):
        one = Options.read({**HERE, **strategy, "startingTimestamp": text})
        assert one.start == Times({}, 1_700_000_000_123 << 16, "latest")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**HERE, "startingOffsetsByTimestamp": "1700000000123"}, "Timestamp can't be '17"),
        ({**HERE, "startingOffsetsByTimestamp": '{"0": -1}'}, "ByTimestamp can't be"),
        ({**HERE, "startingOffsetsByTimestamp": '{"0": true}'}, "ByTimestamp can't be"),
        ({**HERE, "startingOffsetsByTimestamp": '{"0": "now"}'}, "ByTimestamp can't be"),
        ({**HERE, "endingOffsetsByTimestamp": '{"x": 1}'}, "ByTimestamp can't be"),
        ({**HERE, "endingOffsetsByTimestamp": f'{{"0": {1 << 62}}}'}, "ByTimestamp can't be"),
        (
            {**HERE, "startingOffsetsByTimestamp": '{"0": 1}', "startingOffsets": "latest"},
            "exclude each other",
        ),
        (
            {**HERE, "endingOffsetsByTimestamp": '{"0": 1}', "versionAsOf": str(1 << 60)},
            "exclude each other",
        ),
        (
            {**HERE, "startingOffsetsByTimestamp": '{"0": 1}', "readChangeFeed": "true"},
            "not for changes",
        ),
        ({**HERE, "startingOffsetsByTimestampStrategy": "latest"}, "is for a start by time"),
        (
            {
                **HERE,
                "startingOffsetsByTimestampStrategy": "earliest",
                "startingTimestamp": "1",
            },
            "Strategy can't be 'earliest'",
        ),
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
        ({**HERE, "startingTimestamp": "5 minutes ago"}, "can't be '5 minutes ago'"),
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
    with pytest.raises(OptionRefused, match="no end"):
        Options.read({**HERE, "endingOffsetsByTimestamp": '{"0": 1}'}).for_stream()
    with pytest.raises(OptionRefused, match="not of one time"):
        Options.read({**HERE, "versionAsOf": str(1 << 60)}).for_stream()
