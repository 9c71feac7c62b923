"""`explain` says what the next decision does, and who stands in its way."""

from __future__ import annotations

import pytest

from log.full_house import full_house, open_house
from log.world import World
from lowmark.errors import Corrupt
from lowmark.holds import Span
from lowmark.log import Explanation, GroupUnknown, SegmentExplained, explain_group, explain_log


def three_segments() -> World:
    """Segments 1..10, 11..20, 21..30, and 31..40, with a snapshot at 30."""
    world = World()
    for first in (1, 11, 21, 31):
        world.segment(first, first + 9, size=100)
    return world


def explained(world: World) -> Explanation:
    return explain_group(world.log, "g")


def by_number(explanation: Explanation) -> dict[int, SegmentExplained]:
    return {segment.number: segment for segment in explanation.segments}


def test_a_group_says_where_it_stands() -> None:
    world = three_segments()
    world.snapshot(30, live=[25], state=[b"the state"])
    world.append(41, 43, size=5)
    found = explained(world)
    assert found.snapshot is not None
    assert (found.snapshot.index, found.snapshot.term, found.snapshot_bytes) == (30, 1, 9)
    assert (found.live_entries, found.live_known) == (1, True)
    assert (found.first_index, found.last_index, found.written_index) == (31, 43, 43)
    assert (found.in_wal_entries, found.in_wal_bytes) == (3, 15)
    assert (found.quarantine, found.holds, found.runs) == (None, (), ())


def test_a_segment_says_what_is_live_in_it_and_why_it_is_kept() -> None:
    world = three_segments()
    world.snapshot(25, live=[3, 4])
    segments = by_number(explained(world))
    # then phase 1 has taken the second one, and the others have their reasons
    assert list(segments) == [1, 3, 4]
    assert (segments[1].entries, segments[1].live_entries, segments[1].live_bytes) == (10, 2, 200)
    assert [reason.text for reason in segments[1].reasons] == ["2 entries are live"]
    assert [reason.kind for reason in segments[3].reasons] == ["after the snapshot"]
    assert segments[3].live_entries == 5
    assert [reason.kind for reason in segments[4].reasons] == ["after the snapshot", "newest"]


def test_a_hold_is_named_with_what_would_be_freed_without_it() -> None:
    # given a backup that still needs the first segment
    world = three_segments()
    why = "copies the log"
    world.group.hold("backup", kind="reader", pins=Span(1, 10), why=why)
    world.snapshot(30)
    # when it is asked why that is there
    found = explained(world)
    segments = by_number(found)
    # then the holder is named, on the segment and by itself
    (reason,) = segments[1].reasons
    assert reason.hold is not None
    assert (reason.hold.holder, reason.hold.kind, reason.hold.why) == ("backup", "reader", why)
    assert (segments[1].live_entries, segments[1].held_entries) == (0, 10)
    assert (segments[1].freed_by, segments[1].freed_bytes) == ("", 0)
    (held,) = found.holds
    assert held.hold is reason.hold
    assert held.age_ms >= 0
    assert held.freed_bytes == segments[1].file_bytes
    # and when it lets go, just that is freed
    before = found.file_bytes
    world.group.release("backup", "reader")
    world.settle()
    assert before - explained(world).file_bytes == held.freed_bytes


def test_a_hold_that_has_run_out_holds_nothing() -> None:
    world = three_segments()
    now_ms = world.loop.wall_ms()
    pins = Span(1, 20)
    world.group.hold("late", kind="lease", pins=pins, why="?", expires_at_ms=now_ms)
    assert explained(world).holds == ()


