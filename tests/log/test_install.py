"""Taking in a snapshot that another node sends."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyroaring import BitMap64

from log.world import Ended, World, data_of, finish, number
from lowmark.log import Entry, Installer, InstallRefused, SnapshotMeta


def entry(index: int, term: int = 3, size: int = 0) -> Entry:
    return Entry(index, term, data_of(index, term, size))


def begin(world: World, index: int = 40, *, last_applied: int, term: int = 3) -> Installer:
    return world.group.begin_install(
        SnapshotMeta(index=index, term=term, members=b"a,b"), last_applied=last_applied
    )


def take_in(
    world: World, index: int = 40, *, last_applied: int, sent: Iterable[int], live: Iterable[int]
) -> None:
    """Install a snapshot whose sent entries are of term 3."""
    installer = begin(world, index, last_applied=last_applied)
    installer.add_entries(last_applied, [entry(i) for i in sent])
    installer.add_state(0, b"state at %d" % index)
    finish(world, installer, live)


def check_as_it_was(world: World, last: int) -> None:
    """Entries 1 to `last` of term 1, no snapshot, nothing of an installation."""
    assert world.group.snapshot is None
    assert (world.group.last_index, world.group.written_index) == (last, last)
    world.check(range(1, last + 1))
    left = [n for n in world.disk.list("groups/g") if n.startswith("install")]
    assert left == []


# -- the way in ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [True, False], ids=["own in segments", "own in the wal"])
def test_an_installed_snapshot_is_in_force(flushed: bool) -> None:
    # given own entries to 20, of which 12 are applied
    world = World()
    world.append(1, 20)
    if flushed:
        world.roll()
    # when a snapshot at 40 is installed; 5 and 10 are own and live, 15 is not the own one
    take_in(world, last_applied=12, sent=[15, 33], live=[5, 10, 15, 33])
    # then it is in force, and each live index reads with its right term, also after a crash
    for after in [world, world.crash(), world.reopen()]:
        assert after.group.row.snapshot_index == 40
        assert (after.group.first_index, after.group.last_index) == (41, 40)
        assert (after.group.last_term, after.group.written_index) == (3, 40)
        after.check([5, 10])
        after.check([15, 33], term=3)
        assert after.readable(1, 40) == [5, 10, 15, 33]
        assert b"".join(after.group.read_snapshot()) == b"state at 40"
        assert after.group.snapshot is not None
        assert after.group.snapshot.meta.members == b"a,b"
        left = [n for n in after.disk.list("groups/g") if n.startswith("install")]
        assert left == []


def test_a_fresh_group_takes_everything_in() -> None:
    world = World()
    take_in(world, last_applied=0, sent=[1, 2, 40], live=[1, 2, 40])
    for after in [world, world.crash()]:
        after.check([1, 2, 40], term=3)


def test_a_snapshot_without_live_entries() -> None:
    world = World()
    world.append(1, 10)
    world.roll()
    take_in(world, last_applied=10, sent=[], live=[])
    for after in [world, world.crash()]:
        assert after.readable(1, 40) == []
        assert after.group.last_index == 40


def test_many_entries_make_several_segments() -> None:
    world = World(segment_entries_max=10)
    installer = begin(world, last_applied=0)
    for first in range(1, 40, 4):
        installer.add_entries(first - 1, [entry(i) for i in range(first, first + 4)])
    installer.add_state(0, b"s")
    finish(world, installer, range(1, 41))
    assert len(world.segments) == 4
    for after in [world, world.crash()]:
        after.check(range(1, 41), term=3)


def test_large_entries_come_in_as_well() -> None:
    # given an own large entry that is applied and live, and one that is sent
    world = World(segment_bytes_max=1 << 20)
    world.append(1, 3)
    world.append(4, 4, size=20_000)
    installer = begin(world, last_applied=4)
    installer.add_entries(4, [entry(30, size=50_000)])
    finish(world, installer, [2, 4, 30])
    for after in [world, world.crash()]:
        after.check([2])
        after.check([4], size=20_000)
        after.check([30], term=3, size=50_000)
        # and no large file is left without a user
        after.settle()
        assert not any(name.endswith(".large") for name in after.files())


def test_a_large_own_entry_that_is_in_a_segment_stays_where_it_is() -> None:
    world = World(segment_bytes_max=1 << 20)
    world.append(1, 1, size=20_000)
    world.roll()
    take_in(world, last_applied=1, sent=[30], live=[1, 30])
    for after in [world, world.crash()]:
        after.check([1], size=20_000)
        assert f"{number(1)}.large" in after.files()


# -- pieces -------------------------------------------------------------------------------------


def test_a_sender_that_was_cut_off_goes_on_where_it_was() -> None:
    world = World()
    installer = begin(world, last_applied=0)
    installer.add_entries(0, [entry(3)])
    installer.add_state(0, b"first ")
    # given a sender that lost its connection; the installer says where to go on
    assert (installer.previous, installer.state_bytes) == (3, 6)
    installer.add_state(6, b"second")
    finish(world, installer, [3])
    assert b"".join(world.group.read_snapshot()) == b"first second"


def test_a_repeated_chunk_is_ignored() -> None:
    world = World()
    installer = begin(world, last_applied=0)
    installer.add_state(0, b"abc")
    installer.add_state(0, b"abc")
    installer.add_state(1, b"bcde")  # the half of it is new
    installer.add_state(2, b"c")
    assert installer.state_bytes == 5
    finish(world, installer, [])
    assert b"".join(world.group.read_snapshot()) == b"abcde"


def test_a_gap_in_the_state_is_refused_by_name() -> None:
    installer = begin(World(), last_applied=0)
    installer.add_state(0, b"abc")
    with pytest.raises(InstallRefused, match=r"(?s)byte 4 .* Send it from byte 3 on"):
        installer.add_state(4, b"e")
    installer.add_state(3, b"d")


def test_a_gap_in_the_live_entries_is_refused_by_name() -> None:
    world = World()
    world.append(1, 5)
    installer = begin(world, last_applied=5)
    installer.add_entries(5, [entry(9), entry(12)])
    with pytest.raises(InstallRefused, match="after 20 do not follow 12"):
        installer.add_entries(20, [entry(30)])
    with pytest.raises(InstallRefused, match="after 5 do not follow 12"):
        installer.add_entries(5, [entry(9), entry(12)])
    installer.add_entries(12, [])
    installer.add_entries(12, [entry(40)])


@pytest.mark.parametrize("indexes", [[9, 9], [9, 8], [5], [41]])
def test_live_entries_must_rise_and_end_at_the_snapshot(indexes: list[int]) -> None:
    world = World()
    world.append(1, 5)
    installer = begin(world, last_applied=5)
    with pytest.raises(InstallRefused, match="must rise and end at the snapshot"):
        installer.add_entries(5, [entry(i) for i in indexes])


def test_a_live_set_beyond_the_snapshot_is_refused() -> None:
    world = World()
    world.append(1, 5)
    installer = begin(world, last_applied=5)
    with pytest.raises(InstallRefused, match="lies after the snapshot"):
        installer.finish(BitMap64([41]), Ended())
    installer.abort()


def test_a_snapshot_that_is_not_ahead_is_refused() -> None:
    world = World()
    world.append(1, 50)
    world.snapshot(40)
    with pytest.raises(InstallRefused, match="40 is not ahead"):
        begin(world, 40, last_applied=40)
    with pytest.raises(InstallRefused, match="45 is not ahead"):
        begin(world, 45, last_applied=46)


# -- ways out -----------------------------------------------------------------------------------


def test_an_abort_leaves_everything_as_it_was() -> None:
    world = World()
    world.append(1, 20)
    installer = begin(world, last_applied=12)
    installer.add_entries(12, [entry(15)])
    installer.add_state(0, b"abc")
    installer.abort()
    installer.abort()
    world.settle()
    check_as_it_was(world, 20)
    with pytest.raises(InstallRefused, match="has ended"):
        installer.add_state(3, b"d")
    check_as_it_was(world.crash(), 20)
    # and appends go on, as they did all the time
    world.append(21, 22)


def test_appends_are_taken_while_a_snapshot_comes_in() -> None:
    world = World()
    world.append(1, 20)
    installer = begin(world, last_applied=12)
    installer.add_state(0, b"abc")
    world.append(21, 25)
    world.check(range(21, 26))
    installer.abort()
    world.settle()
    check_as_it_was(world, 25)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("write", "installing/snapshot/state"),
        ("datasync", "installing/snapshot/state"),
        ("datasync", "installing/snapshot/live"),
        ("datasync", f"installing/{number(0)}.segment"),
        ("write", f"installing/{number(1)}.segment"),
        ("datasync", "installing/plan"),
        ("sync_dir", "installing"),
        ("rename", "installed"),
    ],
)
def test_a_disk_that_refuses_leaves_everything_as_it_was(call: str, part: str) -> None:
    world = World()
    world.append(1, 20)
    world.disk.fail_next(call, part)
    installer = begin(world, last_applied=12)
    installer.add_entries(12, [entry(15)])
    installer.add_state(0, b"abc")
    ended = Ended()
    installer.finish(BitMap64([5, 15]), ended)
    world.loop.run_until(lambda: ended.over)
    world.settle()
    assert ended.error is not None
    check_as_it_was(world, 20)
    check_as_it_was(world.crash(), 20)
    # and the next try works
    take_in(world, last_applied=12, sent=[15], live=[5, 15])
    world.check([5])
    world.check([15], term=3)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("link", f"{number(1)}.segment"),
        ("mkdir", "snapshots/"),
        ("link", "snapshots/"),
        ("rename", "snapshots/"),
        ("unlink", "installed/"),
        ("rmdir", "installed"),
    ],
)
def test_once_it_counts_it_is_moved_in_whatever_the_disk_says(call: str, part: str) -> None:
    world = World()
    world.append(1, 20)
    installer = begin(world, last_applied=12)
    installer.add_entries(12, [entry(15)])
    installer.add_state(0, b"abc")
    world.drain("compaction")
    world.disk.fail_next(call, part)
    finish(world, installer, [5, 15])
    for after in [world, world.crash()]:
        assert after.group.row.snapshot_index == 40
        after.check([5])
        after.check([15], term=3)


def test_a_crash_at_any_call_leaves_the_old_or_the_new() -> None:
    calls = 0
    while True:
        world = World()
        world.append(1, 20)
        installer = begin(world, last_applied=12)
        installer.add_entries(12, [entry(15), entry(33)])
        installer.add_state(0, b"abc")
        calls += 1
        world.disk.stop_at_call = world.disk.calls + calls
        try:
            finish(world, installer, [5, 15, 33])
        except BaseException as stopped:
            if type(stopped).__name__ != "WorldStopped":
                raise
        else:
            break
        after = world.crash(calls)
        after.settle()
        if after.group.snapshot is None:
            check_as_it_was(after, 20)
        else:
            after.check([5])
            after.check([15, 33], term=3)
            assert after.group.last_index == 40
    assert calls > 30


def test_a_second_installation_replaces_the_first() -> None:
    world = World()
    world.append(1, 20)
    first = begin(world, 30, last_applied=12)
    first.add_entries(12, [entry(14)])
    first.add_state(0, b"old")
    # when another one begins
    second = begin(world, 40, last_applied=12)
    # then the first takes nothing any more, and can't end the second
    with pytest.raises(InstallRefused, match="has ended"):
        first.add_state(3, b"er")
    with pytest.raises(InstallRefused, match="has ended"):
        first.finish(BitMap64([14]), Ended())
    first.abort()
    second.add_entries(12, [entry(15)])
    second.add_state(0, b"new")
    finish(world, second, [5, 15])
    for after in [world, world.crash()]:
        assert after.readable(1, 40) == [5, 15]
        assert b"".join(after.group.read_snapshot()) == b"new"


def test_while_one_is_being_put_in_force_no_other_begins_and_nothing_is_appended() -> None:
    world = World()
    world.append(1, 20)
    installer = begin(world, last_applied=12)
    ended = Ended()
    installer.finish(BitMap64(), ended)
    for refused in (
        lambda: world.put(21, 21),
        lambda: begin(world, 50, last_applied=12),
    ):
        with pytest.raises(InstallRefused, match="taking a snapshot over"):
            refused()
    world.loop.run_until(lambda: ended.over)
    ended.check()
    world.append(41, 41, term=3)


def test_one_after_another() -> None:
    world = World()
    take_in(world, 40, last_applied=0, sent=[15, 33], live=[15, 33])
    world.append(41, 45, term=3)
    take_in(world, 80, last_applied=45, sent=[60], live=[15, 42, 60])
    for after in [world, world.crash()]:
        after.check([15, 42, 60], term=3)
        assert after.readable(1, 80) == [15, 42, 60]
        assert after.snapshots() == [80]


# -- what was under way -------------------------------------------------------------------------


def test_an_installation_overtakes_pending_writes() -> None:
    # given writes that have not reached the disk
    world = World()
    world.append(1, 10)
    world.put(11, 12)
    take_in(world, 15, last_applied=10, sent=[], live=[])
    # when the log goes on after the snapshot
    world.append(16, 19, term=3)
    # then exactly that is written
    for after in [world, world.crash()]:
        assert (after.group.last_index, after.group.written_index) == (19, 19)
        after.check(range(16, 20), term=3)
        assert after.readable(1, 19) == [16, 17, 18, 19]


@pytest.mark.parametrize("last", [30, 60], ids=["below the snapshot", "beyond the snapshot"])
def test_a_stale_tail_in_the_wal_never_comes_back(last: int) -> None:
    # given a tail in the WAL that lost, longer than the snapshot perhaps
    world = World()
    world.append(1, last)
    take_in(world, last_applied=12, sent=[15], live=[5, 15])
    for after in [world, world.crash(), world.crash(3)]:
        assert (after.group.last_index, after.group.last_term) == (40, 3)
        after.append(41, 42, term=3)
        for again in [after, after.crash()]:
            assert (again.group.last_index, again.group.last_term) == (42, 3)
            again.roll()
            assert again.readable(1, 60) == [5, 15, 41, 42]
            again.check([5])
            again.check([15, 41, 42], term=3)


@pytest.mark.parametrize("sent", [[15], []])
def test_a_stale_tail_in_segments_never_comes_back(sent: list[int]) -> None:
    world = World()
    world.append(1, 60)
    world.roll()
    take_in(world, last_applied=12, sent=sent, live=[5, *sent])
    assert (world.group.last_index, world.group.last_term) == (40, 3)
    world = world.crash()
    assert (world.group.last_index, world.group.last_term) == (40, 3)
    assert world.readable(1, 60) == [5, *sent]


def test_own_live_entries_that_were_only_in_the_wal_survive() -> None:
    world = World()
    world.append(1, 20)
    take_in(world, last_applied=20, sent=[], live=[5, 20])
    # also when the WAL is long gone
    world.roll()
    world.append(41, 41, term=3)
    world.roll()
    for after in [world, world.crash()]:
        after.check([5, 20])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("turns", range(0, 24, 2))
def test_a_roll_over_at_the_same_time(seed: int, turns: int) -> None:
    # given own entries that are being flushed while the snapshot is put in force
    world = World(seed)
    world.segment(1, 5)
    world.append(6, 30)
    installer = begin(world, last_applied=8)
    installer.add_entries(8, [entry(12), entry(35)])
    installer.add_state(0, b"s")
    world.drain("compaction")
    world.log.roll()
    for _ in range(turns):
        world.loop.turn()
    finish(world, installer, [3, 7, 12, 35])
    # then what was flushed does not stand in the way of what was installed
    for after in [world, world.crash(seed), world.reopen()]:
        assert after.group.last_index == 40
        after.check([3, 7])
        after.check([12, 35], term=3)
        assert after.readable(1, 40) == [3, 7, 12, 35]


def test_a_flush_that_ends_after_the_installation_is_void() -> None:
    # given a flush that the disk holds up until the snapshot is in force
    world = World()
    world.append(1, 30)
    world.disk.fail_next("write", ".segment")
    world.log.roll()
    world.loop.run_until(lambda: world.log.segment_writer.error is not None)
    take_in(world, last_applied=8, sent=[12, 35], live=[3, 7, 12, 35])
    world.settle()
    # then what it brings is older than what was installed, though it came later
    for after in [world, world.crash(), world.reopen()]:
        after.check([3, 7])
        after.check([12, 35], term=3)
        assert after.readable(1, 40) == [3, 7, 12, 35]


def test_no_flush_begins_while_a_snapshot_is_put_in_force() -> None:
    # given a snapshot that counts already, but is held up by the disk on its way in
    world = World()
    world.append(1, 30)
    installer = begin(world, last_applied=8)
    installer.add_entries(8, [entry(12), entry(35)])
    installer.add_state(0, b"s")
    world.drain("compaction")
    world.disk.fail_next("link", "snapshots/")
    # when the WAL is rolled over just then, and power fails before the rest is through
    world.before("rename", "installed", world.log.roll)
    installer.finish(BitMap64([3, 7, 12, 35]), Ended())
    world.loop.run_until(lambda: world.log.wal.number == 2)
    world.loop.run_for(100)
    world.until("unlink", "installed/", world.settle)
    # then no segment of the void entries has a higher number than the installed ones
    for after in [*world.worlds_after_crash(), world.kill()]:
        assert after.group.quarantined is None
        after.check([3, 7])
        after.check([12, 35], term=3)
        assert after.readable(1, 40) == [3, 7, 12, 35]


def test_compaction_after_an_installation() -> None:
    world = World()
    world.append(1, 20)
    world.roll()
    take_in(world, last_applied=12, sent=[15, 33], live=[5, 15, 33])
    world.append(41, 50, term=3)
    world.roll()
    world.compact()
    for after in [world, world.crash(), world.reopen()]:
        after.check([5])
        after.check([15, 33, *range(41, 51)], term=3)


def test_a_vote_survives_an_installation() -> None:
    world = World()
    world.append(1, 20)
    world.group.put_meta(b"term 3, voted for b", lambda _: None)
    world.settle()
    take_in(world, last_applied=12, sent=[15], live=[15])
    for after in [world, world.crash()]:
        assert after.group.meta == b"term 3, voted for b"
