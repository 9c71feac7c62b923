"""An index is created only where there is nothing to build: on a directory, and over a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lowmark
from lowmark.catalog import AddColumns, CreateIndex, CreateTable, NewColumn, RenameTable
from lowmark.catalog.descriptors import IndexStatus
from lowmark.client import Database
from lowmark.errors import CatalogRefused, IndexNotBuildable
from server.world import Served

COLUMNS = {"id": "string", "city": "string"}
BY_CITY = CreateIndex(name="by_city", table="orders", columns=("city",))


@pytest.fixture(params=["open", "connect"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "open":
        with lowmark.open(tmp_path / "data") as database:
            yield database
    else:
        with Served(tmp_path / "data") as served, lowmark.connect(served.address) as database:
            yield database


def statuses(db: Database) -> dict[str, IndexStatus]:
    return {one.name: one.status for one in db.catalog.all_indexes()}


def test_an_index_of_a_table_without_rows_is_available_at_once(db: Database) -> None:
    # given a table that never had a row
    db.create_table("orders", COLUMNS, key="id", partitions=4)
    # when it gets an index
    assert db.execute([BY_CITY]).applied == (True,)
    # then nothing is left to be built
    assert statuses(db) == {"by_city": IndexStatus.AVAILABLE}
    # and rows may come
    db.table("orders").append([{"id": "1", "city": "Rome"}])
    assert statuses(db) == {"by_city": IndexStatus.AVAILABLE}


def test_an_index_of_a_table_with_rows_is_refused_by_name(db: Database) -> None:
    # given a table with one row, in one of its partitions
    orders = db.create_table("orders", COLUMNS, key="id", partitions=4)
    orders.append([{"id": "1", "city": "Rome"}])
    before = db.catalog.version
    # when it is to get an index, with something else
    more = AddColumns(table="orders", columns=(NewColumn.of("note", "string"),))
    with pytest.raises(IndexNotBuildable, match=r"table public\.orders has rows") as refused:
        db.execute([more, BY_CITY])
    # then nothing has changed, and the error says what can be done
    assert "before the first row" in refused.value.hint
    assert (refused.value.object_kind, refused.value.object_name) == ("index", "by_city")
    assert db.catalog.version == before
    assert issubclass(IndexNotBuildable, CatalogRefused)


def test_tables_are_found_whatever_the_same_list_does_to_them(db: Database) -> None:
    # given a table with rows, and one without
    db.create_table("full", COLUMNS, key="id").append([{"id": "1", "city": "Rome"}])
    db.create_table("orders", COLUMNS, key="id")
    # when both change their names in the list that creates an index
    with pytest.raises(IndexNotBuildable, match=r"table public\.orders has rows"):
        db.execute(
            [RenameTable(name="orders", to="was"), RenameTable(name="full", to="orders"), BY_CITY]
        )
    # then the one that it is created on is looked at, and a list with several looks at each
    new = CreateTable(
        name="new", columns=(NewColumn.of("id", "int64"), NewColumn.of("city", "string"))
    )
    db.execute(
        [
            new,
            BY_CITY,
            CreateIndex(name="by_id", table="orders", columns=("id",)),
            CreateIndex(name="new_city", table="new", columns=("city",)),
        ]
    )
    assert set(statuses(db).values()) == {IndexStatus.AVAILABLE}
    assert set(statuses(db)) == {"by_city", "by_id", "new_city"}
    # and what the catalog refuses by itself, it still does
    with pytest.raises(CatalogRefused, match="by_city") as taken:
        db.execute([BY_CITY])
    assert taken.value.reason == "exists"
    with pytest.raises(CatalogRefused, match="nowhere"):
        db.execute([CreateIndex(name="i", table="nowhere", columns=("city",))])
