"""Reading: plans that outlive compaction, terms, and why an entry is gone."""

from __future__ import annotations

import pytest

from log.world import World, number
from lowmark.log import EntryGone, ReadPlan, ReferenceExpired
from lowmark.log.segments import SegmentReader


def sparse() -> World:
    """Four segments, one live entry in each of the first three."""
    world = World(link_grace_ms=1_000)
    for k in range(4):
        world.segment(10 * k + 1, 10 * k + 10)
    world.snapshot(30, [5, 15, 25])
    return world


def execute(world: World, plan: ReadPlan) -> list[tuple[int, int, bytes]]:
    """Carry a plan out as another thread would: without the loop's cache."""
    return [(e.index, e.term, bytes(e.data)) for e in plan.execute(world.disk)]


FOUND = [(5, 1, b"5@1"), (15, 1, b"15@1"), (25, 1, b"25@1"), (31, 1, b"31@1")]


# -- plans --------------------------------------------------------------------------------------


def test_a_plan_made_before_a_merge_is_good_after_it() -> None:
    world = sparse()
    plan = world.group.plan_read([5, 15, 25, 31])
    world.compact()
    assert world.segments == [(1, 5, 25), (4, 31, 40)]
    assert execute(world, plan) == FOUND
    assert execute(world, plan) == FOUND  # more than once


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("link", f"{number(1)}.segment.new"),
        ("rename", f"{number(1)}.segment"),
        ("rename", f"{number(2)}.segment"),
        ("rename", f"{number(3)}.segment"),
        ("unlink", ".compacting"),
    ],
)
def test_a_plan_is_good_at_every_moment_of_a_merge(call: str, path: str) -> None:
    world = sparse()
    plan = world.group.plan_read([5, 15, 25, 31])
    found: list[object] = []
    world.before(call, path, lambda: found.append(execute(world, plan)))
    world.compact()
    assert found == [FOUND]


def test_a_plan_expires_with_the_links_and_read_plans_again() -> None:
    world = sparse()
    plan = world.group.plan_read([5, 15])
    world.compact()
    world.loop.run_for(5_000)
    assert world.links() == {}
    # given names that are gone; the plan says so, and a new one works
    with pytest.raises(ReferenceExpired, match="Plan the read again"):
        execute(world, plan)
    world.check([5, 15, 25])
    assert execute(world, world.group.plan_read([5, 15])) == FOUND[:2]


def test_a_plan_for_what_died_expires() -> None:
    world = sparse()
    plan = world.group.plan_read([5])
    world.append(41, 41)
    world.snapshot(41, [15])
    with pytest.raises(ReferenceExpired):
        execute(world, plan)
    with pytest.raises(EntryGone):
        world.read(5)


def test_a_plan_for_an_entry_that_a_rewrite_left_out_says_so() -> None:
    world = sparse()
    plan = world.group.plan_read([5])
    # given that 5 dies and its segment's name now stands for a file without it
    world.group.hold("ann", kind="reader", pins=world.group.row.live, why="reading")
    world.append(41, 41)
    world.snapshot(41, [15, 25])
    world.group.state.holds.release("ann", "reader")
    world.compact()
    with pytest.raises((EntryGone, ReferenceExpired)):
        execute(world, plan)


def test_what_is_in_memory_when_a_plan_is_made_is_read_then() -> None:
    world = World()
    world.append(1, 5)
    plan = world.group.plan_read(range(1, 6))
    # when the entries are overwritten and flushed meanwhile
    world.append(1, 3, term=2)
    world.roll()
    # then the plan still has what was asked for
    assert [(index, term) for index, term, _ in execute(world, plan)] == [
        (i, 1) for i in range(1, 6)
    ]


def test_an_open_reader_goes_on_with_the_file_it_opened() -> None:
    world = sparse()
    reader = SegmentReader(world.disk, "groups/g", 2, incarnation=world.group.state.incarnation)
    # when the segment is merged away, and even its link is gone
    world.compact()
    world.loop.run_for(5_000)
    # then it still reads all of the old file
    assert [entry.index for entry in reader.read(reader.rows)] == list(range(11, 21))
    reader.close()


def test_order_and_repetition_are_as_asked() -> None:
    world = sparse()
    world.append(41, 42)
    asked = [31, 5, 41, 5, 25, 40, 15, 42, 31]
    assert [index for index, _, _ in world.read(*asked)] == asked
    assert world.read() == []


