"""Who makes a call is asked at one place, before anything else is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from lowmark.errors import PermissionDenied, Rejected, Unauthenticated
from lowmark.node import NodeClient
from lowmark.node.action import Call
from lowmark.node.callers import OWNER, AnyCaller, bearer_of
from lowmark.node.listener import Listener, caller_of
from lowmark.tokens import Caller, TokensUnknown
from node.raw_flight import METHODS, RawFlight
from node.test_codes import Failing

ETL = Caller("etl", "admin")


class Known(AnyCaller):
    """Lets in one token, and knows another one that may nothing."""

    def caller(self, bearer: str | None) -> Caller:
        if bearer == "lm1_good":
            return ETL
        if bearer == "lm1_old":
            raise PermissionDenied("token old may do nothing here")
        raise Unauthenticated("this node wants a token", hint="Send one.")


class Naming(Failing):
    """Says whose stream of rows it is."""

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        raise Rejected(f"a call by {caller_of(context)}")

    exchange = put


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener("127.0.0.1:0", callers=Known())
    one.data = Naming()
    one.starting = False
    one.actions["x"] = lambda _body, call: [str(call.caller).encode()]
    yield one
    one.close()


def noting(listener: Listener) -> list[Call]:
    """The calls that an action hears of, from now on."""
    heard = list[Call]()

    def act(body: bytes, call: Call) -> Iterator[bytes]:
        heard.append(call)
        yield body

    listener.actions["x"] = act
    return heard


def test_no_call_is_let_in_without(listener: Listener) -> None:
    asked = noting(listener)
    with RawFlight(listener.address) as client:
        for method in (*METHODS, "ListActions"):
            # given nothing, something else than a token, a wrong one, and one that is not enough
            for headers in ([], [("authorization", "Basic lm1_good")], [("token", "lm1_good")]):
                heard = client.call(method, headers=headers)
                assert heard.code == "UNAUTHENTICATED", (method, headers)
                assert "this node wants a token" in heard.text
            heard = client.call(method, headers=[("authorization", "Bearer lm1_wrong")])
            assert heard.code == "UNAUTHENTICATED", method
            heard = client.call(method, headers=[("authorization", "Bearer lm1_old")])
            assert heard.code == "PERMISSION_DENIED", method
            assert "lm1" not in heard.text
    assert asked == []


@pytest.mark.parametrize("word", ["Bearer", "bearer", "BEARER"])
def test_a_call_knows_who_makes_it(listener: Listener, word: str) -> None:
    headers = [("authorization", f"{word} lm1_good")]
    heard = noting(listener)
    with RawFlight(listener.address) as client:
        assert client.call("DoAction", headers=headers).code == "OK"
        assert [call.caller for call in heard] == [ETL]
        assert "name='etl'" in client.call("DoPut", headers=headers).text


def test_without_callers_every_client_is_the_owner() -> None:
    listener = Listener("127.0.0.1:0")
    heard = noting(listener)
    with RawFlight(listener.address) as client:
        client.call("DoAction")
        client.call("DoAction", headers=[("authorization", "Bearer whatever")])
    listener.close()
    assert [call.caller for call in heard] == [OWNER, OWNER]


def test_a_client_of_ours_hears_by_name_that_it_is_not_let_in(listener: Listener) -> None:
    with NodeClient(listener.address) as client, pytest.raises(Unauthenticated) as refused:
        client.status()
    assert refused.value.hint == "Send one."
    with pytest.raises(Unauthenticated, match="wants a token"):
        lowmark.connect(listener.address, timeout_s=20)


def test_a_mistake_of_who_knows_callers_lets_no_call_in(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(AnyCaller):
        def caller(self, bearer: str | None) -> Caller:
            raise KeyError(bearer)

    listener.callers = Broken()
    with RawFlight(listener.address) as client:
        heard = client.call("DoAction", headers=[("authorization", "Bearer lm1_good")])
    assert heard.code == "UNKNOWN"
    assert "lm1" not in heard.text


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, None),
        ({"authorization": []}, None),
        ({"authorization": ["Bearer"]}, None),
        ({"authorization": ["Bearer  "]}, None),
        ({"authorization": ["Basic x"]}, None),
        ({"authorization": ["Bearer a b"]}, "a b"),
        ({"AUTHORIZATION": [" bEARER  x "]}, "x"),
        ({"authorization": ["Basic x", "Bearer y"]}, "y"),
    ],
)
def test_a_token_is_read_in_any_case(headers: dict[str, list[str]], token: str | None) -> None:
    assert bearer_of(headers) == token


class OnceOnly(Known):
    """Lets a token in until it is told not to."""

    def __init__(self) -> None:
        self.over = False

    def check(self, caller: Caller, *, last_known: bool = False) -> None:
        if self.over:
            raise TokensUnknown(silent_s=6.0)


def test_what_was_done_is_said_whatever_became_of_the_token(listener: Listener) -> None:
    # given an action that changes something, while this node loses sight of the tokens
    callers = listener.callers = OnceOnly()
    done: list[bytes] = []

    def changes(body: bytes, _: Call) -> list[bytes]:
        done.append(body)
        callers.over = True
        return [b"done"]

    listener.actions["meta.put"] = changes
    # then its answer is given: a refusal would have the client repeat it
    results = listener.act("meta.put", pa.py_buffer(b"x"), Call(caller=ETL))
    assert list(results) == [b"done"]
    # and the next call is refused before anything is done
    with pytest.raises(flight.FlightUnavailableError):
        list(listener.act("meta.put", pa.py_buffer(b"y"), Call(caller=ETL)))
    assert done == [b"x"]


def test_what_goes_on_ends_with_its_token(listener: Listener) -> None:
    callers = listener.callers = OnceOnly()
    listener.actions["meta.watch"] = lambda _body, _call: iter([b"started", b"event"])
    results = listener.act("meta.watch", pa.py_buffer(b""), Call(caller=ETL))
    assert next(results) == b"started"
    callers.over = True
    with pytest.raises(flight.FlightUnavailableError):
        next(results)
