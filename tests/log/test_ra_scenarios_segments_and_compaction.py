"""Ra's scenarios for segments and compaction (reference/raft-and-log.md §2, 1 to 22), and the
defects and gaps of §1.3.

Ours differs: a merge has no marker file, its `.compacting` name lists the sources; it is finished
when it ends in a trailer and the lowest source is the same file.

     1  test_a_segment_with_nothing_live_goes
     2  test_a_rewritten_segment_holds_exactly_the_live_entries
     3  test_live_segments_outlive_a_restart_and_an_empty_live_set_leaves_the_newest
     4  test_sparse_segments_are_merged_and_a_dense_one_is_not_touched
     5  test_links_stay_for_their_grace_time; ..._also_when_they_were_found_at_start_up
     6  test_bytes_end_a_merge_where_entries_would_not
     7  test_few_live_bytes_are_reason_enough_for_a_rewrite; test_few_dead_bytes_are_not
     8  test_each_index_keeps_its_term_through_overwrite_compaction_and_restart
     9  test_segments_that_arrive_during_a_merge_are_all_readable
    10  test_an_overwrite_during_a_merge_wins (beyond the snapshot: what a merge reads can't be
        overwritten, since an append leaves out what the snapshot covers)
    11  test_phase3_triggers: a second request is dropped
    12  none: there is no count of minors; the dead ratio decides (test_phase3_triggers)
    13  test_segments_that_were_overwritten_whole_are_deleted_and_links_stay
    14  test_a_merge_that_was_never_finished_is_removed_at_start_up
    15  test_a_crash_between_two_links_is_rolled_forward
    16  test_a_link_that_was_not_renamed_is_completed
    17  test_a_crash_before_the_hard_link_leaves_the_sources
    18  test_defect_1_..., test_defect_2_..., test_defect_3_... (ENOSPC: test_full_and_failing_disk)
    19  test_a_dangling_link_is_removed_at_start_up
    20  test_a_snapshot_during_a_merge_leaves_nothing_behind
    21  test_a_wal_file_that_outlived_its_flush_is_flushed_again
    22  test_a_segment_that_was_overwritten_in_part_keeps_its_file
    CRC gap      test_gap_a_sparse_read_checks_the_checksum, test_gap_a_merge_checks_what_it_copies
    orphan gap   test_gap_orphans_go_although_nothing_is_live
    `indexes`    test_ra_scenarios_snapshots: a lost live set is not an empty one
"""

from __future__ import annotations

from functools import partial

import pytest
from pyroaring import BitMap64

from log.world import World, number
from lowmark.log import CompactionRun, Damaged, EntryGone
from lowmark.log.compaction_plan import Merge, SegmentStats
from lowmark.log.merge import Merger


def of_tens(count: int, world: World | None = None) -> World:
    """A world with segments 1 to `count` of ten entries each."""
    world = world or World()
    for k in range(count):
        world.segment(10 * k + 1, 10 * k + 10)
    return world


def merge_of_three() -> World:
    """Segments 1 to 4; of the first three, one entry each is live."""
    world = of_tens(4)
    world.snapshot(30, [5, 15, 25])
    return world


def check_merged(world: World) -> None:
    """The three are one now, on disk and in memory, and nothing is left of the work."""
    world.settle()
    assert world.segments == [(1, 5, 25), (4, 31, 40)]
    assert world.links() == dict.fromkeys((2, 3), number(1) + ".segment")
    assert world.files() == [number(n) + ".segment" for n in (1, 2, 3, 4)]
    assert world.records(1) == [5, 15, 25]
    world.check([5, 15, 25, *range(31, 41)])


def check_not_merged(world: World) -> None:
    """The sources are as they were, and nothing is left of the try."""
    world.settle()
    assert world.segments == [(1, 1, 10), (2, 11, 20), (3, 21, 30), (4, 31, 40)]
    assert world.files() == [number(n) + ".segment" for n in (1, 2, 3, 4)]
    assert world.links() == {}
    world.check([5, 15, 25, *range(31, 41)])


# -- phase 1 ------------------------------------------------------------------------------------


