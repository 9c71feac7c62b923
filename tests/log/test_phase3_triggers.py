"""When phase 3 runs, what it takes, how it holds back, and what it leaves on record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from log.world import QUIET, World, number
from lowmark.log import CompactionRun
from lowmark.log.compaction_plan import SegmentStats, dead_shares, plan_merges
from lowmark.log.segments import SegmentRef


def sparse(count: int = 4, *, live_of_ten: int = 1, size: int = 0, **limits: Any) -> World:
    """Segments of ten entries; of all but the newest, some of each are live."""
    world = World(**limits)
    for k in range(count):
        world.segment(10 * k + 1, 10 * k + 10, size=size)
    last = 10 * (count - 1)
    world.snapshot(last, [10 * k + i + 1 for k in range(count - 1) for i in range(live_of_ten)])
    return world


def fill(world: World, *, left: int) -> None:
    """Let another program use the disk, so that this much is free."""
    world.disk.capacity_bytes = world.disk._used_bytes + left


# -- the triggers -------------------------------------------------------------------------------


def test_the_dead_ratio_by_entries_starts_a_run() -> None:
    # given three quarters dead, and a ratio of a half; the snapshot alone is enough
    world = sparse(live_of_ten=2, compaction_dead_ratio=0.5)
    [run] = world.group.runs
    assert (run.trigger, run.merges, run.sources, run.result) == ("dead ratio", 1, 3, "done")


def test_the_dead_ratio_by_bytes_starts_a_run() -> None:
    # given more than half of the entries live, but few of the bytes
    world = World(compaction_dead_ratio=0.5)
    for first in (1, 11):
        world.append(first, first + 6)
        world.append(first + 7, first + 9, size=1_000)
        world.roll()
    world.segment(21, 22)
    world.snapshot(20, [*range(1, 8), *range(11, 18)])
    [run] = world.group.runs
    assert (run.trigger, run.sources) == ("dead ratio", 2)


@pytest.mark.parametrize(("live_of_ten", "runs"), [(4, 1), (5, 0), (6, 0)])
def test_at_the_ratio_itself_nothing_runs(live_of_ten: int, runs: int) -> None:
    # entries of one size: exactly one half dead is not more than one half
    world = sparse(live_of_ten=live_of_ten, size=20, compaction_dead_ratio=0.5)
    assert len(world.group.runs) == runs


def test_the_timer_starts_a_run() -> None:
    world = sparse(compaction_interval_ms=60_000)
    assert world.group.runs == []
    world.loop.run_for(61_000)
    world.settle()
    [run] = world.group.runs
    assert (run.trigger, run.result) == ("timer", "done")
    # and a timer that finds nothing to do is not worth a record
    world.loop.run_for(300_000)
    assert len(world.group.runs) == 1


def test_a_low_disk_starts_a_run() -> None:
    world = sparse(disk_low_bytes=100_000)
    assert world.group.runs == []
    # when a new WAL file finds less space than that
    world.disk.capacity_bytes = world.disk._used_bytes + 50_000
    world.roll()
    [run] = world.group.runs
    assert (run.trigger, run.result) == ("low disk", "done")


def test_a_disk_that_another_program_fills_starts_a_run_though_nothing_is_written() -> None:
    # given a log at rest, with plenty of space
    world = sparse(disk_low_bytes=100_000, disk_check_interval_ms=10_000)
    world.loop.run_for(60_000)
    assert world.group.runs == []
    # when the disk is filled up to a few bytes above the limit, then nothing runs
    fill(world, left=100_000)
    world.loop.run_for(11_000)
    assert world.group.runs == []
    # and below it, it does by the next look
    fill(world, left=99_999)
    world.loop.run_for(11_000)
    world.settle()
    [run] = world.group.runs
    assert (run.trigger, run.result) == ("low disk", "done")


def test_a_flush_that_leaves_little_starts_a_run() -> None:
    # given a WAL that was rolled over while enough was free, and no timer
    world = sparse(disk_low_bytes=100_000, disk_check_interval_ms=0)
    fill(world, left=150_000)
    world.append(41, 42)
    # when less is free by the time that it is in segments
    world.before("unlink", ".wal", lambda: fill(world, left=50_000))
    world.roll()
    [run] = world.group.runs
    assert (run.trigger, run.result) == ("low disk", "done")


def test_while_the_disk_is_low_a_snapshot_starts_a_run_whatever_share_is_dead() -> None:
    # given a low disk on which there was nothing to free
    world = World(disk_low_bytes=100_000)
    for k in range(4):
        world.segment(10 * k + 1, 10 * k + 10)
    fill(world, left=50_000)
    world.loop.run_for(11_000)
    assert world.log.idle
    # when a snapshot gives something up
    world.snapshot(30, [1, 11, 21])
    [run] = world.group.runs
    assert (run.trigger, run.sources) == ("low disk", 3)
    # and with enough free again, the dead ratio counts as ever
    fill(world, left=200_000)
    world.loop.run_for(11_000)
    world.segment(41, 50)
    world.snapshot(40, [1, 11, 21, 31])
    assert len(world.group.runs) == 1


@pytest.mark.parametrize("count", [8, 7])
def test_on_a_low_disk_many_small_segments_become_fewer_though_nothing_in_them_is_dead(
    count: int,
) -> None:
    # given a disk that stays low, and a quiet group: a few entries in each file, all live
    world = World(disk_low_bytes=100_000, compaction_sources_max=4)
    fill(world, left=50_000)
    for k in range(count + 1):
        world.segment(10 * k + 1, 10 * k + 10)
    world.snapshot(10 * count, range(1, 10 * count + 1))
    # then they are merged once there are many, as on any disk
    merged = [(run.trigger, run.merges, run.sources) for run in world.group.runs]
    assert merged == ([("low disk", 2, 8)] if count == 8 else [])


def test_a_disk_that_is_found_low_during_a_run_is_not_forgotten() -> None:
    # given a run that will find too little dead to merge anything
    world = sparse(live_of_ten=4, compaction_dead_ratio=0.7, disk_low_bytes=100_000)
    assert world.group.runs == []
    assert world.log.compactor.request(world.group.state, "dead ratio")
    # when the disk is found low before it has ended
    fill(world, left=50_000)
    world.log._disk_watch.look()
    world.settle()
    # then another one follows it
    assert [(run.trigger, run.result) for run in world.group.runs] == [("low disk", "done")]


def test_a_disk_that_stays_low_costs_a_log_at_rest_no_more_than_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    def count_looks(world: World) -> None:
        ask = world.disk.free_bytes

        def asked() -> int:
            looks.append(ask())
            return looks[-1]

        monkeypatch.setattr(world.disk, "free_bytes", asked)

    # given a low disk, on which phase 3 has freed what it can
    world = sparse(disk_low_bytes=100_000, disk_check_interval_ms=10_000)
    fill(world, left=50_000)
    world.loop.run_for(90_000)  # the links of the run that this starts are gone, too
    assert len(world.group.runs) == 1
    # when nothing happens for an hour
    count_looks(world)
    with world.calls() as calls:
        world.loop.run_for(3_600_000)
    # then the disk was asked every ten seconds how much is free, and nothing else
    assert (len(looks), calls) == (360, [])
    # and a log without a limit never asks
    quiet = sparse()
    count_looks(quiet)
    quiet.loop.run_for(3_600_000)
    assert len(looks) == 360


def test_being_asked_starts_a_run_and_is_always_on_record() -> None:
    world = sparse()
    assert world.compact().trigger == "asked"
    assert world.compact().result == "nothing to do"
    assert [run.result for run in world.group.runs] == ["done", "nothing to do"]


# -- one at a time ------------------------------------------------------------------------------


def test_a_second_request_is_dropped_and_counted() -> None:
    world = sparse()
    # given a run under way
    ended: list[CompactionRun] = []
    assert world.group.compact(ended.append) is True
    # when others ask meanwhile
    assert world.group.compact(ended.append) is False
    world.loop.run_until(lambda: any(".compacting" in name for name in world.files()))
    assert world.group.compact(ended.append) is False
    world.settle()
    # then there is exactly one result
    assert [run.result for run in ended] == ["done"]
    assert world.group.state.requests_dropped == 2
    assert len(world.group.runs) == 1
    # and the next request is taken
    assert world.group.compact() is True
    world.settle()


def test_groups_run_side_by_side() -> None:
    world = World()
    world.log.create_group("other")
    for name in ("g", "other"):
        for k in range(3):
            world.append(10 * k + 1, 10 * k + 10, group=name)
            world.roll()
    world.snapshot(20, [1, 11])
    ended: list[CompactionRun] = []
    assert world.group.compact(ended.append)
    assert world.log.group("other").compact(ended.append)
    world.settle()
    assert sorted(run.result for run in ended) == ["done", "nothing to do"]


# -- the record ---------------------------------------------------------------------------------


def test_each_run_is_recorded_with_its_cost_also_after_a_restart() -> None:
    world = sparse(size=100)
    before = sum(ref.file_bytes for ref in world.group.state.segments)
    run = world.compact()
    after = sum(ref.file_bytes for ref in world.group.state.segments)
    assert (run.merges, run.sources, run.entries_copied) == (1, 3, 3)
    assert run.bytes_copied == 300
    assert run.bytes_freed == before - after
    assert run.started_ms <= run.ended_ms <= world.loop.wall_ms()
    assert world.reopen().group.runs == [run]


def test_a_failed_run_is_recorded_with_its_reason() -> None:
    world = sparse()
    world.disk.fail_next("create", ".compacting")
    run = world.compact()
    assert run.result.startswith("failed: create of groups/g/")
    assert world.group.runs == [run]
    assert world.compact().result == "done"
    assert [r.result[:6] for r in world.reopen().group.runs] == ["failed", "done"]


def test_a_damaged_record_is_no_damage() -> None:
    world = sparse()
    world.compact()
    world.disk.flip_bit("groups/g/runs", 3)
    world = world.reopen()
    assert world.group.runs == []
    assert world.group.quarantined is None


def test_the_record_is_short() -> None:
    world = sparse()
    for _ in range(40):
        world.compact()
    assert len(world.group.runs) == 32


# -- holding back -------------------------------------------------------------------------------


def test_bytes_per_second_are_limited() -> None:
    # given 80,000 live bytes to move, at 10,000 a second
    world = sparse(9, live_of_ten=4, size=2_500, compaction_bytes_per_second_max=10_000)
    run = world.compact()
    assert run.bytes_copied == 80_000
    took_ms = run.ended_ms - run.started_ms
    assert 7_000 <= took_ms <= 9_500
    # and without a limit it takes no time to speak of
    quick = sparse(9, live_of_ten=4, size=2_500).compact()
    assert quick.ended_ms - quick.started_ms < 200


def test_phase_3_steps_back_while_appends_run() -> None:
    def took_ms(*, share: float, appending: bool) -> int:
        world = sparse(9, live_of_ten=4, size=2_500, compaction_share=share)
        ended: list[CompactionRun] = []
        world.group.compact(ended.append)
        index = 91
        while not ended:
            if appending:
                world.put(index, index, size=2_500)
                index += 1
            world.loop.run_for(1)
        return ended[0].ended_ms - ended[0].started_ms

    idle = took_ms(share=0.1, appending=False)
    assert took_ms(share=1.0, appending=True) <= 2 * idle
    assert took_ms(share=0.1, appending=True) >= 4 * idle


def test_a_close_during_a_run_ends_it() -> None:
    world = sparse(9, live_of_ten=4, size=2_500, compaction_bytes_per_second_max=10_000)
    ended: list[CompactionRun] = []
    world.group.compact(ended.append)
    world.loop.run_for(2_000)
    world.log.close()
    assert ended == []
    world = world.kill()
    world.check([1, 2, 3, 4, 71, 72, 73, 74], size=2_500)
    assert not any(".compacting" in name for name in world.files())


# -- what is taken ------------------------------------------------------------------------------


def test_at_most_eight_sources_are_merged() -> None:
    world = sparse(12)
    run = world.compact()
    assert (run.merges, run.sources) == (2, 11)
    assert world.links() == dict.fromkeys(range(2, 9), f"{number(1)}.segment") | dict.fromkeys(
        (10, 11), f"{number(9)}.segment"
    )


def test_never_the_newest_segment() -> None:
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.snapshot(20, [1, 11])
    newest = world.disk.stat(f"groups/g/{number(2)}.segment")
    world.compact()
    assert world.segments == [(1, 1, 1), (2, 11, 20)]
    assert world.disk.stat(f"groups/g/{number(2)}.segment") == newest


def test_never_above_the_snapshot() -> None:
    world = World()
    for k in range(4):
        world.segment(10 * k + 1, 10 * k + 10)
    world.snapshot(25, [1, 11, 21])
    assert world.compact().sources == 2
    assert world.segments == [(1, 1, 11), (3, 21, 30), (4, 31, 40)]
    assert world.records(3) == list(range(21, 31))


def test_a_dense_segment_is_not_copied_for_a_few_small_ones() -> None:
    # given a big dense segment and a small dense one beside it: nothing is dead
    world = World()
    world.segment(1, 10, size=2_000)
    world.segment(11, 12)
    world.segment(13, 14)
    world.snapshot(12, range(1, 13))
    assert world.compact().result == "nothing to do"


# -- the plan, pure -----------------------------------------------------------------------------


def stats(*kept_of: tuple[int, int]) -> list[SegmentStats]:
    """Segments of (kept, all) entries of ten bytes each."""
    found, first = [], 1
    for n, (kept, count) in enumerate(kept_of, start=1):
        last, size = first + count - 1, 10 * count
        ref = SegmentRef(n, first, last, count, size, 0, size + 100, n, last, 1, 1)
        found.append(SegmentStats(ref, kept, 10 * kept))
        first += count
    return found


def planned(*kept_of: tuple[int, int], **limits: Any) -> list[list[int]]:
    """The merges that would be made, as segment numbers."""
    merges = plan_merges(stats(*kept_of), replace(QUIET, **limits))
    return [[s.ref.number for s in merge.sources] for merge in merges]


@pytest.mark.parametrize(
    ("kept_of", "merges"),
    [
        ((), []),
        (((0, 10),), []),  # phase 1 takes it
        (((10, 10),), []),
        (((5, 10),), []),
        (((4, 10),), [[1]]),
        (((1, 10), (1, 10)), [[1, 2]]),
        (((0, 10), (1, 10), (1, 10), (0, 10)), [[2, 3]]),
        (((1, 10), (0, 10), (1, 10)), [[1, 2, 3]]),
        (((10, 10), (10, 10)), [[1, 2]]),  # of a size: fewer files for one copy
        (((100, 100), (10, 10)), []),  # not of a size: too much copying for one file less
        (((100, 100), (1, 10)), [[2]]),
        (((100, 100), (5, 10)), []),
    ],
)
def test_what_is_worth_a_merge(
    kept_of: tuple[tuple[int, int], ...], merges: list[list[int]]
) -> None:
    assert planned(*kept_of) == merges


def test_a_merge_ends_where_the_next_does_not_fit() -> None:
    assert planned((4, 10), (4, 10), (4, 10), segment_entries_max=10) == [[1, 2], [3]]
    # a dense one in between stays where it is
    assert planned((2, 10), (10, 10), (2, 10), segment_entries_max=10) == [[1], [3]]


def test_tiers_keep_copying_in_bounds() -> None:
    # given segments of one size that stay live and are merged as they come
    sizes, copied, arrived = list[int](), 0, 0
    config = replace(QUIET, segment_entries_max=4_096)
    for _ in range(256):
        sizes.append(10)
        arrived += 10
        plan = plan_merges(stats(*((n, n) for n in sizes)), config)
        for merge in reversed(plan):
            first, last = merge.sources[0].ref.number - 1, merge.sources[-1].ref.number
            total = sum(sizes[first:last])
            copied += total
            sizes[first:last] = [total]
    # then each byte is copied a few times, not once for each newcomer, and files get fewer
    assert copied <= 10 * arrived
    assert len(sizes) < 200


def test_dead_shares() -> None:
    assert dead_shares([]) == (0.0, 0.0)
    assert dead_shares(stats((1, 10), (9, 10))) == (0.5, 0.5)
