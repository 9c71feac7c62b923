"""The port, over the network: a database that another process has open.

What a call needs is asked of the server; the same answers and the same errors come back. What is
kept here: the catalog, until a newer one is heard of; the views of partitions, of which the server
sends only what is new; and which holds this client has. The server keeps a client's holds for as
long as it hears of it: a thread here speaks up while there are any. Another start of the server
knows none of them; they are taken again, and a reader goes on from where it was.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

import msgspec

from lowmark.backend.connection import (
    Connection,
    Explain,
    Locate,
    Members,
    drawn_session,
    is_passing,
)
from lowmark.backend.errors import BatchesMoved, Closed, Forked, HoldUnknown, PartitionReset
from lowmark.backend.exits import at_exit
from lowmark.backend.protocol import Reply
from lowmark.backend.remote_append import RemoteAppender, RemoteAppends
from lowmark.backend.remote_read import Ahead, RemoteRead
from lowmark.backend.values import (
    NOBODY,
    Asker,
    BatchRange,
    DatabaseInfo,
    Found,
    Held,
    Hold,
    Moment,
    PartitionStatus,
    ReadRange,
)
from lowmark.backend.view_parts import Known, joined
from lowmark.catalog import Catalog, Command, Executed, Table, TableId
from lowmark.errors import LowmarkError
from lowmark.group import Lineages
from lowmark.ids import group_name
from lowmark.ledger import Tail
from lowmark.metastore import Condition, Entry, Operation
from lowmark.node.showing import found_secret
from lowmark.runtime import Buffer
from lowmark.runtime.store import Store
from lowmark.table import Advanced, Control, Outcome, Trim, View, WatermarkStanding
from lowmark.tokens import Secret

__all__ = ["RemoteBackend"]

CATALOG_AGE_S = 1.0
"""A catalog that is older is asked for again when it is next used."""
_CONNECT_S = 10.0
_SLACK_S = 5.0
_EXECUTE_S = 60.0
_ENDPOINT_S = 2.0
_RELEASE_S = 0.5
_PROPOSE_S = 2.0
_CLOSE_S = 2.0
_ERRANDS_MAX = 10_000
_VIEWS_MAX = 1_024
_QUIET_S = 5.0
_QUIET_MAX_S = 300.0
"""How long a reader that follows hears of no change before it makes sure; then, at most."""

_open: weakref.WeakSet[RemoteBackend] = weakref.WeakSet()


class _Errand(NamedTuple):
    """A call whose answer is of no use to its caller."""

    name: str
    arguments: tuple[Any, ...]
    timeout_s: float


class RemoteBackend:
    """A database by the address of its server: `127.0.0.1:6570`, or `unix:PATH`.

    See `Backend` for what each call is for.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = _CONNECT_S,
        locate: Locate | None = None,
        members: Members | None = None,
        also: Sequence[str] = (),
        cluster: str = "",
        ca: str | None = None,
        explain: Explain | None = None,
        name: str = "",
        of_node: bool = False,
        secret: Secret | None = None,
        lineages: Lineages | None = None,
        asker: Callable[[], Asker] = lambda: NOBODY,
    ) -> None:
        """`also`: other nodes of its cluster, which its user has named. `of_node`: a node asks for
        its clients, and is told what is not there. `secret`: the token that it shows; else the one
        that the environment names. `lineages`, `asker`: see `Connection`.
        """
        self._name = name or address
        self.ca = ca or ""
        """The file of authorities that it was given."""
        self._pid = os.getpid()
        self._closed = False
        self._catalog: Catalog | None = None
        self._catalog_newest = 0
        """The newest version that was heard of."""
        self._latest_time = 0
        """No answer has shown a later one, by the clocks of the servers."""
        self._asked_at = 0.0
        self._instance = 0
        self._retaking = threading.RLock()
        self._retaken = 0
        """The start of the server at which the holds are being taken again; 0: they are not."""
        self._holds: dict[int, tuple[str, tuple[Any, ...], dict[str, Any]]] = {}
        """The holds that this client has, and how each was taken."""
        self._files: dict[int, dict[int, str]] = {}
        """By hold, what it came with: the manifests that other holds keep, by their numbers."""
        self._was_away = False
        """Whether the server was away: another start of it may not know of the holds."""
        self._quiet: dict[int, tuple[float, float]] = {}
        """Of holds that are followed: since when nothing has changed, and when to make sure."""
        self._restarts = 0
        self._ahead = Ahead()
        self._views: dict[tuple[TableId, int], View] = {}
        """The last views that were asked for."""
        self._errands: deque[_Errand] = deque(maxlen=_ERRANDS_MAX)
        self._sending = threading.Lock()
        """Held by the thread that runs errands."""
        self._hearing = threading.Lock()
        """Held while an answer's numbers are noted: none of them goes back."""
        self._wake: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread that cares. A finaliser may put, on any thread, whatever that holds."""
        self._caring: threading.Thread | None = None
        self.secret = found_secret() if secret is None else secret
        """The token, or the pass, that it shows."""
        self._connection = Connection(
            address,
            session=drawn_session(of_node=of_node),
            on_reply=_weakly(self._heard),
            timeout_s=timeout_s,
            locate=locate,
            members=members,
            also=also,
            cluster=cluster,
            ca=ca,
            explain=explain,
            on_away=_weakly(self._renew_soon),
            secret=self.secret,
            lineages=lineages,
            asker=asker,
            on_reset=_weakly(self._heard_of_reset),
        )
        self._instance = self._connection.welcome.instance
        self._hold_s = self._connection.welcome.hold_ms / 1_000
        self.info = self._info()
        self.store = Store(self.info.ledger_location, owner=self.info.ledger_owner)
        self._timeout_s = self.info.request_timeout_ms / 1_000 + _SLACK_S
        self._appends = RemoteAppends(self._connection)
        # Threads have the connection, none has this: dropped without a close, it is collected.
        parts = self._ahead, self._appends, self._connection
        self._dropped = weakref.finalize(self, _drop, self._pid, *parts)
        self._dropped.atexit = False
        _open.add(self)

    def _info(self) -> DatabaseInfo:
        info = self._connection.info()
        here = self._connection.same_machine and Path(info.data_path).is_dir()
        return replace(info, name=self._name, data_path=info.data_path if here else "")

    # -- the way there --------------------------------------------------------------------------

    @property
    def addresses(self) -> list[str]:
        """The server of now, and those that would take its place."""
        return self._connection.addresses

    @property
    def lineages(self) -> Lineages:
        """See `Backend`."""
        return self._connection.lineages

    def _heard_of_reset(self) -> None:
        """What was sent without that is sent again: it may be at a node that was left behind."""
        appends = getattr(self, "_appends", None)
        if appends is not None:
            appends.begin_again()

    def _of_now(self, table: TableId, views: Mapping[int, View]) -> None:
        """Refuse views of partitions of which a later reset is known."""
        for number, view in views.items() if self.lineages else ():
            if view.lineage < self.lineages.of(group_name(table, number)):
                raise PartitionReset(table, number)

    @property
    def caller(self) -> str:
        """See `Backend`."""
        return self._connection.welcome.caller

    @property
    def open_at(self) -> tuple[str, ...]:
        """See `Backend`."""
        return self._connection.welcome.open_at

    @property
    def closed(self) -> bool:
        """See `Backend`."""
        return self._closed or os.getpid() != self._pid

    def check(self) -> None:
        """See `Backend`."""
        if self._closed:
            raise Closed(self._name)
        if os.getpid() != self._pid:
            raise Forked(self._name)

    def close(self) -> None:
        """End the connection; the database goes on. Closing twice is fine."""
        if self.closed:
            self._closed = True
            return
        _open.discard(self)
        self._dropped.detach()
        if self._caring is not None:
            ends_at = time.monotonic() + _CLOSE_S
            self._run_errands(_CLOSE_S)
            # Without it, they end with their time; and an owner that is new waits for this client
            # for as long. So it has time enough to find that one.
            with contextlib.suppress(LowmarkError):
                left_s = max(_RELEASE_S, ends_at - time.monotonic())
                self._call("leave", timeout_s=left_s)
        self._holds.clear()
        self._files.clear()
        self._closed = True
        self._wake.put(None)
        self._ahead.close()
        self._appends.close()
        self._connection.close()

    def _call(
        self, name: str, *arguments: Any, timeout_s: float | None = None, **named: Any
    ) -> Any:
        self.check()
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return self._connection.call(name, *arguments, timeout_s=limit_s, **named)

    def _heard(self, reply: Reply) -> None:
        """Every answer says how new the server, and its catalog, are."""
        with self._hearing:  # by several threads: neither may go back
            self._catalog_newest = max(self._catalog_newest, reply.catalog)
            self._latest_time = max(self._latest_time, reply.time)
        if reply.instance != self._instance:
            self._take_again(reply.instance)

    # -- the database itself --------------------------------------------------------------------

    def now(
        self, table: TableId | None = None, *, known: int = 0, timeout_s: float | None = None
    ) -> Moment:
        """See `Backend`. This server may be another one than that which answered before."""
        known = max(known, self.latest_time())
        moment: Moment = self._call("now", table, known=known, timeout_s=timeout_s)
        return moment

    def latest_time(self) -> int:
        """No answer that came here has shown a later one."""
        return max(self._latest_time, self._appends.latest_time)

    def now_here(self, table: TableId | None = None, *, timeout_s: float | None = None) -> Moment:
        """As `now`, of the partitions that have a copy at this server's node."""
        moment: Moment = self._call("now_here", table, timeout_s=timeout_s)
        return moment

    # -- the catalog ----------------------------------------------------------------------------

    def catalog(self, *, fresh: bool = False) -> Catalog:
        """See `Backend`."""
        known = self._catalog
        if self.closed and known is not None:
            return known
        now = time.monotonic()
        young = now - self._asked_at < CATALOG_AGE_S
        if known is not None and not fresh and young and known.version >= self._catalog_newest:
            return known
        version = 0 if known is None else known.version
        found: Catalog | None = self._call("catalog", version, fresh=fresh)
        if found is not None and (self._catalog is None or found.version > self._catalog.version):
            self._catalog = found
        self._asked_at = now
        assert self._catalog is not None
        return self._catalog

    def catalog_at(self, time: int, *, timeout_s: float | None = None) -> Catalog:
        """See `Backend`."""
        catalog: Catalog = self._call("catalog_at", time, timeout_s=timeout_s)
        return catalog

    def execute(self, commands: Sequence[Command], *, timeout_s: float | None = None) -> Executed:
        """See `Backend`."""
        wait_s = _EXECUTE_S if timeout_s is None else timeout_s
        done: Executed = self._call("execute", tuple(commands), timeout_s=wait_s)
        self.catalog(fresh=True)
        return done

    def dropped_at(self, table: TableId) -> int | None:
        """See `Backend`."""
        at: int | None = self._call("dropped_at", table)
        return at

    # -- the low watermark ----------------------------------------------------------------------

    def watermark(
        self, *, latest: bool = False, timeout_s: float | None = None
    ) -> WatermarkStanding:
        """See `Backend`."""
        found: WatermarkStanding = self._call("watermark", latest=latest, timeout_s=timeout_s)
        return found

    def advance_watermark(
        self, to: int | None = None, *, timeout_s: float | None = None
    ) -> Advanced:
        """See `Backend`."""
        self._run_errands(_RELEASE_S)  # readers of this client that were closed hold nothing
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
        """See `Backend`."""
        mine = hold or Hold.drawn()
        self._take(mine, "hold_history", time, why, timeout_s=timeout_s)
        return mine

    def history_lost(self, hold: Hold, *, timeout_s: float | None = None) -> int | None:
        """See `Backend`."""
        lost: int | None = self._of_hold("history_lost", hold, timeout_s=timeout_s)
        return lost

    # -- rows in --------------------------------------------------------------------------------

    def appender(self, table: TableId, *, producer: bytes, epoch: int = 0) -> RemoteAppender:
        """See `Backend`."""
        return RemoteAppender(
            self._appends,
            self.check,
            table,
            described=lambda fresh: self._described(table, fresh=fresh),
            producer=producer,
            epoch=epoch,
            timeout_ms=self.info.request_timeout_ms,
        )

    def _described(self, table: TableId, *, fresh: bool) -> Table | None:
        """A table as it is now; or not `fresh`, as far as it is known without asking."""
        catalog = self.catalog(fresh=True) if fresh else self._catalog
        return None if catalog is None else catalog.table(table)

    def epoch_of(
        self,
        table: TableId,
        producer: bytes,
        *,
        partitions: Collection[int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """See `Backend`."""
        these = None if partitions is None else tuple(partitions)
        epoch: int = self._call("epoch_of", table, producer, partitions=these, timeout_s=timeout_s)
        return epoch

    # -- rows out -------------------------------------------------------------------------------

    def view(
        self,
        table: TableId,
        partition: int,
        *,
        latest: bool = False,
        timeout_s: float | None = None,
    ) -> View:
        """See `Backend`."""
        known = self._views.get((table, partition))
        last = Known.of(known)
        first, view = self._call(
            "view_since",
            table,
            partition,
            latest=latest,
            known=None if last is None else tuple(last.said()),
            timeout_s=timeout_s,
        )
        if first is not None and known is not None:
            view = joined(known, first, view)
        self._of_now(table, {partition: view})
        self._views[table, partition] = view
        while len(self._views) > _VIEWS_MAX:
            with contextlib.suppress(StopIteration, KeyError, RuntimeError):
                self._views.pop(next(iter(self._views)))
        whole: View = view
        return whole

    def views(
        self,
        table: TableId,
        partitions: Collection[int],
        *,
        closed_at: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, View]:
        """See `Backend`."""
        views: dict[int, View] = self._call(
            "views", table, tuple(partitions), closed_at=closed_at, timeout_s=timeout_s
        )
        self._of_now(table, views)
        return views

    def status(
        self,
        table: TableId,
        partitions: Collection[int] | None = None,
        *,
        latest: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, PartitionStatus]:
        """See `Backend`."""
        numbers = None if partitions is None else tuple(partitions)
        found: dict[int, PartitionStatus] = self._call(
            "status", table, numbers, latest=latest, timeout_s=timeout_s
        )
        self._of_now(table, {number: one.view for number, one in found.items()})
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
        """See `Backend`."""
        mine = hold or Hold.drawn()
        how = {"kind": kind, "holder": holder, "why": why}
        held: Held = self._take(mine, "hold", table, dict(ranges), timeout_s=timeout_s, **how)
        try:
            self._of_now(table, {number: one.view for number, one in held.partitions.items()})
        except PartitionReset:
            self.release(mine)
            raise
        if held.files and mine.number in self._holds:
            self._files[mine.number] = {
                files.number: manifest
                for number, files in held.files.items()
                if (manifest := _manifest(held.partitions[number].view, ranges[number]))
            }
        return held

    def wait(self, hold: Hold, timeout_s: float, *, seen: int = 0) -> int:
        """See `Backend`."""
        seen_now: int = self._of_hold(
            "wait", hold, timeout_s, seen=seen, limit_s=timeout_s + self._timeout_s
        )
        if self._connection.has_others:
            self._make_sure(hold, changed=seen_now != seen)
        return seen_now

    def _make_sure(self, hold: Hold, *, changed: bool) -> None:
        """A node that is cut off hears of no change, and does not know that there are any: when it
        was quiet for a while, the partitions are asked for what was acknowledged by now. That goes
        to another node, if this one can't say. The longer it was quiet, the more rarely: groups
        with nothing to do are to rest.
        """
        now = time.monotonic()
        since, look_at = self._quiet.get(hold.number, (now, now + _QUIET_S))
        how = self._holds.get(hold.number)
        if changed or how is None:
            self._quiet.pop(hold.number, None)
            return
        if now >= look_at and how[0] == "hold":
            table, ranges = how[1]
            followed = [number for number, one in ranges.items() if one.end is None]
            with contextlib.suppress(LowmarkError):
                self.views(table, followed)
            look_at = now + min(max(now - since, _QUIET_S), _QUIET_MAX_S)
        self._quiet[hold.number] = (since, look_at)

    def batches(
        self,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float | None = None,
    ) -> Iterator[list[Buffer]]:
        """See `Backend`."""
        self.check()
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        group = group_name(table, partition)
        read = RemoteRead(
            self._connection,
            table,
            partition,
            ranges,
            held=held,
            timeout_s=limit_s,
            ahead=self._ahead,
        )
        try:
            for wanted, batches in zip(ranges, read, strict=False):
                if wanted.lineage < self.lineages.of(group):
                    raise PartitionReset(table, partition)
                yield batches
        except LowmarkError as error:
            raise self._of_read(error, held=held) from error

    def _of_read(self, error: LowmarkError, *, held: bool) -> LowmarkError:
        if not held or not isinstance(error, BatchesMoved):
            return self._connection.told(error)
        with contextlib.suppress(LowmarkError):
            self._call("renew")  # a read does not say which start of the server it is of
        if self._restarts:
            # It was held at an earlier start of the server, and cut before it was held again.
            return HoldUnknown(next(iter(self._holds), 0))
        return error

    def look_up(
        self, table: TableId, keys: Sequence[int | bytes], *, timeout_s: float | None = None
    ) -> Sequence[Found | None]:
        """See `LooksUp`."""
        found: tuple[Found | None, ...] = self._call(
            "look_up", table, tuple(keys), timeout_s=timeout_s
        )
        return found

    # -- holds ----------------------------------------------------------------------------------

    def _take(
        self, hold: Hold, name: str, *arguments: Any, timeout_s: float | None, **named: Any
    ) -> Any:
        """Have something kept. It is this client's from before it is asked for: Ctrl-C, or an
        answer that is lost, leaves a hold that the caller releases, or that ends with its time.
        """
        self._care()
        self._holds[hold.number] = (name, arguments, named)
        try:
            return self._call(name, *arguments, **named, hold=hold, timeout_s=timeout_s)
        except BaseException:
            self.release(hold)
            raise

    def _of_hold(
        self,
        name: str,
        hold: Hold,
        *arguments: Any,
        timeout_s: float | None = None,
        limit_s: float | None = None,
        **named: Any,
    ) -> Any:
        """Ask about a hold; one that another start of the server does not know is taken again.

        What was released here is unknown at once: the server may hear of it only later, and would
        wait for nothing.
        """
        self.check()
        if hold.number not in self._holds:
            raise HoldUnknown(hold.number)
        limit = limit_s if timeout_s is None else timeout_s
        while True:  # servers may come and go faster than it is held again
            restarts = self._restarts
            try:
                return self._call(name, hold, *arguments, **named, timeout_s=limit)
            except HoldUnknown:
                with self._retaking:  # another thread may be taking it again just now
                    pass
                if self._restarts == restarts or hold.number not in self._holds:
                    raise

    def _take_again(self, instance: int) -> None:
        """The server was started again: it keeps nothing for this client any more.

        The new start is known only when all is held again: until then every other thread that
        hears of it waits here, and finds its holds.
        """
        with self._retaking:
            if self._retaken:  # by a call of the loop below
                self._retaken = instance
                return
            while instance != self._instance:
                self._retaken = instance
                try:
                    whole = self._hold_again()
                finally:
                    self._restarts += 1
                    heard, self._retaken = self._retaken, 0
                if not whole:
                    return  # the next answer begins it again
                self._instance, instance = instance, heard

    def _hold_again(self) -> bool:
        """Whether the server was there for all of it."""
        for number, (name, arguments, named) in list(self._holds.items()):
            try:
                self._call(name, *arguments, **named, hold=Hold(number))
            except LowmarkError as error:
                if is_passing(error):
                    return False
                # What can't be held any more is found out by its reader.
            if number not in self._holds:  # released meanwhile
                self._release(number)
        # A hold that is taken again keeps the ledgers of now; its reader goes on with those that
        # it had.
        for number, files in list(self._files.items()):
            for one, manifest in list(files.items()):
                try:
                    self._call("hold_files", (manifest,), hold=Hold(one))
                except LowmarkError as error:
                    if is_passing(error):
                        return False
                if one not in self._files.get(number, ()):
                    self._release(one)
        with contextlib.suppress(LowmarkError):  # then it is waited for in vain
            self._call("renew", back=True)
        return True

    def release(self, hold: Hold) -> None:
        """See `Backend`. Finalisers call this, on threads that may be in the middle of a call: so
        another thread sends it. What was taken by `hold_files` is not released by finalisers, and
        has ended when this returns, if the server is there.
        """
        name, _, _ = self._holds.pop(hold.number, ("", (), {}))
        came = self._files.pop(hold.number, {})
        for files in list(self._files.values()):
            files.pop(hold.number, None)
        self._quiet.pop(hold.number, None)
        if self.closed:
            return
        self._release(hold.number)
        if self._restarts:  # else they end with it
            for one in came:
                self._release(one)
        if name == "hold_files":
            self._run_errands(_RELEASE_S)

    def _release(self, number: int) -> None:
        """Have it sent. If it is not, the hold ends with its time when this client is silent."""
        self._errands.append(_Errand("release", (Hold(number),), _RELEASE_S))
        self._wake.put(None)

    def _care(self) -> None:
        """Have a thread speak up for the holds, and run errands."""
        if self._caring is None or not self._caring.is_alive():
            thread = threading.Thread(target=_care_for, args=(weakref.ref(self), self._wake))
            thread.name, thread.daemon = "lowmark-holds", True
            thread.start()
            self._caring = thread

    def _renew_soon(self) -> None:
        """The server is away: what is held is held again as soon as there is another one."""
        if self._holds:
            self._was_away = True
            self._wake.put(None)

    def _say_back(self) -> None:
        """Have another server know what is held here; also if that is nothing any more."""
        with contextlib.suppress(LowmarkError):
            self._call("renew", timeout_s=self._hold_s / 3)

    def _renew(self) -> None:
        if self._holds:
            with contextlib.suppress(LowmarkError):
                self._call("renew", timeout_s=self._hold_s / 3)

    def _run_errands(self, within_s: float) -> None:
        """Those that there are now, as far as the time goes."""
        ends_at = time.monotonic() + within_s
        if not self._sending.acquire(timeout=within_s):
            return
        try:
            for _ in range(len(self._errands)):
                left_s = ends_at - time.monotonic()
                if left_s <= 0 or not self._run_errand(left_s):
                    return
        finally:
            self._sending.release()

    def _run_errand(self, left_s: float) -> bool:
        """Whether it is worth going on with the next one."""
        try:
            errand = self._errands.popleft()
        except IndexError:
            return False
        try:
            limit_s = min(left_s, errand.timeout_s)
            self._call(errand.name, *errand.arguments, timeout_s=limit_s)
        except LowmarkError as error:
            if not is_passing(error):
                return True
            if errand.name == "release":  # the others may be out of place by then
                self._errands.append(errand)
            return False
        return True

    # -- partitions -----------------------------------------------------------------------------

    def propose(
        self,
        table: TableId,
        commands: Mapping[int, Control],
        *,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, Outcome]:
        """See `Backend`."""
        given = dict(commands)
        if not wait:
            if not self.closed:
                self._care()
                self._errands.append(_Errand("propose", (table, given), _PROPOSE_S))
                self._wake.put(None)
            return {}
        if any(isinstance(one, Trim) for one in given.values()):
            self._run_errands(_RELEASE_S)  # readers of this client that were closed hold nothing
        outcomes: dict[int, Outcome] = self._call("propose", table, given, timeout_s=timeout_s)
        return outcomes

    # -- ledgers and runs -----------------------------------------------------------------------

    def hold_files(self, manifests: Collection[str], *, hold: Hold | None = None) -> Hold:
        """See `Backend`."""
        mine = hold or Hold.drawn()
        self._take(mine, "hold_files", tuple(manifests), timeout_s=None)
        return mine

    def files_in_use(self) -> frozenset[str]:
        """See `Backend`."""
        self._run_errands(_RELEASE_S)  # what readers of this client have let go is not in use
        manifests: frozenset[str] = self._call("files_in_use")
        return manifests

    def endpoint_here(self, table: TableId, partition: int) -> str:
        """Where clients best read a partition, as far as this server's node knows."""
        endpoint: str = self._call("endpoint_here", table, partition, timeout_s=_ENDPOINT_S)
        return endpoint

    def files_here(self, *, timeout_s: float | None = None) -> frozenset[str]:
        """The manifests that holds of this server's own clients keep."""
        manifests: frozenset[str] = self._call("files_here", timeout_s=timeout_s)
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
        """See `Backend`."""
        wait_s = _EXECUTE_S if timeout_s is None else timeout_s
        tail: Tail = self._call("tail", table, partition, low=low, high=high, timeout_s=wait_s)
        said = [one for one in tail.addresses if self._connection.may_go_to(one)]
        # Last the server of now: it may be reached at an address that it does not know itself.
        known = dict.fromkeys([*said, self._connection.address])
        return msgspec.structs.replace(tail, addresses=tuple(known))

    # -- the metastore --------------------------------------------------------------------------

    def get(self, key: bytes, *, timeout_s: float | None = None) -> Entry | None:
        """See `Backend`."""
        entry: Entry | None = self._call("get", key, timeout_s=timeout_s)
        return entry

    def range(self, prefix: bytes, *, timeout_s: float | None = None) -> tuple[Entry, ...]:
        """See `Backend`."""
        entries: tuple[Entry, ...] = self._call("range", prefix, timeout_s=timeout_s)
        return entries

    def write(
        self,
        operations: Sequence[Operation],
        *,
        condition: Condition | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """See `Backend`."""
        done: bool = self._call(
            "write", tuple(operations), condition=condition, timeout_s=timeout_s
        )
        return done

    # -- the cluster ----------------------------------------------------------------------------

    def operate(self, action: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        """See `Backend`."""
        said: bytes = self._call("operate", action, body, timeout_s=timeout_s)
        return said


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Calls a method for as long as its object is there, and does not keep it."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        bound = found()
        if bound is not None:
            bound(*arguments)

    return call


def _drop(pid: int, *parts: Ahead | RemoteAppends | Connection) -> None:
    """Close what is left of a client. Collecting may happen on a thread that is in a call."""
    if os.getpid() != pid:
        return  # they are the parent's

    def close() -> None:
        for part in parts:
            part.close()

    with contextlib.suppress(RuntimeError):  # no thread can be started: they end with the process
        threading.Thread(target=close, name="lowmark-drop", daemon=True).start()


def _manifest(view: View, wanted: ReadRange) -> str:
    """Which ledger a hold of a range keeps; see `Embedded`."""
    ledger = view.readable if wanted.ledger == "below" else view.ledger
    return "" if ledger is None or wanted.ledger == "none" else ledger.manifest


def _care_for(backend: weakref.ref[RemoteBackend], wake: SimpleQueue[None]) -> None:
    """Speak up for a client's holds until it is closed, or is no more."""
    renew_at: float | None = None
    while True:
        one = backend()
        if one is None or one.closed:
            return
        every_s = one._hold_s / 3
        if renew_at is None:  # the first hold is about to be taken: that is heard
            renew_at = time.monotonic() + every_s
        one._run_errands(every_s)
        if one._was_away:
            one._was_away = False
            one._say_back()
            renew_at = time.monotonic() + every_s
        if time.monotonic() >= renew_at:
            one._renew()
            renew_at = time.monotonic() + every_s
        del one
        with contextlib.suppress(Empty):
            wake.get(timeout=max(0.0, renew_at - time.monotonic()))
            while True:
                wake.get_nowait()


def _close_all() -> None:
    for one in list(_open):
        with contextlib.suppress(LowmarkError):
            one.close()


at_exit("backends", _close_all)