def test_what_phase_1_would_free_is_what_it_frees() -> None:
    # given a log that was closed before phase 1 ran: open for reading, nothing is deleted
    world = three_segments()
    world.group.hold("reader", kind="reader", pins=Span(1, 20), why="reads")
    world.snapshot(30, live=[25])
    world.log.close()
    log, _ = open_house(world.disk, read_only=True)
    # when it is explained
    found = explain_group(log, "g")
    freed = [s for s in found.segments if s.freed_by == "phase 1"]
    log.close()
    # then the hold is gone with its process, and two segments would go
    assert [s.number for s in freed] == [1, 2]
    assert all(s.reasons == () and s.freed_bytes == s.file_bytes for s in freed)
    # and that is what happens
    log, loop = open_house(world.disk)
    loop.run_until(lambda: log.idle)
    after = explain_group(log, "g")
    assert found.file_bytes - after.file_bytes == sum(s.freed_bytes for s in freed)
    assert found.freed_bytes - after.freed_bytes == sum(s.freed_bytes for s in freed)


def test_what_phase_3_would_free_is_what_it_frees() -> None:
    # given two sparse segments
    world = three_segments()
    world.snapshot(30, live=[3, 15, 25])
    before = explained(world)
    (merge,) = before.merges
    assert merge.sources == (1, 2, 3)
    assert (merge.kept_entries, merge.kept_bytes) == (3, 300)
    freed_by = [(s.number, s.freed_by) for s in before.segments]
    assert freed_by == [(1, "phase 3"), (2, "phase 3"), (3, "phase 3"), (4, "")]
    # when phase 3 runs
    run = world.compact()
    after = explained(world)
    # then it frees what was said, and is on record with trigger, cost and result
    assert before.freed_bytes == merge.freed_bytes == run.bytes_freed
    assert before.file_bytes - after.file_bytes == merge.freed_bytes
    assert after.merges == ()
    (kept,) = after.runs
    assert (kept.trigger, kept.result, kept.entries_copied) == ("asked", "done", 3)


def test_large_files_count_among_what_would_be_freed() -> None:
    world = World()
    world.append(1, 1, size=20_000)
    world.roll()
    world.segment(2, 10)
    world.group.hold("reader", kind="reader", pins=Span(1, 1), why="reads")
    world.snapshot(9)
    (held,) = explained(world).holds
    assert held.freed_bytes > 20_000


def test_a_lost_live_set_keeps_everything_and_says_so() -> None:
    world = three_segments()
    world.snapshot(30, live=[25])
    world.log.close()
    world.disk.unlink("groups/g/snapshots/000000000000001e-0000000000000001/live")
    log, _ = open_house(world.disk, read_only=True)
    found = explain_group(log, "g")
    assert not found.live_known
    assert {reason.kind for s in found.segments for reason in s.reasons} >= {"live set lost"}
    assert found.freed_bytes == 0


def test_a_segment_that_cannot_be_looked_into_is_told_and_nothing_is_merged() -> None:
    # given a sparse segment with a bad index area
    world = three_segments()
    world.snapshot(30, live=[3, 15, 25])
    world.log.close()
    world.disk.flip_bit("groups/g/0000000000000002.segment", 8 * 114)
    log, _ = open_house(world.disk, read_only=True)
    # then the others are explained all the same
    found = explain_group(log, "g")
    assert "index area fails its checksum" in by_number(found)[2].damage
    assert by_number(found)[1].live_entries == 1
    assert found.merges == ()


def test_all_groups_are_explained_by_name_and_an_unknown_one_is_refused() -> None:
    log, _ = open_house(full_house(), read_only=True)
    assert [each.group for each in explain_log(log)] == ["g", "h", "i", "q"]
    assert [each.group for each in explain_log(log, "h")] == ["h"]
    assert explain_group(log, "q").quarantine == "a test wanted it"
    with pytest.raises(GroupUnknown):
        explain_group(log, "nobody")


def test_a_group_that_cannot_say_who_it_is_is_not_explained() -> None:
    house = full_house()
    house.flip_bit("groups/h/group", 3)
    log, _ = open_house(house, read_only=True)
    assert [each.group for each in explain_log(log)] == ["g", "i", "q"]
    with pytest.raises(Corrupt):
        explain_group(log, "h")
