"""What the embedded backend keeps for its callers: it stays while it is held, and not longer."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compaction.world import World
from eventually import eventually
from inside import backend_of, on_loop, partition_of
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import Closed, RequestRefused
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.values import Hold, ReadRange
from lowmark.errors import Unavailable
from lowmark.group import Future, GroupStopped
from lowmark.node import NodeSilent
from lowmark.runtime import COUNTER_BITS
from lowmark.server import Server
from lowmark.table import (
    BelowWatermark,
    Partition,
    PartitionNotHere,
    ReleaseLease,
    TakeLease,
    TimeInFuture,
    View,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data", partitions=2) as one:
        one.write(*((f"key {number}", number) for number in range(40)))
        yield one


class ReaderHolds:
    """Which readers hold entries of the partitions' logs. May be asked on any thread."""

    def __init__(self, world: World) -> None:
        self._logs = [partition_of(world.table, number).group.log for number in range(2)]

    def now(self) -> list[str]:
        holds = [hold for log in self._logs for hold in log.state.holds]
        return [hold.holder for hold in holds if hold.kind == "reader"]


def test_the_files_of_each_ledger_can_be_let_go_alone(world: World) -> None:
    # given a hold on two partitions with their ledgers
    world.compact()
    backend, table = backend_of(world.table), world.table.descriptor.id
    ranges = {number: ReadRange(0, None, "below") for number in range(2)}
    held = backend.hold(table, ranges, holder="a test", why="it looks")
    manifests = {number: status.view.ledger for number, status in held.partitions.items()}
    first, second = (one.manifest for one in manifests.values() if one is not None)
    assert backend.files_in_use() == {first, second}
    # when one of them is let go, twice, then the other one stays
    backend.release(held.files[0])
    backend.release(held.files[0])
    assert backend.files_in_use() == {second}
    # and it goes with the whole
    backend.release(held.hold)
    eventually(lambda: not backend.files_in_use())


def test_who_waits_hears_why_nothing_will_change_any_more(world: World) -> None:
    # given somebody who follows a partition
    backend, table = backend_of(world.table), world.table.descriptor.id
    held = backend.hold(table, {1: ReadRange(0, None)}, holder="a test", why="it follows")
    backend.wait(held.hold, 0)
    # when another one stops, then that is nothing to it; when its own one does, it is told
    for number in range(2):
        name = partition_of(world.table, number).group.name
        backend.wait(held.hold, 0)
        on_loop(world.table, partial(backend.node.groups.close_group, name))
    with pytest.raises(GroupStopped):
        backend.wait(held.hold, 60)
    # and that the database was closed says more
    world.db.close()
    with pytest.raises(Closed):
        backend.wait(held.hold, 60)


def test_a_command_that_is_not_waited_for_is_carried_out(world: World) -> None:
    # given a lease
    backend, table = backend_of(world.table), world.table.descriptor.id
    backend.propose(table, {0: TakeLease("mine", 7, 0, 60_000, "a test", "raw")})
    assert [lease.name for lease in backend.status(table)[0].leases] == ["mine"]
    # when it is given back without waiting
    assert backend.propose(table, {0: ReleaseLease("mine", 7)}, wait=False) == {}
    # then it goes; and what is refused, or comes after the end, harms nobody
    eventually(lambda: not backend.status(table)[0].leases)
    backend.propose(table, {0: ReleaseLease("mine", 7)}, wait=False)
    assert backend.propose(table, {5: ReleaseLease("mine", 7)}, wait=False) == {}
    world.db.close()
    assert backend.propose(table, {0: ReleaseLease("mine", 7)}, wait=False) == {}