# -- what is there, and why not -----------------------------------------------------------------


def test_terms() -> None:
    world = World()
    world.segment(1, 10)
    world.segment(6, 20, term=2)
    world.append(21, 25, term=3)

    def check(world: World) -> None:
        group = world.group
        assert [group.term_at(i) for i in (1, 5, 6, 20, 21, 25)] == [1, 1, 2, 2, 3, 3]
        assert [group.term_at(i) for i in (-1, 26, 1_000)] == [None, None, None]
        assert group.term_at(0) == 0

    check(world)
    world = world.reopen()
    check(world)
    # after a snapshot, the live ones, the snapshot's own, and what follows it
    world.snapshot(15, [3, 8])
    for after in [world, world.crash()]:
        terms = [after.group.term_at(i) for i in (3, 4, 8, 14, 15, 16, 21)]
        assert terms == [1, None, 2, None, 2, 2, 3]


def test_an_entry_that_is_gone_says_why() -> None:
    world = sparse()
    with pytest.raises(EntryGone, match=r"(?s)entry 41 of group g .*The log ends at 40") as gone:
        world.read(41)
    assert gone.value.index == 41
    with pytest.raises(EntryGone, match="It is not live, and the snapshot at 30 covers it"):
        world.read(6)
    for index in (0, -1):
        with pytest.raises(EntryGone):
            world.read(index)
    # one that is gone among others that are not
    with pytest.raises(EntryGone, match="entry 6 "):
        world.read(5, 6, 15)


def test_nothing_dead_is_served_whatever_files_still_hold_it() -> None:
    world = sparse()
    assert world.records(1) == list(range(1, 11))
    assert world.readable(1, 40) == [5, 15, 25, *range(31, 41)]


def test_what_is_not_written_yet_can_be_read() -> None:
    # the owner decides what to acknowledge; a leader sends entries on before they are durable
    world = World()
    world.put(1, 3)
    assert world.group.written_index == 0
    world.check([1, 2, 3])


# -- open files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
def test_open_files_stay_within_their_limit(limit: int) -> None:
    # given many more segments than files that may be open
    world = World(open_files_max=limit)
    for k in range(12):
        world.segment(10 * k + 1, 10 * k + 10)
    cache = world.log.cache
    # when entries are read all over them, again and again
    for step in (1, 7, 11):
        for index in range(step, 121, step):
            world.check([index])
            assert len(cache._readers) <= limit
    world.check(range(1, 121))
    assert [world.group.term_at(10 * k + 1) for k in range(12)] == [1] * 12
    assert len(cache._readers) <= limit


def test_a_deleted_segment_is_not_kept_open() -> None:
    world = World()
    for k in range(3):
        world.segment(10 * k + 1, 10 * k + 10)
    world.check(range(1, 31))
    assert len(world.log.cache._readers) == 3
    world.snapshot(20)
    assert len(world.log.cache._readers) == 1
    world.log.delete_group("g")
    assert len(world.log.cache._readers) == 0


def test_large_entries_are_read_from_memory_wal_and_segment() -> None:
    world = World()
    world.append(1, 2)
    world.append(3, 4, size=20_000)
    world.append(5, 6)

    def check(world: World) -> None:
        world.check([1, 2, 5, 6])
        world.check([3, 4], size=20_000)

    check(world)
    check(world.crash())
    world.roll()
    check(world)
    world.segment(7, 8)
    world.snapshot(6, [1, 3])
    assert world.compact().result == "done"
    for after in [world, world.crash()]:
        after.check([1])
        after.check([3], size=20_000)
        # the merge took it in, so the large file is gone
        after.settle()
        assert not any(name.endswith(".large") for name in after.files())


@pytest.mark.parametrize("where", ["the wal", "a segment"])
def test_damage_in_a_large_file_is_found_on_reading(where: str) -> None:
    world = World()
    world.append(1, 1)
    world.append(2, 2, size=20_000)
    if where == "a segment":
        world.roll()
    world.spoil(f"groups/g/{number(1)}.large", b"2@1")
    world = world.kill()
    with pytest.raises(Exception, match="entry 2 fails its checksum"):
        world.read(2)
    assert world.group.quarantined is not None
    world.check([1])
