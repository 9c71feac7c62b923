"""Before a client has shown who it is, it gets a handshake and nothing else, and not for long."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pyarrow import flight

from eventually import eventually
from lowmark.node.callers import OWNER
from lowmark.node.listener import Listener
from lowmark.node.strangers import Door
from lowmark.runtime import host_and_port
from lowmark.tokens import Caller, Unauthenticated
from node.half_sent import half_sent

TOKEN = "the right one"
STRANGERS = 20
MIB = 1 << 20


class OneToken:
    def caller(self, bearer: str | None) -> Caller:
        if bearer != TOKEN:
            raise Unauthenticated("this is not the token")
        return OWNER

    def check(self, caller: Caller, *, last_known: bool = False) -> None:
        """It is never taken away."""


def listening(door: Door) -> Listener:
    listener = Listener("127.0.0.1:0", callers=OneToken(), door=door)
    listener.actions["echo"] = lambda body, _: [body]
    return listener


class Client:
    """A Flight client with a token."""

    def __init__(self, listener: Listener, token: str = TOKEN) -> None:
        self._flight = flight.FlightClient(f"grpc+tcp://{listener.address}")
        headers = [(b"authorization", f"Bearer {token}".encode())]
        self._options = flight.FlightCallOptions(headers=headers, timeout=20)

    def echo(self, body: bytes = b"x") -> bytes:
        (answer,) = self._flight.do_action(flight.Action("echo", body), self._options)
        return bytes(answer.body.to_pybytes())

    def is_let_in(self) -> bool:
        """Whether it has shown its token in time; on a busy machine the first attempts may not."""
        try:
            return self.echo() == b"x"
        except flight.FlightUnavailableError:
            return False

    def close(self) -> None:
        self._flight.close()


@contextlib.contextmanager
def connected(listener: Listener) -> Iterator[socket.socket]:
    with socket.create_connection(host_and_port(listener.address), timeout=20) as one:
        yield one


def is_cut(one: socket.socket) -> bool:
    """Whether the other side has ended a connection; what it says before is passed over."""
    one.setblocking(False)
    try:
        while one.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_who_shows_nothing_is_cut_off_and_who_has_shown_a_token_stays() -> None:
    # given a client that has shown its token, and waits, and one that never says a word
    with contextlib.closing(listening(Door(patience_s=0.5))) as listener, ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(Client(listener)))
        eventually(client.is_let_in)
        silent = [stack.enter_context(connected(listener)) for _ in range(5)]
        # when their time is over, then the silent ones are cut off
        eventually(lambda: all(map(is_cut, silent)))
        # and the first one goes on by the same connection
        assert client.echo() == b"x"


def test_calls_that_are_refused_do_not_make_a_client_known() -> None:
    with contextlib.closing(listening(Door(patience_s=0.5))) as listener, ExitStack() as stack:
        # given a client that asks again and again with a token that is none, by one connection
        asks = stack.enter_context(contextlib.closing(Client(listener, "no token")))
        over, ends = threading.Event(), list[Exception]()

        def ask() -> None:
            while not over.is_set() and len(ends) < 3:
                try:
                    asks.echo()
                except flight.FlightUnauthenticatedError:
                    continue
                except flight.FlightError as error:
                    ends.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        # then its connections are ended
        try:
            eventually(lambda: len(ends) == 3)
        finally:
            over.set()
            thread.join()


def test_slow_senders_are_strangers() -> None:
    with contextlib.closing(listening(Door(patience_s=0.5))) as listener, ExitStack() as stack:
        slow = stack.enter_context(connected(listener))
        preface = iter(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(1 << 16))

        def sends_one_byte_and_is_cut() -> bool:
            with contextlib.suppress(OSError):
                slow.setblocking(True)
                slow.send(bytes([next(preface)]))
            return is_cut(slow)

        eventually(sends_one_byte_and_is_cut)


def test_strangers_that_are_too_many_make_room_for_the_next() -> None:
    # given as many silent connections as there may be, with all the time of the world
    door = Door(patience_s=600, strangers_max=STRANGERS)
    with contextlib.closing(listening(door)) as listener, ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(Client(listener)))
        eventually(client.is_let_in)
        first = [stack.enter_context(connected(listener)) for _ in range(STRANGERS)]
        # when as many come again, then the same number is left
        others = [stack.enter_context(connected(listener)) for _ in range(STRANGERS)]
        eventually(lambda: sum(map(is_cut, first + others)) == STRANGERS)
        # and new clients with a token come in, and those that are in stay
        new = stack.enter_context(contextlib.closing(Client(listener)))
        eventually(new.is_let_in)
        assert client.echo() == b"x"


def test_at_the_limit_of_connections_no_stranger_is_kept() -> None:
    door = Door(patience_s=600, connections_max=3)
    with contextlib.closing(listening(door)) as listener, ExitStack() as stack:
        # given as many clients as there may be
        clients = [stack.enter_context(contextlib.closing(Client(listener))) for _ in range(3)]
        for client in clients:
            assert client.echo() == b"x"
        # when strangers come, then they are cut off, and the clients go on
        silent = [stack.enter_context(connected(listener)) for _ in range(2)]
        eventually(lambda: all(map(is_cut, silent)))
        for client in clients:
            assert client.echo() == b"x"


def test_a_stranger_that_sends_more_than_a_request_has_is_cut_off() -> None:
    # given two strangers with all the time of the world, and a limit to what each may send
    door = Door(patience_s=600, stranger_bytes_max=2 * MIB)
    with contextlib.closing(listening(door)) as listener, ExitStack() as stack:
        less, its = stack.enter_context(half_sent(listener.address))
        more, other = stack.enter_context(half_sent(listener.address))
        # when the first stays a little below it, and the second sends more, of a longer request
        less.begin()
        assert less.send(2 * MIB - (64 << 10))
        more.begin()
        sent = more.send(2 * MIB + 1)
        # then the second is cut off, by a reset, which a client sees that only sends
        eventually(lambda: not sent or other.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0)
        # and the first is not
        assert not is_cut(its)


def test_what_all_strangers_send_together_is_bounded() -> None:
    # given strangers that each send less than one may, and together more than all may
    door = Door(patience_s=600, stranger_bytes_max=4 * MIB, strangers_bytes_max=6 * MIB)
    with contextlib.closing(listening(door)) as listener, ExitStack() as stack:
        ends = []
        for count in (MIB, 3 * MIB, 3 * MIB):
            one, its = stack.enter_context(half_sent(listener.address))
            one.begin()
            one.send(count)
            ends.append(its)
        # then as many are cut off as it takes, and those that have sent least stay
        eventually(lambda: sum(map(is_cut, ends)) == 1)
        assert not is_cut(ends[0])


def test_no_client_sends_a_request_without_an_end() -> None:
    door = Door(patience_s=600, stranger_bytes_max=2 * MIB, client_bytes_max=3 * MIB)
    with contextlib.closing(listening(door)) as listener, ExitStack() as stack:
        # given two clients with a token, both of whose first call is over
        client = stack.enter_context(contextlib.closing(Client(listener)))
        assert client.echo() == b"x"
        one, _ = stack.enter_context(half_sent(listener.address))
        one.ask("echo", bearer=TOKEN)
        # when one of them begins a request and goes on and on with it, then it is cut off
        one.begin(bearer=TOKEN)
        eventually(lambda: not one.send(64 << 10))
        # and the other sends as much as it likes, call by call
        for _ in range(8):
            assert client.echo(bytes(MIB)) == bytes(MIB)


@pytest.mark.release
def test_a_thousand_idle_connections_cost_a_bounded_amount_of_memory() -> None:
    with contextlib.closing(listening(Door(patience_s=5))) as listener, ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(Client(listener)))
        eventually(client.is_let_in)
        before = resident()
        idle = [stack.enter_context(connected(listener)) for _ in range(1_000)]
        most = resident()
        for _ in range(100):
            assert client.echo() == b"x"
        eventually(lambda: all(map(is_cut, idle)))
        assert most - before < 200 << 20
        assert client.echo() == b"x"


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4_096


def test_strangers_that_take_all_handles_are_cut_off_all_the_same() -> None:
    # given a process that may have few handles, and as many strangers as it takes to have them all
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = len(os.listdir("/proc/self/fd")) + 60
    with ExitStack() as stack:
        listener = stack.enter_context(
            contextlib.closing(listening(Door(patience_s=600, strangers_max=5)))
        )
        client = stack.enter_context(contextlib.closing(Client(listener)))
        eventually(client.is_let_in)
        outside = stack.enter_context(connecting(listener, 200))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        outside()
        # then they are cut off, and clients go on
        new = stack.enter_context(contextlib.closing(Client(listener)))
        eventually(new.is_let_in)
        eventually(client.is_let_in)


@contextlib.contextmanager
def connecting(listener: Listener, count: int) -> Iterator[Callable[[], None]]:
    """Another process that connects that often, when it is asked to, and says no word."""
    host, port = host_and_port(listener.address)
    program = (
        "import socket, sys\n"
        "sys.stdin.readline()\n"
        f"all = [socket.create_connection(({host!r}, {port})) for _ in range({count})]\n"
        "print('there', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, said = process.stdin, process.stdout

        def connect() -> None:
            given.write("\n")
            given.flush()
            assert said.readline() == "there\n"

        yield connect
        process.kill()
