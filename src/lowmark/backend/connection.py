"""The way from a client to a server: calls with their time limits, asked again where that is safe.

gRPC connects again by itself when a server is back. What an error means for a call is decided here:

    not sent        no connection, or the server took nothing: any call is asked again
    answer lost     a safe call is asked again, an unknown one raises `OutcomeUnknown`
    refused         the server's own error, by its name

All of that within the time of the call. Every answer says which start of the server it is of, and
how new its catalog is. Where a server may be followed by another one, at another address, the
connection is given a way to find it (`locate`), and looks there whenever the last one is away. A
server that is a node of a cluster says where the others are (`Welcome.members`): when it is away,
gives no answer, or can't answer because it is cut off from the others, the first of them that says
hello takes its place, also of one that was found by `locate`. So it does at the first call, where a
user has named several. Nodes may move, one after another, while a client stays at the one that is
last: so it asks every now and then where they are (`keep_up`). No server sends a client that was
given TLS to one without. Only what fails on the way to the server of now makes a connection leave
leave it: what was under way to the one before ends with that.

Every request says which resets of groups this client has seen, and every answer which it knows of
(`port`): a node that a reset has left behind is left for the next one. An answer that comes when
more was heard meanwhile may be of such a node, and is not given.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import flight

from lowmark.backend.call_streams import CallStreams
from lowmark.backend.codec import decode
from lowmark.backend.errors import (
    Closed,
    Ended,
    OtherDatabase,
    RequestRefused,
    ResetsUnheard,
    ServerFailed,
    ServerFull,
)
from lowmark.backend.forks import check_fork, made
from lowmark.backend.port import passed, retry_of, said_of
from lowmark.backend.protocol import (
    APPEND,
    CALL,
    CALLS,
    HELLO,
    Hello,
    Reply,
    Request,
    Welcome,
    decode_reply,
    encode_request,
)
from lowmark.backend.values import NOBODY, Asker, DatabaseInfo
from lowmark.errors import Corrupt, LowmarkError, Rejected, Unavailable
from lowmark.faces import deferred
from lowmark.fault import decode_fault
from lowmark.group import (
    CopyOutdated,
    Lineages,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ReadTimedOut,
    Superseded,
)
from lowmark.metastore.errors import MetastoreOutdated, MetastoreUnreachable
from lowmark.node import AnswerLost, NodeClosing, NodeSilent, NodeUnreachable
from lowmark.node.addresses import location_of, unix_path
from lowmark.node.errors import ActionUnknown, NodeStarting
from lowmark.node.showing import showing
from lowmark.runtime.network import TLS_SCHEME, named_together, speaks_tls
from lowmark.runtime.profiles import authorities
from lowmark.table import PartitionNotHere
from lowmark.tokens import Secret, TokensUnknown

refusal_at, roots_for = deferred("lowmark.runtime.handshake", "refusal_at", "roots_for")
_NOT_SENT: Final = "failed to connect"
"""What gRPC says, and says only, when there was no connection to send anything by."""
_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),
    # Else a client would inherit the rest that an earlier one of the same address has to take.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A name may mean another machine than before; by default it is looked up every 30 seconds.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # A server that is gone without a word is found out.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.25
_FIND_S = 30.0
"""A stream of appends looks for the next server for so long."""
_SLACK_S = 1.0
"""A server says itself that it was too slow: it has the time of the call, the way there this."""
_ATTEMPT_S = 3.0
"""What is safe to ask again is asked again after this, where another server may answer."""
_MEMBERS_S = 5.0
"""Where the others are is heard again after this, by a client that has something to ask."""
_MEMBER_S = 2.0
"""A member of a cluster that takes longer to say hello is passed over."""
_AWAY = (NodeUnreachable, NodeClosing, Ended)
_LEFT_BEHIND = (CopyOutdated, MetastoreOutdated, ResetsUnheard)
"""A node that a reset has left behind, or that may be: it did nothing."""
_UNTOUCHED = (
    NotLeader,
    Superseded,
    MetastoreUnreachable,
    PartitionNotHere,
    TokensUnknown,
    *_LEFT_BEHIND,
)
"""A node could do nothing, and did not: another one may."""
_DONE_MAYBE = (Ended, NodeSilent)
"""A server did not wait for the end of what it was asked."""
_STUCK = (
    NotLeader,
    MetastoreUnreachable,
    NoQuorum,
    ReadTimedOut,
    NodeSilent,
    TokensUnknown,
    *_LEFT_BEHIND,
)
"""A node may be cut off from the others: the next call is made elsewhere."""
_FLIGHT_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


Locate: TypeAlias = Callable[[float], str]
"""Gives the address of the server that there is now, within that many seconds."""
Members: TypeAlias = Callable[[], Sequence[str]]
"""Gives the addresses of servers that are as good as each other."""


Explain: TypeAlias = Callable[[LowmarkError], LowmarkError]
"""Gives what is known of a server that does not answer."""


def _client(address: str, ca: str | None, secret: Secret | None) -> Any:
    roots = roots_for(address, ca) if speaks_tls(address) else {}
    shown = showing(secret)
    there = location_of(address)
    return made(flight.FlightClient(there, generic_options=_OPTIONS, middleware=shown, **roots))


def addresses_of(given: object) -> list[str]:
    """The addresses that a user has named: text with commas between, or a list of them. TLS before
    the first is meant for all of them.
    """
    parts: list[object] = []
    if isinstance(given, str):
        parts = [*given.split(",")]
    if isinstance(given, list | tuple):
        parts = [*given]
    found = [one for one in parts if isinstance(one, str)]
    if not found or len(found) < len(parts):
        raise Rejected(
            f"{given!r} is not the address of a server",
            hint='Give text: "host:port". Of several nodes: "a:6570,b:6570", or a list.',
        )
    named = named_together(found)
    for one in named:
        location_of(one)
    return named


def machine() -> str:
    """This machine, as long as it runs: processes of one can open each other's files."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def drawn_session(*, of_node: bool) -> int:
    """The number of a client, by which a server knows its holds; below 0, the client is a node."""
    number = secrets.randbits(62) + 1
    return -number if of_node else number


