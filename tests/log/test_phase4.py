"""Phase 4: scattered live entries are written again at the head of the log.

The machine here is the smallest there is: a map from key to the index that holds its value. A
rewritten entry keeps its key and value, so the map's content is the same before and after.
"""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from log.world import Ended, World, number
from lowmark.log import Entry, EntryGone, GroupQuarantined, SnapshotMeta
from lowmark.log.compaction_plan import plan_rewrite


class Keys:
    """Key `k<n>` was written at some index; the newest write counts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.index_of: dict[bytes, int] = {}

    def put(self, *keys: int) -> None:
        datas = [f"k{key}=v{key}".encode() for key in keys]
        first = self.world.group.append(1, datas)
        self.world.await_written(first + len(keys) - 1)
        for index, key in enumerate(keys, start=first):
            self.index_of[b"k%d" % key] = index

    def read(self) -> dict[bytes, bytes]:
        """Everything, read from the log."""
        keys = list(self.index_of)
        found = self.world.group.read(self.index_of[key] for key in keys)
        return {key: bytes(entry.data) for key, entry in zip(keys, found, strict=True)}

    def snapshot(self) -> None:
        self.world.snapshot(self.world.group.last_index, self.index_of.values())

    def rewrite(self, **plan: int) -> int:
        """All chunks of a plan; how many entries that were."""
        moved = 0
        for chunk in self.world.group.rewrite_plan(**plan):
            first = self.world.group.rewrite(1, chunk, lambda entry: entry.data)
            for index, entry in enumerate(self.world.group.read(chunk), start=first):
                self.index_of[bytes(entry.data).partition(b"=")[0]] = index
            moved += len(chunk)
        self.world.await_written(self.world.group.last_index)
        return moved


def scattered() -> Keys:
    """Ten rounds of 100 writes, of which one key each stays: ten segments, one live entry each."""
    keys = Keys(World())
    for round_ in range(10):
        keys.put(*range(100, 199), round_)
        keys.world.roll()
    for key in range(100, 199):
        del keys.index_of[b"k%d" % key]
    keys.snapshot()
    return keys


def clumps(indexes: BitMap64) -> int:
    """How many runs of neighbours a set has."""
    return sum(index - 1 not in indexes for index in indexes)


def test_a_rewrite_changes_no_answer_and_the_live_set_clumps() -> None:
    keys = scattered()
    world, before = keys.world, keys.read()
    assert clumps(world.group.row.live) == 10
    # when the scattered entries are rewritten
    assert keys.rewrite() == 10
    # then every key has the value it had, and after a snapshot the live set is one clump
    assert keys.read() == before
    keys.snapshot()
    assert keys.read() == before
    assert clumps(world.group.row.live) == 1


def test_the_old_segments_go_after_the_next_snapshot() -> None:
    keys = scattered()
    world = keys.world
    assert len(world.segments) == 10
    keys.rewrite()
    world.roll()
    # given the copies; the old entries stay until a snapshot says that they are dead
    assert len(world.segments) == 11
    before = keys.read()
    keys.snapshot()
    assert world.files() == [f"{number(11)}.segment"]
    assert keys.read() == before
    keys.world = world.reopen()
    assert keys.read() == before


def test_a_crash_between_chunks_costs_nothing() -> None:
    keys = scattered()
    before = keys.read()
    [chunk, *rest] = keys.world.group.rewrite_plan(chunk_entries=4)
    assert [len(chunk), *map(len, rest)] == [4, 4, 2]
    # given that only the first chunk was rewritten, and nothing was told of it
    keys.world.group.rewrite(1, chunk, lambda entry: entry.data)
    keys.world.await_written(keys.world.group.last_index)
    keys.world = keys.world.crash()
    # then the old places still count, and the plan is the same as before
    assert keys.read() == before
    assert keys.world.group.rewrite_plan(chunk_entries=4) == [chunk, *rest]


def test_wrap_makes_the_new_entry_of_the_old_one() -> None:
    world = World()
    world.append(1, 10)
    world.snapshot(10, [3, 7])

    def wrap(entry: Entry) -> bytes:
        return b"was %d: " % entry.index + bytes(entry.data)

    first = world.group.rewrite(2, [3, 7], wrap)
    assert first == 11
    world.await_written(12)
    assert world.read(11, 12) == [(11, 2, b"was 3: 3@1"), (12, 2, b"was 7: 7@1")]


def test_a_dead_index_can_not_be_rewritten() -> None:
    world = World()
    world.append(1, 10)
    world.snapshot(10, [3])
    with pytest.raises(EntryGone):
        world.group.rewrite(1, [3, 4], lambda entry: entry.data)
    assert world.group.last_index == 10


def test_a_damaged_entry_stops_the_rewrite() -> None:
    world = World()
    world.segment(1, 10)
    world.snapshot(10, [3])
    world.spoil(f"groups/g/{number(1)}.segment", b"3@1")
    with pytest.raises(Exception, match="entry 3 fails its checksum"):
        world.group.rewrite(1, [3], lambda entry: entry.data)
    with pytest.raises(GroupQuarantined):
        world.append(11, 11)


# -- the plan, pure -----------------------------------------------------------------------------


def test_nothing_live_is_nothing_to_rewrite() -> None:
    assert plan_rewrite(BitMap64()) == []


def test_a_dense_block_is_left_alone() -> None:
    # given a block of 1,024 indexes that is half live, and one that is nearly so
    half = BitMap64(range(1024, 1024 + 512))
    nearly = BitMap64(range(2048, 2048 + 511))
    assert plan_rewrite(half) == []
    assert plan_rewrite(half | nearly) == [list(nearly)]
    assert plan_rewrite(half | nearly, dense_share=0.4) == []


def test_the_ends_of_a_clump_are_left_alone_if_neighbours_count() -> None:
    # given a clump that begins and ends within blocks, and entries far from each other
    clump, far = BitMap64(range(900, 3_000)), BitMap64([5, 200, 5_000, 6_000])
    # then its ends are in thin blocks, and are scattered only if no neighbours count
    assert len(plan_rewrite(clump)[0]) > 100
    assert plan_rewrite(clump, neighbours=32) == []
    assert plan_rewrite(clump | far, neighbours=32) == [list(far)]
    # and what stands together is left alone, however little it is
    assert plan_rewrite(BitMap64(range(20, 32)), neighbours=32) == []
    assert plan_rewrite(BitMap64([7]), neighbours=32) == []
    assert plan_rewrite(BitMap64(range(20, 32, 3)), neighbours=32) == [[20, 23, 26, 29]]


def test_chunks_are_lowest_first_and_of_a_bounded_size() -> None:
    live = BitMap64(range(5, 100_000, 1_000))
    plan = plan_rewrite(live, chunk_entries=30)
    assert [len(chunk) for chunk in plan] == [30, 30, 30, 10]
    assert [index for chunk in plan for index in chunk] == list(live)


def test_after_a_rewrite_and_a_snapshot_there_is_nothing_more_to_do() -> None:
    # given enough scattered entries to fill half a block
    world = World(segment_entries_max=5_000)
    for k in range(52):
        world.append(100 * k + 1, 100 * k + 100)
    live = BitMap64(range(5, 5_200, 5))
    world.snapshot(5_200, live)
    [first, *others] = world.group.rewrite_plan(chunk_entries=600)
    count = len(first) + sum(map(len, others))
    assert count == len(live)
    at = world.group.last_index + 1
    for chunk in [first, *others]:
        world.group.rewrite(1, chunk, lambda entry: entry.data)
    last = world.group.last_index
    world.await_written(last)
    ended = Ended()
    meta = SnapshotMeta(index=last, term=1)
    world.group.take_snapshot(meta, [], BitMap64(range(at, last + 1)), ended)
    world.loop.run_until(lambda: ended.over)
    # then what may be left are the ends of the clump, fewer than one block can take
    assert sum(map(len, world.group.rewrite_plan())) < 512 * 2
    assert clumps(world.group.row.live) == 1
