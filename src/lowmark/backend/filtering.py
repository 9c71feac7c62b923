"""Which rows a caller wants, by an Arrow expression: `pc.field("status") == "new"`; or by text as
SQL has it: `status = 'new'`.

What it promises: a reader with a filter gives exactly the rows that its caller would have left by
filtering what the reader without it gives. So rows are judged as they would be given, with the
columns of the reader's table, defaults filled in, and only if they would be given at all: of a
table as of a time, the last row of each key is found first. A row of which the expression is null
does not pass. Columns that only the expression needs are read and not given.

Of a ledger, row groups are passed over whose statistics say that no row of them can pass, and of
the others the columns of the expression are read first; the rest only where a row passes. Arrow
judges statistics wrongly if a column has NaN, so columns of floats say nothing; nor do columns that
a file has under another name, in another type, or not at all.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.backend.condition import parse_where
from lowmark.catalog import Table
from lowmark.errors import Rejected
from lowmark.ledger import OpenFile
from lowmark.table import OFFSET, SYSTEM_COLUMNS, TIME, Mask, Shape

_HINT = (
    "Give text, where=\"status = 'new'\", or an Arrow expression:"
    ' where=pc.field("status") == "new", with pyarrow.compute as pc.'
)
_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Filter:
    """An expression, and the columns it needs. May be used on any thread."""

    def __init__(self, table: Table, expression: object) -> None:
        names = [*(column.name for column in table.columns), *SYSTEM_COLUMNS]
        schema = Shape(table, names).schema
        if isinstance(expression, str):
            expression = parse_where(expression, schema)
        if not isinstance(expression, pc.Expression):
            raise Rejected(
                f"where can't be given as {type(expression).__name__}:"
                " it is neither text nor an Arrow expression",
                hint=_HINT,
            )
        if "FieldPath(" in str(expression):
            raise Rejected(
                f"where names a column by its place: {expression}",
                hint='Name it: pc.field("status").',
            )
        self._table = table
        self._expression = expression
        kind = self._checked(schema)
        if not pa.types.is_boolean(kind):
            raise Rejected(
                f"where gives {kind}, not true or false: {expression}",
                hint='Compare it with something: pc.field("status") == "new".',
            )
        self.names = tuple(name for name in names if self._needs(schema, name))
        """The columns that it needs."""

    def _checked(self, schema: pa.Schema) -> pa.DataType:
        """The type that it has."""
        try:
            return _evaluated(schema.empty_table(), self._expression).type
        except _FAILURES as error:
            unknown = "No match for FieldRef" in str(error)
            known = ", ".join(schema.names)
            raise Rejected(
                f"where is not a condition on table {self._table.name}: {self._expression}",
                detail=str(error).splitlines()[0].removesuffix(f" in {schema.names[0]}"),
                hint=f"It has the columns {known}." if unknown else _HINT,
            ) from error

    def _needs(self, schema: pa.Schema, name: str) -> bool:
        """Whether it names a column: without it, it can't be bound."""
        others = [field for field in schema if field.name != name]
        try:
            _evaluated(pa.schema(others).empty_table(), self._expression)
        except _FAILURES:
            return True
        return False

    def mask(self, columns: pa.RecordBatch) -> Mask:
        """Which rows pass, of those with the columns that it needs, by name."""
        if not columns.num_rows:
            return np.zeros(0, np.bool_)
        try:
            if self.names:
                table = pa.Table.from_batches([columns.select(list(self.names))])
                passed = _evaluated(table, self._expression)
            else:  # a constant; a table without columns has no rows
                one = _evaluated(pa.table({"_": pa.nulls(1)}), self._expression)
                return np.full(columns.num_rows, one.fill_null(False)[0].as_py())
        except _FAILURES as error:
            raise Rejected(
                f"where can't be applied to a row of table {self._table.name}: {error}",
                detail=f"It is {self._expression}.",
                hint="Make it one that holds, or does not, for every row.",
            ) from error
        wanted: Mask = passed.fill_null(False).to_numpy()
        return wanted

    def groups(self, opened: OpenFile) -> Collection[int]:
        """The row groups of a ledger's file that may have rows that pass, as far as their
        statistics say.
        """
        every = range(len(opened.starts) - 1)
        if not all(self._is_as_stored(opened, name) for name in self.names):
            return every
        dataset: Any = importlib.import_module("pyarrow.dataset")
        try:
            fragment = dataset.ParquetFileFormat().make_fragment(pa.BufferReader(opened.footer()))
            return frozenset(group.id for group in fragment.subset(self._expression).row_groups)
        except (pa.ArrowException, OSError):
            return every

    def _is_as_stored(self, opened: OpenFile, name: str) -> bool:
        """Whether what a file says of a column is true of what it is read as."""
        if name in SYSTEM_COLUMNS:
            return name in {OFFSET, TIME}
        column = self._table.latest.column_named(name)
        there = None if column is None else opened.schema.column(column.id)
        if column is None or there is None:
            return False
        field = Shape(self._table, [name]).schema.field(0)
        return (there.name, there.type) == (name, column.type) and not (
            pa.types.is_nested(field.type) or pa.types.is_floating(field.type)
        )


class Where:
    """A filter for one reader: the shape that it reads rows with, and what it gives of them."""

    def __init__(self, expression: object, given: Shape) -> None:
        self.filter = Filter(given.table, expression)
        self.width = len(given.names)
        """How many columns the reader gives; those behind them are for the filter alone."""
        self.schema = given.schema
        extra = [name for name in (*self.filter.names, OFFSET) if name not in given.names]
        self.shape = given.with_more(tuple(dict.fromkeys(extra)))
        self._places = [self.shape.names.index(name) for name in self.filter.names]
        self._offsets = self.shape.names.index(OFFSET)
        self.probe = given.only(self.filter.names)
        """What has to be read to judge a row."""

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass, of those that were read."""
        mask = self.filter.mask(batch.select(self._places))
        return batch if mask.all() else batch.filter(pa.array(mask))

    def offset_of(self, batch: pa.RecordBatch, row: int) -> int:
        """Of a row that was read."""
        return int(batch.column(self._offsets)[row].as_py())

    def give(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the caller asked for."""
        return batch.select(list(range(self.width)))


def _evaluated(table: pa.Table, expression: pc.Expression) -> pa.ChunkedArray:
    """The expression's value for each row, in order."""
    acero: Any = importlib.import_module("pyarrow.acero")  # it takes half a second
    made = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["passes"])),
        ]
    )
    found: Sequence[pa.ChunkedArray] = made.to_table(use_threads=False).columns
    return found[0]
