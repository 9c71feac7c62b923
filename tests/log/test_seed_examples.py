"""Examples of what a receiver of a snapshot gets, and the order of disk calls of a merge."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from log.world import World, data_of, finish, number, send
from lowmark.log.snapshots import needed_by

LIVE = [100, 600, 1200, 1777]


def leader() -> World:
    """Follower terms of the seed: 100 to 1000 in term 1, to 1500 in term 2, then term 3."""
    world = World(segment_entries_max=2_000)
    world.segment(1, 1000)
    world.segment(1001, 1500, term=2)
    world.segment(1501, 2000, term=3)
    world.snapshot(2000, LIVE, state=[b"the state at 2000"])
    return world


def follower(last_index: int, *, stale: int = 0) -> World:
    """A follower with entries up to there, the last ones perhaps of a term that lost."""
    world = World(7, segment_entries_max=2_000)
    world.append(1, min(1000, last_index))
    if last_index > 1000:
        world.append(1001, last_index, term=2)
    if stale:
        world.append(last_index + 1, last_index + stale, term=2)
    return world


TERMS = {100: 1, 600: 1, 1200: 2, 1777: 3}


def test_which_live_indexes_a_receiver_needs() -> None:
    assert list(needed_by(BitMap64(LIVE), 1500)) == [1777]
    assert list(needed_by(BitMap64(LIVE), 1100)) == [1200, 1777]
    assert list(needed_by(BitMap64(LIVE), 0)) == LIVE
    assert list(needed_by(BitMap64(LIVE), 2000)) == []


@pytest.mark.parametrize("flushed", [True, False], ids=["own in segments", "own in the wal"])
@pytest.mark.parametrize(
    ("last_applied", "stale", "needed"),
    [(1500, 0, [1777]), (1500, 400, [1777]), (1100, 0, [1200, 1777]), (1100, 800, [1200, 1777])],
)
def test_a_receiver_gets_what_it_has_not_applied(
    last_applied: int, stale: int, needed: list[int], flushed: bool
) -> None:
    # given a leader with a snapshot at 2000, and a follower that has applied that much
    sender_world, world = leader(), follower(last_applied, stale=stale)
    if flushed:
        world.roll()
    # when the snapshot is sent and installed
    sender = sender_world.group.open_sender("follower", last_applied=last_applied)
    assert list(sender.needed) == needed
    installer = world.group.begin_install(sender.meta, last_applied=last_applied)
    sent = send(sender, installer)
    sender.close()
    finish(world, installer, LIVE)
    # then exactly those entries were sent
    assert [entry.index for entry in sent] == needed
    # and every live index reads with its right term, now and after a crash
    for after in [world, world.crash()]:
        assert after.group.row.snapshot_index == 2000
        found = after.read(*LIVE)
        assert found == [(i, term, data_of(i, term)) for i, term in TERMS.items()]
        assert [after.group.term_at(i) for i in LIVE] == list(TERMS.values())
        assert b"".join(after.group.read_snapshot()) == b"the state at 2000"
        assert (after.group.last_index, after.group.last_term) == (2000, 3)
        # and the log goes on from there
        after.append(2001, 2003, term=3)
        after.check([2001, 2002, 2003], term=3)


def test_the_flush_takes_live_entries_and_what_follows_the_snapshot() -> None:
    # given segments 1 to 1000, a memtable 1001 to 2000, a snapshot at 1500 with 1100 and 1400 live
    world = World(segment_entries_max=2_000)
    world.segment(1, 1000)
    world.append(1001, 2000)
    world.snapshot(1500, [1100, 1400])
    # when the WAL is rolled over
    world.roll()
    # then 1100, 1400 and 1501 to 2000 are flushed, and nothing else
    assert world.records(2) == [1100, 1400, *range(1501, 2001)]
    world.check([1100, 1400, *range(1501, 2001)])
    assert world.readable(1001, 1500) == [1100, 1400]


def test_an_empty_live_set_is_plain_truncation() -> None:
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.snapshot(15)
    assert world.segments == [(2, 11, 20)]
    assert world.readable(1, 20) == [16, 17, 18, 19, 20]


# -- names, links, and the order of disk calls --------------------------------------------------


def three_sources() -> World:
    world = World()
    for k in range(4):
        world.segment(10 * k + 1, 10 * k + 10)
    world.snapshot(30, [5, 15, 25])
    return world


def short(calls: list[str]) -> list[str]:
    """Calls in the group's folder, with short numbers."""
    kept = []
    for call in calls:
        for n in range(1, 10):
            call = call.replace(number(n), f"{n:03d}")
        kept.append(call.replace("groups/g/", "").replace("groups/g", "."))
    return kept


