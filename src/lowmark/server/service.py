"""Calls of the port for clients of ours: hello, and one request with one answer each.

An error of a call is its answer; what is wrong with the request itself, or beyond a limit, is
Flight's error, with ours in it. A call is carried out on Flight's thread.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final, get_type_hints

import msgspec
import pyarrow as pa

from lowmark.backend.codec import encode, fits
from lowmark.backend.connection import machine
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import (
    Closed,
    Ended,
    HoldUnknown,
    OtherDatabase,
    OutcomeUnknown,
    ProtocolRefused,
    RequestRefused,
    ServerFailed,
)
from lowmark.backend.port import RETRY, Backend, said_of
from lowmark.backend.protocol import (
    KEYS_MAX,
    PROTOCOL,
    REQUEST_BYTES_MAX,
    Hello,
    Reply,
    Request,
    Welcome,
    decode_request,
    encode_reply,
)
from lowmark.backend.spread import Spread
from lowmark.backend.values import Asker, Found, Hold, Moment
from lowmark.backend.view_parts import Known, since
from lowmark.catalog import TableId
from lowmark.client import Database
from lowmark.errors import LowmarkError
from lowmark.ids import METASTORE
from lowmark.metastore.commands import Not
from lowmark.metastore.errors import MetastoreOutdated
from lowmark.node import NodeClosing, NodeSilent
from lowmark.node.callers import current_caller
from lowmark.node.slots import Slots
from lowmark.raft.log_view import LineageLeft
from lowmark.server.allowing import check_call, shown_to_caller
from lowmark.server.limits import Limits
from lowmark.server.receiving import chunks_of
from lowmark.server.sessions import Holding, Sessions
from lowmark.table import View
from lowmark.version import __version__

logger = logging.getLogger(__name__)

WAIT_S_MAX: Final = 5.0
"""A call that waits for more rows answers at least so often."""
_ELSEWHERE: Final = frozenset({"appender", "batches", "catalog", "release", "view", "wait"})
"""Calls that have a way of their own."""
_TAKE: Final = frozenset({"hold", "hold_history", "hold_files"})
PLAIN_CALLS: Final = frozenset(RETRY) - _ELSEWHERE


def as_lost(error: LowmarkError) -> LowmarkError:
    """What a client is told of a call that got no answer in time, and may have been carried out.
    Its cause, like a full disk, says what to do; alone it would say that the call was refused.
    """
    why = error.__cause__ if isinstance(error, OutcomeUnknown) else error
    silent = why if isinstance(why, NodeSilent) or why is None else why.__cause__
    if not isinstance(silent, NodeSilent):
        return error
    if isinstance(why, LowmarkError) and why is not silent:
        silent.message, silent.hint = f"{silent.message}: {why.message}", why.hint
    return silent


class Service:
    """Answers for one database."""

    def __init__(
        self,
        database: Database,
        backend: Embedded,
        *,
        limits: Limits,
        hold_ms: int,
        on_held: Callable[[Holding], None] = lambda _: None,
    ) -> None:
        self._db = database
        self.backend = backend
        self.instance = secrets.randbits(62) + 1
        self.closing = False
        self.sessions = Sessions(backend.release, hold_ms=hold_ms, on_held=on_held)
        self._hold_ms = hold_ms
        self._calls = Slots("calls", limits.calls)
        self._waits = Slots("waits for rows", limits.waits)
        self._taking_lock = threading.Lock()
        self._taking: dict[tuple[int, int], int] = {}
        """Holds that are being taken, by client and number: how many attempts go on."""
        self._kept_meanwhile: set[tuple[int, int]] = set()
        """Those of them of which one attempt has succeeded."""
        self._own: Mapping[str, Callable[[Request], Any]] = {
            "catalog": self._catalog,
            "endpoint_here": self._endpoint_here,
            "files_here": lambda _: self.backend.files_here(),
            "leave": self._leave,
            "look_up": self._look_up,
            "now_here": self._now_here,
            "release": self._release,
            "renew": self._renew,
            "view_since": self._view_since,
            "wait": self._wait,
        }

    @property
    def calls(self) -> int:
        """How many are under way, but for those that wait for rows."""
        return self._calls.taken

    def check(self) -> None:
        """Refuse to begin anything when the end has come."""
        if self.closing or self.backend.closed:
            raise NodeClosing

    # -- hello ----------------------------------------------------------------------------------

    def hello(self, body: bytes) -> bytes:
        """Who is there; a client of another protocol is refused."""
        self.check()
        try:
            said = msgspec.json.decode(body, type=Hello)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestRefused(f"a hello can't be read: {error}") from error
        if said.protocol != PROTOCOL:
            raise ProtocolRefused(theirs=said.protocol, ours=PROTOCOL, release=__version__)
        info = self.backend.info
        return msgspec.json.encode(
            Welcome(
                release=__version__,
                protocol=PROTOCOL,
                cluster=info.cluster,
                instance=self.instance,
                hold_ms=self._hold_ms,
                machine=machine(),
                info=encode(info),
                members=self.backend.members(),
                open_at=self.backend.open_at,
                caller=self.backend.caller,
                fences=True,
            )
        )

    # -- calls ----------------------------------------------------------------------------------

    def request(self, body: bytes) -> Request:
        """What is asked, of this database; and a sign of life of its client."""
        self.check()
        if len(body) > REQUEST_BYTES_MAX:
            raise RequestRefused(
                f"a request of {len(body):,} bytes is too long",
                hint=f"At most {REQUEST_BYTES_MAX:,} bytes are allowed.",
            )
        request = decode_request(body)
        cluster = self.backend.info.cluster
        if request.cluster != cluster:
            raise OtherDatabase("this address", expected=request.cluster, found=cluster)
        check_call(request)
        self.heard(request)
        # A node that asks has looked for the rows already: it is not sent on from node to node.
        asker = Asker(request.session < 0, request.lineages)
        self.backend.asked_by(asker)
        self._check_metastore(asker)
        return request

    def heard(self, request: Request) -> None:
        """A sign of life of a client; one that shows another token than before is refused."""
        if not self.sessions.hear(request.session, current_caller().digest):
            raise RequestRefused(
                "the session of this client belongs to another token", hint="Connect again."
            )

    def _check_metastore(self, asker: Asker) -> None:
        """Refuse everything, if the metastore was reset without this node: what its tables are, and
        where their partitions are, is there.
        """
        own, lineages = self.backend.node.cluster.metastore.lineage, self.backend.lineages
        at_least = asker.at_least(METASTORE)
        if not lineages.serves(METASTORE, own, at_least):
            later = max(at_least, lineages.of(METASTORE))
            why = LineageLeft(own=own, theirs=later)
            raise MetastoreOutdated(self.backend.node.cluster.node.name, why=why)

    def call(self, body: bytes) -> bytes:
        """Carry a call out, and answer it."""
        request = self.request(body)
        slots = self._waits if request.call == "wait" else self._calls
        with slots.one():
            try:
                value = self._value(request)
            except Closed as error:
                raise NodeClosing from error
            except HoldUnknown as error:
                # The end releases all holds: this one is held again at the next server.
                if self.closing:
                    raise NodeClosing from error
                value = error
            except LowmarkError as error:
                value = as_lost(error)
            except Exception as error:
                logger.exception("a call failed", extra={"call": request.call})
                value = ServerFailed(request.call, error)
        try:
            return self._reply(shown_to_caller(value), request)
        except Closed as error:  # behind what was asked: that it was not done is not true
            raise Ended(self.backend.info.name) from error

    def _reply(self, value: object, request: Request | None = None) -> bytes:
        lineages = None
        if request is not None and request.lineages is not None:
            lineages = said_of(self.backend.lineages, request.call, request.arguments)
        # The time is looked at when the value is there: nothing in it is later.
        version, time = self.backend.catalog().version, self.backend.latest_time()
        return encode_reply(Reply(self.instance, version, value, time, lineages))

    def serve(
        self,
        reader: Any,
        writer: Any,
        *,
        watched: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """A stream of calls: request by request, each with its answer. `watched` is around what
        waits for the client to take one.
        """
        for rows, note in chunks_of(reader, self.backend):
            if note is None or rows is not None:
                raise RequestRefused("a message of a stream of calls is a request, and no rows")
            try:
                answer = self.call(note.to_pybytes())
            except LowmarkError as error:
                answer = self._reply(error)
            with watched():
                writer.write_metadata(pa.py_buffer(answer))

    def _value(self, request: Request) -> Any:
        name = request.call
        own = self._own.get(name)
        if own is not None:
            return own(request)
        if name not in PLAIN_CALLS:
            raise RequestRefused(f"there is no call {name[:100]!r}")
        _check_arguments(name, request)
        hold = request.named.get("hold")
        if name in _TAKE:
            if not isinstance(hold, Hold):
                raise RequestRefused(f"{name} names no hold: its client draws the number")
            return self._taken(request, hold)
        return getattr(self.backend, name)(*request.arguments, **request.named)

    def _taken(self, request: Request, hold: Hold) -> Any:
        """Have something kept. Its client may ask again while this goes on, by the same number:
        only when the last attempt has failed, nothing is kept.
        """
        key, name = (request.session, hold.number), request.call
        with self._taking_lock:
            history, shown = name == "hold_history", current_caller().digest
            if not self.sessions.add(request.session, hold, history=history, shown=shown):
                raise RequestRefused("another client has this hold", hint="Draw another number.")
            self._taking[key] = self._taking.get(key, 0) + 1
            if name == "hold":
                self.backend.distant.add(hold.number)
        kept = False
        try:
            value = getattr(self.backend, name)(*request.arguments, **request.named)
            kept = True
        finally:
            with self._taking_lock:
                left = self._taking.pop(key) - 1
                self._kept_meanwhile |= {key} if kept else set()
                if left:
                    self._taking[key] = left
                elif key in self._kept_meanwhile:
                    self._kept_meanwhile.discard(key)
                else:
                    self.sessions.discard(request.session, hold)
                    self.backend.release(hold)
        # Its client may have left meanwhile: what ended its session came before the hold.
        if not self.sessions.has(request.session, hold):
            self.backend.release(hold)
            raise HoldUnknown(hold.number)
        return value

    def _catalog(self, request: Request) -> Any:
        """The catalog, if a client's is not the newest."""
        catalog = self.backend.catalog(fresh=bool(request.named.get("fresh")))
        return None if request.arguments == (catalog.version,) else catalog

    def _leave(self, request: Request) -> None:
        self.sessions.leave(request.session)
        self.backend.node.guest_is_back(request.session)

    def _renew(self, request: Request) -> None:
        """A sign of life; `back`, of a client that holds again what it held before."""
        if request.named.get("back"):
            self.backend.node.guest_is_back(request.session)

    def _release(self, request: Request) -> None:
        (hold,) = _of_types(request, Hold)
        if self.sessions.discard(request.session, hold):
            self.backend.release(hold)

    def _endpoint_here(self, request: Request) -> str:
        table, partition = _of_types(request, int, int)
        if not isinstance(self.backend, Spread):
            raise RequestRefused("this server is not a node of a cluster")
        return self.backend.endpoint_here(TableId(table), partition)

    def _now_here(self, request: Request) -> Moment:
        (table,) = _of_types(request, int)
        self.backend.check_callers_of(TableId(table))
        return self.backend.now_here(TableId(table))

    def _look_up(self, request: Request) -> tuple[Found | None, ...]:
        table, keys = _of_types(request, int, tuple)
        if len(keys) > KEYS_MAX or not all(type(key) in {int, bytes} for key in keys):
            raise RequestRefused(f"keys are up to {KEYS_MAX} numbers or bytes")
        there = self._db.table_of(TableId(table))
        if not isinstance(self.backend, Spread):
            return tuple(there.find_keys(keys))
        places = there.partitions_of(keys)
        by_partition = {number: list[int | bytes]() for number in places}
        for number, key in zip(places, keys, strict=True):
            by_partition[number].append(key)
        # Where the rows are there is an index: none is made here of rows elsewhere.
        found = self.backend.look_up_there(TableId(table), by_partition)
        here = {
            n: iter(found[n] if n in found else there.find_keys(some))
            for n, some in by_partition.items()
        }
        return tuple(next(here[number]) for number in places)

    def _view_since(self, request: Request) -> tuple[int | None, View]:
        """A view, or what is new of it."""
        named = dict(request.named)
        known = named.pop("known", None)
        if known is not None:
            well = isinstance(known, tuple) and {type(one) for one in known} == {int}
            if not well or len(known) not in {2, 3} or min(known) < 0:
                raise RequestRefused("what is known of a view are two or three numbers")
            known = Known(*known)
        _check_arguments("view", request._replace(named=named))
        return since(self.backend.view(*request.arguments, **named), known)

    def _wait(self, request: Request) -> int:
        hold, timeout_s = _of_types(request, Hold, (int, float))
        seen = request.named.get("seen", 0)
        if type(seen) is not int:
            raise RequestRefused("what was seen is a number")
        return self.backend.wait(hold, min(timeout_s, WAIT_S_MAX), seen=seen)

    def close(self) -> None:
        """Take nothing new, and keep nothing more."""
        self.closing = True
        if not self.backend.closed:
            self.sessions.close()
        if isinstance(self.backend, Spread):  # the node goes on; its connections to others end
            self.backend.close()


def _of_types(request: Request, *types: Any) -> tuple[Any, ...]:
    given = tuple(request.arguments)
    well = len(given) == len(types) and all(
        isinstance(one, kind) and not isinstance(one, bool)
        for one, kind in zip(given, types, strict=False)
    )
    if not well:
        raise RequestRefused(f"{request.call} was not called with what it takes")
    return given


@cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(getattr(Backend, name))


@cache
def _hints(name: str) -> dict[str, Any]:
    # A condition may have conditions in it: its type is a name, which the fields of Not resolve.
    known = {"Condition": get_type_hints(Not)["condition"]}
    return get_type_hints(getattr(Backend, name), localns=known)


def _check_arguments(name: str, request: Request) -> None:
    try:
        bound = _signature(name).bind(None, *request.arguments, **request.named)
    except TypeError as error:
        raise RequestRefused(f"{name} was not called with what it takes: {error}") from error
    hints = _hints(name)
    for argument, value in bound.arguments.items():
        if argument != "self" and not fits(value, hints[argument]):
            raise RequestRefused(f"{name} was called with a {type(value).__name__} as {argument}")
