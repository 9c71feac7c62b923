"""Who follows the catalog: in order, whole, and no version is ready before they are done."""

from __future__ import annotations

import pytest

from catalog.world import table
from lowmark.catalog import CatalogEvent, DropTable, NewTable, RenameTable
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.catalogs import READY_MS_MAX
from lowmark.catalog.entries import Entry, IdsTaken
from lowmark.catalog.errors import VersionCompacted
from lowmark.catalog.history import Update
from lowmark.catalog.update_log import update_key
from lowmark.errors import Unavailable
from lowmark.group import Future, OutcomeUnknown
from sim.catalog_world import DrivenNode, DrivenWorld, check_told, late, log_of

NODES = pytest.mark.parametrize("nodes", [1, 3], ids=["one node", "three nodes"])


@pytest.fixture
def world(nodes: int) -> DrivenWorld:
    return DrivenWorld(nodes=nodes)


def entries_of(node: DrivenNode, version: int) -> tuple[Entry, ...]:
    [entries] = [
        value.entries
        for value, _ in log_of(node)
        if isinstance(value, Update) and value.version == version
    ]
    return entries


@NODES
def test_every_entry_is_told_once_in_order_and_can_be_read(world: DrivenWorld) -> None:
    writer = max(world.nodes)
    world.execute(writer, [table("a"), table("b"), RenameTable(name="a", to="c")])
    world.execute(writer, [DropTable(name="b"), table("d")])
    world.execute(writer, table("c", if_not_exists=True))
    world.wait_even(3)
    world.run_for(100)
    for node in world.all():
        # `Told` looks, in the call, whether the version can be read
        check_told(node.heard, lambda version: entries_of(world[1], version), done=True)
        tables = [one.table.name for one in node.heard.entries if isinstance(one, NewTable)]
        assert tables == ["a", "b", "d"]
        assert node.catalog.ready_version == 3


@NODES
def test_an_event_has_the_revision_that_caused_it(world: DrivenWorld) -> None:
    made = world.execute(max(world.nodes), table("a")).catalog
    for node in world.all():
        entry = node.metastore.get_local(update_key(made.version))
        assert entry is not None
        events = [one for one in node.heard.events if one.catalog.version == made.version]
        assert {event.revision for event in events} == {entry.revision}
        assert {event.before.version for event in events} == {1}


@NODES
def test_a_version_is_ready_when_its_listeners_are_done(world: DrivenWorld) -> None:
    # given a listener that takes its time, on the node that is asked
    node = world[max(world.nodes)]
    answer: Future[None] = Future()
    world.answer = lambda asked: answer if asked is node else None
    ready = node.catalog.when_ready(2)
    future = node.catalog.execute(table("a"))
    world.run_for(10_000)
    # then neither the version is ready nor the command done
    assert not ready.done
    assert not future.done
    assert node.catalog.ready_version == 1
    # but look-ups do not wait for it
    assert node.catalog.version(2).table_named("public", "a") is not None
    assert world.wait(node.catalog.at(node.now())).version == 2
    # nor do other nodes
    for other in world.all():
        assert other is node or other.catalog.ready_version == 2
    # when it is done
    answer.resolve(None)
    world.run_until(lambda: future.done, timeout_ms=10)
    assert ready.result() is node.catalog.version(2)
    assert future.result().catalog.version == 2
    assert node.catalog.when_ready(2).result().version == 2


