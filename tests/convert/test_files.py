"""Files of rows: every format, every place where a block may end, and the line of what is wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convert.coercing import KEY, ORDERS, schema_of
from lowmark.catalog import TableSchema
from lowmark.convert import csv_files, files, source
from lowmark.convert.errors import ColumnRefused, LineRefused, ValueRefused
from lowmark.convert.files import read_rows
from lowmark.convert.source import FileBatch
from lowmark.errors import Rejected

D = Decimal
SOME_UUID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
ALL = schema_of(
    i="int8",
    f="float64",
    d="decimal(12,2)",
    b="bool",
    s="string",
    x="binary",
    u="uuid",
    day="date",
    t="timestamp",
    l="timestamp_ntz",
    n="list<int8>",
)
ALL_VALUES = {
    "i": 5,
    "f": 0.1,
    "d": D("9.50"),
    "b": True,
    "s": "a,b",
    "x": b"\x00\xff",
    "u": SOME_UUID.bytes,
    "day": date(2026, 7, 1),
    "t": datetime(2026, 7, 1, 10, tzinfo=UTC),
    "l": datetime(2026, 7, 1, 12),  # noqa: DTZ001
    "n": [1, None],
}


@pytest.fixture(params=[7, 64, 4 << 20], ids=["tiny blocks", "small blocks", "one block"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """However small the blocks are, what comes out is the same."""
    size = int(request.param)
    set_block_bytes(monkeypatch, size)
    return size


def set_block_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", size)
    monkeypatch.setattr(files, "BLOCK_BYTES", size)


def read(
    content: str | bytes, schema: TableSchema = ORDERS, *, name: str = "in.csv", **options: Any
) -> list[dict[str, Any]]:
    stream = io.BytesIO(content.encode() if isinstance(content, str) else content)
    batches = list(read_rows(stream, schema=schema, name=name, **options))
    return [row for each in batches for row in each.batch.to_pylist()]


def refused(content: str | bytes, schema: TableSchema = ORDERS, **options: Any) -> LineRefused:
    with pytest.raises(LineRefused) as caught:
        read(content, schema, **options)
    return caught.value


# -- CSV ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("block_bytes")
def test_csv_is_read_by_the_types_of_the_table() -> None:
    text = (
        "i,f,d,b,s,x,u,day,t,l,n\n"
        f'5,0.1,9.5,TRUE,"a,b",00ff,{SOME_UUID},2026-07-01,2026-07-01T12:00:00+02:00,'
        '2026-07-01 12:00,"[1,null]"\n'
        ",,,,,,,,,,\n"
    )
    assert read(text, ALL) == [ALL_VALUES, dict.fromkeys(ALL_VALUES)]


@pytest.mark.usefixtures("block_bytes")
def test_an_empty_field_is_null_and_a_quoted_one_is_the_empty_string() -> None:
    rows = read('id,status\na,\nb,""\nc,"x"\n')
    assert [row["status"] for row in rows] == [None, "", "x"]


@pytest.mark.usefixtures("block_bytes")
def test_columns_of_a_file_come_in_any_order_and_may_be_missing() -> None:
    assert read("qty,_offset,id\n1,77,a\n") == [
        {"id": "a", "status": "new", "amount": None, "qty": 1}
    ]


def test_a_byte_order_mark_and_windows_lines_do_not_matter() -> None:
    assert read("\ufeffid,qty\r\na,1\r\n\r\nb,2") == read("id,qty\na,1\nb,2\n")
    assert read("id,qty\ra,1\rb,2\r") == read("id,qty\na,1\nb,2\n")


def test_other_delimiters() -> None:
    assert read("id;qty\n'a,b';1\n", delimiter=";")[0]["id"] == "'a,b'"
    assert read("id\tqty\na\t1\n", name="in.tsv")[0]["qty"] == 1
    with pytest.raises(Rejected, match="can't be a delimiter"):
        read("id\n", delimiter="::")


@pytest.mark.usefixtures("block_bytes")
def test_a_quote_inside_a_field_is_only_a_character() -> None:
    text = 'id,status\n5" pipe,x\n"a""b","c\nd"\nab"c"d,"x"y"z\n6",7"\n"e","f\n"\n'
    rows = read(text)
    assert [(row["id"], row["status"]) for row in rows] == [
        ('5" pipe', "x"),
        ('a"b', "c\nd"),
        ('ab"c"d', 'xy"z'),
        ('6"', '7"'),
        ("e", "f\n"),
    ]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int8", " 5 ", 5),
        ("int8", "5.0", 5),
        ("int8", "+5", 5),
        ("int8", "1e2", 100),
        ("int64", "9223372036854775807", 2**63 - 1),
        ("float64", "1e5", 1e5),
        ("float64", "-inf", float("-inf")),
        ("decimal(12,2)", " 9.500 ", D("9.50")),
        ("decimal(12,2)", "1e3", D("1000.00")),
        ("bool", "tRuE", True),
        ("bool", " false", False),
        ("date", "20260701", date(2026, 7, 1)),
        ("timestamp", "2026-07-01", datetime(2026, 7, 1, tzinfo=UTC)),
        ("uuid", SOME_UUID.hex, SOME_UUID.bytes),
        ("binary", "", None),
        ("map<string, int8>", '"{""a"": 1}"', [("a", 1)]),
    ],
)
def test_what_tools_write_is_read(kind: str, text: str, expected: Any) -> None:
    # when it is alone, and beside something plain of the same type
    schema = schema_of(v=kind, w="string")
    assert [row["v"] for row in read(f"v,w\n{text},x\n{text},x\n", schema)] == [expected] * 2


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("int8", "128", "out of the range"),
        ("int8", "0x10", "is not a number"),
        ("int8", "1.5", "not a whole number"),
        ("int8", "1_0", "is not a number"),
        ("int8", '""', "is not a number"),
        ("float64", "1e400", "beyond the range"),
        ("float32", "1e39", "out of the range"),
        ("float64", "0x10", "is not a number"),
        ("decimal(12,2)", "9.505", "2 digits behind the point"),
        ("decimal(12,2)", "12345678901.5", "10 digits before the point"),
        ("bool", "1", "neither true nor false"),
        ("bool", "yes", "neither true nor false"),
        ("binary", "0ff", "hexadecimal"),
        ("uuid", "x", "not a UUID"),
        ("date", "1.7.2026", "ISO form"),
        ("timestamp", "2026-07-01T12:00:00.0000001Z", "more than microseconds"),
        ("timestamp_ntz", "2026-07-01T12:00:00Z", "time zone"),
        ("list<int8>", "[1", "is not JSON"),
        ("list<int8>", "[300]", "out of the range"),
    ],
)
@pytest.mark.usefixtures("block_bytes")
def test_a_bad_value_of_csv_is_named_by_line_and_column(kind: str, text: str, why: str) -> None:
    # given quoted line ends and empty lines before it
    content = f'w,v\n"x\ny",\n\nz,\nq,{text}\nz,\n'
    error = refused(content, schema_of(v=kind, w="string"))
    assert (error.line, error.column) == (6, "v")
    assert error.message.startswith("in.csv, line 6, column v")
    assert why in error.message
    assert error.value is not None


@pytest.mark.usefixtures("block_bytes")
def test_a_null_where_none_may_be_is_named_by_its_line() -> None:
    error = refused("id,qty\na,1\n,2\n", key=KEY)
    assert str(error).startswith("in.csv, line 3, column id: null is not allowed")


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        ("id,qty\na,1\nb,2,3\n", 3, "there are 3 fields, and the header has 2"),
        ('id,qty\n"a\n\n",1\nb\n', 5, "there are 1 fields, and the header has 2"),
        ('id,qty\na,1\nb,"2\n', 3, "a quote is not closed"),
        ('id,qty\n5",1\nb,"2\n', 3, "a quote is not closed"),
        ('id,status\na,1\nb,"2', 3, "a quote is not closed"),
        (b"id,qty\na,1\nb\xff,2\n", 3, "is not UTF-8"),
    ],
)
@pytest.mark.usefixtures("block_bytes")
def test_a_line_that_is_no_row_is_named(content: str | bytes, line: int, why: str) -> None:
    error = refused(content)
    assert error.line == line
    assert why in error.message


@pytest.mark.parametrize(
    ("header", "message", "hint"),
    [
        ("id,amuont", "in.csv, line 1: the table has no column amuont", "Did you mean amount?"),
        ("id,ID", "in.csv, line 1: the table has no column ID", "Did you mean id?"),
        ("id,id", "in.csv, line 1: column id is there twice", "Drop one of them."),
    ],
)
def test_a_header_with_wrong_names_is_refused(header: str, message: str, hint: str) -> None:
    with pytest.raises(ColumnRefused) as caught:
        read(f"{header}\na,1\n")
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_file_that_lacks_a_required_column_is_refused() -> None:
    with pytest.raises(ColumnRefused, match=r"in.csv, column id is required"):
        read("qty\n1\n")


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_a_file_without_a_header_is_refused(content: str) -> None:
    with pytest.raises(Rejected, match="has no header"):
        read(content)


def test_a_header_alone_is_no_rows() -> None:
    assert read("id,qty") == []
    assert read("id,qty\n\n") == []


def test_a_row_without_end_does_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    set_block_bytes(monkeypatch, 64)
    monkeypatch.setattr(source, "RECORD_BYTES_MAX", 1_000)
    error = refused('id,qty\na,1\nb,"' + "x\n" * 10_000)
    assert error.line == 3
    assert "longer than" in error.message


def test_nothing_of_a_bad_batch_is_handed_out_and_all_before_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a file whose rows come in several batches, with a bad one in the last
    set_block_bytes(monkeypatch, 64)
    rows = [f"o{number:03},{number}" for number in range(50)]
    stream = io.BytesIO("\n".join(["id,qty", *rows, "bad,x"]).encode())

    # when it is read to the end
    taken: list[FileBatch] = []
    with pytest.raises(LineRefused) as caught:
        taken.extend(read_rows(stream, schema=ORDERS, format="csv"))

    # then the line is right, and whole batches came before it
    assert caught.value.line == 52
    assert len(taken) > 1
    assert [each.first_row for each in taken] == [
        sum(before.batch.num_rows for before in taken[:at]) for at in range(len(taken))
    ]


cells = st.text(alphabet=st.sampled_from('ab ,"\n\r;é'), max_size=6)
tables = st.lists(st.tuples(cells.filter(bool), cells), min_size=1, max_size=12)


@pytest.mark.slow
@given(tables, st.integers(1, 40))
@example([('a"', ""), ("b", '"')], 3)
def test_csv_as_python_writes_it_goes_round(rows: list[tuple[str, str]], size: int) -> None:
    # given rows as Python's own writer quotes them
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("id", "status"), *rows])

    # then they are read back, wherever blocks end
    with pytest.MonkeyPatch.context() as patch:
        set_block_bytes(patch, size)
        taken = read(text.getvalue())
    assert [(row["id"], row["status"]) for row in taken] == rows


@pytest.mark.slow
@given(
    st.lists(st.text(alphabet=st.sampled_from('a,"\n'), max_size=12), max_size=6), st.integers(1, 9)
)
def test_blocks_end_where_records_do(lines: list[str], size: int) -> None:
    # given any text at all behind a header
    content = "id,status\n" + "\n".join(lines)

    # then its rows, or its refusal, do not depend on where blocks end
    with pytest.MonkeyPatch.context() as patch:
        set_block_bytes(patch, size)
        in_blocks = outcome(content)
    assert in_blocks == outcome(content)


def outcome(content: str) -> Any:
    try:
        return read(content, schema_of(id="string", status="string"))
    except LineRefused as error:
        return error.message


# -- JSON lines ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("block_bytes")
def test_json_lines_are_read_by_the_types_of_the_table() -> None:
    row = {
        "i": 5,
        "f": 0.1,
        "d": 9.5,
        "b": True,
        "s": "a,b",
        "x": "00ff",
        "u": str(SOME_UUID),
        "day": "2026-07-01",
        "t": "2026-07-01T12:00:00+02:00",
        "l": "2026-07-01T12:00:00",
        "n": [1, None],
    }
    content = json.dumps(row) + "\n\n{}\n" + json.dumps(dict.fromkeys(row))
    rows = read(content, ALL, format="jsonl")
    assert rows == [ALL_VALUES, dict.fromkeys(ALL_VALUES), dict.fromkeys(ALL_VALUES)]


@pytest.mark.parametrize("others", [{}, {"f": "float64"}])
def test_numbers_of_json_keep_all_their_digits(others: dict[str, str]) -> None:
    # given a decimal that no float holds
    schema = schema_of(v="decimal(38,10)", **others)
    assert read('{"v": 1234567890123456789.0123456789}\n', schema, format="jsonl")[0]["v"] == D(
        "1234567890123456789.0123456789"
    )
    # and a float with more digits than floats have, which is rounded as everywhere
    if others:
        rows = read('{"f": 0.1234567890123456789}\n', schema, format="jsonl")
        assert rows[0]["f"] == 0.1234567890123456789


@pytest.mark.usefixtures("block_bytes")
def test_what_a_line_lacks_is_its_default_or_null() -> None:
    rows = read('{"id": "a"}\n{"id": "b", "status": null}\n', format="jsonl")
    assert [row["status"] for row in rows] == ["new", None]


@pytest.mark.parametrize(
    ("line", "column", "why"),
    [
        ('{"id": "b", "qty": "x"}', "qty", "'x' is of type str"),
        ('{"id": "b", "qty": 1.5}', "qty", "1.5"),
        ('{"id": "b", "amount": 9.505}', "amount", "2 digits behind the point"),
        ('{"id": null}', "id", "null is not allowed"),
        ('{"id": "b", "amuont": 1}', "amuont", "the table has no column amuont"),
        ('{"id": "b"', None, "this is not a JSON object"),
        ('{"id": "b"} {"id": "c"}', None, "this is not a JSON object"),
        ('{"id":\n"b"}', None, "this is not a JSON object"),
        ('["b"]', None, "this is not a JSON object"),
        ('{"id": "b", "qty": NaN}', None, "this is not a JSON object"),
        ('{"id": "b", "amount": 1e400}', "amount", "before the point"),
    ],
)
@pytest.mark.usefixtures("block_bytes")
def test_a_bad_line_of_json_is_named(line: str, column: str | None, why: str) -> None:
    error = refused(f'{{"id": "a"}}\n\n{line}\n{{"id": "z"}}\n', name="in.jsonl", key=KEY)
    assert (error.line, error.column) == (3, column)
    assert why in error.message


def test_bytes_that_are_no_text_are_refused_by_line() -> None:
    assert refused(b'{"id": "a"}\n{"id": "\xff"}\n', name="in.jsonl").line == 2
    error = refused('{"x": "00"}\n{"x": "0f0"}\n', ALL, name="in.jsonl")
    assert (error.line, error.column) == (2, "x")


def test_a_list_is_not_lines_and_the_hint_says_what_to_do() -> None:
    assert "jq -c" in refused('[{"id": "a"}]', name="in.json").hint


@given(
    st.lists(
        st.fixed_dictionaries(
            {"id": st.text()},
            optional={
                "qty": st.integers(-(2**31), 2**31 - 1),
                "amount": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda cents: cents / 100),
            },
        ),
        max_size=8,
    ),
    st.integers(1, 60),
)
def test_json_lines_go_round(rows: list[dict[str, Any]], size: int) -> None:
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with pytest.MonkeyPatch.context() as patch:
        set_block_bytes(patch, size)
        taken = read(content, format="jsonl")
    assert [row["id"] for row in taken] == [row["id"] for row in rows]
    assert [row["qty"] for row in taken] == [row.get("qty") for row in rows]
    assert [row["amount"] and float(row["amount"]) for row in taken] == [
        row.get("amount") for row in rows
    ]


# -- Parquet and Arrow --------------------------------------------------------------------------

TABLE = pa.table({"id": [f"o{row}" for row in range(10)], "qty": range(10)})


def parquet(table: pa.Table) -> bytes:
    made = io.BytesIO()
    pq.write_table(table, made, row_group_size=4)
    return made.getvalue()


def ipc_file(table: pa.Table) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return made.getvalue()


def ipc_stream(table: pa.Table) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return made.getvalue()


COLUMNAR = [parquet, ipc_file, ipc_stream]


@pytest.mark.parametrize("make", COLUMNAR)
def test_parquet_and_arrow_are_known_by_their_first_bytes(make: Any, tmp_path: Path) -> None:
    # given a file without an ending
    path = tmp_path / "rows"
    path.write_bytes(make(TABLE))

    # then it is read from a path, and from a stream that can't go back
    batches = list(read_rows(path, schema=ORDERS))
    assert [row["qty"] for each in batches for row in each.batch.to_pylist()] == list(range(10))
    assert [row["qty"] for row in read(make(TABLE), name="stdin")] == list(range(10))

    # and progress goes up to the end of the file
    assert batches[-1].bytes_total == path.stat().st_size
    done = [each.bytes_done for each in batches]
    assert done == sorted(done)
    assert 0.9 * path.stat().st_size <= done[-1] <= path.stat().st_size


@pytest.mark.parametrize("make", COLUMNAR)
def test_a_bad_value_of_parquet_or_arrow_is_named_by_row_and_column(make: Any) -> None:
    bad = TABLE.set_column(1, "qty", pa.array([1] * 9 + [2**40]))
    with pytest.raises(ValueRefused) as caught:
        read(make(bad), name="in.dat")
    assert (caught.value.row, caught.value.column) == (9, "qty")
    assert caught.value.message.startswith("in.dat, row 9, column qty")
    other = TABLE.append_column("zip", pa.array(range(10)))
    for table in (other, other.slice(0, 0)):  # also of a file without rows
        with pytest.raises(ColumnRefused, match=r"in.dat, the table has no column zip"):
            read(make(table), name="in.dat")
    assert read(make(TABLE.slice(0, 0)), name="in.dat") == []


@pytest.mark.parametrize("make", COLUMNAR)
def test_a_damaged_file_is_refused(make: Any, tmp_path: Path) -> None:
    whole = make(TABLE)
    for content in (whole[:-20], whole[: len(whole) // 2], whole[:8]):
        with pytest.raises(Rejected, match="can't be read as"):
            read(content, name="in.dat")


def test_a_large_batch_of_a_file_is_cut() -> None:
    table = pa.table({"id": [str(row) for row in range(70_000)]})
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table)
    batches = list(read_rows(io.BytesIO(made.getvalue()), schema=ORDERS))
    assert [(each.first_row, each.batch.num_rows) for each in batches] == [
        (0, 65_536),
        (65_536, 70_000 - 65_536),
    ]


# -- sources ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in", "id\na\n"),
        ("in", '{"id": "a"}\n'),
        ("in", '\n  {"id": "a"}\n'),
        ("in.json", '{"id": "a"}'),
        ("in.ndjson", '{"id": "a"}'),
        ("in.csv", "id\na"),
    ],
)
def test_the_format_is_found_by_the_first_bytes_or_the_ending(name: str, content: str) -> None:
    assert [row["id"] for row in read(content, name=name)] == ["a"]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(Rejected, match="xml is not a format"):
        read("<id>", format="xml")


def test_a_compressed_file_is_refused_with_a_way_out() -> None:
    with pytest.raises(Rejected, match=r"in.csv is compressed") as caught:
        read(b"\x1f\x8b\x08\x00")
    assert "gunzip -c" in caught.value.hint


def test_progress_of_a_text_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_block_bytes(monkeypatch, 64)
    path = tmp_path / "rows.csv"
    path.write_text("id,qty\n" + "".join(f"o{row},{row}\n" for row in range(100)))
    done = [(each.bytes_done, each.bytes_total) for each in read_rows(path, schema=ORDERS)]
    size = path.stat().st_size
    assert done == sorted(done)
    assert done[-1] == (size, size)
    assert len(done) > 10


@pytest.mark.parametrize("make", [parquet, ipc_stream, lambda _: b"id,qty\n" + b"a,1\n" * 10])
def test_a_pipe_is_read_though_it_gives_little_at_a_time(make: Any) -> None:
    # given a pipe into which somebody writes in small pieces
    reading, writing = os.pipe()
    content = make(TABLE)

    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for at in range(0, len(content), 100):
                pipe.write(content[at : at + 100])

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        batches = list(read_rows(pipe, schema=ORDERS))
    writer.join()

    # then all of it comes
    assert sum(each.batch.num_rows for each in batches) == 10


def test_a_file_is_closed_when_reading_stops(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\na\n")
    reading: Iterator[FileBatch] = read_rows(path, schema=ORDERS)
    next(reading)
    reading.close()  # type: ignore[attr-defined] # a file left open would be a warning, so an error


def test_changes_of_a_file() -> None:
    rows = read("id,_change\na,upsert\nb,delete\nc,1\n", key=KEY, changes=True)
    assert [row["_change"] for row in rows] == [0, 1, 1]
    error = refused("id,_change\na,upsert\nb,remove\n", key=KEY, changes=True)
    assert (error.line, error.column) == (3, "_change")


@pytest.mark.usefixtures("block_bytes")
def test_lines_are_right_behind_quoted_line_ends_of_earlier_blocks() -> None:
    # given many rows over two lines each, some with the inch sign, and a bad value far behind them
    pairs = [('"a\nb"', '5" pipe'), ('"a\r\nb"', '"c"')]
    rows = [",".join((*pairs[at % 5 == 0], "1")) for at in range(40)]
    content = "\n".join(["id,status,qty", *rows, ""])

    # then its line is the one that an editor shows
    assert refused(content + "z,,x\n").line == 82
    assert refused(content + "z,,1,1\n").line == 82
    assert refused(content + 'z,,"1\n').line == 82


def test_a_bad_value_behind_a_long_field_is_named_by_its_line() -> None:
    # given a field longer than Python's reader takes by default
    long = "x" * 200_000
    assert refused(f'id,qty\n"{long}\n",1\nb,x\n').line == 4


def test_an_open_quote_does_not_hide_what_is_wrong_before_it() -> None:
    assert refused('id,qty\na,x\nb,"2\n').line == 2
