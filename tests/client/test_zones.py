"""Zones in Python, on a directory and over a server; and the number of partitions, which stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import lowmark
from lowmark.client import Database
from lowmark.errors import CatalogRefused, PartitionsFixed, ReadOnly, Rejected
from server.world import Served

COLUMNS = {"id": "string", "status": "string not null"}


@pytest.fixture(params=["open", "connect"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "open":
        with lowmark.open(tmp_path / "data") as database:
            yield database
    else:
        with Served(tmp_path / "data") as served, lowmark.connect(served.address) as database:
            yield database


def test_a_zone_s_life(db: Database) -> None:
    # given a database with the zone that every database has
    assert db.zones() == ["default"]
    assert db.default_zone == db.zone("default")
    # when one more is created, and altered
    near = db.create_zone("near", replicas=5, scale_up="1 min", scale_down="never")
    assert (near.replicas, near.partitions, near.node_filter) == (5, 8, "")
    assert (near.scale_up_ms, near.scale_down_ms) == (60_000, None)
    near = db.alter_zone("near", partitions=2, node_filter="rack=r1")
    assert (near.replicas, near.partitions, near.node_filter) == (5, 2, "rack = r1")
    assert (near.scale_up_ms, near.scale_down_ms) == (60_000, None)
    near = db.alter_zone("near", scale_down=timedelta(hours=1), node_filter="")
    assert (near.node_filter, near.scale_down_ms) == ("", 3_600_000)
    # then it can be renamed, be the default, and have tables
    far = db.rename_zone("near", "far")
    assert far.id == near.id
    db.set_default_zone("far")
    assert db.default_zone == db.zone("far")
    table = db.create_table("orders", COLUMNS, key="id")
    assert (table.partitions, table.descriptor.zone_id) == (2, far.id)
    other = db.create_table("other", COLUMNS, key="id", zone="default")
    assert other.partitions == 8
    # and it is dropped when nothing is in it
    with pytest.raises(CatalogRefused, match="it has tables"):
        db.drop_zone("default")
    db.drop_table("other")
    db.drop_zone("default")
    assert db.zones() == ["far"]
    db.drop_zone("default", if_exists=True)
    assert db.create_zone("far", replicas=1, if_not_exists=True).replicas == 5


def test_what_can_not_be_is_refused_by_name(db: Database) -> None:
    with pytest.raises(CatalogRefused, match="no zone nowhere"):
        db.zone("nowhere")
    with pytest.raises(CatalogRefused, match="no zone nowhere"):
        db.alter_zone("nowhere", replicas=3)
    with pytest.raises(CatalogRefused, match="already"):
        db.create_zone("default")
    for wrong in ("soon", "5", -1, 5_000, timedelta(-1)):
        with pytest.raises(CatalogRefused, match="not a length of time") as refused:
            db.alter_zone("default", scale_down=wrong)  # type: ignore[arg-type]
        assert "never" in refused.value.hint
    with pytest.raises(CatalogRefused, match="not a length of time"):
        db.alter_zone("default", scale_up="never")
    assert db.zone("default").scale_down_ms == 600_000


def test_another_number_of_partitions_is_refused_and_the_hint_works(db: Database) -> None:
    # given a table
    old = db.create_table("orders", COLUMNS, key="id", partitions=2)
    old.append([{"id": str(n), "status": "new"} for n in range(10)])
    old.append([{"id": str(n), "status": "paid"} for n in range(5)])
    old.delete(["9"])
    # when it is to get another number of partitions
    with pytest.raises(PartitionsFixed) as refused:
        old.alter(partitions=4, add={"note": str})
    # then it is refused, with why and what to do, and nothing is changed
    error = refused.value
    assert issubclass(PartitionsFixed, Rejected)
    assert error.message == "table orders can't get 4 partitions: it was created with 2"
    assert "the bucket of its key" in error.detail
    assert (error.partitions, error.reason, error.object_name) == (2, "fixed", "orders")
    assert (old.partitions, old.schema.names) == (2, ["id", "status"])
    # and what it says to do gives a table with the same rows
    first, second = error.hint.split("`")[1::2]
    scope = {"db": db, "old": old}
    exec(f"{first}\n{second}", scope)  # noqa: S102 - the hint is ours
    new = db.table("new")
    assert new.partitions == 4
    assert new.count() == old.count() == 9
    assert new.get("1") == old.get("1") == {"id": "1", "status": "paid"}
    # and the number that it has changes nothing
    assert old.alter(partitions=2).applied == (False,)


def test_a_database_that_only_reads_shows_zones_and_changes_none(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "data") as db:
        db.create_zone("near")
    with lowmark.open(tmp_path / "data", read_only=True) as db:
        assert db.zones() == ["default", "near"]
        with pytest.raises(ReadOnly):
            db.drop_zone("near")
