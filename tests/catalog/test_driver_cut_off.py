"""Nodes that can't know, clocks that are wrong, and bytes of a newer release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from catalog.world import CatalogNode, table
from lowmark.catalog import Catalogs, NewTable, NotInForce, RenameTable, Snapshot, Table
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.commands import evaluate
from lowmark.catalog.descriptors import Unknown
from lowmark.catalog.errors import CatalogToCome, CatalogTooNew, CatalogUnreadable
from lowmark.catalog.history import Update
from lowmark.catalog.serialization import PROTOCOL
from lowmark.catalog.serializers import encode_update
from lowmark.catalog.update_log import append, update_key
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future, OutcomeUnknown
from lowmark.metastore import Do, Event, NotComplete, Put, Watch
from lowmark.runtime import HybridTime, millis_of
from metastore.world import World
from sim.catalog_world import DAY_MS, DrivenNode, DrivenWorld, bytes_of, log_of, ms

HOUR_MS = 3_600_000
SKEW_MS = 500
"""What the clocks of these worlds may differ by."""
NODES = pytest.mark.parametrize("nodes", [1, 3], ids=["one node", "three nodes"])


@pytest.fixture
def world(nodes: int) -> DrivenWorld:
    return DrivenWorld(nodes=nodes)


# -- cut off ------------------------------------------------------------------------------------


def test_a_node_that_is_cut_off_says_that_it_does_not_know() -> None:
    world = DrivenWorld()
    node = world.follower()
    old = world.execute(node.number, table("a")).catalog
    world.isolate(node.number)
    other = next(one for one in world.all() if one is not node)
    new = world.execute(other.number, table("b")).catalog
    # then at its own time it can't tell, rather than give an older version
    error = world.wait_error(node.catalog.at(node.now()))
    assert isinstance(error, NotComplete)
    assert isinstance(world.wait_error(node.catalog.at(new.activates_at)), NotComplete)
    assert isinstance(world.wait_error(node.catalog.at(node.now(), timeout_ms=50)), NotComplete)
    # but a time for which it knows everything is answered
    assert world.wait(node.catalog.at(old.activates_at)) is old
    assert world.wait(node.catalog.at(old.activates_at - 1)).version == 1
    assert node.catalog.at_local(node.now()) is old
    # and commands get through nowhere, and say so
    waiting = [node.catalog.execute(commands) for commands in ([table("c")], [], [table("a")])]
    for future in waiting:
        assert isinstance(world.wait_error(future), Unavailable)
    assert isinstance(world.wait_error(node.catalog.compact(2)), Unavailable)
    # when it is connected again
    world.heal()
    assert world.wait(node.catalog.at(node.now())).version == new.version
    assert world.execute(node.number, table("c")).catalog.version == 4
    world.check_even()


def test_who_waits_at_a_node_that_is_cut_off_is_answered_when_it_is_back() -> None:
    world = DrivenWorld()
    node = world.follower()
    world.isolate(node.number)
    other = next(one for one in world.all() if one is not node)
    soon = node.now() + ms(SKEW_MS)
    future = node.catalog.at(soon, timeout_ms=20_000)
    new = world.execute(other.number, table("b")).catalog
    world.run_for(3_000)
    assert not future.done
    world.heal()
    assert world.wait(future).version == (new.version if new.activates_at <= soon else 1)


@NODES
def test_nobody_waits_for_a_copy_that_has_stopped(world: DrivenWorld) -> None:
    # given commands whose version is told to a listener that takes for ever
    node = world[max(world.nodes)]
    made = world.execute(node.number, table("a")).catalog
    never: Future[None] = Future()
    world.answer = lambda asked: never if asked is node else None
    written = node.catalog.execute(table("b"))
    world.run_until(lambda: node.catalog.latest.version == 3)
    queued = node.catalog.execute(table("c"))
    ready = node.catalog.when_ready(7)
    # when this node's copy of the metastore stops
    assert node.groups is not None
    node.groups.close()
    world.run_for(100)
    # then all are told; that version 3 was written is not hidden from its author
    assert isinstance(written.error, OutcomeUnknown)
    assert "version 3 was written" in written.error.message
    assert queued.error is not None
    assert ready.error is not None
    assert node.catalog.failed is not None
    for future in (node.catalog.at(node.now()), node.catalog.at(made.activates_at)):
        assert isinstance(world.wait_error(future), LowmarkError)
    assert node.catalog.version(3).version == 3


@NODES
def test_a_look_up_for_a_time_to_come_waits_until_it_is_certain(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    world.run_for(1_000)
    early = node.catalog.execute(table("a"))
    world.run_until(lambda: node.catalog.latest.version == 2)
    # when somebody asks for a time at which version 2 is in force by the clock of another node
    world.run_for(200)
    time = node.now() + ms(SKEW_MS)
    assert node.catalog.latest.activates_at < time
    assert world.wait(node.catalog.at(time)).version == 2
    assert millis_of(node.now()) <= millis_of(HybridTime(time))
    assert world.wait(early).catalog.version == 2


@NODES
def test_a_look_up_for_a_time_that_is_yet_to_come_is_refused(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    made = world.execute(node.number, table("a")).catalog
    world.run_for(5_000)
    index = node.metastore.group.applied
    # when somebody asks for a time beyond what any clock can have
    for ahead_ms in (SKEW_MS + 2, 2_000, DAY_MS):
        error = node.catalog.at(node.now() + ms(ahead_ms)).error
        # then he is told at once, and no leader writes anything for it
        assert isinstance(error, CatalogToCome)
        assert "ms in the future" in error.message
        assert abs(error.ahead_ms - ahead_ms) <= 1
    assert node.metastore.group.applied == index
    # but what another clock may show is answered
    assert world.wait(node.catalog.at(node.now() + ms(SKEW_MS - 1))).version == 2
    # and so is what the metastore's time says is past, by a clock that is a day behind
    node.restart()
    node.clock.skew_ms = -DAY_MS
    world.run_until(lambda: node.catalogs is not None and node.catalog.latest.version == 2)
    assert world.wait(node.catalog.at(made.activates_at)).version == 2
    assert world.wait(node.catalog.at(node.metastore.complete_to)).version == 2


def watch_of(node: DrivenNode) -> Watch:
    """What tells its catalog of versions."""
    following = node.catalog._following
    assert following is not None
    assert following.watch is not None
    return following.watch


def wait_behind(world: DrivenWorld, node: DrivenNode) -> None:
    """Until there is a revision that the catalog's watch has not come to."""
    world.wait(node.metastore.put(b"other", b"1"))
    watch = watch_of(node)
    world.run_until(lambda: watch.position <= node.metastore.state.latest)


