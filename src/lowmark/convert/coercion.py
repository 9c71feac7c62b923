"""Rows of any kind, as batches in the schema of a table.

A batch that comes out has the table's columns, by name, type and order, and loses nothing of what
went in; which values fit which column is the table in `values`. Whether a field of the
batch's schema says that it may be null is not part of the promise; that no null stands where the
table forbids it is.

Columns that were not given are filled with their default, or with null. System columns that
reading adds (`_partition`, `_offset`, `_time`) are passed over, so that what was read can be
appended again.

`_change` says of each row what it does to its key: "upsert" or "delete", or 0 or 1. Who takes
changes gets it as the last column, an int8; a delete needs only its key, and whatever else it does
not give stays null, defaults or not. Who takes none is given no deletes: one is refused, and a
column that has only upserts is dropped.

A row is refused with its number, counted from 0 over all that one call was given, and the first one
that is wrong is named. Batches that were made before it have been handed out by then: who wants all
or nothing makes the whole list first.

The same types in the same order cost a few microseconds, whatever the batch's size. Nothing is
copied then, nor in any single column whose type is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import Column, ColumnId, TableSchema, type_text
from lowmark.catalog.arrow import schema_to_arrow
from lowmark.catalog.values import NO_ZONE
from lowmark.convert.arrow import arrow_of, asks_inside, from_arrow, is_text, unwrapped
from lowmark.convert.errors import ColumnRefused, ValueRefused
from lowmark.convert.objects import from_objects
from lowmark.convert.rows import Columns, pieces
from lowmark.convert.text import from_text
from lowmark.convert.values import Misfit, fit
from lowmark.formatting import near

CHANGE = "_change"
UPSERT = 0
DELETE = 1

PASSED_OVER = frozenset({"_offset", "_partition", "_time"})
_CODES: dict[tuple[type, object], int] = {
    (str, "upsert"): UPSERT,
    (str, "delete"): DELETE,
    (int, UPSERT): UPSERT,
    (int, DELETE): DELETE,
}


@dataclass(frozen=True, slots=True)
class Text:
    """A column of strings that are to be read, as those of a CSV file are."""

    array: pa.Array


Source: TypeAlias = pa.Array | list[Any] | Text
"""A column as it was given."""


class Coercion:
    """Brings rows into one schema version of a table.

    `keyless_ok` lets rows in whose key columns are all null; `changes` lets deletes in; `renamed`
    has what columns were called earlier, with what they are called now. It keeps no rows between
    calls, and may be kept for as long as the schema version is the one to write.
    """

    def __init__(
        self,
        schema: TableSchema,
        *,
        key: frozenset[ColumnId] = frozenset(),
        keyless_ok: bool = False,
        changes: bool = False,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._columns = schema.columns
        self._renamed = renamed or {}
        self._key = tuple(each for each in schema.columns if each.id in key)
        self._keyless_ok = keyless_ok
        self._changes = changes
        self._names = tuple(each.name for each in schema.columns)
        self._declared = schema_to_arrow(schema)
        self._plain = _all_nullable(self._declared)
        self._with_change = self._plain.append(pa.field(CHANGE, pa.int8()))
        self._looked_into = any(asks_inside(each.type) for each in schema.columns)
        self._never_null = tuple(
            place
            for place, each in enumerate(schema.columns)
            if (each.id in key and not keyless_ok) or (each.id not in key and each.required)
        )
        self._key_places = tuple(self._names.index(each.name) for each in self._key)
        self._fillings = {
            each.name: pa.scalar(fit(each.type, each.default), arrow_of(each.type))  # type: ignore[arg-type]
            for each in schema.columns
            if each.default is not None  # nested types have none
        }

    @property
    def arrow(self) -> pa.Schema:
        """The schema of batches without changes; any field may be called nullable."""
        return self._declared

    def batches(self, rows: object) -> Iterator[pa.RecordBatch]:
        """Rows as batches, as many as the pieces in which they came; empty ones are left out."""
        first_row = 0
        for piece in pieces(rows):
            if isinstance(piece, pa.RecordBatch):
                count, batch = piece.num_rows, self.batch(piece, first_row=first_row)
            elif isinstance(piece, Columns):
                count, batch = (
                    piece.rows,
                    self.columns(piece.given, piece.rows, first_row=first_row),
                )
            else:
                count, batch = len(piece), self.dicts(piece, first_row=first_row)
            first_row += count
            if count:
                yield batch

    def batch(self, batch: pa.RecordBatch, *, first_row: int = 0) -> pa.RecordBatch:
        """One Arrow batch; `first_row` is the number of its first row, for errors."""
        schema = batch.schema
        if self._is_right(schema) and self._has_no_nulls(batch):
            return batch if schema.metadata is None else batch.replace_schema_metadata(None)
        names = schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ColumnRefused(
                f"column {twice} is there twice", column=twice, hint="Rename or drop one of them."
            )
        given = dict(zip(names, batch.columns, strict=True))
        return self.columns(given, batch.num_rows, first_row=first_row)

    def dicts(self, rows: list[Mapping[str, Any]], *, first_row: int = 0) -> pa.RecordBatch:
        """One batch of dicts."""
        total = sum(map(len, rows))
        if total == len(rows) * len(self._names):
            try:
                given = {name: list(map(itemgetter(name), rows)) for name in self._names}
            except KeyError:
                pass
            else:
                # As many keys as there are columns, and all of them columns: there is no other.
                return self.columns(given, len(rows), first_row=first_row)
        return self._uneven_dicts(rows, first_row)

    def columns(
        self, given: Mapping[str, Source], rows: int, *, first_row: int = 0
    ) -> pa.RecordBatch:
        """One batch of columns by name, each of any form."""
        self._check_names(given)
        misfits: list[tuple[int, int, Misfit]] = []
        change: pa.Array | None = None
        deletes: pa.Array | None = None
        if CHANGE in given:
            try:
                change = _read_change(given[CHANGE])
            except Misfit as misfit:
                raise _refused(misfit, CHANGE, first_row) from None
            deletes = self._deletes(change, first_row)
        arrays = []
        for place, column in enumerate(self._columns):
            try:
                array = self._column(column, given, rows, deletes)
            except Misfit as misfit:
                misfits.append((misfit.index, place, misfit))
                array = None
            arrays.append(array)
        misfits += [
            (each.index, place, each) for place, each in self._null_misfits(arrays, deletes)
        ]
        if misfits:
            _, place, first = min(misfits, key=itemgetter(0, 1))
            raise _refused(first, self._names[place], first_row, self._columns[place])
        if change is None or not self._changes:
            return pa.RecordBatch.from_arrays(arrays, schema=self._plain)
        return pa.RecordBatch.from_arrays([*arrays, change], schema=self._with_change)

    # -- the short way --------------------------------------------------------------------------

    def _is_right(self, schema: pa.Schema) -> bool:
        return not self._looked_into and (
            schema.equals(self._plain) or schema.equals(self._declared)
        )

    def _has_no_nulls(self, batch: pa.RecordBatch) -> bool:
        places = self._never_null
        if self._keyless_ok:
            places += self._key_places
        return not any(batch.column(place).null_count for place in places)

    # -- columns --------------------------------------------------------------------------------

    def _check_names(self, given: Iterable[str]) -> None:
        for name in given:
            if name in self._names or name in PASSED_OVER or name == CHANGE:
                continue
            raise self._unknown(str(name))

    def _unknown(self, name: str, row: int | None = None) -> ColumnRefused:
        """A column that the table does not have: one that was renamed says what it is called."""
        now = self._renamed.get(name)
        hint = near(name, self._names) if now is None else f"It was renamed, and is now {now}."
        return ColumnRefused(f"the table has no column {name}", row=row, column=name, hint=hint)

    def _column(
        self, column: Column, given: Mapping[str, Source], rows: int, deletes: pa.Array | None
    ) -> pa.Array:
        source = given.get(column.name)
        if isinstance(source, list):
            return from_objects(column.type, source)
        if isinstance(source, Text):
            return from_text(column.type, source.array)
        if source is not None:
            return from_arrow(column.type, source)
        # Columns without rows are asked for as if they had some; of a frame that says which rows
        # are deletes, all of them may be.
        asked = rows > 0 or (bool(given) and CHANGE not in given)
        return self._missing(column, rows, deletes, asked=asked)

    def _missing(
        self, column: Column, rows: int, deletes: pa.Array | None, *, asked: bool
    ) -> pa.Array:
        """A column that was not given at all."""
        filling = self._fillings.get(column.name)
        if filling is not None:
            filled = pa.repeat(filling, rows)
            return filled if deletes is None else pc.if_else(deletes, None, filled)
        is_key = column in self._key
        needed = column.required and not (is_key and self._keyless_ok)
        if needed and asked and (is_key or deletes is None or not pc.all(deletes).as_py()):
            raise ColumnRefused(
                f"column {column.name} is required, has no default and is not given",
                column=column.name,
                hint="Give it a value in every row.",
            )
        return pa.nulls(rows, arrow_of(column.type))

    def _uneven_dicts(self, rows: list[Mapping[str, Any]], first_row: int) -> pa.RecordBatch:
        """Dicts of which some lack a column, or have more than the table."""
        found: set[str] = set().union(*rows)
        extra = found.difference(self._names, PASSED_OVER, {CHANGE})
        if extra:
            row, name = next(
                (row, name) for row, each in enumerate(rows) for name in each if name in extra
            )
            raise self._unknown(str(name), first_row + row)
        given: dict[str, list[Any]] = {}
        if CHANGE in found:
            given[CHANGE] = [row.get(CHANGE, "upsert") for row in rows]
        for column in self._columns:
            name = column.name
            if name not in found:
                continue
            if column.default is None:
                given[name] = [row.get(name) for row in rows]
            elif CHANGE in found:
                # What a delete does not give stays null.
                given[name] = [
                    row.get(name, None if _code(row.get(CHANGE)) == DELETE else column.default)
                    for row in rows
                ]
            else:
                given[name] = [row.get(name, column.default) for row in rows]
        return self.columns(given, len(rows), first_row=first_row)

    # -- changes and nulls ----------------------------------------------------------------------

    def _deletes(self, change: pa.Array, first_row: int) -> pa.Array | None:
        """Which rows are deletes, if any is."""
        deletes = pc.equal(change, DELETE)
        row = _first(deletes)
        if row is None:
            return None
        if not self._changes or not self._key:
            why = "can't be taken: only upserts can be appended here"
            if self._changes:
                why = "can't be taken: the table has no key to delete by"
            raise _refused(Misfit(row, "delete", why), CHANGE, first_row)
        return deletes

    def _null_misfits(
        self, arrays: list[pa.Array | None], deletes: pa.Array | None
    ) -> Iterator[tuple[int, Misfit]]:
        """Nulls that stand where none may, by the place of their column."""
        for place in self._never_null:
            array = arrays[place]
            if array is None or not array.null_count:
                continue
            bare = array.is_null()
            if deletes is not None and place not in self._key_places:
                bare = pc.and_not(bare, deletes)
            row = _first(bare)
            if row is not None:
                yield place, Misfit(row, None, "is not allowed: the column is required")
        if self._keyless_ok:
            yield from self._key_misfits(arrays, deletes)

    def _key_misfits(
        self, arrays: list[pa.Array | None], deletes: pa.Array | None
    ) -> Iterator[tuple[int, Misfit]]:
        """Keys that are there in part, and deletes without one."""
        keys = [(place, arrays[place]) for place in self._key_places]
        nulls = [(place, each.is_null()) for place, each in keys if each is not None]
        if len(nulls) < len(keys):
            return  # one was refused already
        nulls = [(place, each) for place, each in nulls if pc.any(each).as_py()]
        if not nulls:
            return
        absent = nulls[0][1]
        for _, each in nulls[1:]:
            absent = pc.and_(absent, each)
        if len(nulls) < len(keys):
            absent = pa.repeat(pa.scalar(value=False), len(absent))
        for place, each in nulls:
            row = _first(pc.and_not(each, absent))
            if row is not None:
                why = "is not allowed: either all columns of the key have a value, or none has"
                yield place, Misfit(row, None, why)
        row = _first(pc.and_(absent, deletes)) if deletes is not None else None
        if row is not None:
            yield nulls[0][0], Misfit(row, None, "is not allowed: a delete needs its key")


def _all_nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(nullable=True) for field in schema])


def _first(mask: pa.Array) -> int | None:
    row = pc.index(mask, value=True).as_py()
    return row if row >= 0 else None


def _code(change: object) -> int | None:
    """Upsert or delete, or none of both; True is not 1 here."""
    return _CODES.get((type(change), change)) if isinstance(change, str | int) else None


def _read_change(source: Source) -> pa.Array:
    """The column `_change` as int8; every row has one."""
    if isinstance(source, list):
        codes = list(map(_code, source))
        if None in codes:
            row = codes.index(None)
            raise _no_change(row, source[row])
        return pa.array(codes, pa.int8())
    array = source.array if isinstance(source, Text) else unwrapped(source)
    if pa.types.is_integer(array.type):
        codes_of = array.cast(pa.int64())
        right = pc.is_in(codes_of, value_set=pa.array([UPSERT, DELETE]))
    elif not is_text(array.type):
        if not len(array):
            raise ColumnRefused(
                f"column {CHANGE} is of Arrow's type {array.type}, which is no change",
                column=CHANGE,
                hint="Use text, upsert or delete; or whole numbers, 0 or 1.",
            )
        raise _no_change(0, array[0].as_py())
    else:
        words = ["upsert", "delete", *(["0", "1"] if isinstance(source, Text) else [])]
        codes_of = pc.index_in(array.cast(pa.string()), value_set=pa.array(words))
        right = codes_of.is_valid()
        codes_of = pc.bit_wise_and(codes_of, 1)
    wrong = _first(pc.invert(right))
    if wrong is not None:
        raise _no_change(wrong, array[wrong].as_py())
    return codes_of.cast(pa.int8())


def _no_change(row: int, value: object) -> Misfit:
    return Misfit(row, value, "is not a change: use upsert or delete, or 0 or 1")


def _refused(
    misfit: Misfit, name: str, first_row: int, column: Column | None = None
) -> ValueRefused:
    hint = f"The column is of type {type_text(column.type)}." if column is not None else ""
    if misfit.why == NO_ZONE:
        hint = (
            "Give it a zone: datetime.now(UTC), or frame['at'].dt.tz_localize('UTC') in pandas."
            " A column of type timestamp_ntz takes times without a zone."
        )
    return ValueRefused(
        misfit.why,
        row=first_row + misfit.index,
        column=name,
        value=misfit.value,
        within=misfit.within,
        hint=hint,
    )
