"""Asking and changing the metastore, through any node, while nodes come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pytest

from lowmark.errors import LowmarkError, Rejected
from lowmark.group import CommandTooLarge, GroupBusy, OutcomeUnknown, ReadTimedOut
from lowmark.metastore import (
    Answer,
    Branch,
    Compare,
    Do,
    Entry,
    Exists,
    Not,
    NotComplete,
    Put,
    Remove,
    RemoveRange,
    Revision,
    RevisionCompacted,
    Version,
    all_of,
    any_of,
    forwarding,
    missing,
    value_is,
)
from lowmark.metastore.commands import VALUE_BYTES_MAX
from lowmark.metastore.errors import (
    InvokeRefused,
    MetastoreUnreachable,
    RevisionUnknown,
    TimeToCome,
)
from lowmark.metastore.store import Leadership
from lowmark.runtime import COUNTER_BITS
from metastore.world import FAST, QUICK, Node, World


def values(entries: tuple[Entry, ...]) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in entries}


def a_leader_a_follower_and_a_learner(world: World) -> list[Node]:
    """Four nodes, of which the fourth has no vote."""
    world.run_until(
        lambda: world[4].number in world.wait_leader().metastore.group.members().learners
    )
    leader = world.wait_leader()
    follower = next(world[n] for n in (1, 2, 3) if n != leader.number)
    return [leader, follower, world[4]]


# -- what can be asked --------------------------------------------------------------------------


def test_what_one_node_writes_every_node_reads_at_once() -> None:
    world = World(nodes=4)
    for number, writer in enumerate(a_leader_a_follower_and_a_learner(world)):
        # when a leader, a follower or a learner writes
        key = b"key-%d" % number
        answer = world.wait(writer.metastore.put(key, b"value"))
        assert answer.changed
        # then every node reads it, right after that was answered
        for node in world.nodes.values():
            entry = world.wait(node.metastore.get(key))
            assert entry == Entry(key, b"value", answer.revision, answer.revision, 1, answer.time)


def test_a_key_is_read_as_it_was_at_any_revision() -> None:
    # given a key that is written, written, removed and written
    world = World(nodes=1)
    here = world[1].metastore
    first = world.wait(here.put(b"k", b"1")).revision
    second = world.wait(here.put(b"k", b"2")).revision
    gone = world.wait(here.remove(b"k")).revision
    third = world.wait(here.put(b"k", b"3")).revision
    # then each revision has its own value, version and creation
    expected = {
        first - 1: None,
        first: (b"1", first, first, 1),
        second: (b"2", second, first, 2),
        gone: None,
        third: (b"3", third, third, 1),
        None: (b"3", third, third, 1),
    }
    for at, wanted in expected.items():
        entry = world.wait(here.get(b"k", at=at))
        got = entry and (entry.value, entry.revision, entry.created, entry.version)
        assert got == wanted
        assert here.get_local(b"k", at=at) == entry
    history = world.wait(here.history(b"k"))
    assert [entry and entry.value for entry in history] == [b"1", b"2", None, b"3"]


def test_many_keys_are_read_as_of_one_revision() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    old = world.wait(here.invoke(Do((Put(b"a", b"1"), Put(b"b", b"1"))))).revision
    new = world.wait(here.invoke(Do((Put(b"a", b"2"), Remove(b"b"), Put(b"c", b"2"))))).revision
    asked = [b"c", b"a", b"b", b"a", b"none"]
    page = world.wait(here.get_all(asked))
    assert (page.revision, values(page.entries)) == (new, {b"a": b"2", b"c": b"2"})
    page = world.wait(here.get_all(asked, at=old))
    assert (page.revision, values(page.entries)) == (old, {b"a": b"1", b"b": b"1"})
    # and at the very beginning there was nothing
    page = world.wait(here.get_all(asked, at=0))
    assert (page.revision, page.entries) == (0, ())


def test_a_range_is_a_prefix_or_from_one_key_to_another_in_order() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    keys = [b"a", b"t.1", b"t.10", b"t.2", b"t.\xff", b"t.\xff\xff", b"u"]
    old = world.wait(here.invoke(Do(tuple(Put(key, key) for key in keys)))).revision
    world.wait(here.invoke(Do((RemoveRange(b"t.", b"t.2"),))))

    def keys_of(**asked: object) -> list[bytes]:
        page = world.wait(here.range(**asked))  # type: ignore[arg-type]
        return [entry.key for entry in page.entries]

    assert keys_of(prefix=b"t.", at=old) == keys[1:6]
    assert keys_of(prefix=b"t.") == keys[3:6]
    assert keys_of(prefix=b"t.\xff", at=old) == keys[4:6]
    assert keys_of(start=b"t.10", end=b"t.\xff", at=old) == keys[2:4]
    assert keys_of(end=b"b", at=old) == [b"a"]
    assert keys_of(start=b"t.\xff\xff", at=old)[:2] == [b"t.\xff\xff", b"topology"]
    assert keys_of(prefix=b"nothing") == []
    # a page at a time: the next one begins right after the last key, within the prefix
    first = keys_of(prefix=b"t.", at=old, limit=2)
    assert first == keys[1:3]
    assert keys_of(prefix=b"t.", start=first[-1] + b"\0", at=old) == keys[3:6]
    assert [e.key for e in here.range_local(b"t.", at=old).entries] == keys[1:6]


def test_a_revision_that_is_gone_or_not_made_yet_has_a_named_error() -> None:
    world = World(nodes=1, metastore_config=replace(QUICK, lease_ms=300))
    here = world[1].metastore
    last = [world.wait(here.put(b"k", b"%d" % at)).revision for at in range(5)][-1]
    world.run_for(300)  # this node has said by now that it needs nothing old
    assert world.wait(here.compact(last - 1)).compacted == last - 1
    errors = [
        world.wait_error(here.get(b"k", at=last - 2)),
        world.wait_error(here.range(b"k", at=last - 2)),
    ]
    for error in errors:
        assert isinstance(error, RevisionCompacted)
        assert error.first_left == last - 1
    entry = world.wait(here.get(b"k", at=last - 1))
    assert entry is not None
    assert entry.value == b"3"
    unknown = world.wait_error(here.get(b"k", at=last + 1))
    assert isinstance(unknown, RevisionUnknown)
    assert unknown.latest == last
    with pytest.raises(RevisionCompacted):
        here.get_local(b"k", at=last - 2)
    for wanted, kind in ((last - 2, RevisionCompacted), (last + 1, RevisionUnknown)):
        assert isinstance(world.wait_error(here.time_of(wanted)), kind)


def test_a_revision_has_a_time_and_a_time_has_a_revision() -> None:
    # given revisions at different times
    world = World()
    made: list[Answer] = []
    for number in (1, 2, 3, 1):
        made.append(world.wait(world[number].metastore.put(b"k", b"%d" % number)))
        world.run_for(40)
    # then every node knows when they were made, and times rise
    for node in world.nodes.values():
        times = [world.wait(node.metastore.time_of(one.revision)) for one in made]
        assert times == [one.time for one in made] == sorted({*times})
        # and what the last revision was at any time
        for one in made:
            assert world.wait(node.metastore.revision_at(one.time)) == one.revision
            assert world.wait(node.metastore.revision_at(one.time - 1)) == one.revision - 1
        between = made[1].time + (20 << COUNTER_BITS)
        assert world.wait(node.metastore.revision_at(between)) == made[1].revision


# -- what can be changed ------------------------------------------------------------------------


def test_one_branch_is_carried_out_whole_in_one_revision() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    start = world.wait(here.invoke(Do((Put(b"a", b"1"), Put(b"b", b"1"))))).revision
    world.wait(here.put(b"b", b"2"))
    swap = Branch(
        all_of(
            Exists(b"a"),
            missing(b"c"),
            value_is(b"b", b"2"),
            Revision(b"a", Compare.EQ, start),
            Version(b"b", Compare.GE, 2),
            any_of(value_is(b"a", b"nonsense"), Not(value_is(b"a", b"2"))),
        ),
        Branch(
            Exists(b"never"),
            Do((RemoveRange(b"a", b"z"),), answer=1),
            Do((Put(b"a", b"2"), Remove(b"b"), Put(b"c", b"1")), answer=2),
        ),
        Do((Put(b"failed", b"yes"),), answer=3),
    )
    # when a statement with branches within branches is carried out twice
    first, second = world.wait(here.invoke(swap)), world.wait(here.invoke(swap))
    # then the second finds a changed world, and takes the other way
    assert (first.answer, first.changed, first.revision) == (2, True, start + 2)
    assert (second.answer, second.changed, second.revision) == (3, True, start + 3)
    page = world.wait(here.get_all([b"a", b"b", b"c", b"failed"]))
    assert values(page.entries) == {b"a": b"2", b"c": b"1", b"failed": b"yes"}
    assert {entry.revision for entry in page.entries} == {start + 2, start + 3}
    assert [e.key for e in page.entries if e.revision == start + 2] == [b"a", b"c"]


def test_what_changes_nothing_makes_no_revision() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    last = world.wait(here.put(b"k", b"v"))
    for nothing in (Do(answer=7), Do((Remove(b"none"),), answer=7)):
        answer = world.wait(here.invoke(nothing))
        assert answer == Answer(last.revision, last.time, changed=False, answer=7)


def test_of_many_who_want_to_create_a_key_one_does() -> None:
    # given nodes that all try at the same time
    world = World()
    tries = [
        (number, world[number].metastore.invoke_if(missing(b"k"), [Put(b"k", b"%d" % number)]))
        for number in (1, 2, 3)
        for _ in range(3)
    ]
    won = [number for number, future in tries if world.wait(future)]
    # then one has done it, and everybody sees whom
    assert len(won) == 1
    entry = world.wait(world[2].metastore.get(b"k"))
    assert entry is not None
    assert (entry.value, entry.version) == (b"%d" % won[0], 1)


def test_a_request_that_is_wrong_is_refused_at_any_node_and_nothing_of_it_is_done() -> None:
    world = World()
    before = world.wait(world[1].metastore.put(b"k", b"v")).revision
    too_much = Do(tuple(Put(b"%d" % n, bytes(VALUE_BYTES_MAX)) for n in range(2)))
    for node in world.nodes.values():
        twice = node.metastore.invoke(Do((Put(b"a", b"1"), Remove(b"a"))))
        assert isinstance(world.wait_error(twice), InvokeRefused)
        # what is too large for the log is refused by whoever leads
        assert isinstance(world.wait_error(node.metastore.invoke(too_much)), Rejected)
    assert world.wait(world[3].metastore.range(b"")).revision == before


@pytest.mark.slow
def test_the_largest_value_goes_through_every_node() -> None:
    world = World()
    for node in world.nodes.values():
        value = bytes([node.number]) * VALUE_BYTES_MAX
        world.wait(node.metastore.put(b"k", value))
        for other in world.nodes.values():
            entry = world.wait(other.metastore.get(b"k"))
            assert entry is not None
            assert entry.value == value


# -- when nodes fail ----------------------------------------------------------------------------


def test_a_write_waits_until_there_is_a_leader_again() -> None:
    # given a leader that is gone
    world = World()
    world.run_for(2_000)
    leader = world.wait_leader()
    other = next(node for node in world.nodes.values() if node is not leader)
    leader.crash()
    world.run_until(lambda: other.metastore.leadership.node == 0)
    # when a write is asked for while nobody leads
    answer = world.wait(other.metastore.put(b"k", b"v"))
    # then it is carried out by the next one
    assert answer.changed
    assert world.wait_leader() is not leader


@pytest.mark.slow
def test_without_a_majority_a_write_says_that_nothing_happened_or_that_nobody_knows() -> None:
    # given three nodes that are cut off from each other
    world = World()
    world.run_for(2_000)
    leader = world.wait_leader()
    other = next(node for node in world.nodes.values() if node is not leader)
    world.isolate(other.number)
    world.run_until(lambda: other.metastore.leadership.node == 0)
    # then one that knows no leader says that nothing happened
    assert isinstance(world.wait_error(other.metastore.put(b"k", b"1")), MetastoreUnreachable)
    assert isinstance(world.wait_error(other.metastore.get(b"k")), ReadTimedOut)
    # and one that could ask the leader in vain says that it does not know
    world.heal()
    world.run_until(lambda: other.metastore.leadership.node == leader.number)
    asked = other.metastore.put(b"k", b"2")
    world.isolate(other.number)
    assert isinstance(world.wait_error(asked), OutcomeUnknown)


def test_a_leader_that_closes_while_it_is_asked_is_no_reason_to_refuse_a_request() -> None:
    # given requests of others that wait at the leader
    world = World()
    world.run_for(2_000)
    leader = world.wait_leader()
    others = [node for node in world.nodes.values() if node is not leader]
    asked = [node.metastore.put(b"k", b"%d" % n) for node in others for n in range(20)]
    world.run_for(2)
    # when it stops in good order
    leader.stop()
    # then each is carried out by the next leader, or nobody knows what became of it
    world.run_until(lambda: all(future.done for future in asked))
    for future in asked:
        assert future.error is None or isinstance(future.error, OutcomeUnknown)


def test_too_many_requests_at_once_wait_for_their_turn() -> None:
    # given a leader that takes only a few requests at a time
    world = World(config=replace(FAST, waiting_requests_max=8))
    world.run_for(2_000)
    other = next(n for n in world.nodes.values() if n is not world.wait_leader())
    # when there are many more
    asked = [other.metastore.put(b"k%d" % n, b"v") for n in range(60)]
    # then they are carried out all the same
    assert len({world.wait(future).revision for future in asked}) == 60
    # but a read that this node has no room for says so
    reads = [other.metastore.get(b"k1") for _ in range(20)]
    world.run_until(lambda: all(future.done for future in reads))
    assert {type(future.error) for future in reads} == {type(None), GroupBusy}


@dataclass(frozen=True)
class Seen:
    """One request of a history: when it began and ended, and the revision that it was about."""

    began: float
    ended: float
    revision: int
    value: bytes
    wrote: bool


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_reads_and_writes_are_linearizable_through_crashes_and_cuts(seed: int) -> None:
    """Revisions give the order. Whoever began after somebody ended must not stand before him."""
    world, dice = World(seed=seed, nodes=4), Random(seed)
    world.run_for(1_000)
    seen: list[Seen] = []
    unknown: set[bytes] = set()
    counter = 0

    def now() -> float:
        return world.loop.elapsed_us() / 1_000

    def write(node: Node) -> None:
        nonlocal counter
        counter += 1
        value, began = b"%d" % counter, now()

        def done(error: LowmarkError | None, answer: Answer | None) -> None:
            if answer is not None:
                seen.append(Seen(began, now(), answer.revision, value, wrote=True))
            elif isinstance(error, OutcomeUnknown):
                unknown.add(value)

        future = node.metastore.put(b"register", value)
        unknown.add(value)  # until it is answered; a crash of its node may forget it

        def told(_: object) -> None:
            unknown.discard(value)
            done(future.error, future.result() if future.error is None else None)

        future.then(told)

    def read(node: Node) -> None:
        began = now()
        future = node.metastore.get(b"register")

        def told(_: object) -> None:
            if future.error is None:
                entry = future.result()
                at, value = (0, b"") if entry is None else (entry.revision, entry.value)
                seen.append(Seen(began, now(), at, value, wrote=False))

        future.then(told)

    for _ in range(120):
        up = [node for node in world.nodes.values() if node.up]
        match dice.randrange(24):
            case 0 if len(up) > 2:
                dice.choice(up).crash(killed=dice.random() < 0.5)
            case 1:
                world.heal()
                world.isolate(dice.randrange(1, 5))
            case 2 | 3:
                world.heal()
            case 4:
                for node in world.nodes.values():
                    if not node.up:
                        node.start()
            case n if n % 2:
                write(dice.choice(up))
            case _:
                read(dice.choice(up))
        world.run_for(dice.randrange(1, 60))
    world.heal()
    for node in world.nodes.values():
        if not node.up:
            node.start()
    world.wait_leader()
    for node in world.nodes.values():
        read(node)
    world.run_for(5_000)
    # every value stands at one revision, and nobody read what nobody wrote
    wrote = {one.revision: one.value for one in seen if one.wrote}
    assert len(wrote) == sum(one.wrote for one in seen) > 20
    for one in seen:
        if one.revision:
            assert wrote.get(one.revision, one.value) == one.value
            assert one.value in unknown or one.revision in wrote
    # nothing was carried out twice
    kept = world.wait(world[1].metastore.history(b"register"))
    values = [entry.value for entry in kept if entry is not None]
    assert len(values) == len(set(values))
    # whoever began after another ended is not before it; a write is after it
    seen.sort(key=lambda one: one.ended)
    for at, later in enumerate(seen):
        before = [one.revision for one in seen[:at] if one.ended < later.began]
        if before:
            newest = max(before)
            assert later.revision > newest if later.wrote else later.revision >= newest


# -- time ---------------------------------------------------------------------------------------


def test_a_node_that_waits_for_a_time_is_complete_up_to_it() -> None:
    # given a node that waits for a time which is still to come
    world = World()
    world.run_for(1_000)
    for node in world.nodes.values():
        here = node.metastore
        wanted = here.clock.now() + (200 << COUNTER_BITS)
        waiting = here.when_complete(wanted)
        assert not waiting.done
        world.wait(waiting)
        # then nothing comes later that is not above it
        assert here.complete_to >= wanted
        answer = world.wait(world[1].metastore.put(b"k", b"v"))
        assert answer.time > wanted


@pytest.mark.slow
def test_a_node_that_is_cut_off_can_not_tell_and_says_how_long_it_waited() -> None:
    world = World()
    world.run_for(1_000)
    other = next(n for n in world.nodes.values() if n is not world.wait_leader())
    world.isolate(other.number)
    world.run_for(1_000)
    here = other.metastore
    waiting = here.when_complete(here.clock.now(), timeout_ms=700)
    began = world.loop.elapsed_us()
    error = world.wait_error(waiting)
    assert isinstance(error, NotComplete)
    assert world.loop.elapsed_us() - began >= 700_000
    assert isinstance(world.wait_error(here.revision_at(here.clock.now())), NotComplete)
    # what it knew before, it still knows
    assert world.wait(here.revision_at(here.complete_to)) == here.state.latest
    # and it goes on when it is connected again
    world.heal()
    world.wait(here.when_complete(here.clock.now()))


def test_waiting_for_a_time_costs_no_more_commands_than_it_must() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    before = here.group.applied
    waiting = [here.when_complete(here.clock.now() + (100 << COUNTER_BITS)) for _ in range(50)]
    for future in waiting:
        world.wait(future)
    assert here.group.applied - before < 12
    world.run_for(400)
    quiet = here.group.applied
    world.run_for(400)
    assert here.group.applied - quiet <= 1, "only its lease is renewed"


# -- who leads ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_node_knows_who_leads_and_is_told_when_that_changes() -> None:
    # given listeners on every node
    world = World(nodes=4)
    world.run_for(2_000)
    heard: dict[int, list[Leadership]] = {n: [] for n in world.nodes}
    elected: list[tuple[int, int]] = []

    def note(number: int, term: int) -> None:
        elected.append((number, term))

    for number, node in world.nodes.items():
        node.metastore.on_leader(heard[number].append)
        node.metastore.on_elected(partial(note, number))
    first = world.wait_leader()
    assert {told[-1].node for told in heard.values()} == {first.number}
    assert elected == [(first.number, first.metastore.group.term)]
    # when the leader is gone
    first.crash()
    second = world.wait_leader(other_than=first.number)
    world.run_until(
        lambda: all(heard[n][-1].node == second.number for n in world.nodes if world[n].up)
    )
    # then the others are told, in order, and the new one is told that it leads, once
    assert elected[1:] == [(second.number, second.metastore.group.term)]
    for number, told in heard.items():
        if number != first.number:
            assert [one.term for one in told] == sorted(one.term for one in told)
            assert len(set(told)) == len(told)
            assert told[-1] == Leadership(second.number, second.metastore.group.term)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_at_most_one_node_coordinates_in_a_term(seed: int) -> None:
    world, dice = World(seed=seed), Random(seed)
    coordinators: dict[int, set[int]] = {}

    def look() -> bool:
        for node in world.nodes.values():
            if node.up and node.metastore.coordinates:
                coordinators.setdefault(node.metastore.group.term, set()).add(node.number)
        return False

    for _ in range(25):
        up = [node for node in world.nodes.values() if node.up]
        match dice.randrange(4):
            case 0 if len(up) == 3:
                dice.choice(up).crash()
            case 1:
                world.heal()
                world.isolate(dice.randrange(1, 4))
            case 2:
                world.heal()
            case _:
                for node in world.nodes.values():
                    if not node.up:
                        node.start()
        with pytest.raises(TimeoutError):
            world.run_until(look, timeout_ms=dice.randrange(50, 700))
    assert len(coordinators) > 1
    assert all(len(who) == 1 for who in coordinators.values())


@pytest.mark.slow
def test_a_leader_that_is_cut_off_soon_stops_to_coordinate() -> None:
    world = World()
    world.run_for(2_000)
    leader = world.wait_leader()
    world.isolate(leader.number)
    began = world.loop.elapsed_us()
    world.run_until(lambda: not leader.metastore.coordinates)
    # it takes no longer than two election timeouts
    assert world.loop.elapsed_us() - began <= 2_000 * world.config.election_ms
    assert leader.metastore.leadership.node == 0


def test_a_write_does_not_wait_for_a_leader_that_is_gone_longer_than_for_the_next() -> None:
    # given a node whose leader is cut off with a question of its own
    world = World()
    leader = world.wait_leader()
    world.run_until(lambda: leader.metastore.group.members().incoming == {1, 2, 3})
    asker = next(node for node in world.nodes.values() if node is not leader)
    world.wait(asker.metastore.put(b"key", b"before"))
    world.isolate(leader.number)
    began = world.loop.elapsed_us()
    future = asker.metastore.put(b"key", b"value")
    # when another one leads
    error = world.wait_error(future)
    # then it is not known what became of it, and that is said at once
    assert isinstance(error, OutcomeUnknown)
    waited_ms = (world.loop.elapsed_us() - began) / 1_000
    assert waited_ms < world.metastore_config.request_timeout_ms / 2
    # and what may be repeated is repeated: time passes for who waits for it
    assert asker.runtime is not None
    world.wait(asker.metastore.when_complete(asker.runtime.clock.now()))


def test_a_time_that_is_yet_to_come_is_refused_and_writes_nothing() -> None:
    world = World(nodes=1)
    node = world[1]
    assert node.runtime is not None
    applied = node.metastore.group.applied
    to_come = node.runtime.clock.now() + (3_600_000 << 16)
    error = world.wait_error(node.metastore.revision_at(to_come))
    assert isinstance(error, TimeToCome)
    world.run_for(100)
    assert node.metastore.group.applied <= applied + 1  # a lease may have been renewed


@pytest.mark.slow
def test_only_so_much_is_on_its_way_from_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a node that reaches nobody, and room for three commands
    world = World()
    world.run_for(1_000)
    monkeypatch.setattr(forwarding, "_WAITING_MAX", 3)
    leader = world.wait_leader()
    node = next(node for node in world.nodes.values() if node is not leader)
    world.isolate(node.number)
    world.run_until(lambda: node.metastore.group.leader == 0)
    futures = [node.metastore.put(b"key", b"%d" % n) for n in range(5)]
    # then who comes when it is full is told at once
    errors = [future.error for future in futures if future.done]
    assert errors
    assert all(isinstance(error, GroupBusy) for error in errors)
    # and there is room again when the others have given up
    for future in futures:
        world.wait_error(future)
    world.heal()
    world.wait(node.metastore.put(b"key", b"value"))


@pytest.mark.slow
def test_a_statement_that_is_too_large_is_refused_by_name_on_every_node() -> None:
    world = World()
    big = Do(tuple(Put(b"key %d" % n, bytes(3 << 20)) for n in range(3)))
    for node in world.nodes.values():
        assert isinstance(world.wait_error(node.metastore.invoke(big)), CommandTooLarge)


@pytest.mark.parametrize("seed", range(3))
def test_who_was_told_of_a_revision_can_hold_it_at_once(seed: int) -> None:
    world = World(seed)
    world.run_for(1_000)
    for node in world.nodes.values():
        made = world.wait(node.metastore.put(b"key", b"value")).revision
        let_go = world.wait(node.metastore.hold(made))
        let_go()