@NODES
def test_a_look_up_waits_for_its_watch_without_spinning(
    world: DrivenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world[max(world.nodes)]
    world.execute(node.number, table("a"))
    # given a watch that is not told yet of a version that the copy has
    told: list[Event] = []
    changed = node.catalog._changed
    held: Future[None] = Future()

    def hold(event: Event) -> Future[None]:
        told.append(event)
        return held

    watch_of(node)._on_event = hold
    done = node.catalog.execute(table("b"))
    world.run_until(lambda: bool(told))
    wait_behind(world, node)
    assert node.catalog.latest.version == 2
    future = node.catalog.at(node.now())
    another = node.catalog.at(node.now())
    loop, asked = node.catalog._loop, list[str]()
    call_soon = loop.call_soon

    def noted(callback: Callable[[], None]) -> None:
        asked.append(getattr(callback, "__qualname__", ""))
        call_soon(callback)

    monkeypatch.setattr(loop, "call_soon", noted)
    world.run_for(50)
    assert not future.done
    assert not [name for name in asked if name.startswith("Catalogs.")]
    # when it is told
    watch_of(node)._on_event = changed
    changed(told[0])
    held.resolve(None)
    # then whoever waited has an answer
    assert world.wait(future).version in (2, 3)
    assert world.wait(another).version in (2, 3)
    assert world.wait(done).catalog.version == 3


@NODES
@pytest.mark.parametrize("how", ["closed", "failed"])
def test_a_look_up_that_waits_for_its_watch_is_told_when_there_is_none(
    world: DrivenWorld, how: str
) -> None:
    node = world[max(world.nodes)]
    never: Future[None] = Future()
    told: list[Event] = []

    def hold(event: Event) -> Future[None]:
        told.append(event)
        return never

    watch_of(node)._on_event = hold
    node.catalog.execute(table("a"))
    world.run_until(lambda: bool(told))
    wait_behind(world, node)
    future = node.catalog.at(node.now())
    world.run_for(50)
    assert not future.done
    if how == "closed":
        node.catalog.close()
    else:
        node.catalog._fail(CatalogUnreadable("it is damaged"))
    assert isinstance(future.error, Unavailable if how == "closed" else CatalogUnreadable)


class Unfounded(World):
    """A node whose catalog has no version 1 yet."""

    def new_node(self, number: int) -> CatalogNode:
        return CatalogNode(self, number)


def test_an_empty_catalog_is_found_only_where_there_was_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a node that waits to found the catalog
    found = Catalogs._found
    monkeypatch.setattr(Catalogs, "_found", lambda self: None)
    world = Unfounded(nodes=1)
    node = world[1]
    assert isinstance(node, CatalogNode)
    assert node.runtime is not None
    catalogs, now = node.catalog, node.runtime.clock.now()
    # when it is asked for a time to come, and commands wait, too
    future = catalogs.at(HybridTime(now + ms(300)))
    waiting = catalogs.execute(table("a"))
    world.run_for(100)
    assert not future.done
    found(catalogs)
    # then it does not take its ignorance for an answer: version 1 has no delay
    assert world.wait(future).version == 1
    assert world.wait(catalogs.at(now)).version == 0
    assert world.wait(waiting).catalog.version == 2


# -- clocks -------------------------------------------------------------------------------------


def a_day_behind(world: DrivenWorld) -> DrivenNode:
    """The author of a version, whose clock was put back by a day, and which knows the others'."""
    node = world[max(world.nodes)]
    world.execute(node.number, table("a"))
    node.restart()
    node.clock.skew_ms = -DAY_MS
    world.run_until(lambda: node.catalogs is not None)
    world.wait_even(2)
    others = len(world.nodes) - 1
    world.run_until(lambda: node.groups is not None and node.groups.clocks.heard == others)
    return node


@pytest.mark.parametrize("nodes", [3])
def test_where_most_clocks_are_right_an_author_with_a_wrong_one_is_answered_as_ever(
    world: DrivenWorld,
) -> None:
    node = a_day_behind(world)
    assert world.execute(node.number, table("b")).catalog.version == 3


@pytest.mark.parametrize("nodes", [1])
def test_a_clock_a_day_behind_makes_no_author_wait_a_day(world: DrivenWorld) -> None:
    # given an author whose clock is the only one
    node = a_day_behind(world)
    # when it changes the catalog
    began_us = world.loop.elapsed_us()
    error = world.wait_error(node.catalog.execute(table("b")))
    # then it is told at once that the change is made, and from when on it is in force
    assert isinstance(error, NotInForce)
    assert error.version == 3
    assert "do not repeat" in error.hint
    due_ms = millis_of(node.catalog.version(3).activates_at) + SKEW_MS + 1
    assert error.wait_ms == pytest.approx(due_ms - node.clock.wall_ms(), abs=1_000)
    assert datetime.fromtimestamp(due_ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") in str(
        error
    )
    assert world.loop.elapsed_us() - began_us < 5_000_000
    world.wait_even(3)
    assert all(one.catalog.latest.table_named("public", "b") for one in world.all())
    # and a refusal does not wait for a day either
    assert world.wait_error(node.catalog.execute(table("b"))) is not None


@NODES
def test_a_clock_that_is_put_back_under_an_author_makes_him_wait_for_nothing(
    world: DrivenWorld,
) -> None:
    # given nodes whose clocks are put back by an hour while they run: hybrid time stands still
    world.execute(1, table("a"))
    for node in world.all():
        node.clock.skew_ms = -HOUR_MS
    # when somebody changes the catalog
    began_us = world.loop.elapsed_us()
    error = world.wait_error(world[1].catalog.execute(table("b")))
    # then he is told at once that it is done, and how long it takes until it counts everywhere
    assert isinstance(error, NotInForce)
    assert error.wait_ms > HOUR_MS - 10_000
    assert world.loop.elapsed_us() - began_us < 5_000_000
    world.wait_even(3)


class LoneNode(DrivenNode):
    alone = True


class LoneWorld(DrivenWorld):
    """One node that has the only clock."""

    def new_node(self, number: int) -> LoneNode:
        return LoneNode(self, number)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_is_alone_waits_for_no_wall_clock(seed: int, killed: bool) -> None:
    world = LoneWorld(seed, nodes=1)
    node, last = world[1], 0
    # given a clock that is put anywhere between two commands, and between two lives
    for turn, skew_ms in enumerate([0, -HOUR_MS, HOUR_MS, -DAY_MS, 0, -HOUR_MS]):
        node.clock.skew_ms = skew_ms
        began_us = world.loop.elapsed_us()
        made = world.execute(1, table(f"t{turn}")).catalog
        # then a version is in force when its author hears of it, and after all times before
        assert world.loop.elapsed_us() - began_us < 1_000_000
        assert last < made.time
        assert made.activates_at == made.time + ms(1)
        last = node.now()
        assert last > made.activates_at
        assert world.wait(node.catalog.at(last)).version == made.version
        # and can be the earliest one at once
        if turn == 3:
            assert world.wait(node.catalog.compact(made.version))
        # also in the next life, before it has told anybody a time
        if killed:
            node.crash(killed=True)
            node.start()
        else:
            node.restart()
        node.clock.skew_ms = skew_ms - HOUR_MS
        world.run_until(lambda: node.catalogs is not None and node.metastore.coordinates)
        world.run_until(lambda made=made: node.catalog.latest.version == made.version)  # type: ignore[misc]
        assert node.now() > made.activates_at
        assert world.wait(node.catalog.at(node.now())).version == made.version


@NODES
@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS], ids=["ahead and back", "back and ahead"])
def test_a_clock_that_jumps_and_comes_back_leaves_nobody_waiting(
    world: DrivenWorld, jump_ms: int
) -> None:
    # given a leader whose clock was wrong for a while
    leader = world[world.wait_leader().number]
    leader.clock.skew_ms = jump_ms
    first = leader.catalog.execute(table("a"))
    world.run_until(lambda: first.done, timeout_ms=90_000)
    leader.clock.skew_ms = 0
    # when more is executed everywhere
    futures = [node.catalog.execute(table(f"b{node.number}")) for node in world.all()]
    world.run_until(lambda: all(future.done for future in futures), timeout_ms=90_000)
    # then everybody has an answer, and what is said to be made is made
    for future in [first, *futures]:
        assert future.error is None or isinstance(future.error, NotInForce)
    world.wait_even(2 + len(futures))
    world.check_even()


