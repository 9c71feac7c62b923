"""Questions from node to node, and their answers, on the link that groups share.

A service is a name and a function; a caller names the node, or only an address if it does not know
yet who is there (that is how a node joins). Calls are best effort, as all messages are:

    NotAsked      the question did not leave this node: nothing happened
    NoService     the node has no such service: nothing happened
    CallLost      nobody knows whether it was heard: the connection broke, or no answer came in time

The call's owner decides what may be asked twice. A node answers strangers (addresses that it does
not know) only where a service says so, and only so many of them at a time.

A question that the network doubles is heard once (of those that came lately, of which a number is
kept): whoever got an answer knows that it was asked once, and whoever was refused, that it was not.

A service always replies, now or later, once; what it was asked lies in the frame, so whoever keeps
it copies it. Numbers begin anywhere: an answer to what this address asked in an earlier life is for
a number that nobody has now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lowmark.errors import Unavailable
from lowmark.group.transport import Transport
from lowmark.group.wire import ANSWER_OUTCOMES, Answer, Ask, Item
from lowmark.runtime import Buffer, Future

_ANSWERED, _NO_SERVICE, _BUSY = range(ANSWER_OUTCOMES)
_WAITING_MAX = 4_096
_STRANGERS_MAX = 64
_LATELY_MAX = 16_384
"""Questions that would be noticed if they came again."""

Reply: TypeAlias = Callable[[bytes], None]
Service: TypeAlias = Callable[[str, int, Buffer, Reply], None]
"""Called with the asker's address, its number, the question, and where the answer goes."""


class NotAsked(Unavailable):
    """A question that did not leave this node."""

    def __init__(self, who: str, *, why: str) -> None:
        super().__init__(f"{who} could not be asked: {why}", hint="Retry after a short while.")


class NoService(Unavailable):
    """The node that was asked does not do this, or not now."""

    def __init__(self, who: str, *, service: str, busy: bool) -> None:
        why = "is too busy for" if busy else "has no service"
        super().__init__(f"{who} {why} {service}", hint="Retry, or ask another node.")
        self.busy = busy


class CallLost(Unavailable):
    """A question whose answer will not come: it may have been heard, or not."""

    def __init__(self, who: str, *, why: str) -> None:
        super().__init__(
            f"{who} did not answer: {why}",
            hint="Look whether it happened before you ask again.",
        )


@dataclass(slots=True)
class _Open:
    """A question of ours without an answer."""

    node: int
    address: str
    service: str
    since_ms: int
    deadline_ms: int
    future: Future[bytes]
    name_of: Callable[[int], str]

    @property
    def who(self) -> str:
        return f"node {self.name_of(self.node)}" if self.node else f"the node at {self.address}"


