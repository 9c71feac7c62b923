"""Groups come and go; limits at their edge; a group's own record."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest

from log.world import QUIET, World, data_of
from lowmark.errors import Rejected
from lowmark.log import (
    EntryTooLarge,
    GroupExists,
    GroupLeaving,
    GroupUnknown,
    Log,
    LogConfig,
    Written,
)
from lowmark.log.config import _BOUNDS
from lowmark.log.errors import LogBusy, LogClosed, NotContiguous, TermFell
from lowmark.runtime import Locked
from lowmark.runtime.sim import sim_runtime

# -- create, delete, create again ---------------------------------------------------------------


def test_groups_are_listed_by_name_and_survive() -> None:
    world = World()
    for name in ("zebra", "apple"):
        world.log.create_group(name)
    for after in [world, world.crash()]:
        assert [group.name for group in after.log.groups()] == ["apple", "g", "zebra"]
        with pytest.raises(GroupExists):
            after.log.create_group("apple")
        with pytest.raises(GroupUnknown):
            after.log.group("pear")
        with pytest.raises(GroupUnknown):
            after.log.delete_group("pear")


def test_a_group_that_is_made_anew_has_nothing_of_the_old_one() -> None:
    # given a group with entries in segments and in the WAL, a snapshot, and a vote
    world = World()
    world.segment(1, 10)
    world.append(11, 20, size=20_000)
    world.snapshot(15, [3])
    world.group.put_meta(b"old vote", lambda _: None)
    world.settle()
    # when it is deleted and made anew, whatever the WAL still holds of it
    world.log.delete_group("g")
    world.settle()
    assert world.disk.list("groups") == []
    world.log.create_group("g")
    for after in [world, world.crash()]:
        assert (after.group.last_index, after.group.meta) == (0, b"")
        assert after.group.snapshot is None
        assert after.readable(1, 20) == []
    # then its own entries are all it has, after any number of restarts
    world.append(1, 3, term=7)
    world = world.crash()
    world.check([1, 2, 3], term=7)
    world.settle()
    world = world.reopen()
    assert (world.group.last_index, world.group.last_term, world.group.meta) == (3, 7, b"")
    world.check([1, 2, 3], term=7)
    assert world.group.quarantined is None


def test_a_deleted_group_stays_deleted() -> None:
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    world.append(1, 5, group="other")
    world.log.delete_group("g")
    world.settle()
    for seed in range(4):
        after = world.disk.crashed(Random(seed))
        log = Log.open(sim_runtime(seed, disk=after), QUIET)
        assert [group.name for group in log.groups()] == ["other"]
        assert log.group("other").last_index == 5


def test_what_waited_for_a_deleted_group_is_dropped() -> None:
    world = World()
    world.put(1, 10)
    world.log.delete_group("g")
    world.settle()
    world.log.create_group("g")
    world.append(1, 1, term=2)
    world.settle()
    assert world.written == [Written("g", 2, 1, 1)]
    world.crash().check([1], term=2)


@pytest.mark.parametrize("step", ["create", "delete"])
def test_a_crash_in_the_middle_leaves_a_whole_group_or_none(step: str) -> None:
    calls = 0
    while True:
        world = World()
        world.log.create_group("other")
        world.append(1, 5, group="other")
        world.settle()
        calls += 1
        world.disk.stop_at_call = world.disk.calls + calls
        act = world.log.create_group if step == "create" else world.log.delete_group
        try:
            act("new" if step == "create" else "other")
            world.settle()
        except BaseException as stopped:
            if type(stopped).__name__ != "WorldStopped":
                raise
        else:
            break
        for after in world.worlds_after_crash():
            names = [group.name for group in after.log.groups()]
            assert names in (["g", "other"], ["g", "new", "other"], ["g"])
            assert not after.log.unreadable
            if "other" in names:
                assert after.log.group("other").last_index == 5
            assert not any(name.startswith("~") for name in after.disk.list("groups"))
    assert calls > 3


def test_a_group_that_is_made_anew_during_a_flush_has_nothing_of_the_old_one() -> None:
    for turns in range(12):
        world = World()
        world.append(1, 10)
        world.log.roll()
        for _ in range(turns):
            world.loop.turn()
        # when it is deleted, its name is not free before steps on its files are through
        world.log.delete_group("g")
        with pytest.raises(GroupLeaving):
            world.log.create_group("g")
        world.settle()
        world.log.create_group("g")
        world.append(1, 3, term=9)
        world.settle()
        world = world.crash()
        assert world.group.quarantined is None
        assert world.group.last_index == 3
        world.check([1, 2, 3], term=9)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "~g", "a/b", "A", "a b", "ä", "-a", "_a", ".a", "a\n", "x" * 65]
)
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="can't name a group"):
        World().log.create_group(name)


@pytest.mark.parametrize("name", ["a", "0", "a.b-c_d", "x" * 64])
def test_a_good_name_is_taken(name: str) -> None:
    world = World()
    world.log.create_group(name)
    world.append(1, 1, group=name)
    assert world.crash().log.group(name).last_index == 1


# -- the log as a whole -------------------------------------------------------------------------


def test_a_directory_belongs_to_one_log() -> None:
    world = World()
    with pytest.raises(Locked, match="open in another process"):
        Log.open(sim_runtime(2, disk=world.disk), QUIET)
    world.log.close()
    Log.open(sim_runtime(2, disk=world.disk), QUIET).close()


def test_a_closed_log_takes_nothing() -> None:
    world = World()
    world.append(1, 3)
    world.log.close()
    world.log.close()  # once more is fine
    for refused in (
        lambda: world.put(4, 4),
        lambda: world.group.put_meta(b"", lambda _: None),
        lambda: world.begin_snapshot(2),
        lambda: world.log.create_group("other"),
        lambda: world.log.delete_group("g"),
        world.group.compact,
        world.log.roll,
    ):
        with pytest.raises(LogClosed):
            refused()


def test_a_close_forgets_only_what_was_not_acknowledged() -> None:
    world = World()
    world.append(1, 3)
    world.put(4, 6)
    world.log.close()
    assert world.written == [Written("g", 1, 1, 3)]
    world = world.kill()
    assert world.group.last_index in {3, 6}
    world.check(range(1, 4))


def test_a_log_can_be_opened_to_look_at_only() -> None:
    world = World()
    world.segment(1, 10)
    world.append(11, 20)
    world.log.close()
    before = world.disk.fingerprint()
    log = Log.open(sim_runtime(2, disk=world.disk), QUIET, read_only=True)
    group = log.group("g")
    assert [entry.index for entry in group.read(range(1, 21))] == list(range(1, 21))
    for refused in (
        lambda: group.append(1, [b"x"]),
        lambda: log.create_group("other"),
        lambda: log.delete_group("g"),
        group.compact,
    ):
        with pytest.raises(LogClosed, match="reading only"):
            refused()
    log.close()
    assert world.disk.fingerprint() == before


# -- limits at the edge -------------------------------------------------------------------------


def test_the_largest_entry_is_taken_and_one_byte_more_is_not() -> None:
    world = World(entry_bytes_max=1_000)
    world.append(1, 1, size=1_000)
    with pytest.raises(EntryTooLarge, match="1001 bytes are too many"):
        world.put(2, 2, size=1_001)
    # nothing of an append counts when one of its entries is too large
    with pytest.raises(EntryTooLarge):
        world.group.append(1, [b"fits", b"x" * 1_001])
    assert world.group.last_index == 1
    world.append(2, 2)


def test_the_edge_between_small_and_large() -> None:
    world = World(large_entry_bytes_min=1_000)
    world.append(1, 1, size=999)
    assert not any(name.endswith(".large") for name in world.files())
    world.append(2, 2, size=1_000)
    assert sum(name.endswith(".large") for name in world.files()) == 1
    for after in [world, world.crash()]:
        after.check([1], size=999)
        after.check([2], size=1_000)


def test_an_empty_entry_is_an_entry() -> None:
    world = World()
    world.group.append(1, [b"", b"x", b""])
    world.await_written(3)
    for after in [world, world.crash()]:
        assert [data for _, _, data in after.read(1, 2, 3)] == [b"", b"x", b""]
        after.roll()
        assert [data for _, _, data in after.read(1, 2, 3)] == [b"", b"x", b""]


def test_an_empty_append_changes_nothing() -> None:
    world = World()
    world.append(1, 3)
    assert world.group.append(1, []) == 4
    world.settle()
    assert world.group.last_index == 3


def test_more_than_may_wait_is_refused() -> None:
    world = World(wal_queue_bytes_max=10_000)
    # up to the limit, an append is taken, and the one that crosses it is the last
    while world.log.wal.queued_bytes <= 10_000:
        world.put(world.group.last_index + 1, world.group.last_index + 1, size=1_000)
    last = world.group.last_index
    assert last == 10
    with pytest.raises(LogBusy, match="At most 10000 may wait"):
        world.put(last + 1, last + 1)
    # what was taken is written, and then there is room
    world.await_written(last)
    world.append(last + 1, last + 1)


def test_a_segment_takes_as_many_entries_as_it_may() -> None:
    world = World(segment_entries_max=10)
    world.append(1, 10)
    world.roll()
    assert world.segments == [(1, 1, 10)]
    world.append(11, 21)
    world.roll()
    assert world.segments[1:] == [(2, 11, 20), (3, 21, 21)]
    world.reopen().check(range(1, 22))


def test_a_term_never_falls_along_the_log() -> None:
    world = World()
    world.append(1, 3, term=2)
    with pytest.raises(TermFell, match="term 1 can't follow one of term 2"):
        world.put(4, 4, term=1)
    with pytest.raises(TermFell):
        world.put(3, 3, term=1)
    world.put(1, 1, term=1)  # from the first on, there is nothing it could fall below
    world.await_written(1)
    # after a snapshot, its term counts
    world.append(2, 5, term=4)
    world.snapshot(5)
    world = world.crash()
    with pytest.raises(TermFell):
        world.put(6, 6, term=3)
    world.append(6, 6, term=4)


def test_an_append_leaves_no_gap() -> None:
    world = World()
    for first in (2, 0, -1):
        with pytest.raises(NotContiguous):
            world.group.append(1, [b"x"], first=first)
    world.append(1, 3)
    with pytest.raises(
        NotContiguous, match=r"Its last entry is 3\.\nhint: Send the entries from 4 on"
    ):
        world.put(5, 5)


@pytest.mark.parametrize("name", sorted(_BOUNDS))
def test_a_limit_has_bounds(name: str) -> None:
    low, high = _BOUNDS[name]
    kind: Any = float if isinstance(getattr(QUIET, name), float) else int
    for fine in (kind(low), kind(high)):
        assert getattr(replace(QUIET, **{name: fine}), name) == fine
    step = 0.001 if kind is float else 1
    for bad in (low - step, high + step):
        with pytest.raises(Rejected, match=f"log.{name} = .* is out of range"):
            replace(QUIET, **{name: kind(bad)})
    with pytest.raises(Rejected):
        replace(QUIET, **{name: True})


def test_every_limit_has_bounds() -> None:
    assert {field.name for field in fields(LogConfig)} == set(_BOUNDS)


# -- a group's own record -----------------------------------------------------------------------


def put_meta(world: World, data: bytes) -> None:
    done: list[bool] = []
    world.group.put_meta(data, lambda _: done.append(True))
    world.loop.run_until(lambda: bool(done))


def test_the_newest_meta_counts_over_crashes_and_roll_overs() -> None:
    world = World()
    assert world.group.meta == b""
    put_meta(world, b"vote 1")
    put_meta(world, b"vote 2")
    assert world.crash().group.meta == b"vote 2"
    # when the file that holds it is long gone
    for _ in range(3):
        world.append(world.group.last_index + 1, world.group.last_index + 1)
        world.roll()
        assert world.crash().group.meta == b"vote 2"
    put_meta(world, b"vote 3")
    world = world.reopen()
    world.settle()
    world = world.reopen()
    assert world.group.meta == b"vote 3"


def test_a_meta_counts_when_it_is_durable_and_not_before() -> None:
    world = World()
    put_meta(world, b"old")
    done: list[bool] = []
    world.group.put_meta(b"new", lambda _: done.append(True))
    assert world.group.meta == b"old"
    world.until("datasync", ".wal", lambda: world.loop.run_until(lambda: bool(done)))
    assert {after.group.meta for after in world.worlds_after_crash()} == {b"old", b"new"}


def test_a_meta_whose_sync_fails_is_written_again() -> None:
    world = World()
    put_meta(world, b"old")
    world.disk.fail_next("datasync", ".wal")
    put_meta(world, b"new")
    assert world.crash().group.meta == b"new"


def test_each_group_has_its_own_meta() -> None:
    world = World()
    names = ["a", "b", "c"]
    for name in names:
        world.log.create_group(name).put_meta(f"of {name}".encode(), lambda _: None)
    world.settle()
    world.roll()
    world.log.delete_group("b")
    world.roll()
    world = world.crash()
    assert [g.meta for g in world.log.groups()] == [b"of a", b"of c", b""]


# -- many groups in one WAL ---------------------------------------------------------------------


def test_groups_share_one_sync_and_do_not_mix() -> None:
    world = World()
    names = [f"g{n}" for n in range(20)]
    for name in names:
        world.log.create_group(name)
    with world.calls() as calls:
        for n, name in enumerate(names):
            world.put(1, n + 1, term=n + 1, group=name)
        world.settle()
    assert sum(call.startswith("datasync") for call in calls) == 1
    for after in [world, world.crash()]:
        after.roll()
        for n, name in enumerate(names):
            found = after.read(*range(1, n + 2), group=name)
            assert found == [(i, n + 1, data_of(i, n + 1)) for i in range(1, n + 2)]
