"""The node's server for clients: Arrow Flight actions, on a loopback address.

Flight calls from threads of its own; the packages know one, the loop's. An action decodes what
it was sent, asks the loop by the bridge, and gives results one by one; Flight asks for the next one
when the client has room for it. A result that is not asked for is not made: nothing piles up here.

What every action promises
    1. An error arrives with its name, what happened, why, and what to do (see `lowmark.fault`).
    2. A body that is too long, or not what the action takes, is refused before anything happens.
    3. At most `CALLS_MAX` are under way at a time; one more is refused.
    4. A client that goes away ends its stream.
    5. Flight's own code for "unavailable", at which clients retry by themselves, is given only if
       nothing has happened. What may have happened, or did, has another one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import pyarrow
from pyarrow import flight

from lowmark.catalog import NotInForce
from lowmark.errors import InvariantBroken, LowmarkError, Rejected, Unavailable
from lowmark.fault import encode_fault
from lowmark.group import CallLost, Future, OutcomeUnknown
from lowmark.node.messages import BODY_BYTES_MAX, check_free, joined
from lowmark.runtime import AddressUnusable, RealLoop, Timer, host_and_port

logger = logging.getLogger(__name__)

# From other threads to the loop and back: how the server asks what knows one thread.

T = TypeVar("T")


class NodeClosing(Unavailable):
    """A node that is being stopped."""

    def __init__(self) -> None:
        super().__init__("this node is closing", hint="Ask another node.")


class NodeClosed(NodeClosing):
    """A node that was stopped between a question and its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.detail = "What was asked may have been done all the same."
        self.hint = "Look at another node whether it happened before you ask again."


class NodeSilent(Unavailable):
    """A node whose loop gave no answer."""

    def __init__(self, *, waited_s: float) -> None:
        super().__init__(
            f"this node gave no answer within {waited_s:.3g} seconds",
            detail="What was asked may have been done all the same.",
            hint="See what the node says on stderr; ask another node meanwhile.",
        )