def test_a_merge_is_named_by_its_sources_and_hard_linked() -> None:
    world = three_sources()
    # given a merge that is about to replace the lowest source
    world.until("rename", f"{number(1)}.segment", world.compact)
    merge = f"groups/g/{number(1)}-{number(2)}-{number(3)}.compacting"
    aside = f"groups/g/{number(1)}.segment.new"
    one, two = world.disk.stat(merge), world.disk.stat(aside)
    # then both names are one file
    assert one is not None
    assert one == two
    assert one.links == 2


def test_links_are_relative_so_a_data_directory_can_be_moved() -> None:
    world = three_sources()
    world.compact()
    assert world.links() == {2: f"{number(1)}.segment", 3: f"{number(1)}.segment"}


def test_the_order_of_disk_calls_of_a_merge() -> None:
    world = three_sources()
    with world.calls() as calls:
        world.compact()
    # sync data, sync directory, link, sync, rename, sync, symlinks, sync, unlink
    assert short(calls) == [
        "create 001-002-003.compacting",
        "write 001-002-003.compacting",
        "write 001-002-003.compacting",
        "write 001-002-003.compacting",
        "write 001-002-003.compacting",
        "write 001-002-003.compacting",
        "datasync 001-002-003.compacting",
        "sync_dir .",
        "link 001.segment.new",
        "sync_dir .",
        "rename 001.segment",
        "sync_dir .",
        "symlink 002.segment.link",
        "rename 002.segment",
        "symlink 003.segment.link",
        "rename 003.segment",
        "sync_dir .",
        "unlink 001-002-003.compacting",
        "sync_dir .",
        "create runs.tmp",
        "write runs.tmp",
        "rename runs",
    ]


def test_the_order_of_disk_calls_of_a_single_rewrite() -> None:
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.snapshot(10, [3])
    with world.calls() as calls:
        world.compact()
    assert [call for call in short(calls) if "runs" not in call] == [
        "create 001.compacting",
        "write 001.compacting",
        "write 001.compacting",
        "write 001.compacting",
        "datasync 001.compacting",
        "sync_dir .",
        "rename 001.segment",
        "sync_dir .",
    ]


def test_the_order_of_disk_calls_of_a_snapshot() -> None:
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.snapshot(5, [3])
    with world.calls() as calls:
        world.snapshot(15, [12], state=[b"one", b"two"])
    old, new = f"{5:016x}-{1:016x}", f"{15:016x}-{1:016x}"
    seen = short([call.replace(old, "5").replace(new, "15") for call in calls])
    assert seen == [
        "mkdir snapshots/15.tmp",
        "create snapshots/15.tmp/state",
        "write snapshots/15.tmp/state",
        "write snapshots/15.tmp/state",
        "write snapshots/15.tmp/state",
        "write snapshots/15.tmp/state",
        "datasync snapshots/15.tmp/state",
        "create snapshots/15.tmp/live",
        "write snapshots/15.tmp/live",
        "datasync snapshots/15.tmp/live",
        "sync_dir snapshots/15.tmp",
        "rename snapshots/15",
        "sync_dir snapshots",
        "unlink snapshots/5/live",
        "unlink snapshots/5/state",
        "rmdir snapshots/5",
        "sync_dir snapshots",
        # and only then phase 1 by the new live set
        "unlink 001.segment",
        "sync_dir .",
    ]


def test_the_order_of_disk_calls_of_a_roll_over() -> None:
    world = World()
    world.append(1, 10)
    with world.calls() as calls:
        world.roll()
    assert short(calls) == [
        "create wal/002.wal.tmp",
        "write wal/002.wal.tmp",
        "datasync wal/002.wal.tmp",
        "rename wal/002.wal",
        "sync_dir wal",
        "create 001.segment.tmp",
        "write 001.segment.tmp",
        "datasync 001.segment.tmp",
        "rename 001.segment",
        "sync_dir .",
        "unlink wal/001.wal",
        "sync_dir wal",
    ]


def test_the_order_of_disk_calls_of_an_append() -> None:
    world = World()
    with world.calls() as calls:
        world.put(1, 3)
        world.put(4, 4, size=20_000)
        world.await_written(4)
    # a large entry is durable before the batch that names it is written
    # (the WAL's handle is still called by the name under which the file was made)
    assert short(calls) == [
        "create 001.large",
        "write 001.large",
        "write 001.large",
        "datasync 001.large",
        "sync_dir .",
        "write wal/001.wal.tmp",
        "datasync wal/001.wal.tmp",
    ]