def test_a_segment_with_nothing_live_goes() -> None:
    # given three segments
    world = of_tens(3)
    # when a snapshot at the end of the second keeps only entries of the first
    world.snapshot(20, [3, 7])
    # then the second is gone, and what is live can be read
    assert world.segments == [(1, 1, 10), (3, 21, 30)]
    assert world.files() == [number(1) + ".segment", number(3) + ".segment"]
    assert world.readable(1, 30) == [3, 7, *range(21, 31)]


def test_a_rewritten_segment_holds_exactly_the_live_entries() -> None:
    world = of_tens(3)
    world.snapshot(20, [3, 7])
    # when phase 3 has run and the log is opened again
    world.compact()
    world = world.reopen()
    # then the first segment has two records, and they are the live ones
    assert world.records(1) == [3, 7]
    world.check([3, 7, *range(21, 31)])


def test_live_segments_outlive_a_restart_and_an_empty_live_set_leaves_the_newest() -> None:
    # given four segments, with live entries in all but the second
    world = of_tens(4)
    world.snapshot(40, [1, 21, 31])
    # when the log is opened again
    world = world.reopen()
    # then three are left
    assert [n for n, _, _ in world.segments] == [1, 3, 4]
    world.check([1, 21, 31])
    # and when nothing is live any more, only the newest stays
    world.append(41, 41)
    world.snapshot(41)
    assert world.files() == [number(4) + ".segment"]
    assert world.readable(1, 41) == []


# -- phase 3: what is merged --------------------------------------------------------------------


def test_sparse_segments_are_merged_and_a_dense_one_is_not_touched() -> None:
    # given six full segments: 1 to 3 and 5 sparse, 4 dense
    world = of_tens(6, World(segment_entries_max=10))
    live = [1, 2, 11, 12, 21, 22, *range(31, 41), 41]
    world.snapshot(60, live)
    dense = world.disk.stat(f"groups/g/{number(4)}.segment")
    # when phase 3 runs
    run = world.compact()
    # then the three are one, the fifth is rewritten, and the dense one is the same file as before
    assert (run.merges, run.sources) == (2, 4)
    assert world.links() == dict.fromkeys((2, 3), number(1) + ".segment")
    assert world.records(1) == [1, 2, 11, 12, 21, 22]
    assert world.records(5) == [41]
    assert world.disk.stat(f"groups/g/{number(4)}.segment") == dense
    # and reads are the same after a restart
    world.check(live)
    world.reopen().check(live)


def test_links_stay_for_their_grace_time() -> None:
    world = of_tens(3, World(link_grace_ms=1_000))
    world.snapshot(20, [5, 15])
    world.compact()
    # given a link; when less than its grace time passes, it stays
    world.loop.run_for(500)
    assert list(world.links()) == [2]
    # when the rest passes, it goes, and nothing else does
    world.loop.run_for(1_500)
    assert world.links() == {}
    world.check([5, 15])


def test_links_stay_for_their_grace_time_also_when_they_were_found_at_start_up() -> None:
    world = of_tens(3, World(link_grace_ms=1_000))
    world.snapshot(20, [5, 15])
    world.compact()
    world = world.reopen()
    assert list(world.links()) == [2]
    world.loop.run_for(3_000)
    assert world.links() == {}
    world.check([5, 15])


def test_bytes_end_a_merge_where_entries_would_not() -> None:
    # given four segments with 1,800 live bytes each, and room for 4,096 in one
    world = World(segment_bytes_max=4_096)
    for k in range(5):
        world.segment(6 * k + 1, 6 * k + 6, size=600)
    live = [6 * k + i for k in range(4) for i in (1, 2, 3)]
    world.snapshot(24, live)
    # when phase 3 runs, then there are two merges of two
    run = world.compact()
    assert (run.merges, run.sources) == (2, 4)
    assert world.links() == {2: number(1) + ".segment", 4: number(3) + ".segment"}
    world.check(live, size=600)


