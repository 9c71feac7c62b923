"""Indexes are refused until a release builds them: on a directory, over a server, by a command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lowmark
from lowmark.backend.embedded import Embedded
from lowmark.catalog import AddColumns, CreateIndex, DropIndex, NewColumn, RenameIndex
from lowmark.cli.app import app
from lowmark.client import Database
from lowmark.errors import CatalogRefused, IndexNotBuildable
from server.world import Served

COLUMNS = {"id": "string", "city": "string"}
BY_CITY = CreateIndex(name="by_city", table="orders", columns=("city",), unique=True)


@pytest.fixture(params=["open", "connect"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "open":
        with lowmark.open(tmp_path / "data") as database:
            yield database
    else:
        with Served(tmp_path / "data") as served, lowmark.connect(served.address) as database:
            yield database


def indexes(db: Database) -> list[str]:
    return [one.name for one in db.catalog.all_indexes()]


def test_a_unique_index_is_refused_for_none_would_enforce_it(db: Database) -> None:
    # given a table, empty or not
    orders = db.create_table("orders", COLUMNS, key="id", partitions=4)
    for _ in range(2):
        before = db.catalog.version
        # when it is to get an index, with something else
        more = AddColumns(table="orders", columns=(NewColumn.of("note", "string"),))
        with pytest.raises(IndexNotBuildable, match="index by_city of table orders") as refused:
            db.execute([more, BY_CITY])
        # then nothing has changed, and the error says what does it instead
        assert (refused.value.object_kind, refused.value.object_name) == ("index", "by_city")
        assert "table.get" in refused.value.hint
        assert (db.catalog.version, indexes(db)) == (before, [])
        orders.append([{"id": "1", "city": "Rome"}])
    assert issubclass(IndexNotBuildable, CatalogRefused)


def test_catalog_apply_refuses_it_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with lowmark.open(data) as db:
        db.create_table("orders", COLUMNS, key="id")
    wish = {"create_index": {"name": "by_city", "table": "orders", "columns": ["city"]}}
    command = ["catalog", "apply", "-", "--data", str(data), "--json"]
    done = CliRunner().invoke(app, command, input=json.dumps(wish))
    assert done.exit_code != 0
    assert "IndexNotBuildable" in done.output or "builds no index" in done.output


def test_an_index_that_a_catalog_has_is_shown_renamed_and_dropped(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "data") as db:
        backend = db.backend
        assert isinstance(backend, Embedded)
        # given an index as an earlier release has taken it
        db.create_table("orders", COLUMNS, key="id")
        backend.ask(lambda: backend.catalogs.execute(BY_CITY))
    # then it is read again, also from disk
    with lowmark.open(tmp_path / "data") as db:
        assert indexes(db) == ["by_city"]
        db.table("orders").append([{"id": "1", "city": "Rome"}, {"id": "2", "city": "Rome"}])
        shown = CliRunner().invoke(app, ["catalog", "show", "--data", str(tmp_path / "data")])
        assert "by_city" in shown.output
        # and may be renamed, and dropped
        db.execute([RenameIndex(name="by_city", to="old")])
        assert indexes(db) == ["old"]
        db.execute([DropIndex(name="old")])
