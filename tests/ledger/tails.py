"""Tails of partitions in memory, for those who fold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from lowmark.catalog import Table
from lowmark.ledger.kernel import Folded, KeyRange, Sample, Second, Survivors, fold_tail
from lowmark.ledger.rule import LAST_ROW, Ranks, Rule
from lowmark.ledger.tail import TailReader
from lowmark.runtime import Buffer
from lowmark.table import (
    CHANGE,
    Change,
    Columns,
    Fold,
    KeyReader,
    Mask,
    View,
    encode_batch,
    encode_rows,
    stored_schema,
)

__all__ = ["EVERYTHING", "PLENTY", "Row", "Tail"]

EVERYTHING = Sample(None)
PLENTY = 1 << 30
Row: TypeAlias = tuple[Any, bool] | tuple[Any, bool, Any]
"""A key, or None; whether it is deleted; and what stands in all other columns."""


class Tail:
    """Batches in memory, as a `TailReader` gives those of segments."""

    def __init__(self, table: Table, batches: Sequence[Sequence[Row]], *, skip: int = 0) -> None:
        self.table = table
        self.skip = skip
        self.partition = 3
        self.reads = 0
        self.survivors: dict[Any, tuple[int, bool]] = {}
        """By key: the row, and whether it is a delete."""
        self._commands = []
        changes, counts = [], []
        for rows in batches:
            kinds = {row[1] for row in rows}
            change = Change.MIXED if len(kinds) > 1 else Change(int(kinds.pop()))
            self._commands.append(self._encoded(rows, change))
            changes.append(int(change))
            counts.append(len(rows))
        firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        count = len(batches)
        columns = Columns(
            np.arange(count, dtype=np.uint64),
            firsts[:-1],
            np.arange(count, dtype=np.uint64),
            np.array(counts, np.uint32),
            np.ones(count, np.uint32),
            np.full(count, 100, np.uint32),
            np.array(changes, np.uint8),
        )
        self.view = View(columns, count, skip, int(firsts[-1]), 0)

    def _encoded(self, rows: Sequence[Row], change: Change) -> bytes:
        table = self.table
        schema = stored_schema(table.latest, table.key, change)
        names = [column.name for column in table.key_columns]
        arrays = []
        for field in schema:
            if field.name == CHANGE:
                values: list[Any] = [int(row[1]) for row in rows]
            elif field.name in names and len(names) > 1:
                place = names.index(field.name)
                values = [None if row[0] is None else row[0][place] for row in rows]
            elif field.name in names or not names:
                values = [row[0] for row in rows]
            else:
                values = [None if row[1] else next(iter(row[2:]), None) for row in rows]
            arrays.append(pa.array(values, field.type))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return encode_batch(encode_rows(batch), rows=len(rows), schema=1, change=change)

    def chunks(
        self, pace: Callable[[int], None], *, wanted: object = None
    ) -> Iterator[tuple[int, int, Sequence[Buffer]]]:
        del wanted
        self.reads += 1
        for low in range(0, self.view.count, 3):
            high = min(low + 3, self.view.count)
            pace(100 * (high - low))
            yield low, high, self._commands[low:high]

    def fold(
        self, *, budget: int = PLENTY, sample: Sample = EVERYTHING, rule: Rule = LAST_ROW
    ) -> Folded:
        """Pass one of a run."""

        def each(part: KeyRange, survivors: Survivors, second: Second) -> None:
            del second
            if part.number == 0:
                self.survivors = {}
            for key, row, deleted in zip(
                survivors.keys.to_pylist(),
                survivors.rows.tolist(),
                survivors.deletes.tolist(),
                strict=True,
            ):
                assert key not in self.survivors
                self.survivors[key] = row, deleted

        reader = cast("TailReader", self)
        return fold_tail(
            reader,
            self.table,
            budget_bytes=budget,
            pace=lambda count: None,
            sample=sample,
            each=each,
            rule=rule,
        )

    def keys(self) -> pa.Array:
        """Of all rows that have one, in their canonical form."""
        return self.keys_and_rows()[0]

    def keys_and_rows(self, rule: Rule = LAST_ROW) -> tuple[pa.Array, Any, Ranks]:
        """Keys, numbers and ranks of all rows that have a key."""
        found: list[tuple[pa.Array, Any, Ranks]] = []
        starts = np.concatenate([[0], np.cumsum(self.view.rows, dtype=np.int64)])
        reader = KeyReader(self.table, beside=rule.column)
        for some in reader.read(self.view, 0, self._commands):
            rows = np.arange(starts[some.low], starts[some.high])
            valid = some.keys.is_valid()
            mask = valid.to_numpy(zero_copy_only=False) & (rows >= self.skip)
            ranks = rule.ranks(some.beside)
            ranks = None if ranks is None else ranks[mask]
            found.append((some.keys.filter(pa.array(mask)), rows[mask], ranks))
        ranked = [ranks for _, _, ranks in found if ranks is not None]
        return (
            pa.concat_arrays([keys for keys, _, _ in found]),
            np.concatenate([rows for _, rows, _ in found]),
            np.concatenate(ranked) if ranked else None,
        )

    def second(
        self, *, budget: int = PLENTY, sample: Sample = EVERYTHING, rule: Rule = LAST_ROW
    ) -> Second:
        """The second algorithm, fed with all rows, a few at a time."""
        keys, rows, ranks = self.keys_and_rows(rule)
        made = Second(sample, int(self.view.rows.sum()), budget)
        for at in range(0, len(rows), 5):
            some = None if ranks is None else ranks[at : at + 5]
            made.add(keys.slice(at, 5), rows[at : at + 5].__getitem__, some)
        return made

    def fold_alone(self, rule: Rule = LAST_ROW) -> Mask:
        """Which rows survive by one fold of all rows at once, deletes among them."""
        fold, counts = Fold(keep_deletes=True), []
        for some in KeyReader(self.table, beside=rule.column).read(self.view, 0, self._commands):
            fold.add(some.keys, some.deletes, ranks=rule.ranks(some.beside))
            counts.append(len(some.keys))
        return np.concatenate(
            [
                np.ones(count, np.bool_) if mask is None else mask
                for count, mask in zip(counts, fold.masks(), strict=True)
            ]
        )