def test_few_live_bytes_are_reason_enough_for_a_rewrite() -> None:
    # given a segment with most entries live, but few of its bytes
    world = World()
    world.append(1, 6)
    world.append(7, 10, size=1_000)
    world.roll()
    world.segment(11, 12)
    world.snapshot(10, range(1, 7))
    # then it is rewritten
    assert world.compact().merges == 1
    assert world.records(1) == [1, 2, 3, 4, 5, 6]


def test_few_dead_bytes_are_not() -> None:
    # given a segment with most entries dead, but hardly any of its bytes
    world = World()
    world.append(1, 9)
    world.append(10, 10, size=1_000)
    world.roll()
    world.segment(11, 12)
    world.snapshot(10, [10])
    # then it is left alone
    assert world.compact().result == "nothing to do"
    assert world.records(1) == list(range(1, 11))


def test_each_index_keeps_its_term_through_overwrite_compaction_and_restart() -> None:
    # given 1 to 500 in term 1, overwritten from 200 on in term 2
    world = World()
    world.segment(1, 500)
    world.segment(200, 600, term=2)
    world.segment(601, 610, term=2)

    def check(world: World) -> None:
        world.check([150, 199])
        world.check([200, 400, 550], term=2)
        assert [world.group.term_at(i) for i in (199, 200, 550)] == [1, 2, 2]

    # when phase 1, phase 3 and a restart have passed, each index still has its term
    world.snapshot(600, [150, 199, 200, 400, 550])
    check(world)
    assert world.compact().sources == 2
    check(world)
    check(world.reopen())


# -- phase 3, and meanwhile ---------------------------------------------------------------------


def begin_merge(world: World) -> list[CompactionRun]:
    """Ask for phase 3 and let it begin to copy."""
    ended: list[CompactionRun] = []
    assert world.group.compact(ended.append)
    world.loop.run_until(lambda: any(".compacting" in name for name in world.files()))
    assert not ended
    return ended


def test_segments_that_arrive_during_a_merge_are_all_readable() -> None:
    world = merge_of_three()
    # given a merge that is under way; when new segments arrive before its result does
    ended = begin_merge(world)
    world.append(41, 60)
    world.log.roll()
    world.loop.run_until(lambda: bool(ended))
    world.settle()
    # then everything live and everything new is there, now and after a restart
    world.check([5, 15, 25, *range(31, 61)])
    world = world.reopen()
    world.check([5, 15, 25, *range(31, 61)])


def test_an_overwrite_during_a_merge_wins() -> None:
    world = merge_of_three()
    ended = begin_merge(world)
    # when what follows the snapshot is overwritten, and flushed, meanwhile
    world.append(31, 35, term=2)
    world.log.roll()
    world.loop.run_until(lambda: bool(ended))
    world.settle()

    def check(world: World) -> None:
        world.check([5, 15, 25])
        world.check(range(31, 36), term=2)
        assert world.readable(36, 40) == []

    check(world)
    check(world.reopen())


def test_a_snapshot_during_a_merge_leaves_nothing_behind() -> None:
    world = merge_of_three()
    # given a merge; when a snapshot makes dead what it is copying
    begin_merge(world)
    ended = world.begin_snapshot(40)
    world.loop.run_until(lambda: ended.over)
    ended.check()
    world.settle()
    # then phase 1 runs once more behind the merge, and only the newest segment is left
    assert world.files() == [number(4) + ".segment"]
    assert world.readable(1, 40) == []


# -- overwritten segments -----------------------------------------------------------------------


def test_segments_that_were_overwritten_whole_are_deleted_and_links_stay() -> None:
    # given a merge with its link, and a segment that a newer term overwrites whole
    world = of_tens(3)
    world.snapshot(20, [5, 15])
    world.compact()
    world.segment(31, 40)
    world.segment(31, 45, term=2)
    # then that segment's file is gone, and the link is not
    assert world.files() == [number(n) + ".segment" for n in (1, 2, 3, 5)]
    assert list(world.links()) == [2]
    world.check(range(31, 46), term=2)


def test_a_segment_that_was_overwritten_in_part_keeps_its_file() -> None:
    # given a segment whose end is overwritten
    world = World()
    world.segment(1, 10)
    world.segment(6, 12, term=2)
    # then only its range is shorter
    assert world.segments == [(1, 1, 5), (2, 6, 12)]
    assert world.files() == [number(1) + ".segment", number(2) + ".segment"]
    world = world.reopen()
    world.check(range(1, 6))
    world.check(range(6, 13), term=2)


