"""Arguments that a call does not take are refused by name; one name is as good as a list of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lowmark
from lowmark.client import Database, Table
from lowmark.errors import ArgumentRefused, NodeUnreachable, Rejected


def test_one_column_may_be_named_without_a_list(orders: Table, tmp_path: Path) -> None:
    orders.append([{"id": "o-1", "status": "new"}])
    before = orders.snapshot()
    orders.append([{"id": "o-2", "status": "new"}])
    # then every call that takes columns takes a name
    for way in ({}, {"as_of": "now"}, {"compacted": True}):
        assert orders.read(columns="id", **way).schema.names == ["id"]
    assert orders.changes(before, columns="id").schema.names[0] == "id"
    assert orders.export(tmp_path / "out", columns="id").rows == 2
    # and a name that is not there is refused as a whole, not letter by letter
    for names in ("idd", ["idd"]):
        with pytest.raises(Rejected, match="has no column 'idd'"):
            orders.read(columns=names)


@pytest.mark.parametrize("columns", [3, b"id", [1], [b"id"], {"id": 1}.items()])
def test_what_is_no_name_of_a_column_is_refused(
    orders: Table, tmp_path: Path, columns: Any
) -> None:
    for ask in (
        lambda: orders.read(columns=columns),
        lambda: orders.read(columns=columns, as_of="now"),
        lambda: orders.changes("earliest", columns=columns),
        lambda: orders.export(tmp_path / "out", columns=columns),
    ):
        with pytest.raises(Rejected, match="columns can't be") as refused:
            ask()
        assert 'columns=["id", "status"]' in refused.value.hint
    assert not (tmp_path / "out").exists()


def test_an_argument_that_a_call_does_not_take_is_refused_by_name(
    db: Database, orders: Table, tmp_path: Path
) -> None:
    wrong: Any = orders
    out = tmp_path / "out"
    with pytest.raises(ArgumentRefused, match="export takes no argument fmt") as refused:
        wrong.export(out, fmt="delta")
    assert refused.value.hint == "Did you mean format?"
    with pytest.raises(ArgumentRefused, match="export takes no argument mode") as refused:
        wrong.export(out, mode="overwrite")
    assert "format, as_of, columns" in refused.value.hint
    with pytest.raises(ArgumentRefused, match="export can't be called like this"):
        wrong.export(out, "delta")
    with pytest.raises(ArgumentRefused, match="missing a required argument: 'to'"):
        wrong.export()
    with pytest.raises(Rejected, match="format can't be 'csv'") as csv:
        wrong.export(out, format="csv")
    assert csv.value.hint == "Use parquet, delta or iceberg."
    assert not out.exists()
    # and so it is for other calls
    with pytest.raises(ArgumentRefused, match="read takes no argument colums") as refused:
        wrong.read(colums=["id"])
    assert refused.value.hint == "Did you mean columns?"
    unknown: Any = db
    with pytest.raises(TypeError, match="create_table takes no argument keys"):
        unknown.create_table("t", {"id": "int64"}, keys="id")


def test_what_goes_wrong_in_a_call_is_not_taken_for_a_wrong_argument(
    orders: Table, tmp_path: Path
) -> None:
    orders.append([{"id": "o-1", "status": "new"}])

    def progress(_: object) -> None:
        raise TypeError("it is mine")

    with pytest.raises(TypeError, match="it is mine") as raised:
        orders.export(tmp_path / "out", progress=progress)
    assert not isinstance(raised.value, ArgumentRefused)


def test_a_server_that_is_not_there_is_told_of_in_words_of_python() -> None:
    with pytest.raises(NodeUnreachable) as refused:
        lowmark.connect("127.0.0.1:1", timeout_s=0.2)
    assert "--" not in refused.value.hint
    assert "lowmark.open(PATH)" in refused.value.hint


def test_what_a_call_passes_on_is_refused_by_whom_it_is_for(orders: Table) -> None:
    orders.append([{"id": "o-1", "status": "new"}])
    reader: Any = orders.read()
    # pandas takes `types_mapper`, but no number: the error says that, not that there is none
    with pytest.raises(TypeError) as refused:
        reader.to_pandas(types_mapper=5)
    assert not isinstance(refused.value, ArgumentRefused)


@pytest.mark.parametrize(
    "address",
    ["h:1;h:2", "http://127.0.0.1:1", "a b:9", "127.0.0.1", 5, [5], {"h:1": "h:2"}],
)
def test_what_is_no_address_of_a_server_is_refused(address: Any) -> None:
    with pytest.raises(Rejected) as refused:
        lowmark.connect(address, timeout_s=0.1)
    assert str(address) in refused.value.message


def test_a_call_that_takes_nothing_says_so(orders: Table) -> None:
    wrong: Any = orders
    with pytest.raises(ArgumentRefused) as refused:
        wrong.snapshot(limit=5)
    assert refused.value.hint == "It takes none."
    with pytest.raises(ArgumentRefused) as refused:
        wrong.read("id")
    assert refused.value.hint.startswith("It takes by name: ")