@NODES
def test_a_clock_that_jumps_ahead_changes_no_answer_for_an_older_time(world: DrivenWorld) -> None:
    made = [world.execute(1, table(name)).catalog for name in ("a", "b")]
    world.wait_even(3)
    for node in world.all():
        node.clock.skew_ms = DAY_MS
    for node in world.all():
        for catalog in made:
            assert world.wait(node.catalog.at(catalog.activates_at)).version == catalog.version
            time = catalog.activates_at - 1
            assert world.wait(node.catalog.at(time)).version == catalog.version - 1
    # and the next version is in force after them, by a day, once they know that all have jumped
    world.run_for(2_000)
    third = world.execute(1, table("c")).catalog
    assert third.activates_at > made[1].activates_at + ms(DAY_MS - 10_000)


# -- what a newer release wrote -----------------------------------------------------------------


def write_by_hand(node: DrivenNode, version: int, value: bytes) -> Future[object]:
    """As a newer release would, this one's rules notwithstanding."""
    put = Do((Put(update_key(version), value), Put(b"catalog.version", b"%d" % version)))
    return node.metastore.invoke(put).map(lambda answer: answer)


@NODES
@pytest.mark.parametrize("restarts", [False, True], ids=["at work", "at start"])
def test_a_version_of_a_newer_protocol_stops_the_catalog_by_name(
    world: DrivenWorld, restarts: bool
) -> None:
    node = world[max(world.nodes)]
    made = world.execute(node.number, table("a")).catalog
    world.wait_even(2)
    # given somebody who waits for a version and for a time that never come
    ready = node.catalog.when_ready(3)
    soon = node.catalog.at(node.now() + ms(SKEW_MS), timeout_ms=2_000)
    update = Update(version=CatalogVersion(3), delay_ms=500, author=9, token=bytes(16), entries=())
    value = (PROTOCOL + 1).to_bytes(2, "little") + encode_update(update)[2:]
    # when a newer release writes the next version
    world.wait(write_by_hand(world[1], 3, value))
    world.run_for(2_000)
    if restarts:
        for one in world.all():
            one.restart()
        world.run_until(lambda: all(one.catalogs is not None for one in world.all()))
        world.wait_leader()
        world.run_until(lambda: all(one.catalog.failed is not None for one in world.all()))
    else:
        assert isinstance(ready.error, CatalogTooNew)
        assert isinstance(soon.error, CatalogTooNew)
    for one in world.all():
        # then the catalog says why it goes no further, and so does whatever is asked of it
        failed = one.catalog.failed
        assert isinstance(failed, CatalogTooNew)
        assert (failed.found, failed.known) == (PROTOCOL + 1, PROTOCOL)
        asked: Sequence[Future[object]] = [
            one.catalog.at(one.now()).map(lambda found: found),
            one.catalog.execute(table("b")).map(lambda found: found),
            one.catalog.execute([]).map(lambda found: found),
            one.catalog.when_ready(3).map(lambda found: found),
            one.catalog.compact(2).map(lambda found: found),
        ]
        for future in asked:
            assert isinstance(world.wait_error(future), CatalogTooNew)
        # and what was known stays readable
        assert bytes_of(one.catalog.version(2)) == bytes_of(made)
        assert one.catalog.at_local(made.activates_at).version == 2
        assert one.catalog.latest.version == 2
    # and the node lives: its metastore works
    world.wait(node.metastore.put(b"mine", b"1"))