def test_gap_orphans_go_although_nothing_is_live() -> None:
    # given a crash before the file of an overwritten segment was deleted
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.append(11, 20, term=2)
    world.until("unlink", f"{number(2)}.segment", world.roll)
    world = world.kill()
    world.settle()
    # then it is deleted at start-up, without any snapshot or live index
    assert world.group.row.snapshot_index == 0
    assert f"{number(2)}.segment" not in world.files()
    world.check(range(1, 11))
    world.check(range(11, 21), term=2)


@pytest.mark.parametrize("flushed", [True, False], ids=["in a segment", "in the wal"])
def test_what_a_dead_entry_overwrote_stays_overwritten(flushed: bool) -> None:
    # given a tail that a shorter one overwrote, and a snapshot that covers all of the new one
    world = World()
    world.append(1, 10)
    if flushed:
        world.roll()
    world.append(3, 4, term=2)
    world.snapshot(4)
    # when the log is opened again, before and after the last of it left the WAL
    for _ in range(3):
        world = world.kill()
        # then the old tail has not come back
        assert (world.group.last_index, world.group.last_term) == (4, 2)
        assert world.readable(1, 10) == []
        world.settle()
    world.append(5, 6, term=2)
    world.check([5, 6], term=2)


# -- crashes in a merge -------------------------------------------------------------------------

FIRST = f"{number(1)}.segment"
BEFORE_THE_LINK = [
    ("create", ".compacting"),
    ("write", ".compacting"),
    ("datasync", ".compacting"),
    ("link", f"{FIRST}.new"),
]
AFTER_THE_LINK = [
    ("rename", FIRST),
    ("symlink", f"{number(2)}.segment.link"),
    ("rename", f"{number(2)}.segment"),
    ("symlink", f"{number(3)}.segment.link"),
    ("rename", f"{number(3)}.segment"),
    ("unlink", ".compacting"),
]


@pytest.mark.parametrize(("call", "path"), BEFORE_THE_LINK)
def test_a_crash_before_the_hard_link_leaves_the_sources(call: str, path: str) -> None:
    # given a crash anywhere before the merge is linked
    world = merge_of_three()
    world.until(call, path, world.compact)
    # then, whatever of it was durable, the sources are intact and the try is gone
    for after in world.worlds_after_crash():
        check_not_merged(after)
    check_not_merged(world.kill())


@pytest.mark.parametrize(("call", "path"), AFTER_THE_LINK)
def test_a_crash_after_the_hard_link_is_rolled_forward(call: str, path: str) -> None:
    world = merge_of_three()
    world.until(call, path, world.compact)
    for after in world.worlds_after_crash():
        check_merged(after)
    check_merged(world.kill())


def test_a_crash_between_two_links_is_rolled_forward() -> None:
    # given that one of two links is made, durably
    world = merge_of_three()
    world.until("rename", f"{number(3)}.segment", world.compact)
    world.disk.sync_dir("groups/g")
    assert list(world.links()) == [2]
    # when the log is opened again, both are
    check_merged(world.crash())


def test_a_link_that_was_not_renamed_is_completed() -> None:
    world = merge_of_three()
    world.until("rename", f"{number(2)}.segment", world.compact)
    assert f"{number(2)}.segment.link" in world.files()
    check_merged(world.kill())


def test_a_merge_that_was_never_finished_is_removed_at_start_up() -> None:
    # given left-overs of all kinds: a merge of two, of one, one that is no segment at all
    world = merge_of_three()
    world.log.close()
    names = [
        f"{number(1)}-{number(2)}.compacting",
        f"{number(3)}.compacting",
        f"{number(1)}.segment.new",
        f"{number(2)}.segment.link",
        f"{number(9)}.segment.tmp",
    ]
    for name in names:
        file = world.disk.open(f"groups/g/{name}", "create")
        file.append([b"rubbish"] if "-" in name else [])
    # when the log is opened, they are gone and the data is intact
    check_not_merged(world.kill())


