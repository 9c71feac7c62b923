"""The node's server for clients: Arrow Flight actions.

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
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import pyarrow
from pyarrow import flight

from lowmark.catalog import NotInForce
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.fault import encode_fault
from lowmark.group import CallLost, OutcomeUnknown
from lowmark.node.addresses import check_free, joined
from lowmark.node.bridge import NodeClosed, NodeClosing, NodeSilent
from lowmark.node.messages import BODY_BYTES_MAX
from lowmark.runtime import AddressUnusable, host_and_port

logger = logging.getLogger(__name__)

CALLS_MAX = 512
CUT_S = 2.0
"""How long clients are cut off that do not let go, when the server is closed."""

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


class NodeStarting(Unavailable):
    """A node that can't do yet what it was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the node is still starting, and can't answer {name[:100]!r} yet",
            hint="Try again in a moment. `lowmark status` says what it waits for.",
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
            detail="The request may have been carried out all the same.",
            hint="See what the node says on stderr, and report it.",
        )


_MAY_HAVE_HAPPENED = (OutcomeUnknown, CallLost, NodeSilent, NodeClosed, NodeFailed, NotInForce)


def reply(kind: type[AskT], answer: Callable[[AskT], msgspec.Struct]) -> Action:
    """An action with one result."""
    decoder = msgspec.json.Decoder(kind)

    def act(body: bytes, gone: Gone) -> Iterable[bytes]:
        del gone
        return [encode(answer(decoded(decoder, body)))]

    return act


def stream(kind: type[AskT], answer: Callable[[AskT, Gone], Iterator[msgspec.Struct]]) -> Action:
    """An action with any number of results."""
    decoder = msgspec.json.Decoder(kind)

    def act(body: bytes, gone: Gone) -> Iterable[bytes]:
        return map(encode, answer(decoded(decoder, body), gone))

    return act


def decoded(decoder: msgspec.json.Decoder[AskT], body: bytes) -> AskT:
    """What an action was sent."""
    try:
        return decoder.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"a request can't be read: {error}") from error


class DataCalls(Protocol):
    """What a Flight server can be asked besides actions: see `lowmark.server`."""

    def get(self, context: Any, ticket: bytes) -> Any:
        """`DoGet`."""

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """`DoPut`."""

    def exchange(self, descriptor: Any, reader: Any, writer: Any, context: Any) -> None:
        """`DoExchange`."""

    def flights(self) -> Iterator[Any]:
        """`ListFlights`."""

    def info(self, descriptor: Any) -> Any:
        """`GetFlightInfo`."""

    def schema(self, descriptor: Any) -> Any:
        """`GetSchema`."""

    def refuse(self) -> None:
        """Take nothing new."""

    def end(self, ended: Callable[[], bool], *, within_s: float) -> None:
        """Cut clients off that do not let go, until the server has ended."""


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

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._server.in_flight_s_words("DoGet") as data:
            return data.get(context, ticket.ticket)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._server.in_flight_s_words("DoPut") as data:
            data.put(context, descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._server.in_flight_s_words("DoExchange") as data:
            data.exchange(descriptor, reader, writer, context)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        del context, criteria
        with self._server.in_flight_s_words("ListFlights") as data:
            yield from data.flights()

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        del context
        with self._server.in_flight_s_words("GetFlightInfo") as data:
            return data.info(descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        del context
        with self._server.in_flight_s_words("GetSchema") as data:
            return flight.SchemaResult(data.schema(descriptor))


class Server:
    """Listens from the moment it is made; what it can do is in `actions`."""

    def __init__(self, address: str) -> None:
        self.actions: dict[str, Action] = {}
        self.data: DataCalls | None = None
        """What answers for rows, as soon as it is there."""
        self.no_data: LowmarkError | None = None
        """Why there is nothing that answers for rows, if it can't be made."""
        self.starting = True
        """Whether there are more actions to come."""
        self._closed = False
        self._lock = threading.Lock()
        self._open = 0
        check_free(address)
        try:
            self._server = _FlightServer(self, address)
        except pyarrow.ArrowException as error:
            raise AddressUnusable(address, reason=str(error)) from error
        self.address = joined(host_and_port(address)[0], self._server.port)
        """Where it listens; a port 0 has been replaced by the real one."""

    @contextlib.contextmanager
    def in_flight_s_words(self, what: str) -> Iterator[DataCalls]:
        """What answers for rows; whatever goes wrong with it as Flight carries it."""
        try:
            if self._closed or self.data is None:
                # Or it is about to be there: either way, clients ask again.
                raise NodeClosing if self.no_data is None else self.no_data.again()
            yield self.data
        except LowmarkError as error:
            raise _flight_error(error) from error
        except (flight.FlightError, pyarrow.ArrowException, OSError):
            raise
        except Exception as error:
            logger.exception("a call failed", extra={"call": what})
            raise _flight_error(NodeFailed(what, error)) from error

    def refuse(self) -> None:
        """Take nothing new; what is under way goes on."""
        self._closed = True
        if self.data is not None:
            self.data.refuse()

    def close(self) -> None:
        """Wait until what is under way has ended, and stop to listen. Not on the loop's thread."""
        self.refuse()
        if self.data is None:
            self._server.shutdown()
            return
        ending = threading.Thread(target=self._server.shutdown, name="lowmark-end", daemon=True)
        ending.start()
        self.data.end(lambda: not ending.is_alive(), within_s=CUT_S)
        ending.join()

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
                raise NodeStarting(name) if self.starting else ActionUnknown(name, self.actions)
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
