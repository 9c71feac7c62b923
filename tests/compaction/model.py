"""A table as a plain list of changes: what every way to read a compacted one is held against.

The model never forgets a row and never compacts. It knows columns by number, so it knows what a
row shows in any schema version, and where a row went it has been told by the table itself, once,
when it was appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sim.cluster_ledger import Broken, confirm

__all__ = ["Broken", "Column", "Consumer", "Key", "Model", "Row", "Schema", "confirm"]

Key = tuple[Any, ...]
SYSTEM = ("_partition", "_offset", "_time", "_change")


@dataclass(frozen=True, slots=True)
class Column:
    """A column; its number stays when its name or its type change."""

    number: int
    name: str
    type: str
    filling: Any = None
    """What older rows show."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a schema version."""

    version: int
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def named(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class Row:
    """A change, as it was written."""

    partition: int
    offset: int
    time: int
    deleted: bool
    key: Key | None
    version: int
    values: Mapping[int, Any]
    """By the column's number."""

    def seen(self, schema: Schema) -> dict[str, Any]:
        """What somebody sees who asks for the columns of a schema version."""
        return {column.name: self._shows(column, schema) for column in schema.columns}

    def _shows(self, column: Column, schema: Schema) -> Any:
        if column.number in self.values:
            return self.values[column.number]
        # A column that was dropped before this row was written has nothing to show.
        return None if self.deleted or self.version > schema.version else column.filling

    def whole(self, schema: Schema) -> dict[str, Any]:
        """The same, with all that the system knows of it."""
        word = "delete" if self.deleted else "upsert"
        system = dict(
            zip(SYSTEM, (self.partition, self.offset, self.time, word), strict=True),
        )
        return {**self.seen(schema), **system}


@dataclass(slots=True)
class Model:
    """All changes of one table, and its schema versions."""

    key: tuple[int, ...]
    """The numbers of the key's columns; empty if there is none."""
    schemas: list[Schema]
    partitions: dict[int, list[Row]]
    homes: dict[Key, int] = field(default_factory=dict)
    """Where each key lives: always in one partition."""
    rank: Callable[[Row], Any] | None = None
    """Of a key's rows the one with the greatest rank wins, the last one of them; None: the last."""

    @property
    def schema(self) -> Schema:
        """As it is now."""
        return self.schemas[-1]

    def key_names(self, schema: Schema | None = None) -> list[str]:
        by_number = {column.number: column.name for column in (schema or self.schema).columns}
        return [by_number[number] for number in self.key]

    def end(self, partition: int) -> int:
        return len(self.partitions[partition])

    @property
    def ends(self) -> dict[int, int]:
        return {number: len(rows) for number, rows in self.partitions.items()}

    # -- growing --------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """The next row of its partition."""
        rows = self.partitions[row.partition]
        confirm(row.offset == len(rows), f"offset {row.offset} does not follow {len(rows)} rows")
        confirm(not rows or rows[-1].time <= row.time, f"time goes back at {row}")
        if row.key is not None:
            home = self.homes.setdefault(row.key, row.partition)
            confirm(home == row.partition, f"key {row.key} is in partitions {home} and {row}")
        rows.append(row)

    def with_columns(self, columns: Iterable[Column]) -> None:
        """Have another schema version."""
        self.schemas.append(Schema(self.schema.version + 1, tuple(columns)))

    # -- what there is --------------------------------------------------------------------------

    def last(self, partition: int, upto: int | None = None) -> dict[Key, Row]:
        """The change of each key that wins below an offset: the last one, if rows have no rank."""
        rows = self.partitions[partition][:upto]
        if self.rank is not None:
            rows = sorted(rows, key=self.rank)  # those of equal rank stay in the order of offsets
        return {row.key: row for row in rows if row.key is not None}

    def keyless(self, partition: int, upto: int | None = None) -> list[Row]:
        return [row for row in self.partitions[partition][:upto] if row.key is None]

    def state(self, partition: int, upto: int | None = None) -> dict[Key, Row]:
        """The keys that are there."""
        last = self.last(partition, upto)
        return {key: row for key, row in last.items() if not row.deleted}

    def survivors(self, partition: int, upto: int | None = None) -> list[Row]:
        """What a reader of the state gets: the last row of each key and all without one."""
        rows = [*self.state(partition, upto).values(), *self.keyless(partition, upto)]
        return sorted(rows, key=lambda row: row.offset)

    def as_of(self, time: int) -> list[Row]:
        """The table as it was."""
        return [
            row
            for partition, rows in self.partitions.items()
            for row in self.survivors(partition, sum(row.time <= time for row in rows))
        ]

    def known_keys(self) -> list[Key]:
        return list(self.homes)

    def row(self, key: Key) -> Row | None:
        """The last change of a key."""
        home = self.homes.get(key)
        return None if home is None else self.last(home).get(key)

    def surely_ahead(self, partition: int, offset: int) -> bool:
        """Whether a reader that stands there is given a row, whatever was compacted."""
        return any(row.offset >= offset for row in self.survivors(partition))

    # -- judging --------------------------------------------------------------------------------

    def match(self, given: Mapping[str, Any], schema: Schema, *, lossy: bool = False) -> Row:
        """The change that was given; every value of it must be right.

        `lossy`: columns that were dropped since may be null, because a ledger has let them go.
        """
        partition, offset = given["_partition"], given["_offset"]
        rows = self.partitions[partition]
        confirm(0 <= offset < len(rows), f"offset {offset} of partition {partition} was given")
        row: Row = rows[offset]
        wanted = row.whole(schema)
        if lossy:
            there = {column.number for column in self.schema.columns}
            gone = [c.name for c in schema.columns if c.number not in there]
            wanted |= {name: None for name in gone if given.get(name) is None}
        confirm(dict(given) == {name: wanted[name] for name in given}, f"{given} for {wanted}")
        return row

    def check_history(
        self, given: Sequence[Mapping[str, Any]], starts: Mapping[int, int], what: str
    ) -> None:
        """What was given must be every change from these offsets to the end."""
        self.check_span(given, starts, self.ends, self.schema, what)

    def check_span(
        self,
        given: Sequence[Mapping[str, Any]],
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        schema: Schema,
        what: str,
    ) -> None:
        """What was given must be every change between these offsets, in order."""
        places: dict[int, list[int]] = {number: [] for number in starts}
        for one in given:
            places[self.match(one, schema).partition].append(one["_offset"])
        for number, start in starts.items():
            wanted = list(range(start, ends[number]))
            confirm(
                places[number] == wanted,
                f"{what}: partition {number} gave {_short(places[number])}, not {_short(wanted)}",
            )

    def check_compacted(
        self,
        given: Sequence[Mapping[str, Any]],
        *,
        ends: Mapping[int, int],
        horizons: Mapping[int, int],
        deletes_below: Mapping[int, int],
        schema: Schema,
        what: str,
    ) -> None:
        """From offset 0: of keys below the horizon the last row, then every change.

        A delete is given exactly as every other row, unless it lies where deletes may be gone.
        """
        places: dict[int, list[int]] = {number: [] for number in ends}
        for one in given:
            places[self.match(one, schema).partition].append(one["_offset"])
        for number, end in ends.items():
            horizon, rows = min(horizons[number], end), self.partitions[number]
            last = self.last(number, horizon)
            must, may = set(range(horizon, end)), set[int]()
            for row in [*last.values(), *self.keyless(number, horizon)]:
                gone = row.deleted and row.offset < deletes_below[number]
                (may if gone else must).add(row.offset)
            got = places[number]
            confirm(got == sorted(set(got)), f"{what}: partition {number} gave {got}")
            missing, foreign = must - set(got), set(got) - must - may
            confirm(not missing, f"{what}: {_told(rows, missing)} missing, horizon {horizon}")
            confirm(not foreign, f"{what}: {_told(rows, foreign)} given, horizon {horizon}")


@dataclass(slots=True)
class Consumer:
    """Somebody who builds the state of a table from the changes that it is given."""

    model: Model
    position: dict[int, int]
    known: dict[int, dict[Key, Row]]
    keyless: dict[int, set[int]]
    missed: list[tuple[int, int, int]] = field(default_factory=list)
    """Partition, first and last offset of deletes that it was told may be gone."""

    @classmethod
    def at(cls, model: Model, position: Mapping[int, int]) -> Consumer:
        """One who has seen every change before these offsets."""
        return cls(
            model,
            dict(position),
            {number: model.state(number, offset) for number, offset in position.items()},
            {
                number: {row.offset for row in model.keyless(number, offset)}
                for number, offset in position.items()
            },
        )

    def copy(self) -> Consumer:
        """Another one who knows the same."""
        return replace(
            self,
            position=dict(self.position),
            known={number: dict(known) for number, known in self.known.items()},
            keyless={number: set(seen) for number, seen in self.keyless.items()},
            missed=list(self.missed),
        )

    def take(self, given: Iterable[Mapping[str, Any]], schema: Schema) -> None:
        """Apply changes, in the order in which they come."""
        for one in given:
            row = self.model.match(one, schema, lossy=True)
            number, at = row.partition, self.position[row.partition]
            confirm(row.offset >= at, f"offset {row.offset} of partition {number} after {at}")
            self.position[number] = row.offset + 1
            if row.key is None:
                self.keyless[number].add(row.offset)
            elif row.deleted:
                self.known[number].pop(row.key, None)
            else:
                self.known[number][row.key] = row

    def check_all_known(self, what: str) -> None:
        """After all was read: it must know what is there, and nothing else."""
        for number, known in self.known.items():
            state = self.model.state(number)
            wrong = {key for key, row in state.items() if known.get(key) != row}
            confirm(not wrong, f"{what}: partition {number} did not give {_some(wrong)}")
            stale = {key for key in known.keys() - state.keys() if not self._may_miss(number, key)}
            confirm(not stale, f"{what}: partition {number} did not say that {_some(stale)} went")
            keyless = {row.offset for row in self.model.keyless(number)}
            confirm(self.keyless[number] == keyless, f"{what}: rows without a key differ")

    def _may_miss(self, number: int, key: Key) -> bool:
        deletes = [r.offset for r in self.model.partitions[number] if r.key == key and r.deleted]
        return any(
            first <= offset <= last
            for partition, first, last in self.missed
            if partition == number
            for offset in deletes
        )


def _short(offsets: Sequence[int]) -> str:
    if len(offsets) < 9:
        return str(list(offsets))
    return f"{list(offsets[:4])}…{list(offsets[-4:])} ({len(offsets)})"


def _some(keys: Iterable[Key]) -> str:
    return ", ".join(repr(key) for key in list(keys)[:3])


def _told(rows: Sequence[Row], offsets: Iterable[int]) -> str:
    return ", ".join(
        f"{'delete' if rows[at].deleted else 'row'} {rows[at].key} at {at}"
        for at in sorted(offsets)[:3]
    )


def batches_of(rows: Iterator[Any]) -> list[dict[str, Any]]:
    """Record batches as rows."""
    return [row for batch in rows for row in batch.to_pylist()]
