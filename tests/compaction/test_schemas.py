"""Schema versions that nothing needs any more are forgotten, and no row is lost by that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import lowmark
from compaction.life import Life
from compaction.world import Stopped, World, stop_before
from eventually import eventually
from inside import backend_of
from lowmark.catalog import AlterColumn, NewColumn, TableSchema, parse_type
from lowmark.client import Table
from lowmark.compaction.schemas import SchemasTrimmed
from lowmark.errors import Rejected, SchemaNotInForce
from lowmark.node import load_settings
from lowmark.server import Server
from lowmark.table import (
    Appended,
    Change,
    CommandRefused,
    Finish,
    KeepSchemas,
    Partition,
    ReleaseLease,
    Renewal,
    SchemasKept,
    Trim,
    encode_batch,
    encode_rows,
    stored_schema,
)

STEPS = ["refuse old schema versions", "look for schema versions", "forget schema versions"]


def versions(table: Table) -> list[int]:
    return [schema.number for schema in table.descriptor.schemas]


def add(table: Table, name: str, *, default: Any = None) -> None:
    """Add a column: one schema version more."""
    column = NewColumn(name=name, type=parse_type("int64"), default=default)
    table.alter(add=[column])


def holders(told: SchemasTrimmed) -> list[tuple[int, str]]:
    return [(one.version, one.holder) for one in told.held_by]


def passed(world: World) -> None:
    """Let the low watermark pass all versions that there are."""
    backend, newest = backend_of(world.table), world.table.descriptor

    def all_passed() -> bool:
        after = world.db.advance_watermark().after
        table = backend.catalog_at(after).table(newest.id)
        return table is not None and table.latest == newest.latest

    eventually(all_passed)


# -- what needs a version -------------------------------------------------------------------------


def test_a_run_that_leaves_no_row_of_a_version_has_it_forgotten(world: World) -> None:
    # given rows of three versions
    world.write(("a", 1))
    add(world.table, "x", default=7)
    world.write(("b", 2))
    add(world.table, "y")
    world.write(("c", 3))
    assert versions(world.table) == [1, 2, 3]
    version = world.db.catalog.version
    # when all of them are compacted
    world.compact()
    # then only the newest version is left, by a version of the catalog of its own
    assert versions(world.table) == [3]
    assert world.db.catalog.version == version + 1
    # and every row shows what it showed before
    rows = sorted(world.table.read(as_of="now").to_pylist(), key=lambda row: str(row["id"]))
    assert [(row["id"], row["x"], row["y"]) for row in rows] == [
        ("a", 7, None),
        ("b", 7, None),
        ("c", 7, None),
    ]
    # also when it is started again
    world.reopen()
    assert sorted(world.table.read(as_of="now").to_pylist(), key=lambda row: str(row["id"])) == rows


def test_rows_of_a_backlog_need_their_version(world: World) -> None:
    world.write(("a", 1))
    add(world.table, "x")
    world.write(("b", 2))
    passed(world)
    told = world.table.trim_schemas()
    assert (told.first, told.keep_from, told.latest, told.trimmed) == (1, 1, 2, 0)
    assert holders(told) == [(1, "rows in the backlog of partition 0")]
    assert versions(world.table) == [1, 2]


def test_the_version_at_the_low_watermark_is_needed_though_no_row_has_it(tmp_path: Path) -> None:
    # given a database whose history is ten minutes, and an empty table that was altered
    with lowmark.open(tmp_path / "data") as db:
        table = db.create_table("t", {"id": "int64"}, key="id")
        add(table, "x")
        told = table.trim_schemas()
        # then writers of the first version may go on for as long
        assert holders(told) == [(1, "the low watermark: it was in force then")]
        assert table.append([{"id": 1}], schema_version=1).rows == 1


def test_an_empty_table_needs_no_version_but_the_newest(world: World) -> None:
    for name in ("x", "y", "z"):
        add(world.table, name)
    passed(world)
    would = world.table.trim_schemas(dry_run=True)
    assert (would.keep_from, would.trimmed, would.held_by) == (4, 3, ())
    assert versions(world.table) == [1, 2, 3, 4]
    assert world.table.trim_schemas() == would
    assert versions(world.table) == [4]
    assert world.table.trim_schemas().trimmed == 0


def test_files_of_a_ledger_need_their_version_until_they_are_written_anew(world: World) -> None:
    # given a ledger of the first version, and newer rows
    world.write(*((f"k{number}", number) for number in range(50)))
    world.compact()
    add(world.table, "x", default=1)
    world.write(("k1", 100))
    world.compact()
    # then its first file is needed: it was not written anew
    assert world.manifest().schemas == (1, 2)
    told = world.table.trim_schemas(dry_run=True)
    assert holders(told) == [(1, f"the ledger of partition 0, epoch {world.adopted().epoch}")]
    # when all files are written anew, it is forgotten
    before = sorted(world.table.read(as_of="now").to_pylist(), key=str)
    world.compact(rewrite=True)
    assert versions(world.table) == [2]
    assert sorted(world.table.read(as_of="now").to_pylist(), key=str) == before


def test_a_ledger_that_was_replaced_needs_its_version_until_it_is_swept(tmp_path: Path) -> None:
    # given a ledger that was replaced, and its grace time is not over
    with World(tmp_path / "data", grace_ms=3_600_000) as world:
        world.write(("a", 1))
        world.compact()
        epoch = world.adopted().epoch
        add(world.table, "x")
        world.compact(rewrite=True)
        assert versions(world.table) == [1, 2]
        told = world.table.trim_schemas(dry_run=True)
        assert holders(told) == [(1, f"the ledger of partition 0, epoch {epoch}, replaced")]
        world.db.close()
        # when it is over
        world.grace_ms = 0
        table = world.reopen()
        # then the next look has it swept, and its version forgotten
        assert table.trim_schemas().trimmed == 1
        assert versions(table) == [2]
        assert table.get("a") == {"id": "a", "v": 1, "x": None}


def test_a_reader_of_a_ledger_needs_the_versions_of_its_files(world: World) -> None:
    # given a reader of a ledger that is replaced meanwhile
    world.write(*((f"k{number}", number) for number in range(9)))
    world.compact()
    reader = world.table.read(compacted=True, columns=["id"])
    epoch = world.adopted().epoch
    add(world.table, "x")
    world.compact(rewrite=True)
    # then it needs what it reads, and reads on
    assert versions(world.table) == [1, 2]
    told = world.table.trim_schemas()
    assert holders(told) == [(1, f"a reader of the ledger of partition 0, epoch {epoch}, replaced")]
    assert reader.to_arrow().num_rows == 9
    reader.close()
    # when it is done, the version goes
    eventually(lambda: world.table.trim_schemas().trimmed == 1)
    world.check_now()


def test_staged_rows_need_their_version(world: World) -> None:
    # given rows of an open transaction
    table = world.table.descriptor
    rows = table.latest
    batch = encode_batch(_message(rows), rows=1, schema=1, transaction=7)
    backend = backend_of(world.table)
    partition = _partition(world)
    assert isinstance(backend.ask(lambda: partition.append(batch)), Appended)
    add(world.table, "x")
    passed(world)
    # then their version stays, though no row of the backlog has it
    told = world.table.trim_schemas()
    assert holders(told) == [(1, "rows in the backlog of partition 0")]
    # when they are dropped, it goes
    world.ask(Finish(7, False))
    assert world.table.trim_schemas().trimmed == 1


def _partition(world: World) -> Partition:
    backend = backend_of(world.table)
    return backend.ask_now(lambda: backend.tables.get(world.table.descriptor.id, 0))


def _message(schema: TableSchema) -> bytes:
    stored = stored_schema(schema, (), Change.UPSERT)
    arrays = [pa.nulls(1, field.type) for field in stored]
    return bytes(encode_rows(pa.RecordBatch.from_arrays(arrays, schema=stored)))


def test_what_an_interrupted_run_has_written_needs_its_version(world: World) -> None:
    # given a run that ended when its files were written, and not published; and its rows expired
    world.write(("a", 1))
    run = world.stopped_before("publish partition 0")
    assert run.state == "interrupted"
    add(world.table, "x")
    for lease in backend_of(world.table).status(world.table.descriptor.id)[0].leases:
        world.ask(ReleaseLease(lease.name, lease.holder))
    world.ask(Trim(1, expire=True))
    passed(world)
    # then the version that its files have stays
    told = world.table.trim_schemas(dry_run=True)
    assert holders(told) == [(1, f"run {run.run}, which is running")]
    # when it is given up, it goes
    world.table.cancel_run(run.run)
    assert world.table.trim_schemas().trimmed == 1


def test_nothing_is_forgotten_while_a_ledger_can_t_be_read(world: World) -> None:
    # given a table whose manifest is damaged
    world.write(("a", 1))
    world.compact()
    add(world.table, "x")
    passed(world)
    path = world.path / "ledgers" / world.adopted().manifest
    sound = path.read_bytes()
    path.write_bytes(sound[:-20])
    # then any version may be needed
    told = world.table.trim_schemas()
    assert [one.version for one in told.held_by] == [1]
    assert "its checksum is wrong" in told.held_by[0].holder
    # when it is back, what it needs is known
    path.write_bytes(sound)
    told = world.table.trim_schemas(dry_run=True)
    assert holders(told) == [(1, f"the ledger of partition 0, epoch {world.adopted().epoch}")]


def test_nothing_is_forgotten_until_all_members_refuse_old_versions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a partition with a member of an older release
    add(world.table, "x")
    passed(world)
    partition = _partition(world)
    monkeypatch.setattr(partition.machine, "_version", 2)
    # then the command is refused, and nothing is forgotten
    with pytest.raises(CommandRefused, match="not all members"):
        world.table.trim_schemas()
    assert versions(world.table) == [1, 2]


# -- what rows show -------------------------------------------------------------------------------


def test_a_row_shows_the_default_that_a_column_was_added_with_before_and_after(
    world: World,
) -> None:
    # given rows before a column, after it, and after its default has changed
    world.write(("a", 1))  # version 1
    add(world.table, "w")  # 2
    world.write(("b", 2))
    add(world.table, "x", default=5)  # 3
    world.table.append([{"id": "c", "v": 3}])
    world.db.execute([AlterColumn(table="t", column="x", default=9)])  # 4
    world.table.append([{"id": "d", "v": 4}])
    add(world.table, "y", default=6)  # 5
    world.table.append([{"id": "e", "v": 5}])

    def shown() -> list[tuple[Any, ...]]:
        rows = world.table.read(start="earliest").to_pylist()
        return [(row["id"], row["w"], row["x"], row["y"]) for row in rows]

    before = shown()
    assert [(row[0], row[2], row[3]) for row in before] == [
        ("a", 5, 6),
        ("b", 5, 6),
        ("c", 5, 6),
        ("d", 9, 6),
        ("e", 9, 6),
    ]
    filling = world.table.descriptor.filling
    columns = {column.name: column.id for column in world.table.descriptor.columns}
    # when rows of version 1 go, then only that version does: the others are in the backlog
    passed(world)
    one = backend_of(world.table).view(world.table.descriptor.id, 0)
    world.ask(Trim(int(one.columns.first[1]), expire=True))
    assert world.table.trim_schemas().trimmed == 1
    assert versions(world.table) == [2, 3, 4, 5]
    assert shown() == before[1:]
    now = world.table.descriptor.filling
    # and what rows show that lack a column is what it was
    assert {name: now(columns[name]) for name in ("x", "y")} == {
        name: filling(columns[name]) for name in ("x", "y")
    }


# -- writers that are behind ----------------------------------------------------------------------


def test_a_version_that_was_forgotten_is_refused_by_name(world: World) -> None:
    add(world.table, "x")
    passed(world)
    world.table.trim_schemas()
    with pytest.raises(Rejected, match="no schema version 1") as refused:
        world.table.append([{"id": "a", "v": 1}], schema_version=1)
    assert refused.value.hint == "It has 2 to 2."


@pytest.fixture(params=["here", "at a server"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """A table whose history is exact for no time at all."""
    settings = load_settings(
        arguments={"watermark": {"availability_ms": 0}, "ledger": {"grace_ms": 0}}
    )
    columns = {"id": "int64", "v": "int32"}
    with lowmark.open(tmp_path / "data", settings=settings) as db:
        made = db.create_table("t", columns, key="id", partitions=2)
        if request.param == "here":
            yield made
            return
        with Server(db, "127.0.0.1:0") as server, lowmark.connect(server.address) as client:
            yield client.table("t")


def altered(table: Table) -> None:
    """Rename, drop, widen and add columns, and have all older versions forgotten."""
    table.alter(rename={"v": "value"})
    table.alter(widen={"value": "int64"})
    add(table, "x", default=3)
    table.compact(engine="local")

    def forgotten() -> bool:
        table._session.backend.advance_watermark()
        table.compact(engine="local", rewrite=True)
        table.trim_schemas()
        return len(table.descriptor.schemas) == 1

    eventually(forgotten)


@pytest.mark.slow
def test_rows_that_come_by_and_by_go_on_with_the_newest_version(table: Table) -> None:
    # given an append whose rows come over a long time
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(3 * 65_536):
            if number == 65_536 + 10:
                altered(table)
            yield {"id": number, "v": number}

    assert table.append(rows()).rows == 3 * 65_536
    # then each row is there once, with the columns of now
    found = table.read(as_of="now", columns=["id", "value", "x"]).to_arrow()
    assert found.num_rows == 3 * 65_536
    assert sorted(found["id"].to_pylist()) == sorted(found["value"].to_pylist())
    assert set(found["x"].to_pylist()) == {3}


def test_batches_that_were_encoded_long_ago_are_stored_once_and_in_order(table: Table) -> None:
    # given a writer that has sent rows, and has encoded more
    writer = table._writer
    appender = writer.appender()
    table.append([{"id": 0, "v": 0}])
    old = [
        parts
        for number in range(1, 9)
        for parts in writer.parts([{"id": number % 3, "v": number}], schema_version=None)
    ]
    deletes = list(writer.deletes([2]))
    # when the version is forgotten before they are handed over, together with newer ones
    altered(table)
    new = [
        parts
        for number in range(9, 12)
        for parts in writer.parts([{"id": number % 3, "value": number}], schema_version=None)
    ]
    result = appender.append([*old, *deletes, *new])
    # then each is stored once, and the last one of a key wins
    assert result.rows == len(old) + 1 + len(new)
    rows = table.read(as_of="now").to_pylist()
    assert {row["id"]: row["value"] for row in rows} == {0: 9, 1: 10, 2: 11}
    # and those of a key are in the order in which they were handed over
    changes = table.read(compacted=True, columns=["id", "value", "_change"]).to_pylist()
    of_two = [row["value"] for row in changes if row["id"] == 2]
    assert of_two == [2, 5, 8, None, 11]


def test_a_producer_goes_on_across_it(table: Table) -> None:
    with table.producer(linger_ms=0) as producer:
        producer.send({"id": 1, "v": 1})
        producer.flush()
        table.alter(widen={"v": "int64"})
        table._session.backend.advance_watermark()

        def forgotten() -> bool:
            table._session.backend.advance_watermark()
            table.compact(engine="local")
            table.trim_schemas()
            return len(table.descriptor.schemas) == 1

        eventually(forgotten)
        producer.send({"id": 2, "v": 2})
    assert sorted(row["v"] for row in table.read(as_of="now").to_pylist()) == [1, 2]


def test_rows_of_columns_that_nobody_knows_any_more_are_refused(world: World) -> None:
    # given a batch of a version that a writer has never sent before, and that was forgotten
    renewal = Renewal(lambda: world.table.descriptor)
    [parts] = world.table._writer.parts([{"id": "a", "v": 1}], schema_version=None)
    [(_, batch)] = parts
    add(world.table, "x")
    passed(world)
    world.table.trim_schemas()
    with pytest.raises(SchemaNotInForce, match="not known any more"):
        renewal.renewed(batch, world.table.descriptor)


def test_a_reader_that_stands_still_reads_on_with_versions_that_came_after_it(
    world: World,
) -> None:
    # given a reader of all rows, which was made just before the table was altered
    reader = world.table.read(follow=True, batch_bytes=1)
    add(world.table, "x")
    world.write(*((f"k{number}", number) for number in range(3)))
    batches = iter(reader)
    assert next(batches).num_rows == 3
    reader.close()


# -- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_ends_between_the_steps_leaves_nothing_unread(
    world: World, step: str
) -> None:
    # given a run that ends before one of them
    world.write(("a", 1), ("b", 2))
    add(world.table, "x", default=4)
    world.write(("c", 3))
    world.settle()
    with pytest.raises(Stopped):
        world.table.compact(engine="local", step=stop_before(step))
    world.reopen()
    # then all is read as before, old versions are refused or taken, and the run is done
    world.model = {"a": 1, "b": 2, "c": 3}
    rows = world.table.read(as_of="now").to_pylist()
    assert {row["id"]: row["x"] for row in rows} == dict.fromkeys("abc", 4)
    assert world.table.runs()[0].state == "done"
    assert versions(world.table) == [1, 2]
    world.table.append([{"id": "d", "v": 4}], schema_version=1)
    assert world.table.get("d") == {"id": "d", "v": 4, "x": 4}
    # when the next run comes, they are forgotten
    world.compact()
    assert versions(world.table) == [2]
    assert world.table.get("d") == {"id": "d", "v": 4, "x": 4}


def test_a_row_that_comes_between_the_first_look_and_the_fence_is_counted(world: World) -> None:
    # given a table whose old version nothing needs
    add(world.table, "x", default=4)
    passed(world)
    world.write(("a", 1))

    def meanwhile(step: str) -> None:
        if step == "refuse old schema versions":
            world.table.append([{"id": "late", "v": 1}], schema_version=1)
        elif step == "look for schema versions":
            world.table.append([{"id": "later", "v": 2}], schema_version=1)

    # when rows of it come right before it is refused, and right after that
    world.settle()
    world.table.compact(engine="local", step=meanwhile)
    # then the first one is stored as it is, and keeps its version; the other one is encoded anew
    assert versions(world.table) == [1, 2]
    assert backend_of(world.table).propose(world.table.descriptor.id, {0: KeepSchemas(0)}) == {
        0: SchemasKept(2, least=1)
    }
    view = world.view()
    assert view.columns.schema[: view.count].tolist() == [1, 2]
    for key in ("late", "later"):
        row = world.table.get(key)
        assert row is not None
        assert row["x"] == 4


# -- by itself ------------------------------------------------------------------------------------


def test_it_is_looked_at_now_and_then_also_without_a_run(world: World) -> None:
    # given a table without compaction by itself, whose old rows have expired
    add(world.table, "x")
    passed(world)
    worker = world.db.worker(engine="local")
    # when a worker looks, it is forgotten
    worker.look()
    assert versions(world.table) == [2]


# -- by chance ------------------------------------------------------------------------------------


class AlteredLife(Life):
    """Most of what happens to the table is that it is altered, and that versions go."""

    WEIGHTS: ClassVar = {
        "append": 10.0,
        "delete": 2,
        "compact": 5,
        "interrupt": 1,
        "resume": 1,
        "advance": 4,
        "remember": 3,
        "open_reader": 2,
        "go_on_reading": 3,
        "close_reader": 1,
        "create_cursor": 0.5,
        "delete_cursor": 1,
        "change_columns": 8,
        "forget_schemas": 5,
        "restart": 0.5,
    }

    def _acts(self) -> list[tuple[Callable[[], None], float]]:
        return [
            (act, self.WEIGHTS.get(act.__name__, 0) if weight else 0)
            for act, weight in super()._acts()
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        # Of two lives the runs get so little memory that they take as long as the others together.
        # Seed 9 once ended in LedgerLost: its first run is overtaken. It stands for the later ones.
        pytest.param(seed, marks=pytest.mark.release if seed in {0, 5, 8} or seed > 9 else ())
        for seed in range(40)
    ],
)
def test_whatever_becomes_of_columns_all_reads_stay_what_they_were(
    seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    story = AlteredLife(seed, tmp_path / "life").run()
    record_property("compacted life", json.dumps(story.as_figures()))