class Connection:
    """One server. May be used on any thread."""

    def __init__(
        self,
        address: str,
        *,
        session: int,
        on_reply: Callable[[Reply], None],
        timeout_s: float,
        locate: Locate | None = None,
        members: Members | None = None,
        also: Sequence[str] = (),
        cluster: str = "",
        ca: str | None = None,
        explain: Explain | None = None,
        on_away: Callable[[], None] = lambda: None,
        secret: Secret | None = None,
        lineages: Lineages | None = None,
        asker: Callable[[], Asker] = lambda: NOBODY,
        on_reset: Callable[[], None] = lambda: None,
    ) -> None:
        """`also`: addresses of other nodes of its cluster, which its user has named. `ca`: a file
        of authorities that sign the certificates of its servers, where they speak TLS. `secret`:
        the token that it shows to each of them. `lineages`: what it knows of resets; `asker`: for
        whom it asks, who may know more. `on_reset` is called when an answer tells of another one.
        """
        check_fork(address)
        self.lineages = Lineages() if lineages is None else lineages
        self._asker = asker
        self._on_reset = on_reset
        self._given = {address, *also} if also else set()
        self._by_tls = any(speaks_tls(one) for one in (address, *also))
        self._on_away = on_away
        self.address = address
        self._locate = locate
        self._members = members
        self._explain = explain
        self._away = False
        """Whether the server was not there when it was last asked."""
        self._finding = threading.Lock()
        self._session = session
        self._on_reply = on_reply
        self._closed = False
        self.cluster = ""
        """Its database: the same at each server that it goes to; empty until one has said it."""
        self._ca = ca
        self._secret = secret
        self._flight = _client(address, ca, secret)
        self._calls = CallStreams(lambda: self._exchange(CALLS, "calls")[:2])
        self.welcome: Welcome
        self._members_at = time.monotonic()
        """When it was last asked where the others are."""
        try:
            self.welcome = self._hello(timeout_s)
            if cluster and self.welcome.cluster != cluster:
                raise OtherDatabase(address, expected=cluster, found=self.welcome.cluster)
        except BaseException:
            self._flight.close()
            raise
        self.cluster = self.welcome.cluster

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._closed

    def close(self) -> None:
        """End all calls."""
        self._closed = True
        self._calls.close()
        self._flight.close()

    def info(self) -> DatabaseInfo:
        """What is settled of the database, as it can be used from here."""
        info = decode(self.welcome.info)
        if not isinstance(info, DatabaseInfo):
            raise Corrupt(f"the server at {self.address} does not say what database it has")
        return info

    @property
    def same_machine(self) -> bool:
        """Whether the server's files can be opened here."""
        return self.welcome.machine == machine()

    def _hello(self, timeout_s: float) -> Welcome:
        ends_at = time.monotonic() + timeout_s

        def ask(there: Any, left_s: float, attempt_s: float) -> Welcome:
            del left_s
            return _asked_hello(there, attempt_s)

        welcome: Welcome = self._again(HELLO, ask, ends_at, safe=True)
        return welcome

    def _there(self, left_s: float) -> Any:
        """Flight's way to the server; to the next one, if the last is away."""
        if self._away and (self._locate is not None or self._others()):
            if not self._finding.acquire(timeout=left_s):  # another thread looks for it
                raise NodeUnreachable(
                    self.address, why="The client looked for another address and found none."
                )
            try:
                if self._away:
                    self._find(left_s)
                    self._away = False
            finally:
                self._finding.release()
        return self._flight

    def _find(self, left_s: float) -> None:
        """Go to another node of the cluster, if one answers; or to the next owner."""
        if self._locate is None:
            self._find_member(left_s)
        elif not self.has_others:
            self._follow(self._locate(left_s))
        else:
            try:
                self._find_member(left_s)
            except NodeUnreachable as none:
                try:
                    address = self._locate(0.0)  # not for long: the others may be back as well
                except LowmarkError:
                    raise none from None
                self._follow(address)

    def _follow(self, owner: str) -> None:
        """Go to the owner of now, if it is another one."""
        if owner != self.address:
            client = _client(owner, self._ca, self._secret)
            try:
                fences = _asked_hello(client, _MEMBER_S).fences
            except (*_FLIGHT_ERRORS, LowmarkError) as error:
                client.close()
                raise NodeUnreachable(owner, why="It does not say hello yet.") from error
            self.welcome = msgspec.structs.replace(self.welcome, fences=fences)
            self._goes_to(owner, client, leaves=False)

    @property
    def has_others(self) -> bool:
        """Whether other servers would do."""
        return self.others > 0

    @property
    def others(self) -> int:
        """How many other servers would do."""
        return len(self._others())

    def leave(self) -> None:
        """Have the next call made at another server, if there is one."""
        if self.has_others:
            self._away = True

    def _others(self) -> list[str]:
        """The other servers that would do, in the order in which they are tried."""
        if not hasattr(self, "welcome"):  # none has said yet where the others are
            return in_turn(self.address, self._given)
        # (Without a function that knows this object: it is collected when it is dropped.)
        if self._members is not None:
            return in_turn(self.address, {*self._members(), *self._given})
        members = (one for one in self.welcome.members if self.may_go_to(one))
        return in_turn(self.address, {*members, *self._given})

    def may_go_to(self, address: str) -> bool:
        """Whether to go where a server says that another one is. Who was given TLS shows its token,
        and its rows, nowhere without, unless its user has named that address.
        """
        return not self._by_tls or speaks_tls(address) or address in self._given

    @property
    def addresses(self) -> list[str]:
        """The server of now, and the others that would do."""
        return [self.address, *(self._others() if self._locate is None else ())]

    def keep_up(self) -> None:
        """Hear again where the other nodes are, if that was some time ago. It waits for nothing."""
        if time.monotonic() < self._members_at + _MEMBERS_S or not self._follows_members():
            return
        self._members_at = time.monotonic()
        threading.Thread(target=self._hear_members, name="lowmark-members", daemon=True).start()

    def _follows_members(self) -> bool:
        return self._members is None and bool(hasattr(self, "welcome") and self.welcome.members)

    def _hear_members(self) -> None:
        there = self._flight
        try:
            welcome = _asked_hello(there, _MEMBER_S)
        except (*_FLIGHT_ERRORS, LowmarkError):
            return  # the next call finds out what is the matter
        if there is self._flight and welcome.cluster == self.cluster:
            self.welcome = welcome

    def _find_member(self, left_s: float) -> None:
        """Go to the first server that says hello, be it the one that was away."""
        ends_at = time.monotonic() + left_s
        for address in self._places():
            limit_s = max(0.0, min(_MEMBER_S, ends_at - time.monotonic()))
            client = self._flight
            try:
                if address != self.address:
                    client = _client(address, self._ca, self._secret)
                welcome = _asked_hello(client, limit_s)
                if welcome.cluster != self.cluster and self.cluster:
                    raise NodeUnreachable(address, why="Another database answers there now.")
            except (*_FLIGHT_ERRORS, LowmarkError):
                if client is not self._flight:
                    client.close()
                continue
            self.welcome = welcome
            if client is not self._flight:
                self._goes_to(address, client, leaves=True)
            return
        why = "Neither does any other node of its cluster."
        if not self.cluster:
            why = f"Neither does any other that was named: {', '.join(self._others())}."
        raise NodeUnreachable(self.address, why=why)

    def _places(self) -> list[str]:
        """Where to look for a server: the others, that of now, and all of them by TLS, if this
        client knows whom to believe. They may have gone over to it since it last heard of them.
        """
        found = [*self._others(), self.address]
        if authorities(self._ca):
            plain = [one for one in found if not speaks_tls(one) and unix_path(one) is None]
            found += [f"{TLS_SCHEME}{one}" for one in plain]
        return found

    def _goes_to(self, address: str, client: Any, *, leaves: bool) -> None:
        """`leaves`: the server before may go on; the next owner of a directory takes its place."""
        gone, self._flight = self._flight, client
        session = self._session
        if leaves:
            # Holds are taken again at the next one, for another session: what the server before
            # still hears of this one, however late, ends nothing of it.
            self._session = drawn_session(of_node=session < 0)
        self.address = address
        self._calls.end_free()

        def leave() -> None:
            with contextlib.suppress(*_FLIGHT_ERRORS):
                if leaves:
                    body = encode_request(Request(self.cluster, session, "leave", (), {}))
                    list(gone.do_action(flight.Action(CALL, body), _options(_SLACK_S)))
            gone.close()

        threading.Thread(target=leave, name="lowmark-leave", daemon=True).start()

    # -- calls ----------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """One call of the port. What has a time limit of its own has it in `named`."""
        ends_at = time.monotonic() + timeout_s

        def ask(there: Any, left_s: float, attempt_s: float) -> Any:
            more = {**named, "timeout_s": left_s} if name in LIMITED else named
            request = self._request(name, arguments, more)
            body = encode_request(request)
            if name in QUICK:
                try:
                    return self._value(request, self._calls.ask(body, attempt_s + _SLACK_S))
                except flight.FlightError as error:
                    if not _is_full(error):
                        raise
                # Other clients have all streams of calls, maybe idle ones: it goes without.
            (result,) = there.do_action(flight.Action(CALL, body), _options(attempt_s))
            return self._value(request, result.body.to_pybytes())

        patience_s = _ATTEMPT_S + (arguments[1] if name == "wait" else 0.0)
        safe = retry_of(name, arguments) == "safe"
        said = arguments[0] if name == "operate" else name
        return self._again(said, ask, ends_at, safe=safe, patience_s=patience_s)

    def _request(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Request:
        """A request that says what was heard of resets, to a server that understands it."""
        said = said_of(self.lineages, name, arguments)
        for group, lineage in (self._asker().lineages or {}).items():
            said[group] = max(lineage, said.get(group, 0))
        if said and not self.welcome.fences:
            raise ResetsUnheard(self.address, said)
        lineages = said if self.welcome.fences else None
        return Request(self.cluster, self._session, name, arguments, named, lineages)

    def _value(self, request: Request, data: bytes) -> Any:
        reply = decode_reply(data)
        heard = said_of(self.lineages, request.call, request.arguments)
        self.hears(reply.lineages or {})
        self._on_reply(reply)
        if isinstance(reply.value, LowmarkError):
            raise reply.value
        if passed(request.lineages or {}, heard):
            raise _Passed(self.address, request.call)
        return reply.value

    def hears(self, said: Mapping[str, int]) -> None:
        """Take note of what an answer tells of resets."""
        if said and self.lineages.learn(said):
            self._on_reset()

    def _again(
        self,
        name: str,
        ask: Callable[[Any, float, float], Any],
        ends_at: float,
        *,
        safe: bool,
        patience_s: float = _ATTEMPT_S,
    ) -> Any:
        """Ask until there is an answer, or the time is over.

        Where other servers would do, one that takes long over what may be asked again is left for
        the next one. All have the same time, for one of them may be cut off; in the next round each
        has twice that. One that can't do it now is left, too.
        """
        began, pause_s, attempts, left_behind = time.monotonic(), _PAUSE_S, 0, 0
        while True:
            self.check()
            attempt_s = left_s = max(0.0, ends_at - time.monotonic())
            if safe and patience_s < left_s and (others := self.others):
                attempt_s, attempts = patience_s, attempts + 1
                if attempts % (others + 1) == 0:
                    patience_s *= 2
            there = None
            try:
                there = self._there(left_s)
                answer = ask(there, left_s, attempt_s)
                self.keep_up()
                return answer
            except (*_FLIGHT_ERRORS, LowmarkError) as error:
                named, done_maybe = self._in_our_words(name, error, ends_at - began, there)
                self.check()
                away = not done_maybe and isinstance(named, NodeUnreachable)
                # To find out takes seconds where a machine is gone: not while others would do.
                if away and not self.has_others and (refusal := self._refusal()) is not None:
                    raise refusal from error
                if isinstance(named, RequestRefused) and self._is_earlier(there):
                    named = NodeUnreachable(self.address, why="It runs another release now.")
                if isinstance(named, _STUCK) and there is self._flight:
                    self.leave()
                if done_maybe and not safe:
                    raise self._unknown(name, named) from error
                passes = isinstance(named, _Passed) or _may_pass(named)
                passes = passes or (self.has_others and _is_theirs(named, safe=safe))
                left_behind = left_behind + 1 if is_left_behind(named) else 0
                if self._session < 0 and left_behind > self.others:
                    passes = False  # its client asks the next node: this one knows of no other
                if not passes or time.monotonic() + pause_s >= ends_at:
                    if away and self.has_others and (refusal := self._refusal()) is not None:
                        raise refusal from error
                    raise self.told(named) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _is_earlier(self, there: Any) -> bool:
        """Whether another release answers by now, to which no lineages may be said."""
        if there is not self._flight or not self.welcome.fences:
            return False
        with contextlib.suppress(*_FLIGHT_ERRORS, LowmarkError):
            fences = _asked_hello(there, _MEMBER_S).fences
            self.welcome = msgspec.structs.replace(self.welcome, fences=fences)
        return not self.welcome.fences

    def _refusal(self) -> LowmarkError | None:
        """What TLS has to do with it that there is no connection to the server of now."""
        if unix_path(self.address) is not None:
            return None
        found: LowmarkError | None = refusal_at(self.address, self._ca)
        return found

    def told(self, error: LowmarkError) -> LowmarkError:
        """An error with what is known of a server that gives no answer, to anything."""
        if isinstance(error, _Late):
            error = error.by_its_name()
        if self._explain is None or not isinstance(error, NodeUnreachable) or self._answers():
            return error
        return self._explain(error)

    def _answers(self) -> bool:
        try:
            body = msgspec.json.encode(Hello())
            options = flight.FlightCallOptions(timeout=_SLACK_S)
            list(self._flight.do_action(flight.Action(HELLO, body), options))
        except _FLIGHT_ERRORS as error:
            return bool(getattr(error, "extra_info", None))
        return True

    def check(self) -> None:
        """Raise if it was closed."""
        if self._closed:
            raise Closed(self.address)

    def _unknown(self, name: str, error: LowmarkError) -> LowmarkError:
        return AnswerLost(self.address, name, why=error.message)

    def _in_our_words(
        self, name: str, error: Exception, waited_s: float, there: Any
    ) -> tuple[LowmarkError, bool]:
        """What happened on the way `there`, and whether the server may have done what it was asked.
        None: no server was found.
        """
        named, done_maybe = self._named(name, error, waited_s)
        if there is not None and there is not self._flight:
            return named, done_maybe  # that one was left before
        # A directory has one owner, however slow it is; of a cluster another node may answer.
        owned = self._locate is not None and not self.has_others
        if isinstance(named, _AWAY) and not (isinstance(named, _Late) and owned):
            self._away = True
            self._on_away()
        return named, done_maybe

    def _named(self, name: str, error: Exception, waited_s: float) -> tuple[LowmarkError, bool]:
        if isinstance(error, LowmarkError):
            return error, isinstance(error, (*_DONE_MAYBE, _Passed))
        extra = getattr(error, "extra_info", None)
        said = decode_fault(extra) if extra else None
        if isinstance(said, ActionUnknown | NodeStarting):
            # It has neither `hello` nor `call` yet. (What a call asks for by name, and is not
            # known, is an answer like any other.)
            return NodeUnreachable(self.address, why="The node there is starting."), False
        if said is not None:
            return said, isinstance(said, _DONE_MAYBE)
        if isinstance(error, flight.FlightTimedOutError):
            why = f"No answer to {name} came within {waited_s:.3g} seconds."
            return _Late(self.address, name, waited_s=waited_s, why=why), True
        if isinstance(error, flight.FlightCancelledError) and self._closed:
            return Closed(self.address), True
        text = str(error)
        why = text.partition(". gRPC client debug context")[0].rpartition("message: ")[2]
        return NodeUnreachable(self.address, why=f"{why}."), _NOT_SENT not in text

    # -- streams --------------------------------------------------------------------------------

    def read(self, name: str, *arguments: Any, timeout_s: float, **named: Any) -> Iterator[Any]:
        """The messages of one bounded `DoGet`: record batches with what was said of each. Not
        asked again: its caller knows how far it came.
        """
        self.check()
        more = {**named, "timeout_s": timeout_s}
        if self.has_others:  # one that is stuck must not take all the time
            timeout_s = max(timeout_s / 2, min(timeout_s, _ATTEMPT_S))
        there = None
        try:
            there = self._there(timeout_s)
            request = self._request(name, arguments, more)
            reader = there.do_get(flight.Ticket(encode_request(request)), _options(timeout_s))
            try:
                while True:
                    yield reader.read_chunk()
            except StopIteration:
                return
        except _FLIGHT_ERRORS as error:
            named_error, _ = self._in_our_words(name, error, timeout_s, there)
            self.check()
            if is_left_behind(named_error) and there is self._flight:
                self.leave()
            raise named_error from error
        except ResetsUnheard:
            self.leave()
            raise

    def exchange(self) -> tuple[Any, Any, Any]:
        """A stream of appends: what writes to it, what reads the answers, and the way there."""
        return self._exchange(APPEND, "append")

    def _exchange(self, kind: bytes, name: str) -> tuple[Any, Any, Any]:
        self.check()
        there = self._there(_FIND_S)
        request = Request(self.cluster, self._session, name, (), {})
        if kind == APPEND:
            said = self.lineages.known()
            if said and not self.welcome.fences:
                self.leave()
                raise ResetsUnheard(self.address, said)
            request = request._replace(lineages=said if self.welcome.fences else None)
        descriptor = flight.FlightDescriptor.for_command(kind + encode_request(request))
        writer, reader = there.do_exchange(descriptor, flight.FlightCallOptions())
        return writer, reader, there

    def answers(self) -> bool:
        """Whether the server says hello; if it does not, the next call looks for another one."""
        there = self._flight
        try:
            _asked_hello(there, _MEMBER_S)
        except (*_FLIGHT_ERRORS, LowmarkError) as error:
            self._in_our_words(HELLO, error, _MEMBER_S, there)
            return False
        return True

    def in_our_words(self, name: str, error: Exception, there: Any) -> tuple[LowmarkError, bool]:
        """What an error of a stream means, and whether what was sent may have been done."""
        return self._in_our_words(name, error, 0.0, there)


def in_turn(address: str, members: Iterable[str]) -> list[str]:
    """The other servers, in the order in which they are tried: those behind this one first.

    Each server may list them in another order. If that were followed, two of them that can do
    nothing could send a client to each other for ever, past the third, which can.
    """
    known = sorted({*members} - {address})
    return [one for one in known if one > address] + [one for one in known if one < address]


def _asked_hello(client: Any, left_s: float) -> Welcome:
    body = msgspec.json.encode(Hello())
    (result,) = client.do_action(flight.Action(HELLO, body), _options(left_s))
    return msgspec.json.decode(result.body.to_pybytes(), type=Welcome)


class _Late(NodeUnreachable):
    """A call whose answer did not come in time."""

    def __init__(self, address: str, name: str, *, waited_s: float, why: str) -> None:
        super().__init__(address, why=why)
        self.message = f"the server at {address} gave no answer within {waited_s:.3g} seconds"
        self.args = (self.message,)

    def by_its_name(self) -> NodeUnreachable:
        """As callers know it."""
        known = NodeUnreachable("", why=self.detail)
        known.message, known.args = self.message, self.args
        return known


class _Passed(Unavailable):
    """An answer that came when a later reset was known: it may be of those that it left behind."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(
            f"a reset became known while {address} was asked ({name})",
            detail="It is not known whether what answered belongs to what was reset.",
            hint="Ask again.",
        )


def _options(left_s: float) -> Any:
    return flight.FlightCallOptions(timeout=left_s + _SLACK_S)


def _is_full(error: flight.FlightError) -> bool:
    """Whether the server took nothing, for it has too much to do."""
    extra = getattr(error, "extra_info", None)
    return isinstance(decode_fault(extra) if extra else None, ServerFull)


def _may_pass(error: LowmarkError) -> bool:
    """Whether it is worth asking again: the server is away, closing, or has too much to do."""
    return isinstance(error, (*_AWAY, ServerFull, TokensUnknown))


def _is_theirs(error: LowmarkError, *, safe: bool) -> bool:
    """Whether another node may do what this one could not: it did nothing, or twice is fine. What
    one fails at by a mistake of its own, the others fail at, too.
    """
    if isinstance(error, ServerFailed):
        return False
    return isinstance(error, _UNTOUCHED) or (safe and isinstance(error, (*_STUCK, OutcomeUnknown)))


def is_left_behind(error: LowmarkError) -> bool:
    """Whether a node refused because of a reset: another one may do it."""
    return isinstance(error, _LEFT_BEHIND)


def is_passing(error: LowmarkError) -> bool:
    """Whether a read that ended so may go on from where it was."""
    return _may_pass(error)


QUICK: Final = frozenset({"look_up", "now", "view_since"})
"""Calls that go over open streams: they are frequent, and answered at once."""
LIMITED: Final = frozenset(
    {
        "now",
        "catalog_at",
        "execute",
        "watermark",
        "advance_watermark",
        "hold_history",
        "history_lost",
        "epoch_of",
        "view_since",
        "views",
        "status",
        "hold",
        "propose",
        "tail",
        "get",
        "range",
        "write",
    }
)
"""Calls that are told how much time is left."""
