"""Phases 1 and 3 on request: a run does what a dry run says, and names what is left."""

from __future__ import annotations

from typing import Any

from log.world import World
from lowmark.holds import Span
from lowmark.log import Compacted, CompactionRequest, Damaged


def sparse(count: int = 5, **limits: Any) -> World:
    """Segments of ten entries; of all but the newest, one of each is live."""
    world = World(**limits)
    for k in range(count):
        world.segment(10 * k + 1, 10 * k + 10, size=100)
    world.snapshot(10 * (count - 1), [10 * k + 1 for k in range(count - 1)])
    return world


def ask(world: World, *, dry_run: bool = False, group: str = "g") -> Compacted:
    request = CompactionRequest(world.log, group, dry_run=dry_run)
    world.loop.run_until(lambda: request.done.done)
    return request.done.result()


def reasons(found: Compacted) -> dict[str, int]:
    return {one.reason: one.segments for one in found.kept}


def test_a_dry_run_changes_nothing_and_says_what_a_run_then_does() -> None:
    # given sparse segments
    world = sparse()
    files = world.files()
    # when it is asked what would be freed
    plan = ask(world, dry_run=True)
    # then nothing has changed
    assert world.files() == files
    assert (plan.result, plan.merges, plan.segments_before, plan.segments_after) == (
        "would be done",
        1,
        5,
        2,
    )
    assert not world.group.runs
    # and when it is done, it is what was said
    done = ask(world)
    assert done.result == "done"
    assert 0 < done.bytes_freed == plan.bytes_freed
    assert done.bytes_before == plan.bytes_before
    assert (done.merges, done.segments_after) == (plan.merges, plan.segments_after)
    assert len(world.group.state.segments) == 2
    world.check([1, 11, 21, 31], size=100)
    # and nothing is left to do
    again = ask(world)
    assert (again.result, again.bytes_freed, again.segments_before) == ("nothing to do", 0, 2)
    assert again.bytes_before == done.bytes_after


def test_what_phase_1_frees_counts_too_and_what_stays_is_named() -> None:
    # given segments with nothing live, one of which a reader holds, and entries after the snapshot
    world = World()
    for first in (1, 11, 21, 31, 41):
        world.segment(first, first + 9, size=100)
    world.group.hold("backup", kind="reader", pins=Span(1, 20), why="copies the log")
    world.snapshot(35)
    # when the reader's hold runs out for the first of them
    world.group.hold("backup", kind="reader", pins=Span(11, 20), why="copies the log")
    found = ask(world, dry_run=True)
    done = ask(world)
    # then that one goes, and the others say why they stay
    assert found.bytes_freed == done.bytes_freed > 0
    assert reasons(found) == reasons(done)
    assert reasons(done) == {
        "backup holds it: copies the log": 1,
        "entries follow the snapshot": 2,
        "it is the newest segment": 1,
    }
    assert done.result == "done"


def test_large_files_count() -> None:
    # given large entries that are dead but one
    world = World()
    world.segment(1, 3, size=20_000)
    world.segment(4, 6, size=20_000)
    world.segment(7, 8)
    world.snapshot(6, [4])
    plan, done = ask(world, dry_run=True), ask(world)
    # then what goes of them is counted
    assert done.bytes_before > 60_000
    assert done.bytes_freed == plan.bytes_freed > 30_000
    world.check([4], size=20_000)


def test_a_run_that_is_under_way_is_waited_for() -> None:
    # given a run that another trigger has started
    world = sparse(compaction_bytes_per_second_max=2_000)
    assert world.group.compact()
    # when one is asked for
    request = CompactionRequest(world.log, "g")
    world.loop.run_until(lambda: request.done.done)
    # then it comes after that one, and says what both have freed of what was there
    assert [run.result for run in world.group.runs] == ["done", "nothing to do"]
    assert request.done.result().result == "done"
    assert request.done.result().bytes_freed > 0


def test_segments_that_come_meanwhile_are_not_counted() -> None:
    # given a slow run
    world = sparse(compaction_bytes_per_second_max=2_000)
    plan = ask(world, dry_run=True)
    request = CompactionRequest(world.log, "g")
    # when the log gets a segment that is larger than what is freed
    world.loop.run_until(lambda: world.group.state.compacting is not None)
    world.segment(51, 60, size=2_000)
    world.loop.run_until(lambda: request.done.done)
    # then it says what was freed of the others
    assert request.done.result().bytes_freed == plan.bytes_freed


def test_a_group_that_takes_no_run_says_why() -> None:
    # given a group that was found damaged
    world = sparse()
    world.log.quarantine(world.group.state, Damaged("g", offset=0, what="a bit is wrong"))
    # when it is asked for, then it is refused
    assert ask(world).result == "refused: the group is in quarantine"
    assert ask(world, dry_run=True).result == "refused: the group is in quarantine"
    # and one that goes while it waits ends, too
    world.log.create_group("h")
    request = CompactionRequest(world.log, "h")
    world.log.delete_group("h")
    world.loop.run_until(lambda: request.done.done)
    assert request.done.result().result == "failed: the group is gone"
