"""A shop that sells: changes of orders, made up but always the same, a batch at a time.

An order is placed, paid for, packed, shipped and delivered; baskets change on the way, and some
orders are cancelled, which deletes them. Most changes are of young orders. The shop keeps a model
of what it has written, so that a reader can compare what it reads with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["COLUMNS", "HERO", "STATUSES", "Shop", "State"]

COLUMNS = {
    "id": "int64",
    "customer": "int32",
    "status": "string",
    "total": "decimal(12,2)",
    "express": "bool",
    "city": "string",
    "changed": "timestamp",
}
STATUSES = ["placed", "paid", "packed", "shipped", "delivered"]
CITIES = ["Bergen", "Cádiz", "Graz", "Kraków", "Lyon", "Porto", "Turku", "Ulm"]
HERO = 4_711
"""An order of which the shop makes no change by itself: the quickstart does."""
_FIRST = 10_000
_OPENS = int(datetime(2026, 1, 5, 6, tzinfo=UTC).timestamp() * 1_000_000)
_STEP_US = 12_000


@dataclass(frozen=True, slots=True)
class State:
    """All orders at one moment, as three numbers that do not depend on any order of rows."""

    orders: int
    total: Decimal
    delivered: int


class Shop:
    """Makes changes, and knows what they come to."""

    def __init__(self, changes: int, *, seed: int = 7) -> None:
        self._chance = np.random.default_rng(seed)
        self._status = np.full(_FIRST + changes, -1, np.int8)
        """By id; -1: there is no such order, or it was cancelled."""
        self._cents = np.zeros(_FIRST + changes, np.int64)
        self._next = _FIRST
        self._now_us = _OPENS

    def batch(self, rows: int) -> pa.RecordBatch:
        """So many changes, each of another order."""
        touched = self._some_of_the_young(rows * 8 // 10)
        cancelled = touched[: len(touched) // 12]
        changed = touched[len(touched) // 12 :]
        placed = np.arange(self._next, self._next + rows - len(touched))
        self._next += len(placed)

        moves = self._chance.random(len(changed)) < 0.8
        self._status[changed] += (moves & (self._status[changed] < len(STATUSES) - 1)).astype("i1")
        self._cents[changed] += np.where(moves, 0, self._chance.integers(-50, 500, len(changed)))
        self._status[placed] = 0
        self._cents[placed] = self._chance.integers(500, 50_000, len(placed))

        ids = np.concatenate([placed, changed, cancelled])
        deletes = np.zeros(rows, np.bool_)
        deletes[rows - len(cancelled) :] = True
        mixed = self._chance.permutation(rows)
        made = self._rows(ids[mixed], deletes[mixed])
        self._status[cancelled] = -1
        return made

    def change_by_hand(self, status: str, total: str) -> dict[str, object]:
        """A change of the one order that the shop itself does not touch."""
        self._status[HERO] = STATUSES.index(status)
        self._cents[HERO] = int(Decimal(total) * 100)
        return {"id": HERO, "customer": 1, "status": status, "total": total, "city": "Lyon"}

    @property
    def state(self) -> State:
        """What all changes so far come to."""
        there = self._status >= 0
        total = Decimal(int(self._cents[there].sum())) / 100
        return State(int(there.sum()), total, int((self._status == len(STATUSES) - 1).sum()))

    def _some_of_the_young(self, count: int) -> npt.NDArray[np.int64]:
        """Orders that are there, each once, the younger the likelier; at most so many."""
        known = self._next - _FIRST
        ages = self._chance.exponential(max(known, 1) / 5, 3 * count // 2).astype(np.int64)
        ids = np.unique(self._next - 1 - ages[ages < known])
        return self._chance.permutation(ids[self._status[ids] >= 0])[:count]

    def _rows(self, ids: npt.NDArray[np.int64], deletes: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        rows = len(ids)
        self._now_us += rows * _STEP_US
        times = self._now_us + _STEP_US * np.arange(rows)
        columns = {
            "id": pa.array(ids),
            "customer": pa.array((ids * 2_654_435_761 % 250_000).astype(np.int32)),
            "status": _words(self._status[ids], STATUSES),
            "total": _decimals(self._cents[ids]),
            "express": pa.array(ids % 9 == 0),
            "city": _words((ids % len(CITIES)).astype(np.int8), CITIES),
            "changed": pa.array(times, pa.timestamp("us", tz="UTC")),
            "_change": _words(deletes.astype(np.int8), ["upsert", "delete"]),
        }
        return pa.RecordBatch.from_pydict(columns)


def _words(codes: npt.NDArray[np.int8], words: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), words).cast(pa.string())


def _decimals(cents: npt.NDArray[np.int64]) -> pa.Array:
    """Cents as decimals with two digits: their 16 bytes are made here, 8 of them signs."""
    wide = np.empty((len(cents), 2), np.int64)
    wide[:, 0], wide[:, 1] = cents, cents >> 63
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(cents), [None, pa.py_buffer(wide)])
