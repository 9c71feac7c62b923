"""What a server keeps for its clients: as long as they are heard of, and not longer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import lowmark
from eventually import eventually
from lowmark import errors
from lowmark.backend.errors import BatchesMoved
from lowmark.backend.protocol import Request
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.values import BatchRange, Hold, ReadRange
from lowmark.client import Database
from lowmark.server.sessions import Holding, Sessions
from server.world import COLUMNS, Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", hold_ms=400) as one:
        yield one


@pytest.fixture
def db(served: Served) -> Iterator[Database]:
    with lowmark.connect(served.address) as database:
        yield database


def rows(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": number, "status": "new"} for number in range(first, end)]


def fall_silent(db: Database) -> None:
    """As if its process was stopped."""
    backend = db.backend
    assert isinstance(backend, RemoteBackend)
    backend._renew = lambda: None  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_client_that_is_heard_of_keeps_what_it_holds(served: Served, db: Database) -> None:
    # given a reader that holds rows, and reads none of them
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 5))
    reader = orders.read()
    (hold,) = served.backend._kept
    # when far more time has passed than a silent client has, then it is still there
    over = threading.Event()
    over.wait(1.2)
    assert list(served.backend._kept) == [hold]
    assert len(reader.to_pylist()) == 5
    eventually(lambda: not served.backend._kept)


@pytest.mark.slow
def test_a_silent_client_holds_nothing_after_its_time_and_hears_of_it(
    served: Served, db: Database
) -> None:
    # given a client that holds a view, history and files, and has fallen silent
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 5))
    table, backend = orders.descriptor.id, db.backend
    fall_silent(db)
    view, history, files = (Hold.drawn() for _ in range(3))
    backend.hold(table, {0: ReadRange(0, None)}, holder="a test", why="it reads", hold=view)
    backend.hold_history(backend.now().time, "it looks back", hold=history)
    backend.hold_files(["one"], hold=files)
    assert len(served.backend._kept) == 2
    # when its time is over, then nothing is kept
    eventually(lambda: not served.backend._kept and not served.backend.files_in_use())
    # and the client hears it by name
    with pytest.raises(errors.HoldUnknown):
        backend.wait(view, 1)
    with pytest.raises(errors.HoldUnknown):
        backend.history_lost(history)
    backend.release(files)


@pytest.mark.slow
def test_rows_that_went_while_a_client_was_silent_are_named_so(
    served: Served, db: Database
) -> None:
    # given rows that were compacted and cut, and a client that holds something
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 10))
    orders.append(rows(0, 10))
    db.advance_watermark("now")
    assert orders.compact(engine="local").state == "done"
    gone, backend = [BatchRange(0, (10_000,))], db.backend
    table = orders.descriptor.id
    hold = backend.hold_files(["one"])
    # then it is told that such rows have moved, which is a fault if they were held
    with pytest.raises(BatchesMoved):
        next(backend.batches(table, 0, gone, held=True))
    # when it has been silent for too long, then it is told that its hold is not known any more
    fall_silent(db)
    eventually(lambda: not served.backend.files_in_use())
    with pytest.raises(errors.HoldUnknown, match=str(hold.number)):
        next(backend.batches(table, 0, gone, held=True))


@pytest.mark.slow
def test_a_cut_is_held_by_readers_of_clients_and_not_by_those_that_were_closed(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given rows that are in a ledger, too; and a client whose releases wait for a moment
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 5))
    served.db.advance_watermark("now")
    assert orders.compact(engine="local", trim=False).state == "done"
    backend = db.backend
    assert isinstance(backend, RemoteBackend)
    monkeypatch.setattr(backend, "_wake", SimpleQueue())  # its thread is not woken
    # when a cut is asked for while a reader of the client is open, then it is held by that
    reader = orders.read()
    trimmed = served.db["orders"].trim({0: 5})[0]
    assert (trimmed.safe.position, len(trimmed.safe.held_by)) == (0, 1)
    assert trimmed.safe.held_by[0].holder.startswith("a reader of orders")
    # when the reader is closed, and the same client asks for the cut, then it is made
    reader.close()
    assert orders.trim({0: 5})[0].safe.position == 5


@pytest.mark.slow
def test_a_run_of_a_client_is_not_in_the_way_of_its_own_cut(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 5))
    served.db.advance_watermark("now")
    # given a client whose releases never come
    monkeypatch.setattr(db.backend, "_release", lambda _: None)
    # when it compacts, then what was compacted is cut
    (part,) = orders.compact(engine="local").partitions
    assert part.trimmed_to == 5


def test_two_that_wait_for_the_same_hold_both_hear_of_a_change(db: Database) -> None:
    # given two threads that wait with one hold
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    backend = db.backend
    held = backend.hold(
        orders.descriptor.id, {0: ReadRange(0, None)}, holder="a test", why="it follows"
    )
    before = backend.wait(held.hold, 0)
    heard: list[int] = []

    def wait() -> None:
        seen = before
        while seen == before:
            seen = backend.wait(held.hold, 5, seen=before)
        heard.append(seen)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    # when a row comes, then each of them hears of it
    orders.append(rows(0, 1))
    for thread in threads:
        thread.join(30)
    assert len(heard) == 2
    # and one whose answer was lost hears of it when it asks again
    assert backend.wait(held.hold, 5, seen=before) > before
    backend.release(held.hold)


def test_a_client_that_closes_leaves_nothing_behind(served: Served) -> None:
    with lowmark.connect(served.address) as db:
        orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
        orders.append(rows(0, 5))
        readers = [orders.read(), orders.read(follow=True)]
        assert len(served.backend._kept) == 2
    eventually(lambda: not served.backend._kept)
    del readers


def test_a_client_is_silent_from_its_last_call_on() -> None:
    # given a clock that is turned by hand
    now, released = 0.0, list[int]()
    take: Callable[[Hold], None] = lambda hold: released.append(hold.number)  # noqa: E731
    sessions = Sessions(take, hold_ms=1_000, clock=lambda: now)
    sessions.hear(7, b"")
    sessions.add(7, Hold(1))
    sessions.add(7, Hold(2))
    sessions.discard(7, Hold(2))
    # when it is heard of at the last moment
    now = 1.0
    assert sessions.expire() == 0
    sessions.hear(7, b"")
    now = 2.0
    assert sessions.expire() == 0
    assert sessions.lost(7) is None
    # then its time begins anew, and ends
    now = 2.01
    assert sessions.expire() == 1
    assert released == [1]
    assert sessions.lost(7) == 1
    sessions.close()


def test_a_session_is_its_tokens_and_a_hold_its_sessions() -> None:
    # given two clients, each with a hold
    released = list[int]()
    sessions = Sessions(lambda hold: released.append(hold.number), hold_ms=60_000)
    for number in (7, 8):
        assert sessions.hear(number, b"token %d" % number)
        assert sessions.add(number, Hold(number))
    # then neither has, takes or releases what is the other's, by the number
    assert not sessions.add(8, Hold(7))
    assert not sessions.has(8, Hold(7))
    assert not sessions.discard(8, Hold(7))
    # and with another token one is not taken for the other
    assert not sessions.hear(7, b"token 8")
    # when one of them is closed, then the number is free
    sessions.leave(7)
    assert released == [7]
    assert sessions.hear(7, b"token 8")
    assert sessions.add(8, Hold(7))
    assert sessions.discard(8, Hold(7))
    assert not sessions.discard(8, Hold(7))
    sessions.close()
    assert released == [7, 8]


@pytest.mark.parametrize("end", ["leave", "expire", "close"])
def test_a_hold_that_is_taken_while_its_session_ends_is_let_go(
    served: Served, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    # given a session that ends while a hold of it is being taken
    service, backend = served.server.endpoint._service, served.backend
    sessions, take = service.sessions, backend.hold_files

    def taking(files: Sequence[str], *, hold: Hold) -> Hold:
        if end == "leave":
            sessions.leave(7)
        elif end == "close":
            sessions.close()
        else:
            sessions._sessions[7].heard_s -= 1
            sessions.expire()
        return take(files, hold=hold)

    monkeypatch.setattr(backend, "hold_files", taking)
    # when it is there, then it is let go, and its client is not told that it has it
    with pytest.raises(errors.HoldUnknown):
        service._value(Request("", 7, "hold_files", (("one",),), {"hold": Hold.drawn()}))
    assert not backend.files_in_use()


def test_a_hold_that_is_taken_while_the_server_ends_is_held_at_the_next_one(
    served: Served, db: Database
) -> None:
    # given a client that is about to hold history, at a node that is busy with something else
    time, mine = db.backend.now().time, Hold.drawn()
    sessions = served.server.endpoint._service.sessions
    busy, go_on = threading.Event(), threading.Event()

    def be_busy() -> None:
        busy.set()
        go_on.wait(30)

    served.backend.tell(be_busy)
    assert busy.wait(30)
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(db.backend.hold_history, time, "it looks back", hold=mine)
        eventually(lambda: any(one.holds for one in sessions._sessions.values()))
        # when the server ends, and keeps nothing for clients any more, before it is held
        ended = threads.submit(served.server.close)
        eventually(lambda: not sessions._sessions)
        go_on.set()
        ended.result(30)
        served.serve()
        # then the client has it from the next server, and hears of no error
        assert held.result(30) == mine
    assert mine.number in served.backend._kept


def test_which_clients_hold_anything_is_told_before_and_after() -> None:
    # given a clock that is turned by hand
    now, told = 0.0, list[set[int]]()
    history = list[bool]()

    def note(holding: Holding) -> None:
        told.append(set(holding.sessions))
        history.append(holding.history)

    sessions = Sessions(
        lambda _: None,
        hold_ms=60_000,
        clock=lambda: now,
        on_held=note,
    )
    assert told == []
    # when the first hold is about to be there, then that is told; the second says nothing new
    sessions.add(7, Hold(1))
    sessions.add(7, Hold(2))
    assert told == [{7}]
    # and it is told again while there are any
    now = 15.0
    sessions._tell_again()
    assert told == [{7}, {7}]
    # and when there are none any more
    sessions.leave(7)
    sessions._tell_again()
    sessions._tell_again()
    assert told == [{7}, {7}, set()]
    # and at the end, whether any are left
    sessions.add(8, Hold(3))
    sessions.close()
    assert told == [{7}, {7}, set(), {8}, {8}]
    assert not any(history)


def test_that_a_client_holds_history_is_told_before_it_does() -> None:
    told = list[bool]()
    sessions = Sessions(
        lambda _: None, hold_ms=60_000, on_held=lambda holding: told.append(holding.history)
    )
    # given a client that holds rows
    sessions.add(7, Hold(1))
    # when it is about to hold history, then that is told, once
    sessions.add(7, Hold(2), history=True)
    sessions.add(7, Hold(3), history=True)
    assert told == [False, True]
    # and when it does not any more, though it holds rows still
    sessions.discard(7, Hold(2))
    sessions._tell_again()
    assert told == [False, True]
    sessions.discard(7, Hold(3))
    sessions._tell_again()
    sessions.close()
    assert told == [False, True, False, False]


def test_no_hold_is_kept_for_a_client_after_the_end() -> None:
    sessions = Sessions(lambda _: None, hold_ms=1_000)
    sessions.close()
    sessions.add(7, Hold(1))
    assert not sessions.has(7, Hold(1))


def test_a_release_waits_for_nothing_not_even_on_a_thread_that_looks_for_the_server(
    served: Served, db: Database
) -> None:
    # given a reader that is collected while its thread looks for the server, as any code may be
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 5))
    reader = orders.read()
    connection = db.backend._connection  # type: ignore[attr-defined]

    call, releases = connection.call, list[threading.Thread]()

    def watched(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "release":
            releases.append(threading.current_thread())
        return call(name, *arguments, **named)

    def locate(left_s: float) -> str:
        reader.close()
        return served.address

    connection.call = watched
    connection._locate, connection._away = locate, True
    # when it is found, then the thread goes on, and another one has the hold ended
    done = threading.Thread(target=orders.get, args=(1,), daemon=True)
    done.start()
    done.join(30)
    assert not done.is_alive()
    eventually(lambda: not served.backend._kept)
    assert releases
    assert done not in releases


@pytest.mark.slow
def test_a_release_that_did_not_get_through_is_sent_again(served: Served, db: Database) -> None:
    # given two readers, and a server that refuses every release for now
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 5))
    kept, left = orders.read(), orders.read()
    own: Any = served.server.endpoint._service._own
    release, refused = own["release"], list[object]()

    def full(request: object) -> None:
        refused.append(request)
        raise errors.ServerFull("calls", limit=1)

    own["release"] = full
    # when one is closed, and the server has room again
    left.close()
    eventually(lambda: len(refused) >= 2)
    assert len(served.backend._kept) == 2
    own["release"] = release
    # then its hold ends, while the client goes on
    eventually(lambda: len(served.backend._kept) == 1)
    kept.close()
