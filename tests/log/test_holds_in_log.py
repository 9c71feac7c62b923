"""Holds keep entries readable that are no longer live, and segments that hold them."""

from __future__ import annotations

from pyroaring import BitMap64

from log.world import World, number
from lowmark.holds import Decision, Span
from lowmark.log.segments import SegmentRef


def segments(count: int, world: World | None = None) -> World:
    world = world or World()
    for k in range(count):
        world.segment(10 * k + 1, 10 * k + 10)
    return world


def numbers(world: World) -> list[int]:
    return [n for n, _, _ in world.segments]


def held(world: World, *indexes: int) -> list[int]:
    """Read for somebody who has a hold."""
    plan = world.group.plan_read(indexes, held=True)
    return [entry.index for entry in plan.execute(world.disk, world.log.cache)]


def phase1(world: World) -> Decision[SegmentRef]:
    decision = world.log.compactor.phase1(world.group.state)
    assert decision is not None
    return decision


def test_a_reader_keeps_the_segments_of_its_span() -> None:
    world = segments(4)
    # given a reader of 15 to 22
    world.group.hold("ann", kind="reader", pins=Span(15, 22), why="reading a range")
    # when a snapshot makes everything dead
    world.snapshot(40)
    # then its segments stay, and it can read on
    assert numbers(world) == [2, 3, 4]
    assert held(world, *range(15, 23)) == list(range(15, 23))
    # and nobody else can
    assert world.readable(1, 40) == []


def test_a_release_frees_at_once() -> None:
    world = segments(4)
    world.group.hold("ann", kind="reader", pins=Span(1), why="reading all")
    world.snapshot(40)
    assert numbers(world) == [1, 2, 3, 4]
    world.group.release("ann", "reader")
    assert numbers(world) == [4]
    world.settle()
    assert world.files() == [f"{number(4)}.segment"]


def test_phase_3_keeps_what_is_held() -> None:
    world = segments(4)
    world.group.hold("ann", kind="reader", pins=Span(15, 17), why="reading a range")
    world.snapshot(30, [5])
    world.compact()
    assert world.records(1) == [5, 15, 16, 17]
    assert held(world, 5, 15, 16, 17) == [5, 15, 16, 17]
    # and when it lets go, the next run leaves it out
    world.group.release("ann", "reader")
    world.compact()
    assert world.records(1) == [5]


def test_a_sender_can_read_to_its_end_whatever_happens_meanwhile() -> None:
    # given a sender that has sent one of three live entries
    world = segments(4)
    world.snapshot(30, [5, 15, 25], state=[b"state at 30"])
    sender = world.group.open_sender("follower", last_applied=0)
    previous, [first] = sender.entries(1)
    assert (previous, first.index) == (0, 5)
    # when a newer snapshot makes them all dead, and phases 1 and 3 run
    world.append(41, 41)
    world.snapshot(41, [35])
    world.compact()
    world.append(42, 42)
    world.snapshot(42)
    world.compact()
    # then it reads on as if nothing had happened, the state, too
    previous, rest = sender.entries(10)
    assert previous == 5
    assert [(e.index, bytes(e.data)) for e in rest] == [(15, b"15@1"), (25, b"25@1")]
    assert sender.entries() == (25, [])
    assert sender.state(0, 100) == b"state at 30"
    assert sender.state(9, 100) == b"30"
    assert sender.state(11, 100) == b""
    # and when it closes, everything goes
    sender.close()
    world.settle()
    assert numbers(world) == [4]


def test_a_sender_holds_only_what_it_still_has_to_send() -> None:
    world = segments(4)
    world.snapshot(30, [5, 15, 25])
    sender = world.group.open_sender("follower", last_applied=20)
    [hold] = world.group.state.holds
    assert (hold.holder, hold.kind, hold.pins) == ("follower", "snapshot sender", BitMap64([25]))
    world.snapshot(40)
    assert numbers(world) == [3, 4]
    sender.close()
    assert numbers(world) == [4]


def test_an_expired_hold_holds_nothing() -> None:
    world = segments(4)
    expires_at_ms = world.loop.wall_ms() + 10_000
    world.group.hold("ann", kind="reader", pins=Span(1), why="reading", expires_at_ms=expires_at_ms)
    world.snapshot(30, [5])
    assert numbers(world) == [1, 2, 3, 4]
    world.loop.run_for(11_000)
    # phase 3 does not copy for it, and phase 1 follows
    world.compact()
    assert numbers(world) == [1, 4]
    assert world.records(1) == [5]


def test_the_timer_frees_what_an_expired_hold_kept() -> None:
    # given a group in which nothing happens any more
    world = segments(4, World(compaction_interval_ms=60_000))
    expires_at_ms = world.loop.wall_ms() + 10_000
    world.group.hold("ann", kind="reader", pins=Span(1), why="reading", expires_at_ms=expires_at_ms)
    world.snapshot(40)
    assert numbers(world) == [1, 2, 3, 4]
    world.loop.run_for(130_000)
    assert numbers(world) == [4]


def test_a_decision_names_every_holder() -> None:
    world = segments(4)
    world.group.hold("ann", kind="reader", pins=Span(15, 22), why="reading a range")
    world.group.hold("bob", kind="reader", pins=BitMap64([16]), why="reading one")
    world.snapshot(30, [5])
    decision = phase1(world)
    assert decision.cut == ()
    reasons = {kept.piece.number: [r.text for r in kept.reasons] for kept in decision.kept}
    assert reasons == {
        1: ["1 entry is live"],
        2: ["ann holds it: reading a range", "bob holds it: reading one"],
        3: ["ann holds it: reading a range"],
        4: ["10 entries follow the snapshot", "the newest segment always stays"],
    }
    holders = {r.hold.holder for k in decision.kept for r in k.reasons if r.hold is not None}
    assert holders == {"ann", "bob"}


def test_a_decision_says_when_phase_3_is_in_the_way() -> None:
    world = segments(4)
    world.snapshot(30, [5, 15, 25])
    world.group.compact()
    decision = phase1(world)
    assert [r.kind for r in decision.kept[0].reasons] == ["live", "compacting"]
    world.settle()


def test_holds_are_of_this_process_and_end_with_it() -> None:
    world = segments(3)
    world.group.hold("ann", kind="reader", pins=Span(1), why="reading")
    world.snapshot(30)
    assert numbers(world) == [1, 2, 3]
    world = world.reopen()
    world.settle()
    assert numbers(world) == [3]
