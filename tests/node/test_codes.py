"""What a client of any language hears of an error: gRPC's code, and a text that says what to do."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import lowmark
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, RowsLost, Unavailable
from lowmark.fault import decode_fault
from lowmark.group import CallLost, GroupBusy, NotLeader, OutcomeUnknown
from lowmark.node.action import Call
from lowmark.node.codes import CODES, Code, code_of
from lowmark.node.errors import ActionUnknown, PermissionDenied, ServerFull
from lowmark.node.listener import Listener
from lowmark.node.messages import HEADER, WHOLE
from lowmark.tokens import Unauthenticated
from node.raw_flight import METHODS, RawFlight

GUIDE = Path(__file__).parents[2] / "docs/guide/flight.md"
ERRORS: dict[str, LowmarkError] = {
    "NOT_FOUND": lowmark.errors.TableUnknown("ordres", known=["orders"]),
    "INVALID_ARGUMENT": Rejected("it is wrong", detail="A reason.", hint="Another way."),
    "UNAUTHENTICATED": Unauthenticated("no token", hint="Show one."),
    "PERMISSION_DENIED": PermissionDenied("not that", hint="Ask for it."),
    "UNIMPLEMENTED": ActionUnknown("nope", ["meta.get"]),
    "UNAVAILABLE": ServerFull("calls", limit=7),
    "CANCELLED": lowmark.errors.Cancelled("the run was ended"),
    "INTERNAL": Corrupt("a file is damaged", hint="Call a person."),
    "UNKNOWN": OutcomeUnknown("orders", why="it was sent"),
}


class Failing:
    """Answers for rows with an error."""

    def __init__(self) -> None:
        self.error: Exception = Rejected("nothing was chosen")
        self.late = False
        """Whether a read fails only after its schema was sent."""

    def check(self) -> None: ...

    def get(self, ticket: bytes) -> tuple[pa.Schema, Iterator[Any]]:
        del ticket
        if not self.late:
            raise self.error
        return pa.schema({"id": pa.int64()}), self._rows()

    def _rows(self) -> Iterator[Any]:
        yield pa.record_batch({"id": [1]})
        raise self.error

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        raise self.error

    exchange = put

    def flights(self) -> Iterator[Any]:
        raise self.error

    def info(self, descriptor: Any) -> Any:
        raise self.error

    schema = info

    def is_ours(self, asked: bytes) -> bool:
        return asked == b"ours"

    def refuse(self) -> None: ...

    def busy(self) -> bool:
        return False

    def end(self) -> None: ...


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    one = Listener("127.0.0.1:0")
    one.starting = False
    yield one
    one.close()


@pytest.fixture
def data(listener: Listener) -> Failing:
    data = Failing()

    def act(body: bytes, call: Call) -> Iterator[bytes]:
        raise data.error

    listener.data = data
    listener.actions["x"] = act
    return data


@pytest.fixture(scope="module")
def client(listener: Listener) -> Iterator[RawFlight]:
    with RawFlight(listener.address) as client:
        yield client


@pytest.mark.parametrize("code", ERRORS)
def test_every_call_ends_with_the_code_of_its_error(
    data: Failing, client: RawFlight, code: str
) -> None:
    # given a node that fails with an error
    data.error = error = ERRORS[code]
    # when a client of another language calls it, in any way
    heard = {method: client.call(method) for method in METHODS}
    data.late = True
    heard["DoGet, late"] = client.call("DoGet")
    # then it hears its code, and all that is known; of a schema some come as Unknown
    bare = code if code in {"NOT_FOUND", "INVALID_ARGUMENT", "UNIMPLEMENTED"} else "UNKNOWN"
    assert {method: one.code for method, one in heard.items()} == {
        **dict.fromkeys(heard, code),
        "GetSchema": bare,
    }
    wanted = (type(error).__name__, error.message, error.hint.removesuffix("."))
    for method, one in heard.items():
        assert all(part in one.text for part in wanted), (method, one)
        assert "Traceback" not in one.text, method
        assert ".py" not in one.text, method


@pytest.mark.parametrize("code", ERRORS)
def test_a_client_that_asks_for_it_gets_the_whole_error(
    data: Failing, client: RawFlight, code: str
) -> None:
    data.error = error = ERRORS[code]
    for method in METHODS:
        if method == "GetSchema":
            continue  # pyarrow sends no more than a code and a text there
        heard = client.call(method, headers=[(HEADER, WHOLE)])
        told = decode_fault(heard.extra)
        assert type(told) is type(error), method
        assert str(told) == str(error)
        # and a code at which nothing is retried that may have happened
        assert heard.code != "UNAVAILABLE" or code == "UNAVAILABLE"


def test_what_only_our_clients_ask_is_told_whole_without_a_header(
    data: Failing, listener: Listener, client: RawFlight
) -> None:
    # given clients of a release that sends none
    data.error = Rejected("no")
    listener.offer_to_ours({"mine": listener.actions["x"]})
    # then they hear by name what is wrong with their own calls
    for method, name in (("DoAction", "mine"), ("DoGet", "ours"), ("DoExchange", "ours")):
        assert isinstance(decode_fault(client.call(method, name).extra), Rejected)


def test_a_mistake_of_the_node_tells_nothing_of_its_insides(
    data: Failing, client: RawFlight, caplog: pytest.LogCaptureFixture
) -> None:
    data.error = ZeroDivisionError("in /a/secret/place.py")
    for method in METHODS:
        heard = client.call(method)
        assert heard.code == "UNKNOWN"  # it may have been done
        assert "ServerFailed: the server failed to answer" in heard.text
        assert "secret" not in heard.text
    assert "a call failed" in caplog.text


def test_a_long_error_reaches_every_client(data: Failing, client: RawFlight) -> None:
    # given texts, and values, that are longer than what gRPC takes in headers
    for kind in (Rejected, Unavailable, Conflict, Corrupt):
        data.error = kind("é" * 5_000, detail="why " * 2_000, hint="do " * 2_000)
        vars(data.error)["more"] = tuple(range(2_000))
        for headers in ([], [(HEADER, WHOLE)]):
            heard = client.call("DoAction", headers=headers)
            # then its code and its name arrive
            assert heard.code in {"INVALID_ARGUMENT", "UNAVAILABLE", "INTERNAL", "UNKNOWN"}
            assert kind.__name__ in heard.text or kind.__name__.encode() in heard.extra


def test_a_node_that_takes_no_calls_is_asked_again_by_every_client() -> None:
    # given a node that starts, and then one that closes
    listener = Listener("127.0.0.1:0")
    with RawFlight(listener.address) as client:
        starting = {method: client.call(method).code for method in METHODS}
        listener.data = Failing()
        listener.refuse()
        closing = {method: client.call(method).code for method in METHODS}
    listener.close()
    # then every call says that it may just be made again, that of a schema, too
    assert starting == closing == dict.fromkeys(METHODS, "UNAVAILABLE")


# -- which code an error has --------------------------------------------------------------------


def all_errors() -> list[type[LowmarkError]]:
    for module in pkgutil.walk_packages(lowmark.__path__, "lowmark."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, left = list[type[LowmarkError]](), [LowmarkError]
    while left:
        one = left.pop()
        found.append(one)
        left += one.__subclasses__()
    return [one for one in found if one.__module__.startswith("lowmark.")]


def test_every_error_has_a_code_and_every_name_an_error() -> None:
    errors = all_errors()
    names = {one.__name__.removeprefix("_") for one in errors}
    listed = [name for some in CODES.values() for name in some.split()]
    assert len(listed) == len({*listed})
    assert {*listed} - names == set()
    for one in errors:
        assert isinstance(code_of(one.__new__(one)), Code), one


MAY_HAVE_HAPPENED = (
    "OutcomeUnknown", "AppendFailed", "CallLost", "NodeSilent", "NodeClosed", "NotInForce",
    "EpochHalfBound", "TaskLost", "PeerLost",
)  # fmt: skip


def test_what_may_have_happened_is_never_at_a_code_that_is_retried() -> None:
    errors = all_errors()
    bases = tuple(one for one in errors if one.__name__ in MAY_HAVE_HAPPENED)
    assert len(bases) == len(MAY_HAVE_HAPPENED)
    for one in errors:
        if issubclass(one, bases):
            assert code_of(one.__new__(one)) is Code.UNKNOWN, one


def test_an_error_of_a_newer_node_is_not_retried_either() -> None:
    # given an error that a node of a later release has passed on
    fault = {"class": "AnswerMislaid", "kind": "Unavailable", "message": "it may be done"}
    told = decode_fault(msgspec.json.encode(fault))
    # then nothing says that nothing was done
    assert told is not None
    assert code_of(told) is Code.UNKNOWN


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (lambda: GroupBusy("g", why="much to do"), Code.UNAVAILABLE),
        (lambda: NotLeader("g", leader=2), Code.UNAVAILABLE),
        (lambda: CallLost("node 2", why="it broke"), Code.UNKNOWN),
        (lambda: RowsLost("rows are gone"), Code.INTERNAL),
        (lambda: Conflict("it moved"), Code.INVALID_ARGUMENT),
    ],
)
def test_an_error_without_a_code_of_its_own_has_its_parent_s(
    error: Callable[[], LowmarkError], code: Code
) -> None:
    assert code_of(error()) is code


def test_the_guide_lists_the_codes_as_they_are() -> None:
    table = re.findall(r"^\| (\w+) \| (`.*?) \|", GUIDE.read_text(), re.MULTILINE)
    told = {code: re.findall(r"`(\w+)`", names) for code, names in table}
    known = dir(lowmark.errors)  # what callers catch
    assert {code.value: told.get(code.value) for code in CODES} == {
        code.value: sorted(name for name in names.split() if name in known)
        for code, names in CODES.items()
    }