def test_who_is_interrupted_while_a_reader_is_made_holds_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a caller that is interrupted when its hold was taken, and before it hears of it
    world.compact(trim=False)
    backend = backend_of(world.table)
    ask, holds = backend.node.bridge.ask, ReaderHolds(world)

    def interrupted(function: Any, **more: Any) -> Any:
        answer = ask(function, **more)
        if holds.now():
            monkeypatch.undo()
            assert backend.files_in_use()
            raise KeyboardInterrupt
        return answer

    world.write(("one more", 1), ("and one more", 1))
    monkeypatch.setattr(backend.node.bridge, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.table.read(compacted=True)
    # then nothing is held
    eventually(lambda: not holds.now() and not backend.files_in_use() and not backend._kept)


def test_who_is_interrupted_while_a_lease_is_taken_holds_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a caller that is interrupted when its leases were taken, and before it hears of it
    backend, table = backend_of(world.table), world.table.descriptor.id
    propose, holds = Embedded.propose, ReaderHolds(world)

    def interrupted(self: Embedded, *given: Any, **more: Any) -> Any:
        propose(self, *given, **more)
        monkeypatch.undo()
        assert holds.now()
        assert all(status.leases for status in backend.status(table).values())
        raise KeyboardInterrupt

    monkeypatch.setattr(Embedded, "propose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.table.read(lease_ms=600_000)
    # then nothing is held
    eventually(lambda: not any(status.leases for status in backend.status(table).values()))
    eventually(lambda: not holds.now())


def test_a_hold_on_history_that_is_refused_leaves_no_trace(world: World) -> None:
    # given a low watermark
    mark = world.db.advance_watermark("now").after
    backend = backend_of(world.db)
    # when history before it is to be held
    with pytest.raises(BelowWatermark):
        backend.hold_history(mark - 1, "a test")
    backend.now()  # whatever it told the loop is done
    # then nothing stays of that
    assert not backend._awaited
    assert not backend._kept


def test_a_copy_that_is_gone_is_not_kept_by_the_backend(world: World) -> None:
    # given copies that a caller has asked for
    other = world.db.create_table("other", {"id": int}, key="id", partitions=2)
    backend, table = backend_of(other), other.descriptor.id
    assert len(backend.views(table, [0, 1])) == 2
    copies = [weakref.ref(partition_of(other, number)) for number in range(2)]
    # when the node lets go of one
    on_loop(other, partial(backend.tables.destroy, table, 0))

    def gone() -> bool:
        gc.collect()
        return copies[0]() is None

    # then it goes, and the other one stays
    eventually(gone)
    with pytest.raises(PartitionNotHere):
        backend.view(table, 0)
    assert backend.view(table, 1).end == 0
    assert copies[1]() is not None


def test_all_questions_of_a_call_end_at_one_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given how long each question may take
    backend = backend_of(world.table)
    ask, limits = backend.node.bridge.ask, list[float]()

    def asked(function: Any, *, timeout_s: float) -> Any:
        limits.append(timeout_s)
        return ask(function, timeout_s=timeout_s)

    monkeypatch.setattr(backend.node.bridge, "ask", asked)
    # when a call asks several, then each has what is left
    backend.watermark(latest=True, timeout_s=60)
    assert len(limits) >= 2
    assert [60, *limits] == sorted({60, *limits}, reverse=True)


def test_a_reader_that_can_t_give_its_lease_back_holds_nothing_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a reader with a lease, and a backend that is out of reach when it is closed
    holds = ReaderHolds(world)
    reader = world.table.read(lease_ms=60_000)
    assert holds.now()

    def out_of_reach(*_: Any, **__: Any) -> Any:
        raise Unavailable("the connection is gone for a moment")

    monkeypatch.setattr(backend_of(world.table), "propose", out_of_reach)
    with pytest.raises(Unavailable, match="gone for a moment"):
        reader.close()
    # then its lease ends by itself, and it holds nothing
    eventually(lambda: not holds.now() and not backend_of(world.table)._kept)


def test_a_hold_that_is_asked_for_again_with_other_partitions_is_refused(world: World) -> None:
    backend, table = backend_of(world.table), world.table.descriptor.id
    hold = Hold.drawn()
    backend.hold(table, {0: ReadRange(0, 5)}, holder="a test", why="it looks", hold=hold)
    with pytest.raises(RequestRefused, match="other partitions"):
        backend.hold(table, {1: ReadRange(0, 5)}, holder="a test", why="it looks", hold=hold)
    # and the database goes on
    assert world.table.read().to_arrow().num_rows == 40


def test_a_time_far_ahead_is_refused_and_moves_no_clock(world: World) -> None:
    backend, table = backend_of(world.table), world.table.descriptor.id
    before = backend.now()
    years = before.time + (10 * 365 * 24 * 3_600_000 << COUNTER_BITS)
    with pytest.raises(TimeInFuture):
        backend.views(table, [0, 1], closed_at=years)
    assert backend.now().time < years


def slow_at_first(backend: Embedded, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What the first caller asks of a partition takes until this is called, and then fails."""
    first: Future[View] = Future()
    latest = Partition.latest
    asked: list[object] = []

    def slow(self: Partition) -> Future[View]:
        asked.append(self)
        return first if len(asked) == 1 else latest(self)

    monkeypatch.setattr(Partition, "latest", slow)
    return lambda: backend.ask_now(lambda: first.reject(Unavailable("no leader came")))


def test_a_hold_whose_caller_gave_up_is_not_taken_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, table = backend_of(world.table), world.table.descriptor.id
    leader: Future[View] = Future()
    view = partition_of(world.table, 0).view
    monkeypatch.setattr(Partition, "latest", lambda _: leader)
    with pytest.raises(NodeSilent):
        backend.hold(
            table, {0: ReadRange(0, 5)}, holder="a test", why="x", hold=Hold.drawn(), timeout_s=0.05
        )
    # when a leader comes after that, then nothing is held
    backend.ask_now(lambda: leader.resolve(view))
    assert not backend._kept
    assert not backend._awaited
    assert not ReaderHolds(world).now()


def test_an_attempt_that_fails_late_takes_nothing_from_one_that_succeeded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a client whose first attempt hangs, and that asks again by the same number
    backend, table = backend_of(world.table), world.table.descriptor.id
    fail = slow_at_first(backend, monkeypatch)
    with (
        Server(world.db, "127.0.0.1:0") as server,
        closing(RemoteBackend(server.address)) as client,
    ):
        hold = Hold.drawn()
        ask = partial(
            client._call, "hold", table, {0: ReadRange(0, 5)}, holder="a test", why="x", hold=hold
        )
        failed: list[Exception] = []

        def attempt() -> None:
            try:
                ask()
            except Exception as error:
                failed.append(error)

        one = threading.Thread(target=attempt)
        one.start()
        eventually(lambda: hold.number in backend._awaited)
        held = ask()
        assert held.hold == hold
        # when the first one fails after that
        fail()
        one.join()
        assert len(failed) == 1
        # then what the second one was given is kept
        assert hold.number in backend._kept
        assert client._call("wait", hold, 0) == 0
        client._call("release", hold)
        eventually(lambda: hold.number not in backend._kept)