class _Answer(Generic[T]):
    """What one caller waits for. A bare lock is its latch: Ctrl-C in the waiting ends the waiting,
    and leaves no lock behind that the loop would then wait for.
    """

    __slots__ = ("_error", "_latch", "_settled", "_value")

    def __init__(self) -> None:
        self._settled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._latch = threading.Lock()
        self._latch.acquire()

    def settle(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Answer it; only the first time counts."""
        if not self._settled:
            self._settled = True
            self._value, self._error = value, error
            with contextlib.suppress(RuntimeError):  # a close came at the same moment
                self._latch.release()

    def result(self, timeout_s: float) -> T:
        """The value; raises the error, or `TimeoutError`."""
        if not self._latch.acquire(timeout=timeout_s):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Bridge:
    """Asks functions on the loop from any other thread."""

    def __init__(self, loop: RealLoop) -> None:
        self._loop = loop
        # No lock guards it: adding, discarding and copying are each one step of the interpreter.
        self._waiting: set[_Answer[Any]] = set()
        self._closed = False

    def call(self, callback: Callable[[], None]) -> None:
        """Have something done on the loop; the caller does not wait for it."""
        self._loop.call_from_thread(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Have something done on the loop after a while. To be called on the loop."""
        return self._loop.call_later(delay_ms, callback)

    def ask(self, function: Callable[[], Future[T]], *, timeout_s: float) -> T:
        """What the future comes to that the function gives on the loop; raises its error."""
        answer: _Answer[T] = _Answer()
        try:
            self._waiting.add(answer)
            if self._closed:  # looked at after that: a close that comes now finds the answer
                raise NodeClosing
            self._loop.call_from_thread(lambda: _run(function, answer))
            return answer.result(timeout_s)
        except TimeoutError:
            raise NodeSilent(waited_s=timeout_s) from None
        finally:
            self._waiting.discard(answer)

    def ask_now(self, function: Callable[[], T], *, timeout_s: float) -> T:
        """What the function gives on the loop, in one turn."""
        return self.ask(lambda: Future.of(function()), timeout_s=timeout_s)

    def close(self) -> None:
        """End the waiting of all callers."""
        self._closed = True
        for answer in list(self._waiting):
            answer.settle(error=NodeClosed())


def _run(function: Callable[[], Future[T]], answer: _Answer[T]) -> None:
    try:
        future = function()
    except InvariantBroken as broken:
        answer.settle(error=broken)
        raise  # it ends the loop, as it does wherever it happens
    except Exception as error:
        answer.settle(error=error)  # of one request, so it is its asker's
    else:
        future.then(lambda done: _pass_on(done, answer))


def _pass_on(future: Future[T], answer: _Answer[T]) -> None:
    error: LowmarkError | None = future.error
    if error is not None:
        answer.settle(error=error.again())
    else:
        answer.settle(future.result())


CALLS_MAX = 512

Gone: TypeAlias = Callable[[], bool]
"""Whether the client has gone away."""
Action: TypeAlias = Callable[[bytes, Gone], Iterable[bytes]]

AskT = TypeVar("AskT", bound=msgspec.Struct)
encode = msgspec.json.Encoder().encode


class ActionUnknown(Rejected):
    """An action that this node does not have."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"there is no action {name[:100]!r}",
            hint=f"Known here: {', '.join(sorted(known))}.",
        )


class BadRequest(Rejected):
    """A body that is not what its action takes."""


class ServerBusy(Unavailable):
    """Too many calls are under way."""

    def __init__(self) -> None:
        super().__init__(
            f"{CALLS_MAX} calls are under way at this node, and it takes no more",
            hint="Retry, or ask another node.",
        )


class NodeFailed(Unavailable):
    """The node could not answer, by a mistake of its own."""

    def __init__(self, action: str, error: Exception) -> None:
        super().__init__(
            f"the node failed to answer {action}: {type(error).__name__}",
            detail="What was asked may have been done all the same.",
            hint="See what the node says on stderr, and report it.",
        )


_MAY_HAVE_HAPPENED = (OutcomeUnknown, CallLost, NodeSilent, NodeClosed, NodeFailed, NotInForce)


def reply(kind: type[AskT], answer: Callable[[AskT], msgspec.Struct]) -> Action:
    """An action with one result."""
    decoder = msgspec.json.Decoder(kind)

    def act(body: bytes, gone: Gone) -> Iterable[bytes]:
        del gone
        return [encode(answer(_decoded(decoder, body)))]

    return act


def stream(kind: type[AskT], answer: Callable[[AskT, Gone], Iterator[msgspec.Struct]]) -> Action:
    """An action with any number of results."""
    decoder = msgspec.json.Decoder(kind)

    def act(body: bytes, gone: Gone) -> Iterable[bytes]:
        return map(encode, answer(_decoded(decoder, body), gone))

    return act


def _decoded(decoder: msgspec.json.Decoder[AskT], body: bytes) -> AskT:
    try:
        return decoder.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"a request can't be read: {error}") from error


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's side of the server. It listens as soon as it is made."""

    def __init__(self, server: Server, address: str) -> None:
        self._server = server
        super().__init__(f"grpc+tcp://{address}")

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        return self._server.act(action.type, action.body, context.is_cancelled)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        del context
        return [(name, "") for name in sorted(self._server.actions)]


class Server:
    """Listens from the moment it is made; what it can do is in `actions`."""

    def __init__(self, address: str) -> None:
        self.actions: dict[str, Action] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._open = 0
        check_free(address)
        try:
            self._server = _FlightServer(self, address)
        except pyarrow.ArrowException as error:
            raise AddressUnusable(address, reason=str(error)) from error
        self.address = joined(host_and_port(address)[0], self._server.port)
        """Where clients reach it; a port 0 has been replaced by the real one."""

    def refuse(self) -> None:
        """Take nothing new; what is under way goes on."""
        self._closed = True

    def close(self) -> None:
        """Wait until what is under way has ended, and stop to listen. Not on the loop's thread."""
        self.refuse()
        self._server.shutdown()

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return self._open

    def act(self, name: str, body: Any, gone: Gone) -> Iterator[bytes]:
        """Carry an action out, on one of Flight's threads."""
        with self._lock:
            if self._open >= CALLS_MAX:
                raise _flight_error(ServerBusy())
            self._open += 1
        try:
            if self._closed:
                raise NodeClosing
            action = self.actions.get(name)
            if action is None:
                raise ActionUnknown(name, self.actions)
            if body.size > BODY_BYTES_MAX:
                raise BadRequest(
                    f"a request of {body.size} bytes is too long",
                    hint=f"At most {BODY_BYTES_MAX} bytes are allowed.",
                )
            yield from action(body.to_pybytes(), gone)
        except LowmarkError as error:
            raise _flight_error(error) from error
        except Exception as error:
            logger.exception("an action failed", extra={"action": name})
            raise _flight_error(NodeFailed(name, error)) from error
        finally:
            with self._lock:
                self._open -= 1


def _flight_error(error: LowmarkError) -> Exception:
    kind = flight.FlightServerError
    if isinstance(error, Unavailable) and not isinstance(error, _MAY_HAVE_HAPPENED):
        kind = flight.FlightUnavailableError  # so that any Flight client knows that it may retry
    # One line: it travels in a header of its own, too.
    failure: Exception = kind(" ".join(error.message.split())[:500], extra_info=encode_fault(error))
    return failure
