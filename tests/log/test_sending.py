"""Snapshots on their way: how much is read, sent and kept waiting at a time."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from log.world import Ended, World, data_of, finish, number, send
from lowmark.log import Damaged, Entry, Installer, SnapshotMeta, SnapshotSender
from lowmark.runtime import DiskFull


def source() -> World:
    """Live entries of 20 kB each at 2, 4, 6, 8 and 10, some in the WAL, some in a segment."""
    world = World(7, segment_bytes_max=1 << 20)
    for index in range(1, 7):
        world.append(index, index, size=20_000)
    world.roll()
    for index in range(7, 13):
        world.append(index, index, size=20_000)
    world.snapshot(10, [2, 4, 6, 8, 10], state=[b"state"])
    return world


def sender_of(world: World) -> SnapshotSender:
    return world.group.open_sender("follower", last_applied=0)


def begin(world: World, index: int = 1_000) -> Installer:
    return world.group.begin_install(SnapshotMeta(index=index, term=1), last_applied=0)


# -- the sender ---------------------------------------------------------------------------------


def test_large_entries_are_sent_a_few_at_a_time() -> None:
    sender = sender_of(source())
    # given room for two and a half
    sizes = []
    while (found := sender.entries(256, 50_000)[1]) != []:
        sizes.append([entry.index for entry in found])
    assert sizes == [[2, 4], [6, 8], [10]]
    assert sender.entries(256, 50_000) == (10, [])


def test_an_entry_over_the_limit_is_sent_alone() -> None:
    sender = sender_of(source())
    assert [entry.index for entry in sender.entries(256, 19_999)[1]] == [2]
    previous, found = sender.entries(1, 1 << 30)
    assert (previous, [entry.index for entry in found]) == (2, [4])
    # at its edge, two fit
    assert [entry.index for entry in sender.entries(256, 40_000)[1]] == [6, 8]


def test_no_more_is_read_than_is_sent() -> None:
    # given that the second of the live entries is damaged
    world = source()
    world.spoil(f"groups/g/{number(1)}.large", b"4@1")
    sender = sender_of(world)
    # then nobody notices while there is room for the first one only
    assert [entry.index for entry in sender.entries(256, 20_000)[1]] == [2]
    assert world.group.quarantined is None
    with pytest.raises(Damaged):
        sender.entries(256, 20_000)
    assert world.group.quarantined is not None


def test_another_sender_goes_on_where_the_first_was_cut_off() -> None:
    world, receiver = source(), World(segment_bytes_max=1 << 20)
    first = sender_of(world)
    installer = receiver.group.begin_install(first.meta, last_applied=0)
    installer.add_entries(*first.entries(3))
    installer.add_state(0, b"sta")
    first.close()
    # given a sender that is gone; the next one asks the installer how far it is
    second = sender_of(world)
    second.go_on_after(installer.previous)
    sent = send(second, installer)
    # then only the rest is sent, and everything is there
    assert [entry.index for entry in sent] == [8, 10]
    assert installer.state_bytes == 5
    finish(receiver, installer, second.needed)
    receiver.check([2, 4, 6, 8, 10], size=20_000)
    assert b"".join(receiver.group.read_snapshot()) == b"state"


# -- the installer ------------------------------------------------------------------------------


def test_an_installer_says_when_it_wants_no_more_and_when_it_does_again() -> None:
    world = World()
    installer = begin(world)
    rooms: list[bool] = []
    installer.on_room = lambda: rooms.append(installer.has_room)
    # given a state that comes faster than it is written, up to a byte below the limit
    limit = installer.room_bytes
    installer.add_state(0, b"x" * (limit - 1))
    assert installer.has_room
    # when that byte comes, it wants no more; what comes all the same is taken
    installer.add_state(limit - 1, b"x")
    full = not installer.has_room
    assert full
    installer.add_state(limit, b"y")
    assert rooms == []
    # then it says when it does again, once
    world.drain("compaction")
    assert installer.has_room
    assert rooms == [True]
    finish(world, installer, [])
    assert b"".join(world.group.read_snapshot()) == b"x" * limit + b"y"
    assert rooms == [True]


def test_a_sender_that_waits_for_room_costs_bounded_memory() -> None:
    world = World()
    installer = begin(world)
    most, index = 0, 0
    # given a sender that sends whenever there is room
    while index < 600:
        if not installer.has_room:
            rooms: list[bool] = []
            installer.on_room = lambda: rooms.append(True)  # noqa: B023
            world.loop.run_until(lambda: bool(rooms))  # noqa: B023
        index += 1
        entry = Entry(index, 1, data_of(index, 1, 5_000))
        installer.add_entries(installer.previous, [entry])
        most = max(most, installer._waiting + installer._buffered)
    # then no more waits than the limit, and one segment's worth beyond it
    assert most <= installer.room_bytes + 2 * world.config.segment_bytes_max
    finish(world, installer, range(1, 601))
    world.check(range(1, 601), size=5_000)


def test_an_installer_whose_disk_refuses_still_says_that_there_is_room() -> None:
    # given a receiver that waits for room, and a disk that is full
    world = World()
    installer = begin(world)
    world.drain("compaction")
    world.disk.fail_next("space", "installing/snapshot/state")
    heard: list[object] = []

    def go_on() -> None:
        try:
            installer.add_state(installer.state_bytes, b"more")
        except DiskFull as full:
            heard.append(full)

    installer.on_room = go_on
    installer.add_state(0, b"x" * installer.room_bytes)
    world.drain("compaction")
    # then it goes on, and hears of it
    assert len(heard) == 1
    installer.abort()
    world.settle()


def test_nobody_is_asked_for_more_after_the_end() -> None:
    for end in ("abort", "finish", "delete", "close"):
        world = World()
        installer = begin(world)
        rooms: list[bool] = []
        installer.on_room = lambda: rooms.append(True)  # noqa: B023
        installer.add_state(0, b"x" * installer.room_bytes)
        match end:
            case "abort":
                installer.abort()
            case "finish":
                installer.finish(BitMap64(), Ended())
            case "delete":
                world.log.delete_group("g")
            case _:
                world.log.close()
        world.loop.run_for(1_000)
        assert rooms == []


# -- a big state --------------------------------------------------------------------------------


def test_a_big_state_is_written_a_chunk_at_a_time_and_appends_go_on() -> None:
    # given a state that is made as it is asked for
    world = World()
    world.append(1, 10)
    asked: list[int] = []

    def chunks() -> object:
        for _ in range(50):
            asked.append(world.group.written_index)
            world.put(world.group.last_index + 1, world.group.last_index + 1)
            yield bytes(10_000)

    ended = Ended()
    with world.calls() as calls:
        meta = SnapshotMeta(index=10, term=1)
        world.group.take_snapshot(meta, chunks(), BitMap64(), ended)  # type: ignore[arg-type]
        assert asked == []  # nothing is pulled before the call returns
        turn_max = 0
        while not ended.over:
            before = len(asked)
            world.loop.turn()
            turn_max = max(turn_max, len(asked) - before)
    ended.check()
    # then one chunk is pulled in a turn and written in a step, and entries are written meanwhile
    assert turn_max == 1
    assert sum(call.startswith("write") and call.endswith("/state") for call in calls) == 52
    assert asked[-1] > 20
    assert world.group.state_bytes == 500_000
    world.settle()
    world.crash().check(range(11, 61))
