"""The queries of docs/formats/ledger.md come to the table's own state, whatever became of its
columns: added, with a default or without, dropped, added again under a name that was used before,
renamed, widened.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import lowmark
from docs.pages import blocks
from lowmark.catalog import AddColumns, AlterColumn, DropColumns, NewColumn, RenameColumn
from lowmark.catalog.types import parse_type, type_text
from lowmark.client import Database, Table
from lowmark.spark import SparkRunner

HISTORIES = 24
ROUNDS = 3
NAMES = ("a", "b", "Odd one", 'x."y`')
WIDER = {
    "int8": ("int16", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "float32": ("float64",),
    "decimal(8,2)": ("decimal(12,2)", "decimal(30,2)"),
    "decimal(12,2)": ("decimal(30,2)",),
}
VALUES: dict[str, tuple[Any, ...]] = {
    "int8": (0, -128, 7),
    "int16": (300, -7),
    "int32": (70_000, 1),
    "int64": (1 << 40, -5),
    "float32": (0.5, -1.25),
    "float64": (0.1, 2.0),
    "decimal(8,2)": (Decimal("1.50"), Decimal("-999999.99")),
    "decimal(12,2)": (Decimal("9999999999.01"),),
    "decimal(30,2)": (Decimal("1234567890123456789012345678.90"),),
    "string": ("", "text", "10"),
    "bool": (True, False),
    "date": (date(2026, 7, 1),),
    "timestamp": (datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=UTC),),
    "timestamp_ntz": (datetime(2026, 7, 1, 12, 30),),  # noqa: DTZ001
    "binary": (b"\x00\xff",),
    "uuid": (UUID(int=7 << 70),),
}

TO_ARROW = {"Polars": "to_arrow", "Spark": "toArrow"}

# All in one process, which makes the histories once.
# They share what takes longest to make. Polars and DuckDB are as strict as Spark with columns that
# changed, so Spark's query, of the same form, is left to `make test-all`.
here = pytest.mark.xdist_group("ledger query")
on_spark = [pytest.mark.release, pytest.mark.spark, pytest.mark.xdist_group("spark")]


class History:
    """One table whose columns and rows change by chance, compacted now and then."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db = db
        self.chance = random.Random(seed)
        columns = {"id": "int64", "a": "int32", "b": "string"}
        self.name = f"t{seed}"
        self.table: Table = db.create_table(self.name, columns, key="id", partitions=2)
        # so that deletes stay, and dead rows are in files that stay
        self.table.cursors.create("reader", kind="compacted")

    def live(self) -> None:
        for _ in range(ROUNDS):
            for _ in range(self.chance.randrange(3)):
                self.change_columns()
            self.write()
            settle(self.db, self.table)

    def change_columns(self) -> None:
        pick, name = self.chance, self.name
        columns = [one for one in self.table.descriptor.columns if one.name != self.key]
        free = [one for one in NAMES if one not in {column.name for column in columns}]
        match pick.choice(["add", "drop", "again", "rename", "rename key", "widen", "widen"]):
            case "add" if free:
                self.add(pick.choice(free))
            case "drop" if columns:
                gone = pick.choice(columns).name
                self.db.execute([DropColumns(table=name, columns=(gone,))])
            case "again" if columns:
                gone = pick.choice(columns).name
                self.db.execute([DropColumns(table=name, columns=(gone,))])
                self.add(gone)
            case "rename" if columns and free:
                old = pick.choice(columns).name
                self.db.execute([RenameColumn(table=name, column=old, to=pick.choice(free))])
            case "rename key":
                to = "id" if self.key == "ID 2" else "ID 2"
                self.db.execute([RenameColumn(table=name, column=self.key, to=to)])
            case "widen":
                narrow = [one for one in columns if type_text(one.type) in WIDER]
                if narrow:
                    one = pick.choice(narrow)
                    wider = parse_type(pick.choice(WIDER[type_text(one.type)]))
                    self.db.execute([AlterColumn(table=name, column=one.name, type=wider)])
            case _:
                pass

    @property
    def key(self) -> str:
        [name] = self.table.key
        return name

    def add(self, name: str) -> None:
        kind = self.chance.choice(list(VALUES))
        default = self.chance.choice((None, *VALUES[kind]))
        column = NewColumn(name=name, type=parse_type(kind), default=default)
        self.db.execute([AddColumns(table=self.name, columns=(column,))])

    def write(self) -> None:
        """Rows, some without a value here and there; the last is of the newest version."""
        rows = []
        for _ in range(self.chance.randrange(1, 12)):
            row: dict[str, Any] = {self.key: self.chance.randrange(12)}
            for column in self.table.descriptor.columns:
                if column.name != self.key and self.chance.random() < 0.8:
                    row[column.name] = self.chance.choice(VALUES[type_text(column.type)])
            rows.append(row)
        self.table.append(rows[:-1]) if rows[:-1] else None
        if self.chance.random() < 0.5:
            self.table.delete([self.chance.randrange(12)])
        self.table.append(rows[-1:])

    def state(self) -> list[dict[str, Any]]:
        """As the table has it itself."""
        return in_order(self.table.read(as_of="now").to_arrow(), self.key)