class _Lately:
    """The last questions that came in."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._heard: dict[tuple[str, int], None] = {}

    def is_new(self, address: str, number: int) -> bool:
        key = (address, number)
        if key in self._heard:
            return False
        self._heard[key] = None
        if len(self._heard) > self._size_max:
            del self._heard[next(iter(self._heard))]
        return True


class Calls:
    """Asks other nodes and answers them. One per node."""

    def __init__(
        self,
        transport: Transport,
        *,
        send: Callable[[str, Item], None],
        now_ms: Callable[[], int],
        timeout_ms: int,
        waiting_max: int = _WAITING_MAX,
        strangers_max: int = _STRANGERS_MAX,
        lately_max: int = _LATELY_MAX,
    ) -> None:
        self.waiting_max = waiting_max
        """Questions that one node may have open here, and that we may have open at one node."""
        self.strangers_max = strangers_max
        """Questions of strangers that are open at a time."""
        self.name_of: Callable[[int], str] = str
        """What people call a node; set by what knows names. A link knows numbers."""
        self._transport = transport
        self._send = send
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms
        self._services: dict[str, tuple[Service, bool]] = {}
        self._open: dict[int, _Open] = {}
        self._open_at: dict[str, int] = {}
        self._numbers = transport.boot
        self._answering: dict[str, int] = {}
        self._strangers = 0
        self._lately = {known: _Lately(lately_max) for known in (True, False)}
        """Of nodes that are known, and of strangers: these can't crowd out those."""
        self._closed = False

    @property
    def node(self) -> int:
        """The number of this node."""
        return self._transport.node

    def serve(self, name: str, service: Service, *, strangers: bool = False) -> None:
        """Answer questions by this name from now on; `strangers`: of nodes nobody knows, too."""
        self._services[name] = (service, strangers)

    def ask(
        self, node: int, service: str, question: bytes, *, timeout_ms: int | None = None
    ) -> Future[bytes]:
        """Ask a node that is known."""
        address = self._transport.addresses.get(node)
        if address is None:
            future: Future[bytes] = Future()
            who = f"node {self.name_of(node)}"
            future.reject(NotAsked(who, why="this node does not know its address"))
            return future
        return self._ask(node, address, service, question, timeout_ms)

    def ask_at(
        self, address: str, service: str, question: bytes, *, timeout_ms: int | None = None
    ) -> Future[bytes]:
        """Ask whoever is at an address."""
        return self._ask(0, address, service, question, timeout_ms)

    def _ask(
        self, node: int, address: str, service: str, question: bytes, timeout_ms: int | None
    ) -> Future[bytes]:
        now = self._now_ms()
        deadline = now + (self._timeout_ms if timeout_ms is None else timeout_ms)
        asked = _Open(node, address, service, now, deadline, Future(), self.name_of)
        if self._closed or self._open_at.get(address, 0) >= self.waiting_max:
            why = "this node is closing" if self._closed else "too many questions are open"
            asked.future.reject(NotAsked(asked.who, why=why))
            return asked.future
        self._numbers += 1
        item = Ask(node, self._transport.node, self._numbers, question)
        self._open[self._numbers] = asked
        self._open_at[address] = self._open_at.get(address, 0) + 1
        if node:
            self._send(service, item)
        elif not self._transport.send_to(address, service, item):
            self.refused(item)
        return asked.future

    def _take(self, number: int) -> _Open | None:
        asked = self._open.pop(number, None)
        if asked is not None:
            left = self._open_at[asked.address] - 1
            if left:
                self._open_at[asked.address] = left
            else:
                del self._open_at[asked.address]
        return asked

    # -- events ---------------------------------------------------------------------------------

    def asked(self, address: str, service: str, item: Ask, *, known: bool) -> None:
        """A question has come in."""
        number = item.number
        if self._closed or not self._lately[known].is_new(address, number):
            return

        def send(outcome: int, body: bytes) -> None:
            answer = Answer(item.sender, self._transport.node, number, outcome, body)
            if known:
                self._send(service, answer)
            else:
                self._transport.send_to(address, service, answer)

        serve, open_to_all = self._services.get(service, (None, False))
        if serve is None or not (known or open_to_all):
            send(_NO_SERVICE, b"")
            return
        if self._answering.get(address, 0) >= self.waiting_max or (
            not known and self._strangers >= self.strangers_max
        ):
            send(_BUSY, b"")
            return
        self._answering[address] = self._answering.get(address, 0) + 1
        self._strangers += not known
        over = False

        def reply(body: bytes) -> None:
            nonlocal over
            if over or self._closed:
                return
            over = True
            self._strangers -= not known
            left = self._answering[address] - 1
            if left:
                self._answering[address] = left
            else:
                del self._answering[address]
            send(_ANSWERED, body)

        serve(address, item.sender, item.body, reply)

    def answered(self, address: str, service: str, item: Answer) -> None:
        """An answer has come in; one that nobody waits for any more is dropped."""
        asked = self._open.get(item.number)
        if asked is None or asked.address != address or asked.service != service:
            return
        self._take(item.number)
        if item.outcome == _ANSWERED:
            asked.future.resolve(bytes(item.body))
        else:
            busy = item.outcome == _BUSY
            asked.future.reject(NoService(asked.who, service=service, busy=busy))

    def refused(self, item: Ask) -> None:
        """A question could not be sent."""
        asked = self._take(item.number)
        if asked is not None:
            asked.future.reject(NotAsked(asked.who, why="there is no connection, or no room"))

    def lost(self, address: str) -> None:
        """The connection broke: whatever was asked there may have been heard."""
        for number in [n for n, asked in self._open.items() if asked.address == address]:
            asked = self._take(number)
            if asked is not None:
                asked.future.reject(CallLost(asked.who, why="the connection broke"))

    def abandon(self, service: str, *, but: int) -> None:
        """Wait for nobody's answer but this node's: the others can't do what is asked any more."""
        for number, asked in list(self._open.items()):
            if asked.service == service and asked.node not in {0, but}:
                self._take(number)
                asked.future.reject(CallLost(asked.who, why="another node took its place"))

    def tick(self) -> None:
        """Give up on those that waited long enough."""
        now = self._now_ms()
        for number in [n for n, asked in self._open.items() if asked.deadline_ms <= now]:
            asked = self._take(number)
            if asked is not None:
                waited = f"nothing came within {now - asked.since_ms} ms"
                asked.future.reject(CallLost(asked.who, why=waited))

    def close(self) -> None:
        """Nothing is asked or answered any more."""
        self._closed = True
        for number in list(self._open):
            asked = self._take(number)
            if asked is not None:
                asked.future.reject(CallLost(asked.who, why="this node is closing"))
