"""Watches: every revision once, in order, whole, or a named end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future
from lowmark.metastore import Do, Event, Metastore, Put, Remove, RemoveRange, RevisionCompacted
from lowmark.metastore.errors import InvokeRefused
from lowmark.metastore.watches import Change
from metastore.world import FAST, QUICK, TINY_LOG, Node, Watcher, World


def watch(
    metastore: Metastore,
    *,
    prefix: bytes | None = b"t.",
    keys: tuple[bytes, ...] = (),
    since: int | None = None,
) -> Watcher:
    watcher = Watcher()
    metastore.watch(
        prefix=prefix,
        keys=keys,
        from_revision=since,
        on_event=watcher.on_event,
        on_end=watcher.on_end,
    )
    return watcher


def flat(change: Change) -> tuple[bytes, bytes | None]:
    return (change.key, None if change.entry is None else change.entry.value)


def told(event: Event) -> tuple[int, dict[bytes, bytes | None]]:
    return (event.revision, dict(flat(change) for change in event.changes))


def test_a_watch_is_told_all_changes_of_a_revision_together() -> None:
    # given watchers of a prefix, of keys, and of both
    world = World(nodes=1)
    here = world[1].metastore
    by_prefix = watch(here)
    by_key = watch(here, prefix=None, keys=(b"x", b"t.b"))
    by_both = watch(here, keys=(b"x",))
    # when revisions change several keys
    first = world.wait(here.invoke(Do((Put(b"t.a", b"1"), Put(b"t.b", b"1"), Put(b"x", b"1")))))
    world.wait(here.put(b"other", b"1"))
    third = world.wait(here.invoke(Do((Remove(b"t.a"), Put(b"t.b", b"2")))))
    last = world.wait(here.invoke(Do((RemoveRange(b"t.", b"t.z"), Remove(b"x")))))
    world.run_for(10)
    # then each is told what it asked for, whole, and nothing of other revisions
    assert list(map(told, by_prefix.events)) == [
        (first.revision, {b"t.a": b"1", b"t.b": b"1"}),
        (third.revision, {b"t.a": None, b"t.b": b"2"}),
        (last.revision, {b"t.b": None}),
    ]
    assert list(map(told, by_key.events)) == [
        (first.revision, {b"t.b": b"1", b"x": b"1"}),
        (third.revision, {b"t.b": b"2"}),
        (last.revision, {b"t.b": None, b"x": None}),
    ]
    assert list(map(told, by_both.events)) == [
        (first.revision, {b"t.a": b"1", b"t.b": b"1", b"x": b"1"}),
        (third.revision, {b"t.a": None, b"t.b": b"2"}),
        (last.revision, {b"t.b": None, b"x": None}),
    ]
    assert [event.time for event in by_prefix.events] == [first.time, third.time, last.time]
    [change] = [c for c in by_prefix.events[1].changes if c.entry is not None]
    assert change.entry is not None
    assert (change.entry.created, change.entry.version) == (first.revision, 2)


def test_a_watch_begins_with_any_revision_that_is_left_also_one_to_come() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    made = [world.wait(here.put(b"t.k", b"%d" % n)).revision for n in range(5)]
    from_old, from_now = watch(here, since=made[1]), watch(here)
    from_later = watch(here, since=made[-1] + 2)
    made += [world.wait(here.put(b"t.k", b"%d" % n)).revision for n in range(5, 8)]
    world.run_for(10)
    assert from_old.revisions == made[1:]
    assert from_now.revisions == made[5:]
    assert from_later.revisions == made[6:]


def test_a_watch_for_nothing_is_refused() -> None:
    world = World(nodes=1)
    with pytest.raises(InvokeRefused):
        watch(world[1].metastore, prefix=None)


def test_from_a_compacted_revision_the_error_names_the_first_one_left() -> None:
    # given a metastore that was compacted
    world = World(nodes=1)
    here = world[1].metastore
    made = [world.wait(here.put(b"t.k", b"%d" % n)).revision for n in range(5)]
    world.run_for(QUICK.lease_ms)
    world.wait(here.compact(made[2]))
    first_left = 0
    for gone in (1, made[2]):
        with pytest.raises(RevisionCompacted) as refused:
            watch(here, since=gone)
        first_left = refused.value.first_left
        assert first_left == made[3]
    # when it is watched from there
    watcher = watch(here, since=first_left)
    world.run_for(10)
    assert watcher.revisions == made[3:]


def test_a_watcher_that_says_when_it_is_done_gets_one_event_at_a_time() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    watcher = watch(here)
    watcher.waits = Future()
    made = [world.wait(here.put(b"t.k", b"%d" % n)).revision for n in range(4)]
    world.run_for(10)
    assert watcher.revisions == made[:1]
    for count in (2, 3, 4):
        done, watcher.waits = watcher.waits, Future()
        done.resolve(None)
        world.run_for(10)
        assert watcher.revisions == made[:count]
    # one that failed has had its event all the same: it is not told twice
    failed, watcher.waits = watcher.waits, None
    failed.reject(Unavailable("a test wanted it"))
    world.wait(here.put(b"t.k", b"last"))
    world.run_for(10)
    assert len(watcher.events) == 5


def test_a_watch_that_is_closed_is_told_nothing_more_not_even_its_end() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    watcher = Watcher()
    seen: list[int] = []

    def on_event(event: Event) -> None:
        seen.append(event.revision)
        mine.close()  # in the middle of what there is to tell

    mine = here.watch(prefix=b"t.", on_event=on_event, on_end=watcher.on_end)
    for n in range(3):
        world.wait(here.put(b"t.k", b"%d" % n))
    world.run_for(10)
    assert len(seen) == 1
    here.close()
    assert watcher.ended is None


@pytest.mark.slow
def test_thousands_of_revisions_do_not_keep_the_node_from_its_work() -> None:
    # given a watcher that starts far behind
    world = World(nodes=1)
    here = world[1].metastore
    futures = [here.put(b"t.%d" % (n % 10), b"%d" % n) for n in range(3_000)]
    made = [world.wait(future).revision for future in futures]
    watcher = watch(here, since=made[0])
    # when it is told, others get their turn in between
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(watcher.events))
        if len(watcher.events) < 3_000:
            world[1].clock.call_soon(turn)

    turn()
    world.run_until(lambda: len(watcher.events) == 3_000)
    assert watcher.revisions == made
    assert max(b - a for a, b in pairwise(turns)) <= 512


def test_a_slow_watcher_costs_no_memory_and_is_told_when_it_is_cut_off() -> None:
    # given a watcher that does not come back from its first event
    world = World(nodes=1, metastore_config=replace(QUICK, watch_patience_ms=4_000))
    here = world[1].metastore
    slow, quick = watch(here), watch(here)
    slow.waits = Future()
    made = [world.wait(here.put(b"t.k", bytes(1_000))).revision for _ in range(200)]
    world.run_for(1_000)
    assert (len(slow.events), len(quick.events)) == (1, 200)
    # while it has patience, the node holds what the watcher has not seen
    assert world.wait(here.compact(made[-1])).compacted == made[0]
    # when its patience is over
    world.run_for(6_000)
    cut = world.wait(here.compact(made[-1]))
    world.run_for(10)
    # then the cut passes, and the watcher is told at once, busy or not
    assert cut.compacted == made[-1]
    assert isinstance(slow.ended, RevisionCompacted)
    assert slow.ended.first_left == made[-1] + 1
    assert quick.ended is None
    assert len(here.watches()) == 3  # the quick one, and the node's own two
    # and when it comes back after all, nothing happens
    slow.waits.resolve(None)
    world.run_for(10)
    assert len(slow.events) == 1


def test_a_slow_watcher_that_comes_back_in_time_misses_nothing() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    slow = watch(here)
    slow.waits = Future()
    made = [world.wait(here.put(b"t.k", b"%d" % n)).revision for n in range(10)]
    world.run_for(3_000)
    world.wait(here.compact(made[-1]))
    waits, slow.waits = slow.waits, None
    waits.resolve(None)
    world.run_for(10)
    assert slow.revisions == made
    assert [flat(event.changes[0])[1] for event in slow.events] == [b"%d" % n for n in range(10)]


def test_a_node_that_closes_ends_its_watches_by_name() -> None:
    world = World(nodes=1)
    watcher = watch(world[1].metastore)
    world[1].here.close()
    assert isinstance(watcher.ended, Unavailable)


@pytest.mark.slow
def test_a_watcher_on_a_node_that_was_away_for_long_is_told_the_cut_after_its_snapshot() -> None:
    # given a follower with watchers, one of them busy, that is cut off
    world = World(log_config=TINY_LOG, metastore_config=replace(QUICK, snapshot_entries=50))
    world.run_for(2_000)
    away = next(n for n in (2, 3) if world[n] is not world.wait_leader())
    here = world[away].metastore
    idle, busy = watch(here), watch(here)
    busy.waits = Future()
    world.wait(here.put(b"t.first", b"1"))
    world.run_until(lambda: len(busy.events) == 1)
    world.isolate(away)
    # when the others go on without it until it needs a snapshot, and compact
    leader = world.wait_leader(other_than=away)
    puts = [leader.metastore.put(b"t.k", b"%d" % n) for n in range(200)]
    last = [world.wait(put).revision for put in puts][-1]
    world.run_for(2 * QUICK.lease_ms)
    assert world.wait(leader.metastore.compact(last)).compacted >= last - 5
    leader.metastore.group.snapshot()
    world.run_for(200)
    snapshots = here.group.status().snapshot_index
    world.heal()
    world.run_until(lambda: here.state.latest >= last)
    world.run_for(100)
    # then it came by a snapshot, and each watcher is told what is left
    assert here.group.status().snapshot_index > snapshots
    for watcher in (idle, busy):
        assert isinstance(watcher.ended, RevisionCompacted)
        assert watcher.ended.first_left == here.state.compacted + 1
    # and a watch from there goes on, on a node that has its lease again
    again = watch(here, since=here.state.compacted + 1)
    latest = world.wait(here.put(b"t.k", b"end")).revision
    world.run_until(lambda: again.revisions[-1:] == [latest])
    world.run_until(lambda: world.wait_leader().here.topology.find(away) is not None)


class Follower:
    """Follows one node's metastore, and takes it up again after every end and every crash."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.events: dict[int, dict[bytes, bytes | None]] = {}
        self.order: list[int] = []
        self.next = 1
        self.life = 0

    def follow(self) -> None:
        if not self.node.up or self.life == self.node.life:
            return
        self.life = life = self.node.life

        def on_event(event: Event) -> None:
            assert life == self.node.life
            assert event.revision >= self.next, "a revision twice, or out of order"
            self.order.append(event.revision)
            self.events[event.revision] = told(event)[1]
            self.next = event.revision + 1

        def on_end(error: LowmarkError) -> None:
            assert isinstance(error, Unavailable), error

        self.node.metastore.watch(
            prefix=b"t.", from_revision=self.next, on_event=on_event, on_end=on_end
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_every_revision_is_told_once_through_restarts_leader_changes_and_cuts(seed: int) -> None:
    # given a follower per node that remembers where it was
    world = World(
        seed=seed,
        nodes=4,
        log_config=TINY_LOG,
        config=FAST,
        metastore_config=replace(QUICK, snapshot_entries=40),
    )
    world.run_for(1_000)
    dice = Random(seed)
    followers = [Follower(node) for node in world.nodes.values()]
    wrote: dict[int, dict[bytes, bytes | None]] = {}

    def write(node: Node) -> None:
        n = dice.randrange(1_000_000)
        changes = {b"t.%d" % dice.randrange(5): b"%d" % n for _ in range(dice.randrange(1, 4))}
        future = node.metastore.invoke(Do(tuple(Put(k, v) for k, v in changes.items())))

        def done(_: object) -> None:
            if future.error is None:
                wrote[future.result().revision] = dict(changes)

        future.then(done)

    for _ in range(150):
        for follower in followers:
            follower.follow()
        up = [node for node in world.nodes.values() if node.up]
        match dice.randrange(20):
            case 0 if len(up) > 2:
                dice.choice(up).crash(killed=dice.random() < 0.5)
            case 1 if len(up) > 2:
                dice.choice(up).restart()
            case 2:
                world.heal()
                world.isolate(dice.randrange(1, 5))
            case 3 | 4:
                world.heal()
            case 5 | 6:
                for node in world.nodes.values():
                    if not node.up:
                        node.start()
            case 7:
                leader = world.leader()
                if leader is not None:
                    leader.metastore.group.transfer(dice.randrange(1, 4))
            case _:
                write(dice.choice(up))
        world.run_for(dice.randrange(1, 80))
    # when the faults are over
    world.heal()
    for node in world.nodes.values():
        if not node.up:
            node.start()
    for follower in followers:
        follower.follow()
    world.wait_leader()
    last = world.wait(world[1].metastore.put(b"t.end", b"end")).revision
    # A write that was under way may still have come after it.
    world.run_until(lambda: min(f.next for f in followers) == max(f.next for f in followers) > last)
    # then all were told the same, once, in order, and all that was answered is among it
    assert len(wrote) > 20
    for follower in followers:
        assert follower.order == sorted(set(follower.order))
        assert follower.events == followers[0].events
        for number, changes in wrote.items():
            assert follower.events[number] == changes
