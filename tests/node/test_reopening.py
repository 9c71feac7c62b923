"""A listener that is closed and opened in place, with other certificates."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from pyarrow import flight

from eventually import eventually
from lowmark.node.action import Call
from lowmark.node.listener import Certificates, Listener
from lowmark.runtime import AddressInUse, AddressUnusable
from lowmark.runtime.tls import TlsFiles
from runtime.certificates import Authority, serial_at


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def shown(files: TlsFiles) -> Certificates:
    return Certificates(
        certificate=Path(files.certificate).read_bytes(), key=Path(files.key).read_bytes()
    )


@pytest.fixture
def listener(signer: Authority) -> Iterator[Listener]:
    made = Listener("127.0.0.1:0", certificates=shown(signer.files("127.0.0.1")))
    made.actions["short"] = lambda body, call: [b"there"]
    yield made
    made.close()


def client_of(listener: Listener, signer: Authority) -> flight.FlightClient:
    return flight.FlightClient(
        listener.location,
        tls_root_certs=Path(signer.path).read_bytes(),
        generic_options=[("grpc.use_local_subchannel_pool", 1)],
    )


def asked(client: flight.FlightClient, name: str = "short") -> list[bytes]:
    return [one.body.to_pybytes() for one in client.do_action(flight.Action(name, b""))]


def test_what_is_under_way_goes_on_while_others_are_shown_the_new_certificate(
    listener: Listener, signer: Authority
) -> None:
    # given a call that goes on
    goes_on = threading.Event()

    def act(body: bytes, call: Call) -> Iterable[bytes]:
        del body, call
        yield b"before"
        goes_on.wait(30)
        yield b"after"

    listener.actions["long"] = act
    before = serial_at(listener.address)
    with client_of(listener, signer) as client:
        results = client.do_action(flight.Action("long", b""))
        assert next(results).body.to_pybytes() == b"before"
        # when the listener gets another certificate
        new = signer.files("127.0.0.1")
        reopening = threading.Thread(target=listener.reopen, args=(shown(new),))
        reopening.start()
        # then others are shown it, at the same address, and are answered
        eventually(lambda: serial_at(listener.address) not in {0, before})
        with client_of(listener, signer) as other:
            assert asked(other) == [b"there"]
        # and the call ends as if nothing was
        assert reopening.is_alive()
        goes_on.set()
        assert next(results).body.to_pybytes() == b"after"
        # and its client comes back by itself
        reopening.join(30)
        assert not reopening.is_alive()
        eventually(lambda: _answers(client))


def _answers(client: flight.FlightClient) -> bool:
    try:
        return asked(client) == [b"there"]
    except flight.FlightUnavailableError:
        return False


def test_certificates_that_can_not_be_used_leave_those_before(
    listener: Listener, signer: Authority
) -> None:
    before = serial_at(listener.address)
    with pytest.raises(AddressUnusable):
        listener.reopen(Certificates(certificate=b"rubbish", key=b"rubbish"))
    assert serial_at(listener.address) == before
    with client_of(listener, signer) as client:
        assert asked(client) == [b"there"]


class Robbed(Listener):
    """One whose port another process takes in the moment in which it is free."""

    thief: socket.socket | None = None
    steals = False

    def _begin_end(self) -> Callable[[], bool]:
        ended = super()._begin_end()
        if self.steals:
            eventually(ended)
            host, _, port = self.address.rpartition(":")
            self.thief = socket.create_server((host, int(port)))
        return ended


def test_a_listener_whose_port_was_taken_may_be_opened_again_later(
    signer: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowmark.node.listener._FREE_S", 0.05)
    listener = Robbed("127.0.0.1:0", certificates=shown(signer.files("127.0.0.1")))
    listener.actions["short"] = lambda body, call: [b"there"]
    # given one that lost its port when it was opened again
    listener.steals = True
    with pytest.raises(AddressInUse):
        listener.reopen(shown(signer.files("127.0.0.1")))
    assert _is_deaf(listener)
    # when the port is free again
    assert listener.thief is not None
    listener.thief.close()
    listener.steals = False
    # then it comes back
    listener.reopen(shown(signer.files("127.0.0.1")))
    assert not _is_deaf(listener)
    with client_of(listener, signer) as client:
        assert asked(client) == [b"there"]
    listener.close()


def _is_deaf(listener: Listener) -> bool:
    return not listener.listens


def test_a_listener_that_is_closed_while_it_drains_ends_in_time(
    listener: Listener, signer: Authority
) -> None:
    # given a call that never ends, and a listener that was opened again beside it
    over, others = threading.Event(), set(threading.enumerate())

    def act(body: bytes, call: Call) -> Iterable[bytes]:
        del body
        yield b"before"
        while not call.gone() and not over.wait(0.01):
            pass

    listener.actions["long"] = act
    before = serial_at(listener.address)
    with client_of(listener, signer) as client:
        results = client.do_action(flight.Action("long", b""))
        assert next(results).body.to_pybytes() == b"before"
        new = signer.files("127.0.0.1")
        reopening = threading.Thread(target=listener.reopen, args=(shown(new),))
        reopening.start()
        eventually(lambda: serial_at(listener.address) not in {0, before})
        # when it is closed
        listener.close()
        # then nothing waits for that call, and the Flight server that had it has ended, too
        left = {one for one in threading.enumerate() if one.name == "lowmark-end"} - others
        assert not any(one.is_alive() for one in left)
        reopening.join(30)
        assert not reopening.is_alive()
        over.set()
