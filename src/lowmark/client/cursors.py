"""Named durable readers of a table: an offset per partition, and a hold on what lies behind it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from lowmark.backend.errors import AnswerUnread, PartlyMade, could_not_be_asked, made
from lowmark.backend.port import Backend
from lowmark.backend.values import PartitionStatus
from lowmark.catalog import DURATION_TAKES, Table, parse_duration
from lowmark.client.agreeing import AGREED_S, agreed
from lowmark.client.checking import check_offsets, whole
from lowmark.client.edges import edge
from lowmark.convert.times import time_text
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.table import (
    IDLE_MS_MAX,
    NAME_CHARACTERS_MAX,
    CreateCursor,
    Cursor,
    CursorUnknown,
    DeleteCursor,
    MoveCursor,
    RenewCursor,
)


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """Where a cursor stands in one partition."""

    partition: int
    offset: int
    lag_rows: int
    pinned_bytes: int
    """What is kept in the log for it, at least; 0 if it holds nothing."""
    moved: int
    overdue: bool


@dataclass(frozen=True, slots=True)
class TableCursor:
    """A cursor, in all partitions."""

    name: str
    kind: Literal["raw", "compacted"]
    places: tuple[CursorPlace, ...]
    max_lag_rows: int = 0
    max_lag_ms: int = 0
    idle_expiry_ms: int = 0
    """How long it may be idle before it expires; 0: for ever."""
    expired: bool = False
    """Whether it was idle for longer in a partition, and holds nothing there."""

    @property
    def position(self) -> dict[int, int]:
        """The next offset of each partition that it has not seen: where to start reading."""
        return {place.partition: place.offset for place in self.places}

    @property
    def lag_rows(self) -> int:
        """How many rows it has not seen."""
        return sum(place.lag_rows for place in self.places)

    @property
    def pinned_bytes(self) -> int:
        """What is kept in the log for it, at least."""
        return sum(place.pinned_bytes for place in self.places)

    @property
    def overdue(self) -> bool:
        """Whether it fell too far behind in a partition, or expired, and holds nothing there."""
        return any(place.overdue for place in self.places)

    @property
    def moved(self) -> str:
        """When it last moved."""
        return time_text(max(place.moved for place in self.places))


@edge()
class Cursors:
    """The cursors of one table."""

    def __init__(self, backend: Backend, table: Table) -> None:
        self._backend = backend
        self._table = table
        self._partitions = range(table.partitions)

    def create(
        self,
        name: str,
        *,
        kind: Literal["raw", "compacted"] = "raw",
        start: Literal["earliest", "latest"] | Mapping[int, int] = "earliest",
        max_lag_rows: int = 0,
        max_lag_ms: int = 0,
        idle_expiry: str | timedelta | None = None,
    ) -> TableCursor:
        """Have a cursor. A raw one keeps the backlog from its place on, until it moves on.

        A compacted one keeps no row of the backlog, but the deletes from its place on: a
        reader that has seen a key gets its delete. It begins anywhere, its earliest is 0; but where
        deletes are gone it begins at 0 only, and with nothing.

        With a maximum lag it is marked overdue when it falls further behind, and holds nothing
        from then on; its next read or commit fails with `CursorOverdue`.

        With an `idle_expiry` ("7 days") it expires when it was neither committed nor renewed
        (`renew`) for that long: it holds nothing from then on, and its next read or commit fails
        with `CursorExpired`. Without one it holds until it is deleted.
        """
        idle_ms = None if idle_expiry is None else idle_expiry_ms(idle_expiry)
        _check_name(name)
        if kind not in {"raw", "compacted"}:
            raise Rejected(f"a cursor is raw or compacted, not {kind!r}")
        max_lag_rows = whole(max_lag_rows, "max_lag_rows")
        max_lag_ms = whole(max_lag_ms, "max_lag_ms")
        token = int.from_bytes(os.urandom(7), "little")
        if isinstance(start, Mapping):
            missing = sorted(set(self._partitions) - start.keys())
            if missing:
                raise Rejected(
                    f"the start of cursor {name!r} has no offset for partition {missing[0]}",
                    hint="Give an offset for every partition.",
                )
            start = check_offsets(start, "start", partitions=len(self._partitions))
        elif start not in {"earliest", "latest"}:
            raise Rejected(f"a cursor starts at earliest, latest or at offsets, not {start!r}")

        def command(number: int) -> CreateCursor:
            return CreateCursor(
                name,
                token,
                kind,
                start[number] if isinstance(start, Mapping) else None,
                earliest=start == "earliest",
                max_lag_rows=max_lag_rows,
                max_lag_ms=max_lag_ms,
            )

        try:
            commands = {number: command(number) for number in self._partitions}
            self._backend.propose(self._table.id, commands)
            if idle_ms:
                self._renew(name, idle_ms)
        except LowmarkError:
            self._undo(name, token)
            raise
        return self._now(name, f"cursor {name!r} was made")

    def renew(
        self, name: str, *, idle_expiry: str | timedelta, patience_s: float = AGREED_S
    ) -> TableCursor:
        """Say that its reader is still there, though it does not move; and from here on, have it
        expire when it is idle for that long. "0 s": it never expires.

        The members of a new table need a moment to agree that cursors can expire: this call waits
        for them for `patience_s`, and then fails with `MembersBehind`.
        """
        self._renew(name, idle_expiry_ms(idle_expiry), patience_s)
        return self._now(name, f"cursor {name!r} was renewed")

    def _renew(self, name: str, idle_ms: int, patience_s: float = AGREED_S) -> None:
        asked = dict.fromkeys(self._partitions, RenewCursor(name, idle_ms))
        agreed(lambda: self._backend.propose(self._table.id, asked), patience_s=patience_s)

    def _undo(self, name: str, token: int) -> None:
        """A cursor that is not everywhere must not be anywhere.

        What was asked for may be on its way still: this comes behind it in every log.
        """
        for number in self._partitions:
            with contextlib.suppress(LowmarkError):
                self._backend.propose(self._table.id, {number: DeleteCursor(name, token)})

    def commit(self, name: str, to: Mapping[int, int], *, reset: bool = False) -> TableCursor:
        """Have it stand at these offsets, the next ones to read: forward only, unless it is reset.

        What lies before them is not kept for it any more. Each partition moves by itself: if it
        fails with `OutcomeUnknown`, some may have moved, or all. Then don't drop what you have read
        up to there: commit it again, or see by `get` where the cursor stands. After any other error
        none has moved.
        """
        to = check_offsets(to, "commit", partitions=len(self._partitions))
        moves = {number: MoveCursor(name, at, reset) for number, at in sorted(to.items())}
        try:
            self._backend.propose(self._table.id, moves)
        except LowmarkError as error:
            refused = not (isinstance(error, Unavailable) or could_not_be_asked(error))
            if refused and len(moves) > 1:
                self._check_unmoved(name, moves, error)
            raise
        return self._now(name, f"cursor {name!r} was moved")

    def _check_unmoved(
        self, name: str, moves: Mapping[int, MoveCursor], refusal: LowmarkError
    ) -> None:
        """Raise what says more than a refusal, if other partitions have moved all the same: a
        reader that takes it for all of them would pass over rows. Where a partition has moved, the
        same move again is no refusal, and changes nothing; a reset, only what was moved since: as
        if this call had come behind that.
        """
        there, refused = [], []
        for number, move in moves.items():
            try:
                self._backend.propose(self._table.id, {number: move})
                there.append(number)
            except LowmarkError as error:
                if isinstance(error, Unavailable) or could_not_be_asked(error):
                    what = f"cursor {name!r} was moved, perhaps in part"
                    raise AnswerUnread(what, why=error.message) from error
                refused.append(number)
        if there:
            raise PartlyMade(there, refused, why=refusal.message) from refusal

    def move(self, name: str, to: Mapping[int, int], *, reset: bool = False) -> TableCursor:
        """The older name of `commit`."""
        return self.commit(name, to, reset=reset)

    def delete(self, name: str) -> None:
        """Forget it, and hold nothing for it."""
        there = [
            number
            for number, status in self._status().items()
            if any(cursor.name == name for cursor in status.cursors)
        ]
        if not there:
            raise CursorUnknown(name)
        self._backend.propose(self._table.id, {number: DeleteCursor(name) for number in there})

    def _now(self, name: str, what: str) -> TableCursor:
        """A cursor that was changed just now, whether it can be read or not."""
        with made(what):
            return self.get(name)

    def get(self, name: str) -> TableCursor:
        """A cursor by name."""
        found = {cursor.name: cursor for cursor in self.list()}.get(name)
        if found is None:
            raise CursorUnknown(name)
        return found

    def list(self) -> list[TableCursor]:
        """All cursors, by name."""
        places: dict[str, list[CursorPlace]] = {}
        kinds: dict[str, Cursor] = {}
        expired: set[str] = set()
        for number, status in self._status().items():
            view = status.view
            for cursor in status.cursors:
                holds = cursor.kind == "raw" and not cursor.overdue
                kinds[cursor.name] = cursor
                if cursor.expired:
                    expired.add(cursor.name)
                places.setdefault(cursor.name, []).append(
                    CursorPlace(
                        number,
                        cursor.offset,
                        max(0, view.end - cursor.offset),
                        view.bytes_from(cursor.offset) if holds else 0,
                        cursor.moved,
                        cursor.overdue,
                    )
                )
        return [
            TableCursor(
                name,
                kinds[name].kind,
                tuple(where),
                kinds[name].max_lag_rows,
                kinds[name].max_lag_ms,
                kinds[name].idle_ms,
                name in expired,
            )
            for name, where in sorted(places.items())
        ]

    def _status(self) -> dict[int, PartitionStatus]:
        """The cursors of partitions, and the backlogs in which they stand."""
        return self._backend.status(self._table.id, self._partitions)


def idle_expiry_ms(given: str | timedelta) -> int:
    """A length of time as a cursor has it; refused if it is none."""
    millis = parse_duration(given)
    if millis is None or millis > IDLE_MS_MAX:
        raise Rejected(f"idle_expiry can't be {given!r}", hint=f"Give {DURATION_TAKES}.")
    return millis


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise Rejected(f"{name!r} can't name a cursor", hint="Give text.")
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise Rejected(
            f"{name[:40]!r} can't name a cursor",
            hint=f"Use 1 to {NAME_CHARACTERS_MAX} printable characters.",
        )
