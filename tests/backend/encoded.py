"""A second implementation of the port: every call and every answer goes through bytes.

It stands for the network until there is a server: what passes here shares no object with the
database that answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from lowmark.backend.codec import decode, encode
from lowmark.backend.port import Appender, Backend, Sent
from lowmark.backend.values import (
    Answer,
    BatchRange,
    DatabaseInfo,
    Held,
    Hold,
    Moment,
    PartitionStatus,
    ReadRange,
)
from lowmark.catalog import Catalog, Command, Executed, TableId
from lowmark.errors import LowmarkError
from lowmark.group import Lineages
from lowmark.ledger import Tail
from lowmark.metastore import Condition, Entry, Operation
from lowmark.runtime import Buffer
from lowmark.runtime.store import Store
from lowmark.table import Advanced, Control, Outcome, Outgoing, View, WatermarkStanding


class EncodedSent:
    """See `Sent`."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent

    @property
    def bytes(self) -> int:
        return self._sent.bytes

    @property
    def done(self) -> bool:
        return self._sent.done

    def answers(self, timeout_s: float | None = None) -> list[Answer] | None:
        found: list[Answer] | None = decode(encode(self._sent.answers(timeout_s)))
        return found


class EncodedAppender:
    """See `Appender`."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    def send(self, parts: Sequence[tuple[int, Outgoing]]) -> EncodedSent:
        # Room in front of a message is for a log in this process: it does not travel.
        bare = [(number, batch._replace(room=None)) for number, batch in parts]
        return EncodedSent(self._appender.send(decode(encode(bare))))


class EncodedBackend:
    """See `Backend`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._catalogs: tuple[Catalog, Catalog] | None = None
        self.calls: set[str] = set()
        """Which calls were made."""

    def _call(self, name: str, *args: object, **named: object) -> Any:
        self.calls.add(name)
        args, named = decode(encode((args, named)))
        try:
            return decode(encode(getattr(self._backend, name)(*args, **named)))
        except LowmarkError as error:
            raise decode(encode(error)) from None

    @property
    def info(self) -> DatabaseInfo:
        found: DatabaseInfo = decode(encode(self._backend.info))
        return found

    @property
    def lineages(self) -> Lineages:
        return self._backend.lineages

    @property
    def caller(self) -> str:
        return self._backend.caller

    @property
    def open_at(self) -> tuple[str, ...]:
        return self._backend.open_at

    @property
    def closed(self) -> bool:
        return self._backend.closed

    @property
    def store(self) -> Store:
        return Store(self.info.ledger_location)

    def check(self) -> None:
        self._call("check")

    def close(self) -> None:
        self._call("close")

    def now(
        self, table: TableId | None = None, *, known: int = 0, timeout_s: float | None = None
    ) -> Moment:
        moment: Moment = self._call("now", table, known=known, timeout_s=timeout_s)
        return moment

    def catalog(self, *, fresh: bool = False) -> Catalog:
        self.calls.add("catalog")
        theirs = self._backend.catalog(fresh=fresh)
        if self._catalogs is None or self._catalogs[0] is not theirs:
            self._catalogs = theirs, decode(encode(theirs))
        return self._catalogs[1]

    def catalog_at(self, time: int, *, timeout_s: float | None = None) -> Catalog:
        catalog: Catalog = self._call("catalog_at", time, timeout_s=timeout_s)
        return catalog

    def execute(self, commands: Sequence[Command], *, timeout_s: float | None = None) -> Executed:
        done: Executed = self._call("execute", tuple(commands), timeout_s=timeout_s)
        return done

    def dropped_at(self, table: TableId) -> int | None:
        at: int | None = self._call("dropped_at", table)
        return at

    def watermark(
        self, *, latest: bool = False, timeout_s: float | None = None
    ) -> WatermarkStanding:
        found: WatermarkStanding = self._call("watermark", latest=latest, timeout_s=timeout_s)
        return found

    def advance_watermark(
        self, to: int | None = None, *, timeout_s: float | None = None
    ) -> Advanced:
        moved: Advanced = self._call("advance_watermark", to, timeout_s=timeout_s)
        return moved

    def hold_history(
        self,
        time: int,
        why: str,
        *,
        hold: Hold | None = None,
        timeout_s: float | None = None,
    ) -> Hold:
        taken: Hold = self._call("hold_history", time, why, hold=hold, timeout_s=timeout_s)
        return taken

    def history_lost(self, hold: Hold, *, timeout_s: float | None = None) -> int | None:
        passed_by: int | None = self._call("history_lost", hold, timeout_s=timeout_s)
        return passed_by

    def appender(self, table: TableId, *, producer: bytes, epoch: int = 0) -> EncodedAppender:
        self.calls.add("appender")
        return EncodedAppender(self._backend.appender(table, producer=producer, epoch=epoch))

    def epoch_of(
        self,
        table: TableId,
        producer: bytes,
        *,
        partitions: Collection[int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        epoch: int = self._call(
            "epoch_of", table, producer, partitions=partitions, timeout_s=timeout_s
        )
        return epoch

    def view(
        self,
        table: TableId,
        partition: int,
        *,
        latest: bool = False,
        timeout_s: float | None = None,
    ) -> View:
        view: View = self._call("view", table, partition, latest=latest, timeout_s=timeout_s)
        return view

    def views(
        self,
        table: TableId,
        partitions: Collection[int],
        *,
        closed_at: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, View]:
        numbers = tuple(partitions)
        views: dict[int, View] = self._call(
            "views", table, numbers, closed_at=closed_at, timeout_s=timeout_s
        )
        return views

    def status(
        self,
        table: TableId,
        partitions: Collection[int] | None = None,
        *,
        latest: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, PartitionStatus]:
        numbers = None if partitions is None else tuple(partitions)
        found: dict[int, PartitionStatus] = self._call(
            "status", table, numbers, latest=latest, timeout_s=timeout_s
        )
        return found

    def hold(
        self,
        table: TableId,
        ranges: Mapping[int, ReadRange],
        *,
        kind: Literal["reader", "run"] = "reader",
        holder: str,
        why: str,
        hold: Hold | None = None,
        timeout_s: float | None = None,
    ) -> Held:
        how = {"kind": kind, "holder": holder, "why": why}
        held: Held = self._call("hold", table, ranges, **how, hold=hold, timeout_s=timeout_s)
        return held

    def wait(self, hold: Hold, timeout_s: float, *, seen: int = 0) -> int:
        now: int = self._call("wait", hold, timeout_s, seen=seen)
        return now

    def batches(
        self,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float | None = None,
    ) -> Iterator[list[Buffer]]:
        self.calls.add("batches")
        wanted = decode(encode(tuple(ranges)))
        try:
            for batches in self._backend.batches(
                table, partition, wanted, held=held, timeout_s=timeout_s
            ):
                yield decode(encode(batches))
        except LowmarkError as error:
            raise decode(encode(error)) from None

    def release(self, hold: Hold) -> None:
        self._call("release", hold)

    def propose(
        self,
        table: TableId,
        commands: Mapping[int, Control],
        *,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = self._call(
            "propose", table, commands, wait=wait, timeout_s=timeout_s
        )
        return outcomes

    def hold_files(self, manifests: Collection[str], *, hold: Hold | None = None) -> Hold:
        taken: Hold = self._call("hold_files", tuple(manifests), hold=hold)
        return taken

    def files_in_use(self) -> frozenset[str]:
        manifests: frozenset[str] = self._call("files_in_use")
        return manifests

    def tail(
        self,
        table: TableId,
        partition: int,
        *,
        low: int,
        high: int,
        timeout_s: float | None = None,
    ) -> Tail:
        tail: Tail = self._call("tail", table, partition, low=low, high=high, timeout_s=timeout_s)
        return tail

    def get(self, key: bytes, *, timeout_s: float | None = None) -> Entry | None:
        entry: Entry | None = self._call("get", key, timeout_s=timeout_s)
        return entry

    def range(self, prefix: bytes, *, timeout_s: float | None = None) -> tuple[Entry, ...]:
        entries: tuple[Entry, ...] = self._call("range", prefix, timeout_s=timeout_s)
        return entries

    def write(
        self,
        operations: Sequence[Operation],
        *,
        condition: Condition | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        done: bool = self._call(
            "write", tuple(operations), condition=condition, timeout_s=timeout_s
        )
        return done

    def operate(self, action: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        said: bytes = self._call("operate", action, body, timeout_s=timeout_s)
        return said
