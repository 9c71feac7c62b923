"""Asks a node by its endpoint. Blocking, for commands and tests."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeVar

import msgspec
import pyarrow
from pyarrow import flight

from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.faces import deferred
from lowmark.fault import decode_fault
from lowmark.group import OutcomeUnknown
from lowmark.node.messages import (
    ASKS_FOR_WHOLE,
    ExecuteAsk,
    ExecutedReply,
    GetAsk,
    GetReply,
    GuardReply,
    HistoryAsk,
    HistoryPage,
    Nothing,
    PeerAddress,
    PutAsk,
    RangeAsk,
    RangePage,
    RemoveAsk,
    Status,
    WatchAlive,
    WatchAsk,
    WatchEvent,
    WatchStarted,
    WrittenReply,
    only_looks,
)
from lowmark.node.owner import SCHEME
from lowmark.node.showing import found_secret, showing
from lowmark.runtime import host_and_port
from lowmark.runtime.network import TLS_SCHEME, speaks_tls
from lowmark.runtime.refusals import TlsNotSpoken
from lowmark.tokens import Secret, TokenMissing

joined, location_of = deferred("lowmark.node.addresses", "joined", "location_of")

refusal_at, roots_for = deferred("lowmark.runtime.handshake", "refusal_at", "roots_for")
T = TypeVar("T")
_TOLD: Any = WatchStarted | WatchEvent | WatchAlive

TIMEOUT_S = 30.0
"""Longer than a node with the usual settings takes for any answer but these:"""
TIMEOUTS_S = {
    "catalog.execute": 150.0,
    "meta.range": 60.0,
    "meta.history": 60.0,
    "partition.reset": 60.0,
}
_NOT_SENT = "failed to connect"
"""What gRPC says, and says only, when there was no connection to send anything by."""
JOIN_PATIENCE_S = 30.0
RETRY_S = 0.2
_REOPENS_S = 1.0
"""A node with TLS may be closing and opening its endpoint just now, for a new certificate."""
_REOPENS_LOOK_S = 0.05
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),  # a node is on this machine
    # Else a client would inherit the rest that an earlier one of the same address has to take.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


class NodeUnreachable(Unavailable):
    """No node answers at an address, or not any more."""

    def __init__(self, address: str, *, why: str) -> None:
        super().__init__(
            f"no node answers at {address}",
            detail=why,
            hint="Start one with `lowmark serve`, or give the address of another one. A directory"
            " that no process serves is opened by its path: lowmark.open(PATH).",
        )


class AnswerLost(OutcomeUnknown):
    """A change was sent, and no answer came: it may have been made, or may still be."""

    def __init__(self, address: str, action: str, *, why: str) -> None:
        LowmarkError.__init__(
            self,
            f"it is not known whether {action} was done: the node at {address} gave no answer",
            detail=why,
            hint="Look whether it happened before you repeat it.",
        )


class NodeClient:
    """One node, by its endpoint. Close it when done."""

    def __init__(
        self,
        address: str,
        *,
        ca: str | None = None,
        timeout_s: float | None = None,
        secret: Secret | Literal["found"] | None = "found",
    ) -> None:
        """`ca`: whom it believes, where nodes speak TLS; `secret`: the token that it shows, by
        default the one that the command line or the environment names; None: it shows none.
        """
        location = location_of(address)
        if not address.startswith(SCHEME):  # the owner of a directory of this machine
            scheme = TLS_SCHEME if speaks_tls(address) else ""
            address = f"{scheme}{joined(*host_and_port(address))}"
        self.address = address
        self._timeout_s = timeout_s
        self._ca = ca
        roots = roots_for(address, ca) if speaks_tls(address) else {}
        shown = showing(found_secret() if secret == "found" else secret)
        self._flight = flight.FlightClient(
            location, generic_options=_OPTIONS, middleware=shown, **roots
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all streams and the connection."""
        self._flight.close()

    # -- questions ------------------------------------------------------------------------------

    def status(self) -> Status:
        """Nodes, groups and the metastore."""
        return self._ask("status", Nothing(), Status)

    def peer(self) -> PeerAddress:
        """Where other nodes reach the node, and to which cluster it belongs."""
        return self._ask("cluster.peer-address", Nothing(), PeerAddress)

    def guard(self) -> GuardReply:
        """Whether strangers can come in there, without a token."""
        return self._ask("node.guard", Nothing(), GuardReply)

    def get(self, key: bytes, *, at: int | None = None) -> GetReply:
        """A key's value, now or as of a revision."""
        return self._ask("meta.get", GetAsk(key=key, at=at), GetReply)

    def range(
        self,
        prefix: bytes = b"",
        *,
        at: int | None = None,
        limit: int | None = None,
        keys_only: bool = False,
    ) -> Iterator[RangePage]:
        """Keys that begin so, page by page, all as of one revision."""
        asked = RangeAsk(prefix=prefix, at=at, limit=limit, keys_only=keys_only)
        return self._stream("meta.range", asked, RangePage, timeout_s=self.timeout_of("meta.range"))

    def history(self, key: bytes) -> Iterator[HistoryPage]:
        """All that is known of a key, oldest first."""
        timeout_s = self.timeout_of("meta.history")
        return self._stream("meta.history", HistoryAsk(key=key), HistoryPage, timeout_s=timeout_s)

    def watch(
        self, prefix: bytes = b"", *, from_revision: int | None = None
    ) -> Iterator[WatchStarted | WatchEvent]:
        """First where it begins; then every revision from there on, once, in order.

        It ends with an error, or when it is closed.
        """
        asked = WatchAsk(prefix=prefix, from_revision=from_revision)
        for told in self._stream("meta.watch", asked, _TOLD, timeout_s=None):
            # While Flight waits for a result, Python hears no Ctrl-C: that is what these are for.
            if not isinstance(told, WatchAlive):
                yield told

    # -- changes --------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> WrittenReply:
        """Give a key a value."""
        return self._ask("meta.put", PutAsk(key=key, value=value), WrittenReply)

    def remove(self, key: bytes) -> WrittenReply:
        """Take a key's value away."""
        return self._ask("meta.remove", RemoveAsk(key=key), WrittenReply)

    def execute(self, commands: list[dict[str, object]]) -> ExecutedReply:
        """Have commands of the catalog carried out, all or none; see `catalog.commands`."""
        return self._ask("catalog.execute", ExecuteAsk(commands=commands), ExecutedReply)

    # -- the way there --------------------------------------------------------------------------

    def ask(self, action: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Any action that has one result."""
        return self._ask(action, body, answer)

    def follow(self, action: str, body: msgspec.Struct, answer: type[T]) -> Iterator[T]:
        """Any action that goes on for long and says how far it is. While nothing comes, Ctrl-C is
        not heard: such an action says something every now and then.
        """
        return self._stream(action, body, answer, timeout_s=self._timeout_s)

    def timeout_of(self, action: str) -> float:
        """How long an action may take: longer than the node itself allows for it, so that it is the
        node who says what became of it.
        """
        if self._timeout_s is not None:
            return self._timeout_s
        return TIMEOUTS_S.get(action, TIMEOUT_S)

    def _ask(self, action: str, body: msgspec.Struct, answer: type[T]) -> T:
        timeout_s = self.timeout_of(action)
        results = list(self._stream(action, body, answer, timeout_s=timeout_s))
        if len(results) != 1:
            raise Corrupt(f"the node at {self.address} gave {len(results)} answers to {action}")
        return results[0]

    def _stream(
        self, action: str, body: msgspec.Struct, answer: type[T], *, timeout_s: float | None
    ) -> Iterator[T]:
        options = flight.FlightCallOptions(timeout=timeout_s, headers=ASKS_FOR_WHOLE)
        encoded = msgspec.json.encode(body)
        reopens_s = _REOPENS_S if speaks_tls(self.address) else 0.0
        begun, ends_at = False, math.inf
        while True:
            try:
                for result in self._flight.do_action(flight.Action(action, encoded), options):
                    begun = True
                    yield _decoded(result.body.to_pybytes(), answer)
                return
            except (flight.FlightError, pyarrow.ArrowException) as error:
                named = self._in_our_words(action, encoded, error)
                # Nothing was sent, or what was sent only looks: it may be cut off by a node that
                # closes its endpoint to open it again.
                away = isinstance(named, NodeUnreachable)
                late = isinstance(error, flight.FlightTimedOutError)
                now = time.monotonic()
                ends_at = min(ends_at, now + reopens_s)
                if begun or late or not away or now >= ends_at:
                    raise named from error
            time.sleep(_REOPENS_LOOK_S)

    def _in_our_words(self, action: str, body: bytes, error: Any) -> LowmarkError:
        extra = getattr(error, "extra_info", None)
        said = decode_fault(extra) if extra else None
        if said is not None:
            return said
        if _NOT_SENT in str(error) and not self.address.startswith(SCHEME):
            refusal: LowmarkError | None = refusal_at(self.address, self._ca)
            if refusal is not None:
                return refusal
        # gRPC puts what it was told last behind everything it went through.
        why = f"{str(error).rpartition(': ')[2]}."
        if isinstance(error, flight.FlightTimedOutError):
            why = f"Nothing came in {self.timeout_of(action):g} s."
        if _NOT_SENT not in str(error) and not only_looks(action, body):
            return AnswerLost(self.address, action, why=why)
        return NodeUnreachable(self.address, why=why)


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"what a node answered can't be read: {error}",
            hint="Check that the command and the node are of versions that belong together.",
        ) from error


class Way(NamedTuple):
    """An endpoint to ask, and the token to show there."""

    address: str
    secret: Secret | None


def ask_peer(
    ways: Sequence[Way], *, ca: str | None = None, patience_s: float = JOIN_PATIENCE_S
) -> PeerAddress:
    """Where the node behind an endpoint is reached by other nodes; waits while it starts.

    Of several, the first one that answers and knows its cluster; else the first that answers. If
    all of them refuse to be asked this way, that is said at once.
    """
    ends_at = time.monotonic() + patience_s
    while True:
        answers, silent = list[PeerAddress](), list[LowmarkError]()
        for way in ways:
            try:
                with NodeClient(way.address, ca=ca, timeout_s=5.0, secret=way.secret) as client:
                    answers.append(client.peer())
            except (Unavailable, TlsNotSpoken, TokenMissing) as error:
                silent.append(error)
            if answers and answers[-1].cluster:
                break
        is_over = time.monotonic() > ends_at
        if answers:
            found = next((one for one in answers if one.cluster), answers[0])
            if found.ledgers != "" or is_over:
                return found
        elif is_over or not any(isinstance(one, Unavailable) for one in silent):
            raise silent[-1]
        time.sleep(RETRY_S)