@NODES
def test_the_next_version_is_told_when_the_one_before_is_done(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    answers: list[Future[None]] = []

    def answer(asked: DrivenNode) -> Future[None] | None:
        if asked is not node:
            return None
        answers.append(Future())
        return answers[-1]

    world.answer = answer
    futures = [node.catalog.execute(table(name)) for name in ("a", "b", "c")]
    world.run_until(lambda: node.catalog.latest.version == 4)
    for version in (2, 3, 4):
        world.run_for(50)
        # then only entries of this version were told
        assert set(node.heard.versions) - {1} == set(range(2, version + 1))
        assert node.catalog.ready_version == version - 1
        for one in answers:
            one.resolve(None)
    assert [world.wait(future).catalog.version for future in futures] == [2, 3, 4]


@NODES
def test_slow_listeners_are_told_everything(world: DrivenWorld) -> None:
    world.answer = lambda node: late(node, 120)
    futures = [world[n % len(world.nodes) + 1].catalog.execute(table(f"t{n}")) for n in range(12)]
    assert {world.wait(future).catalog.version for future in futures} == set(range(2, 14))
    world.run_until(lambda: all(node.catalog.ready_version == 13 for node in world.all()))
    for node in world.all():
        check_told(node.heard, lambda version: entries_of(world[1], version), done=True)


class Failing:
    """A listener that can't follow; what it says is not what the catalog does."""

    def __init__(self, *, later: bool) -> None:
        self.later = later
        self.told: list[int] = []

    def __call__(self, event: CatalogEvent) -> Future[None] | None:
        self.told.append(event.catalog.version)
        error = Unavailable("I have no time for this")
        if self.later:
            return Future.failed(error)
        raise error


@NODES
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_a_listener_that_fails_does_not_undo_a_version(world: DrivenWorld, later: bool) -> None:
    node = world[max(world.nodes)]
    failing = Failing(later=later)
    node.catalog.on_event(failing)
    for name in ("a", "b"):
        world.execute(node.number, table(name))
    # then it was told all, so were the others, and all versions are ready
    assert sorted(set(failing.told)) == [2, 3]
    assert node.catalog.ready_version == 3
    check_told(node.heard, lambda version: entries_of(world[1], version), done=True)
    assert node.catalog.failed is None


@pytest.mark.slow
@NODES
def test_an_author_does_not_wait_for_ever_for_a_listener(world: DrivenWorld) -> None:
    # given a listener that never answers
    node = world[max(world.nodes)]
    never: Future[None] = Future()
    world.answer = lambda asked: never if asked is node else None
    written = node.catalog.execute(table("a"))
    nothing = node.catalog.execute([])
    refused = node.catalog.execute(table("a"))
    world.run_for(READY_MS_MAX - 1_000)
    assert not written.done
    world.run_for(3_000)
    # then its author is told that the version is written, and why he hears no more
    assert isinstance(written.error, OutcomeUnknown)
    assert "version 2 was written" in written.error.message
    assert "a listener did not answer" in written.error.message
    assert nothing.error is not None
    assert refused.error is not None
    assert node.catalog._telling._waiting == []
    # and when it does answer after all, everything goes on
    world.answer = lambda _: None
    never.resolve(None)
    assert world.execute(node.number, table("b")).catalog.version == 3


@NODES
def test_readiness_is_not_being_in_force(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    node.catalog.execute(table("a"))
    made = world.wait(node.catalog.when_ready(2))
    assert made.activates_at > node.now()
    assert world.wait(node.catalog.at(node.now())).version == 1


@NODES
def test_a_listener_is_told_from_when_it_comes(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    world.execute(node.number, table("a"))
    told: list[int] = []
    node.catalog.on_event(lambda event: told.append(event.catalog.version))
    world.execute(node.number, table("b"))
    assert set(told) == {3}


@NODES
def test_what_is_ready_only_grows(world: DrivenWorld) -> None:
    # given versions, and a snapshot of the metastore, so that a start finds them at once
    for name in ("a", "b", "c"):
        world.execute(1, table(name))
    world.wait_even(4)
    for node in world.all():
        node.metastore.group.snapshot()
    world.run_for(500)
    for node in world.all():
        node.restart()
    world.answer = lambda node: late(node, 30)
    seen: dict[int, int] = dict.fromkeys(world.nodes, 0)

    def done() -> bool:
        for node in world.all():
            if node.catalogs is not None:
                ready = node.catalog.ready_version
                assert ready >= seen[node.number], f"{ready} after {seen[node.number]}"
                seen[node.number] = ready
        return min(seen.values()) == 5

    future: Future[object] | None = None

    def step() -> bool:
        nonlocal future
        if future is None and world[1].catalogs is not None and world.leader() is not None:
            future = world[1].catalog.execute(table("d")).map(lambda done: done)
        return done()

    world.run_until(step)
    # then versions that were found at the start were told to nobody, and those after it were
    for node in world.all():
        assert node.heard.began_at >= 1
        check_told(node.heard, lambda version: entries_of(world[1], version), done=True)


def test_a_node_that_history_passed_by_is_told_of_a_jump() -> None:
    # given a node that is cut off for longer than anything is held for it
    world = DrivenWorld()
    node = world.follower()
    others = [other for other in world.all() if other is not node]
    writer = others[0]
    world.execute(writer.number, table("a"))
    world.wait_even(2)
    world.isolate(node.number)
    world.wait_leader(other_than=node.number)
    waiting = node.catalog.when_ready(4)
    # when the catalog moves on and is cut, and so is the metastore
    for name in ("b", "c", "d", "e"):
        world.execute(writer.number, table(name))
    entries = {version: entries_of(writer, version) for version in range(1, 7)}
    assert world.wait(writer.catalog.compact(5))
    world.run_for(3_000)
    world.compact_metastore(writer.number)
    world.heal()
    world.run_until(lambda: node.catalog.ready_version == 6)
    # then it is told that it does not know what happened between
    jumps = [event for event in node.heard.events if event.entry is None]
    assert [(jump.before.version, jump.catalog.version) for jump in jumps] == [(2, 5)]
    assert jumps[0].before.table_named("public", "b") is None
    assert jumps[0].catalog.table_named("public", "d") is not None
    check_told(node.heard, entries.__getitem__, done=True)
    # and who waited for a version within the jump hears, and later ones are told it is gone
    assert waiting.result().version == 5
    assert isinstance(node.catalog.when_ready(4).error, VersionCompacted)
    world.check_even()


@NODES
def test_a_cut_is_no_event(world: DrivenWorld) -> None:
    for name in ("a", "b"):
        world.execute(1, table(name))
    world.wait_even(3)
    told = [len(node.heard.events) for node in world.all()]
    assert world.wait(world[1].catalog.compact(3))
    world.run_for(500)
    assert [len(node.heard.events) for node in world.all()] == told


def test_ids_come_with_what_they_are_for() -> None:
    # given what one table comes to
    world = DrivenWorld(nodes=1)
    world.execute(1, table("a"))
    kinds = [type(entry) for entry in entries_of(world[1], CatalogVersion(2))]
    # then listeners are told of it in the order of the log, whatever that is
    assert [type(entry) for entry in world[1].heard.entries if entry][-len(kinds) :] == kinds
    assert {IdsTaken, NewTable} <= set(kinds)
