"""The keys of stored batches in canonical form, whatever schema version they were written with.

Neighbours of one kind are put together first, so that many small batches cost little more than a
large one: there is no work per batch but decoding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lowmark.catalog import ColumnId, Table
from lowmark.runtime import Buffer
from lowmark.table.backlog import View
from lowmark.table.batches import CHANGE, Mask, decode_rows, stored_schema, written_with
from lowmark.table.commands import Change
from lowmark.table.keys import KeyForm

_TOGETHER_BYTES = 64 << 20
"""Key columns of neighbours are put together up to about so much: they may have been compressed."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of batches `low` to `high` of a view; they are a copy, and hold no file."""

    low: int
    high: int
    keys: pa.Array
    """Null where a row has no key."""
    deletes: bool | Mask
    """Which of the rows are deletes: none, all, or those of a mask."""
    beside: pa.Array | None = None
    """The values of the column that was asked for beside the keys, if one was."""

    @property
    def deletes_mask(self) -> Mask:
        """The same, for each row."""
        if isinstance(self.deletes, bool):
            return np.full(len(self.keys), self.deletes)
        return self.deletes


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to read batches of one schema version and one kind of change."""

    stored: pa.Schema
    form: KeyForm
    places: tuple[int, ...]
    """Of the key's columns in the message, in the key's order."""
    changes: int | None
    """The place of `_change`, if rows have it."""
    delete: bool
    beside: int | None
    """The place of the column that is read beside the keys, if there is one."""


class KeyReader:
    """Reads keys of one table. May be used on any thread.

    Rows may come that are written with a later schema version: `newest` gives the table that
    knows it. One column can be read `beside` the keys; its values are null where a row was written
    without it, as deletes are.
    """

    def __init__(
        self,
        table: Table,
        *,
        newest: Callable[[], Table] | None = None,
        beside: ColumnId | None = None,
    ) -> None:
        self._table = table
        self._newest = newest
        self._beside = beside
        self._kinds: dict[tuple[int, int], _Kind] = {}

    def read(self, view: View, low: int, commands: Sequence[Buffer]) -> Iterator[Keys]:
        """The keys of batches that begin with the one at `low`, in order; neighbours together."""
        versions = view.columns.schema[low : low + len(commands)].tolist()
        changes = view.columns.change[low : low + len(commands)].tolist()
        at = 0
        while at < len(commands):
            end = at
            kind, size = self._kind(versions[at], changes[at]), 0
            parts: list[list[pa.Array]] = []
            masks: list[pa.Array] = []
            others: list[pa.Array] = []
            while (
                end < len(commands)
                and size <= _TOGETHER_BYTES
                and (versions[end], changes[end]) == (versions[at], changes[at])
            ):
                rows = decode_rows(commands[end], kind.stored)
                columns = [rows.column(place) for place in kind.places]
                size += sum(column.nbytes for column in columns)
                parts.append(columns)
                if kind.changes is not None:
                    masks.append(rows.column(kind.changes))
                if self._beside is not None:
                    others.append(
                        pa.nulls(rows.num_rows) if kind.beside is None else rows.column(kind.beside)
                    )
                end += 1
            keys = kind.form.array_of(
                [pa.concat_arrays(column) for column in zip(*parts, strict=True)]
            )
            deletes: bool | Mask = kind.delete
            if kind.changes is not None:
                deletes = pa.concat_arrays(masks).to_numpy() == Change.DELETE
            beside = pa.concat_arrays(others) if others else None
            yield Keys(low + at, low + end, keys, deletes, beside)
            at = end

    def _kind(self, version: int, change: int) -> _Kind:
        kind = self._kinds.get((version, change))
        if kind is None:
            kind = self._kinds[version, change] = self._new_kind(version, Change(change))
        return kind

    def _new_kind(self, version: int, change: Change) -> _Kind:
        table = self._table
        written = written_with(table, version, self._newest)
        stored = stored_schema(written, table.key, change)
        form = KeyForm.of(table, written)
        places = tuple(stored.get_field_index(name) for name in form.names)
        changes = stored.get_field_index(CHANGE) if change is Change.MIXED else None
        names = [one.name for one in written.columns if one.id == self._beside]
        beside = next((at for name in names if (at := stored.get_field_index(name)) >= 0), None)
        return _Kind(stored, form, places, changes, delete=change is Change.DELETE, beside=beside)
