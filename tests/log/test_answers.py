"""Who waits for an answer gets one, once: also when the group goes away, or the log is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyroaring import BitMap64

from log.world import Ended, World, finish, send
from lowmark.errors import LowmarkError
from lowmark.log import GroupUnknown, InstallRefused, SnapshotMeta, Written
from lowmark.log.errors import LogClosed, SnapshotRefused


def put_meta(world: World) -> Ended:
    ended = Ended()
    world.group.put_meta(b"vote", ended)
    return ended


def snapshot(world: World) -> Ended:
    return world.begin_snapshot(8, [3], state=[b"a", b"b", b"c"])


def install(world: World) -> Ended:
    ended = Ended()
    installer = world.group.begin_install(SnapshotMeta(index=40, term=3), last_applied=8)
    installer.add_state(0, b"state")
    installer.finish(BitMap64([3]), ended)
    return ended


KINDS = pytest.mark.parametrize("ask", [put_meta, snapshot, install])
TURNS = pytest.mark.parametrize("turns", range(0, 40, 3))


def asked(ask: Callable[[World], Ended], turns: int) -> tuple[World, Ended]:
    """A world in which something was asked for, so many turns ago."""
    world = World(turns + 1)
    world.append(1, 20)
    ended = ask(world)
    for _ in range(turns):
        world.loop.turn()
    return world, ended


@KINDS
@TURNS
def test_a_deleted_group_leaves_nobody_waiting(ask: Callable[[World], Ended], turns: int) -> None:
    # given something that is under way, or done by now
    world, ended = asked(ask, turns)
    done = ended.over
    # when its group is deleted, and the name is used again
    world.log.delete_group("g")
    assert ended.over == done  # the answer comes in a turn of its own
    world.settle()
    # then there is one answer, and it says what happened
    assert ended.over
    assert ended.error is None if done else isinstance(ended.error, GroupUnknown)
    world.log.create_group("g")
    world.append(1, 3, term=9)
    world.loop.run_for(10_000)
    for after in [world, world.crash()]:
        assert (after.group.last_index, after.group.meta, after.group.snapshot) == (3, b"", None)
        after.check([1, 2, 3], term=9)
        assert [n for n in after.disk.list("groups/g") if n.startswith("install")] == []


@KINDS
@TURNS
def test_a_close_leaves_nobody_waiting_and_nothing_comes_after_it(
    ask: Callable[[World], Ended], turns: int
) -> None:
    world, ended = asked(ask, turns)
    done = ended.over
    world.put(21, 22) if not world.group.state.installing else None
    events: list[object] = []
    world.log.on_written = world.log.on_dropped = events.append
    # when the log is closed
    world.log.close()
    # then there is one answer before the call returns
    assert ended.over
    assert ended.error is None if done else isinstance(ended.error, LogClosed)
    # and after it neither the disk nor anybody else is touched
    with world.calls() as calls:
        world.loop.run_for(60_000)
    assert (events, calls) == ([], [])
    after = world.kill()
    assert after.group.quarantined is None
    assert after.group.row.snapshot_index in {0, 8, 40}


def test_a_close_waits_for_no_retry() -> None:
    # given a flush, an installation and the WAL, all of which wait for their disk
    world = World()
    world.log.create_group("other")
    world.append(1, 20)
    world.append(1, 3, group="other")
    installer = world.group.begin_install(SnapshotMeta(index=40, term=3), last_applied=8)
    world.drain("compaction")
    world.disk.fail_next("link", "snapshots/")
    world.disk.fail_next("create", "groups/other")
    ended = Ended()
    installer.finish(BitMap64([3]), ended)
    world.log.roll()
    world.loop.run_for(200)
    world.disk.fail_next("datasync", ".wal")
    vote = Ended()
    world.log.group("other").put_meta(b"vote", vote)
    world.loop.run_until(lambda: world.log.wal.stopped is not None)
    assert not ended.over
    # when it is closed, then nothing is tried any more
    world.log.close()
    assert isinstance(ended.error, LogClosed)
    assert isinstance(vote.error, LogClosed)
    with world.calls() as calls:
        world.loop.run_for(60_000)
    assert calls == []
    # and the snapshot, which counted already, is in force at the next start
    assert world.kill().group.row.snapshot_index == 40


def test_one_that_raises_costs_nobody_else_the_answer() -> None:
    world = World()
    world.append(1, 3)
    first, last = Ended(), Ended()

    def broken(_: LowmarkError | None) -> None:
        raise KeyError("the caller broke")

    for on_done in (first, broken, last):
        world.group.put_meta(b"vote", on_done)
    with pytest.raises(KeyError):
        world.log.close()
    assert first.over
    assert last.over
    world.kill()


def test_a_callback_may_ask_again_or_delete_another_group() -> None:
    # given a group whose owner, told of its end, deletes another one as well
    world = World()
    world.log.create_group("other")
    other = Ended()

    def gone(error: LowmarkError | None) -> None:
        assert isinstance(error, GroupUnknown)
        world.log.delete_group("other")

    world.group.put_meta(b"vote", gone)
    world.log.group("other").put_meta(b"vote", other)
    world.log.delete_group("g")
    world.settle()
    assert isinstance(other.error, GroupUnknown)
    assert world.disk.list("groups") == []


def test_an_error_of_the_caller_s_state_is_the_snapshot_s_answer() -> None:
    # given a state that can't be read to its end
    world = World()
    world.append(1, 10)

    def chunks() -> object:
        yield b"half a state"
        raise SnapshotRefused("the machine's own file is damaged")

    ended = Ended()
    meta = SnapshotMeta(index=10, term=1)
    world.group.take_snapshot(meta, chunks(), BitMap64(), ended)  # type: ignore[arg-type]
    world.settle()
    # then the caller hears of it, nothing is left over, and another one can be taken
    assert "own file is damaged" in str(ended.error)
    assert world.disk.list("groups/g/snapshots") == []
    world.snapshot(10, [])


@pytest.mark.parametrize("turns", range(16))
def test_a_lost_live_set_that_is_given_back_does_not_undo_a_newer_snapshot(turns: int) -> None:
    # given a group whose live set is lost
    world = World()
    world.append(1, 20)
    world.snapshot(5, [2])
    folder = world.group.snapshot.folder if world.group.snapshot is not None else ""
    world.log.close()
    world.disk.unlink(f"{folder}/live")
    world = world.kill()
    assert not world.group.row.known
    # when it is given back just when a newer snapshot is written
    newer = world.begin_snapshot(15, [2, 12])
    for _ in range(turns):
        world.loop.turn()
    older = Ended()
    if not newer.over:
        world.group.restore_live(BitMap64([2]), older)
    world.settle()
    # then the newer one counts
    assert newer.over
    assert newer.error is None
    for after in [world, world.crash()]:
        assert after.group.row.snapshot_index == 15
        assert after.readable(1, 20) == [2, 12, *range(16, 21)]


def test_entries_that_were_sent_again_may_be_dead_here() -> None:
    # given a receiver whose own snapshot does not need entry 5
    world = World()
    world.append(1, 10)
    world.snapshot(8, [3])
    source = World(7)
    source.append(1, 30)
    source.snapshot(30, [3, 5, 25])
    # when it is sent everything, as if it had applied nothing
    sender = source.group.open_sender("follower", last_applied=0)
    installer = world.group.begin_install(sender.meta, last_applied=0)
    send(sender, installer)
    finish(world, installer, [3, 5, 25])
    # then what came counts
    for after in [world, world.crash()]:
        after.check([3, 5, 25])


def test_a_newer_snapshot_of_its_own_refuses_one_that_came_too_late() -> None:
    world = World()
    world.append(1, 20)
    installer = world.group.begin_install(SnapshotMeta(index=15, term=1), last_applied=8)
    installer.add_state(0, b"state")
    world.snapshot(18)
    with pytest.raises(InstallRefused, match="newer snapshot"):
        installer.finish(BitMap64(), Ended())
    # then it can be given up, and nothing is left of it
    installer.abort()
    world.settle()
    assert "installing" not in world.disk.list("groups/g")


def test_a_group_made_anew_has_large_files_of_its_own() -> None:
    # given a group with a large entry, deleted while the WAL has its large file open
    world = World()
    world.append(1, 1, size=20_000)
    world.log.delete_group("g")
    world.settle()
    # when it is made anew, and its first large file has the same name
    world.log.create_group("g")
    world.append(1, 1, term=2, size=20_000)
    # then its entries are in its own file
    world = world.crash()
    world.check([1], term=2, size=20_000)
    world.roll()
    world.reopen().check([1], term=2, size=20_000)


def test_what_is_overwritten_while_others_are_told_is_not_reported_as_written() -> None:
    # given two runs in one batch, and an owner who overwrites the second when told of the first
    world = World()
    heard: list[Written] = []

    def told(event: Written) -> None:
        heard.append(event)
        if event.last == 2:
            world.put(4, 4, term=2)

    world.log.on_written = told
    world.put(1, 2)
    world.put(3, 5)
    world.await_written(4)
    # then only what is left of the second is reported, and the new one when it is written
    assert heard == [Written("g", 1, 1, 2), Written("g", 1, 3, 3), Written("g", 2, 4, 4)]


def test_damage_of_a_deleted_group_does_not_fall_on_the_next_of_its_name() -> None:
    world = World()
    world.append(1, 3)
    old = world.group.state
    world.log.delete_group("g")
    world.settle()
    world.log.create_group("g")
    world.log.quarantine(old, LowmarkError("found too late"))
    world.settle()
    world.append(1, 3)
    assert world.crash().group.quarantined is None


def test_a_retry_for_a_deleted_group_does_not_touch_the_next_of_its_name() -> None:
    # given a snapshot that counts, whose last step the disk refused; it will be tried again
    world = World()
    world.append(1, 20)
    installer = world.group.begin_install(SnapshotMeta(index=40, term=3), last_applied=8)
    world.drain("compaction")
    world.disk.fail_next("unlink", "installed/")
    ended = Ended()
    installer.finish(BitMap64([3]), ended)
    world.loop.run_for(200)
    assert not ended.over
    # when the group is deleted, and made anew as soon as the name is free
    world.log.delete_group("g")
    world.loop.run_until(lambda: "g" not in world.log._leaving)
    world.log.create_group("g")
    # then nobody works in its folder
    with world.calls() as calls:
        world.loop.run_for(60_000)
    assert calls == []
    assert isinstance(ended.error, GroupUnknown)


def test_a_close_right_after_a_delete_works_on_no_file_any_more() -> None:
    world = World()
    world.append(1, 3)
    world.log.delete_group("g")
    world.log.close()
    with world.calls() as calls:
        world.loop.run_for(60_000)
    assert calls == []
    # then the group is there at the next start, whole, to be deleted again
    world.kill().check([1, 2, 3])