@NODES
@pytest.mark.parametrize("gap", [False, True], ids=["cut short", "a gap"])
def test_bytes_that_make_no_sense_stop_the_catalog_by_name(world: DrivenWorld, gap: bool) -> None:
    node = world[max(world.nodes)]
    world.execute(node.number, table("a"))
    latest = node.catalog.latest
    entries = evaluate(latest, [table("b")]).entries
    update = Update(
        version=CatalogVersion(5 if gap else 3),
        delay_ms=500,
        author=9,
        token=bytes(16),
        entries=entries,
    )
    value = encode_update(update) if gap else encode_update(update)[:-2]
    world.wait(write_by_hand(node, update.version, value))
    world.run_for(1_000)
    for one in world.all():
        assert isinstance(one.catalog.failed, CatalogUnreadable)
        assert isinstance(world.wait_error(one.catalog.execute(table("c"))), LowmarkError)
        assert one.catalog.latest.version == 2


def strange(table_: Table) -> Table:
    """With a field that this release does not know."""
    return replace(table_, unknown=Unknown(fields=((200, b"later"),)))


@NODES
def test_fields_of_a_newer_release_pass_through_apply_and_snapshot(world: DrivenWorld) -> None:
    # given a table with a field that only a newer release knows
    node = world[max(world.nodes)]
    latest = node.catalog.latest
    entries = tuple(
        NewTable(strange(entry.table)) if isinstance(entry, NewTable) else entry
        for entry in evaluate(latest, [table("a")]).entries
    )
    update = Update(
        version=CatalogVersion(2), delay_ms=500, author=9, token=bytes(16), entries=entries
    )
    assert world.wait(node.metastore.invoke(append(update))).answer == 1
    world.wait_even(2)
    # when this release changes it, cuts the log there, and starts from the cut
    world.execute(node.number, RenameTable(name="a", to="b"))
    world.wait_even(3)
    assert world.wait(node.catalog.compact(3))
    world.run_for(500)
    for one in world.all():
        one.restart()
    world.run_until(lambda: all(one.catalogs is not None for one in world.all()))
    world.wait_even(3)
    world.run_until(lambda: all(len(log_of(one)) == 1 for one in world.all()))  # heard of the cut
    # then the field is still there, everywhere
    for one in world.all():
        [(value, _)] = log_of(one)
        assert isinstance(value, Snapshot)
        found = one.catalog.latest.table_named("public", "b")
        assert found is not None
        assert found.unknown.fields == strange(found).unknown.fields
    world.execute(node.number, RenameTable(name="b", to="c"))
    world.wait_even(4)
    found = world[1].catalog.latest.table_named("public", "c")
    assert found is not None
    assert found.unknown.fields == strange(found).unknown.fields
    world.check_even()


@NODES
def test_the_time_of_an_answer_is_within_that_of_its_version(world: DrivenWorld) -> None:
    for name in ("a", "b"):
        world.execute(1, table(name))
    for node in world.all():
        found = world.wait(node.catalog.at(node.now()))
        assert millis_of(found.activates_at) <= millis_of(node.now())