def settle(db: Database, table: Table) -> None:
    """Compact all that is there."""
    db.advance_watermark(table.snapshot().time)
    assert table.compact(engine="local").too_young_rows == 0


def in_order(rows: pa.Table, key: str) -> list[dict[str, Any]]:
    """Rows as Python has them, by their keys."""
    return sorted((plain(row) for row in rows.to_pylist()), key=lambda row: row[key])


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Bytes are bytes, and times are in UTC, whatever an engine makes of them."""
    found = {}
    for name, value in row.items():
        if isinstance(value, bytearray):
            value = bytes(value)
        elif isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(UTC)
        found[name] = value
    return found


def queried(history: History, engine: str) -> Any:
    """What the page's blocks come to, one after another."""
    names: dict[str, Any] = {}
    shown = {block.info: block.text for block in blocks("ledger.md") if block.language == "python"}
    for info in ("files without Lowmark", "columns by their ids", f"query by {engine}"):
        text = shown[info].replace("table-3", f"table-{history.table.descriptor.id}")
        exec(text, names)  # noqa: S102
    return names["state"]


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[History]]:
    folder = tmp_path_factory.mktemp("histories")
    with lowmark.open(folder / "shop") as db:
        found = [History(db, seed) for seed in range(HISTORIES)]
        for history in found:
            history.live()
        yield found


@pytest.fixture(autouse=True)
def in_folder(histories: list[History], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(histories[0].db.path).parent)


KINDS = {
    "dropped",
    "renamed",
    "renamed key",
    "widened",
    "name used again",
    "added",
    "added with a default",
}


def kinds_of(history: History) -> set[str]:
    """How files of a ledger differ from its newest schema version."""
    seen = set()
    table = history.table.descriptor
    by_name = {column.name: column for column in table.columns}
    for ledger in history.table.ledgers():
        for file in ledger.manifest.files if ledger.manifest is not None else ():
            version = table.schema_version(file.schema)
            assert version is not None
            for column in version.columns:
                now = table.latest.column(column.id)
                if now is None:
                    seen.add("dropped")
                elif now.name != column.name:
                    seen.add("renamed key" if column.id in table.key else "renamed")
                elif now.type != column.type:
                    seen.add("widened")
                again = by_name.get(column.name)
                if again is not None and again.id != column.id:
                    seen.add("name used again")
            for column in table.columns:
                if version.column(column.id) is None:
                    none = table.filling(column.id) is None
                    seen.add("added" if none else "added with a default")
    return seen


def few_with_all(histories: list[History]) -> list[History]:
    """A few of them that have everything which misleads a reader by names."""
    few, seen = [], set[str]()
    for history in sorted(histories, key=lambda one: (-len(kinds_of(one)), one.name)):
        if not kinds_of(history) <= seen:
            few.append(history)
            seen |= kinds_of(history)
    assert seen == KINDS
    return few


@here
@pytest.mark.slow
def test_the_query_by_duckdb_is_right_after_every_change_of_columns(
    histories: list[History],
) -> None:
    for history in histories:
        found = queried(history, "DuckDB")
        assert in_order(found, history.key) == history.state(), history.name


@pytest.mark.slow
@here
def test_the_query_by_polars_is_right_after_every_change_of_columns(
    histories: list[History],
) -> None:
    for history in histories:
        found = queried(history, "Polars").to_arrow()
        assert in_order(found, history.key) == history.state(), history.name


class OddNames(History):
    """A table whose columns have names that engines take for patterns, or that a query may use."""

    def __init__(self, db: Database) -> None:
        self.db, self.name = db, "odd_names"
        columns = {"*": "int64", "^a$": "int32", "a": "int32", "_nth": "int32", "a.*": "string"}
        self.table = db.create_table(self.name, columns, key="*", partitions=2)
        self.write_rows("^a$")
        db.execute([RenameColumn(table=self.name, column="^a$", to="^.*$")])
        self.write_rows("^.*$")

    def write_rows(self, name: str) -> None:
        for nth in range(2):  # of each key two rows, all of whose values differ
            rows = [
                {"*": i, name: 100 * nth + i, "a": -i, "_nth": 7 + i, "a.*": f"{nth}"}
                for i in range(nth, 6)
            ]
            self.table.append(rows)
        settle(self.db, self.table)


@pytest.fixture(scope="module")
def odd_names(histories: list[History]) -> OddNames:
    return OddNames(histories[0].db)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("DuckDB", marks=here),
        pytest.param("Polars", marks=here),
        pytest.param("Spark", marks=on_spark),
    ],
)
def test_the_query_takes_no_column_s_name_for_a_pattern(
    odd_names: OddNames, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "Spark":
        request.getfixturevalue("shared")  # a session, which the query finds by itself
    found = queried(odd_names, engine)
    rows = found if engine == "DuckDB" else getattr(found, TO_ARROW[engine])()
    assert rows.column_names == ["*", "^.*$", "a", "_nth", "a.*"]
    assert in_order(rows, "*") == odd_names.state()


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_query_by_spark_is_right_after_every_change_of_columns(
    histories: list[History], shared: SparkRunner
) -> None:
    # given a Spark session, which the query finds by itself
    for history in few_with_all(histories):
        found = queried(history, "Spark").toArrow()
        assert in_order(found, history.key) == history.state(), history.name