def test_a_foreign_hard_link_changes_nothing() -> None:
    # given a backup by hard links of a merge that is written but not linked
    world = merge_of_three()
    world.until("link", f"{FIRST}.new", world.compact)
    merge = f"{number(1)}-{number(2)}-{number(3)}.compacting"
    world.disk.make_dir("backup")
    world.disk.link(f"groups/g/{merge}", f"backup/{merge}")
    # when the log is opened, a link count of two is no proof of anything
    check_not_merged(world.kill())


def test_a_dangling_link_is_removed_at_start_up() -> None:
    world = merge_of_three()
    world.log.close()
    world.disk.symlink(f"{number(77)}.segment", f"groups/g/{number(8)}.segment")
    world = world.kill()
    assert world.links() == {}
    check_not_merged(world)


def test_a_wal_file_that_outlived_its_flush_is_flushed_again() -> None:
    # given a crash after the flush and before its WAL file went
    world = World()
    world.segment(1, 10)
    world.append(11, 20)
    world.until("unlink", ".wal", world.roll)
    # when the log is opened again, the same entries are flushed a second time
    for after in [*world.worlds_after_crash(), world.kill()]:
        after.settle()
        # then no needed file is deleted, and the whole range reads
        after.check(range(1, 21))
        assert after.segments == [(1, 1, 10), (3, 11, 20)]
        after.reopen().check(range(1, 21))


# -- Ra's defects -------------------------------------------------------------------------------


def test_defect_1_the_absence_of_a_file_proves_nothing() -> None:
    # given a crash as early in a merge as can be: its name is there, and nothing in it
    world = merge_of_three()
    world.until("write", ".compacting", world.compact)
    for after in [*world.worlds_after_crash(), world.kill()]:
        # then not one live entry is lost
        check_not_merged(after)


def merger(world: World, *numbers: int) -> Merger:
    """A merge by hand."""
    refs = [ref for ref in world.group.state.segments if ref.number in numbers]
    return Merger(
        world.disk,
        "groups/g",
        incarnation=world.group.state.incarnation,
        merge=Merge(tuple(SegmentStats(ref, 1, 1) for ref in refs)),
        keep=world.group.row.live,
        step_bytes=4_096,
    )


def test_defect_2_several_interrupted_merges_are_mended_at_once() -> None:
    # given three merges that were interrupted: not linked, linked, and renamed
    world = of_tens(7)
    live = [10 * k + 5 for k in range(6)]
    world.snapshot(60, live)
    for numbers, call, path in (
        ((1, 2), "link", f"{number(1)}.segment.new"),
        ((3, 4), "rename", f"{number(3)}.segment"),
        ((5, 6), "symlink", f"{number(6)}.segment.link"),
    ):
        world.until(call, path, partial(list, merger(world, *numbers).steps()))
    assert sum(name.endswith(".compacting") for name in world.files()) == 3
    # when the log is opened
    for after in [*world.worlds_after_crash(), world.kill()]:
        after.settle()
        # then the first is undone, the others are done, and every live entry reads
        assert [n for n, _, _ in after.segments] == [1, 2, 3, 5, 7]
        assert list(after.links()) == [4, 6]
        assert not any(name.endswith(".compacting") for name in after.files())
        after.check([*live, *range(61, 71)])


def test_defect_3_what_a_failed_merge_left_does_not_hurt_the_next() -> None:
    # given a merge that failed, and could not even clean up behind itself
    world = merge_of_three()
    world.disk.fail_next("write", ".compacting")
    world.disk.fail_next("unlink", ".compacting")
    assert world.compact().result.startswith("failed: write of")
    stale = f"groups/g/{number(1)}-{number(2)}-{number(3)}.compacting"
    world.disk.open(stale, "write").append([b"of another capacity" * 100])
    # when phase 3 runs again, then it works
    assert world.compact().result == "done"
    check_merged(world)
    check_merged(world.reopen())


def test_a_failed_merge_cleans_up_behind_itself() -> None:
    world = merge_of_three()
    world.disk.fail_next("datasync", ".compacting")
    assert world.compact().result.startswith("failed: datasync of")
    check_not_merged(world)


def check_that_the_lowest_may_die(world: World) -> None:
    """When nothing of the first source is live any more, the others still read."""
    world.snapshot(40, [15, 25])
    world.check([15, 25])
    world.reopen().check([15, 25])


@pytest.mark.parametrize(("call", "path"), AFTER_THE_LINK)
def test_a_merge_that_fails_when_it_is_linked_goes_through_later(call: str, path: str) -> None:
    # given a disk call that fails when sources may be links to the merge already
    world = merge_of_three()
    world.disk.fail_next(call, path)
    # when phase 3 runs, then it tries again until it is through
    assert world.compact().result == "done"
    check_merged(world)
    check_that_the_lowest_may_die(world)


@pytest.mark.parametrize(
    ("call", "path"), [("link", f"{FIRST}.new"), AFTER_THE_LINK[0], *AFTER_THE_LINK[3:]]
)
def test_a_merge_whose_names_may_not_be_durable_stands_still(call: str, path: str) -> None:
    # given a folder that can't be synced behind that call: its names may be lost for good
    world = merge_of_three()
    world.before(call, path, lambda: world.disk.fail_next("sync_dir", "groups/g"))
    # when phase 3 runs, then it says so, and no other run begins
    assert "until the log is opened again" in world.compact().result
    assert world.group.compact() is False
    # and nothing is deleted, even when the lowest source dies, so that every live entry stays
    world.snapshot(40, [15, 25])
    world.check([15, 25])
    # and a start, after a crash or not, sorts it out
    for after in [*world.worlds_after_crash(), world.crash(), world.kill()]:
        after.settle()
        assert after.group.quarantined is None
        after.check([15, 25])
        assert not any(name.endswith(".compacting") for name in after.files())


def test_a_crash_while_a_merge_waits_for_its_disk_is_rolled_forward() -> None:
    world = merge_of_three()
    world.disk.fail_next("symlink", number(3))
    ended: list[CompactionRun] = []
    world.group.compact(ended.append)
    world.loop.run_for(100)
    assert not ended
    for after in [*world.worlds_after_crash(), world.kill()]:
        check_merged(after)


# -- Ra's gaps ----------------------------------------------------------------------------------


def test_gap_a_sparse_read_checks_the_checksum() -> None:
    world = merge_of_three()
    # given a flipped bit in a live entry
    world.spoil(f"groups/g/{number(2)}.segment", b"15@1")
    # when it is read alone, then it is damage, not data, and the group is in quarantine
    with pytest.raises(Damaged, match="entry 15 fails its checksum"):
        world.read(15)
    assert world.group.quarantined is not None
    # and its neighbours still read
    world.check([5, 25, 31])


def test_gap_a_merge_checks_what_it_copies() -> None:
    world = merge_of_three()
    world.spoil(f"groups/g/{number(2)}.segment", b"15@1")
    # when phase 3 comes to the damaged entry
    run = world.compact()
    # then it gives up, keeps the sources, and the group is in quarantine
    assert "entry 15 fails its checksum" in run.result
    assert [n for n, _, _ in world.segments] == [1, 2, 3, 4]
    assert world.files() == [number(n) + ".segment" for n in (1, 2, 3, 4)]
    assert world.group.quarantined is not None
    assert world.reopen().group.quarantined is not None


def test_a_flipped_bit_in_a_dead_entry_hurts_nobody() -> None:
    world = merge_of_three()
    world.spoil(f"groups/g/{number(2)}.segment", b"16@1")
    assert world.compact().result == "done"
    check_merged(world)
    with pytest.raises(EntryGone):
        world.read(16)


def test_a_merge_takes_only_what_is_to_be_kept() -> None:
    # given a merge by hand, with nothing left to keep
    world = of_tens(3)
    world.snapshot(20, [5, 15])
    one = merger(world, 1, 2)
    one._keep = BitMap64()
    assert list(one.steps()) == [0]
    assert one.result is None
    assert not any(name.endswith(".compacting") for name in world.files())
