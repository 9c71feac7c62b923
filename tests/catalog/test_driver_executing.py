"""Commands on their way into the catalog: when they are in force, who wins, who is told what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catalog.world import table
from lowmark.catalog import (
    AddColumns,
    CatalogRefused,
    Command,
    DropTable,
    Executed,
    NewColumn,
    NewTable,
    Reason,
    RenameTable,
    catalogs,
)
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.commands import evaluate
from lowmark.catalog.errors import CatalogBusy, VersionUnknown
from lowmark.catalog.history import Update
from lowmark.catalog.update_log import append, update_key
from lowmark.errors import Unavailable
from lowmark.group import Future, OutcomeUnknown
from lowmark.group.wire import Answer as AnswerItem
from lowmark.group.wire import Item
from lowmark.metastore import Answer, ClusterSettings, Statement
from lowmark.runtime import millis_of
from sim.catalog_world import DrivenNode, DrivenWorld, log_of, ms

DELAY_MS = SKEW_MS = 500
NODES = pytest.mark.parametrize("nodes", [1, 3], ids=["one node", "three nodes"])


@pytest.fixture
def world(nodes: int) -> DrivenWorld:
    return DrivenWorld(nodes=nodes)


def names(node: DrivenNode) -> list[str]:
    return sorted(found.name for found in node.catalog.latest.all_tables())


def made_in(node: DrivenNode, name: str) -> list[int]:
    """The versions that made a table of this name."""
    return [
        value.version
        for value, _ in log_of(node)
        if isinstance(value, Update)
        for entry in value.entries
        if isinstance(entry, NewTable) and entry.table.name == name
    ]


# -- when ---------------------------------------------------------------------------------------


@NODES
def test_version_1_is_in_force_from_its_write(world: DrivenWorld) -> None:
    for node in world.all():
        first = node.catalog.version(1)
        assert first.activates_at == first.time
        assert node.catalog.at_local(first.time) is first
        assert node.catalog.at_local(first.time - 1).version == 0


@NODES
def test_a_version_is_in_force_a_delay_after_its_write(world: DrivenWorld) -> None:
    # when a command is carried out
    made = world.execute(max(world.nodes), table("orders")).catalog
    # then its time is the time of its write in the metastore, and it is in force a delay later
    for node in world.all():
        entry = node.metastore.get_local(update_key(made.version))
        assert entry is not None
        assert made.time == entry.time
        assert made.activates_at == entry.time + ms(DELAY_MS)
        # then it is found at its own time, and not before
        assert world.wait(node.catalog.at(made.activates_at)).version == made.version
        assert world.wait(node.catalog.at(made.activates_at - 1)).version == made.version - 1


@NODES
def test_the_delay_is_that_of_the_cluster(nodes: int) -> None:
    settings = ClusterSettings(id="", schema_sync_delay_ms=70, clock_max_skew_ms=20)
    world = DrivenWorld(nodes=nodes, settings=settings)
    began_ms = world.loop.wall_ms()
    made = world.execute(nodes, table("orders")).catalog
    assert made.activates_at == made.time + ms(70)
    assert 90 < world.loop.wall_ms() - began_ms < 200


@NODES
def test_commands_are_done_when_every_clock_is_past_them(world: DrivenWorld) -> None:
    began_ms = world.loop.wall_ms()
    made = world.execute(max(world.nodes), table("orders")).catalog
    # then the answer came after the delay and the skew, and not much later
    now_ms = world.loop.wall_ms()
    assert now_ms > millis_of(made.activates_at) + SKEW_MS
    assert DELAY_MS + SKEW_MS < now_ms - began_ms < DELAY_MS + SKEW_MS + 100


@NODES
@pytest.mark.parametrize(
    "commands",
    [
        table("orders", if_not_exists=True),
        table("orders"),
        [],
        DropTable(name="nothing", if_exists=True),
        DropTable(name="nothing"),
    ],
    ids=["no-op", "refused", "nothing", "another no-op", "refused as unknown"],
)
def test_what_changes_nothing_waits_for_the_version_it_was_held_against(
    world: DrivenWorld, commands: Command | list[Command]
) -> None:
    # given a version that is not in force yet
    node = world[max(world.nodes)]
    first = node.catalog.execute(table("orders"))
    world.run_until(lambda: node.catalog.latest.version == 2)
    made = node.catalog.latest
    # when something is executed that makes no version
    second = node.catalog.execute(commands)
    world.run_until(lambda: second.done)
    # then it waited for that one, as its author did
    assert millis_of(world[1].now()) > millis_of(made.activates_at) + SKEW_MS
    world.run_until(lambda: first.done, timeout_ms=100)  # in the same moment, give or take
    assert node.catalog.latest is made
    if second.error is None:
        assert second.result().catalog is made
        assert not any(second.result().applied)
    else:
        assert isinstance(second.error, CatalogRefused)


@NODES
def test_what_changes_nothing_waits_for_nothing_when_the_latest_is_in_force(
    world: DrivenWorld,
) -> None:
    node = world[max(world.nodes)]
    made = world.execute(node.number, table("orders"))
    world.run_for(2_000)
    began_ms = world.loop.wall_ms()
    assert world.execute(node.number, []) == Executed(made.catalog, ())
    again = world.execute(node.number, table("orders", if_not_exists=True))
    assert again == Executed(made.catalog, (False,))
    error = world.wait_error(node.catalog.execute(table("orders")))
    assert isinstance(error, CatalogRefused)
    assert error.reason is Reason.EXISTS
    assert world.loop.wall_ms() - began_ms < 100
    assert node.catalog.latest is made.catalog


@pytest.mark.parametrize("skews", [(0, 0, 0), (-250, 250, 0), (500, 0, 0), (0, 500, 250)])
@pytest.mark.parametrize("author", [1, 2, 3])
def test_what_is_done_is_seen_by_every_node_at_its_own_time(
    skews: tuple[int, ...], author: int
) -> None:
    # given clocks that differ by as much as is allowed
    world = DrivenWorld()
    for number, skew_ms in enumerate(skews, 1):
        world[number].clock.skew_ms = skew_ms
    for round_ in range(3):
        # when a command is done, or refused
        made = world.execute(author, table(f"t{round_}")).catalog
        times = {node.number: node.now() for node in world.all()}
        # then every node finds it at its own time
        for node in world.all():
            assert times[node.number] >= made.activates_at
            assert world.wait(node.catalog.at(times[node.number])).version >= made.version
    # and here its version is ready
    assert world[author].catalog.ready_version == 4


def test_a_refusal_can_be_understood_at_once_on_every_node() -> None:
    # given clocks that differ, and a table that was just made elsewhere
    world = DrivenWorld()
    world[2].clock.skew_ms = -400
    made = world[3].catalog.execute(table("orders"))
    world.run_until(lambda: world[1].catalog.latest.version == 2)
    # when another node hears that it exists
    error = world.wait_error(world[1].catalog.execute(table("orders")))
    assert isinstance(error, CatalogRefused)
    # then it is there, by every clock
    for node in world.all():
        found = world.wait(node.catalog.at(node.now()))
        assert found.table_named("public", "orders") is not None
    assert world.wait(made).catalog.version == 2


# -- batches ------------------------------------------------------------------------------------


@NODES
def test_a_list_makes_one_version(world: DrivenWorld) -> None:
    done = world.execute(
        max(world.nodes),
        [
            table("a"),
            table("a", if_not_exists=True),
            table("b"),
            RenameTable(name="b", to="c"),
        ],
    )
    assert done.applied == (True, False, True, True)
    assert done.catalog.version == 2
    world.wait_even(2)
    assert all(names(node) == ["a", "c"] for node in world.all())
    world.check_even()


@NODES
def test_a_list_is_all_or_nothing(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    future = node.catalog.execute([table("a"), table("b"), table("a")])
    error = world.wait_error(future)
    assert isinstance(error, CatalogRefused)
    assert error.object_name.endswith("a")
    world.run_for(2_000)
    for other in world.all():
        assert other.catalog.latest.version == 1
        assert names(other) == []
    # and the next one gets the next version
    assert world.execute(node.number, table("b")).catalog.version == 2


# -- who wins -----------------------------------------------------------------------------------


@pytest.mark.slow
@NODES
@pytest.mark.parametrize("seed", range(2))
def test_thirty_writers_at_one_node_all_get_in(nodes: int, seed: int) -> None:
    world = DrivenWorld(seed, nodes=nodes)
    futures = [world[nodes].catalog.execute(table(f"t{n:02}")) for n in range(30)]
    done = [world.wait(future) for future in futures]
    # then each has a version of its own, in the order in which they came
    assert [one.catalog.version for one in done] == list(range(2, 32))
    world.wait_even(31)
    assert all(names(node) == [f"t{n:02}" for n in range(30)] for node in world.all())
    world.check_even()


def test_only_so_many_wait_at_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a node at which as many wait as may
    monkeypatch.setattr(catalogs, "WAITING_MAX", 3)
    world = DrivenWorld(nodes=1)
    futures = [world[1].catalog.execute(table(f"t{n}")) for n in range(4)]  # one is not waiting
    # when one more comes
    error = world.wait_error(world[1].catalog.execute(table("late")))
    # then it is told at once, and the others get in
    assert isinstance(error, Unavailable)
    assert "wait at this node" in error.message
    assert [world.wait(future).catalog.version for future in futures] == [2, 3, 4, 5]
    assert names(world[1]) == ["t0", "t1", "t2", "t3"]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "each"), [(0, 10), (1, 10), (2, 10), (3, 10), (4, 30)])
def test_writers_at_three_nodes_lose_nothing_and_are_never_turned_away(
    seed: int, each: int
) -> None:
    world = DrivenWorld(seed)
    futures = [
        world[n % 3 + 1].catalog.execute(table(f"t{n // 3:02}of{n % 3}")) for n in range(3 * each)
    ]
    done = [world.wait(future) for future in futures]
    # then versions are dense, and each command has one of its own
    assert sorted(one.catalog.version for one in done) == list(range(2, 3 * each + 2))
    world.wait_even(3 * each + 1)
    for node in world.all():
        assert len(names(node)) == 3 * each
    world.check_even()


def test_of_two_who_want_the_same_name_one_gets_it() -> None:
    world = DrivenWorld()
    futures = [node.catalog.execute(table("orders")) for node in world.all()]
    world.run_until(lambda: all(future.done for future in futures))
    errors = [future.error for future in futures if future.error is not None]
    assert len(errors) == 2
    for error in errors:
        assert isinstance(error, CatalogRefused)
        assert error.reason is Reason.EXISTS
    world.wait_even(2)
    assert made_in(world[1], "orders") == [2]


class Rival:
    """Is always faster: before each update of a node comes one of his own."""

    def __init__(self, node: DrivenNode, *, times: int) -> None:
        self.node = node
        self.times = times
        self.attempts = 0
        self._invoke = node.metastore.invoke
        node.metastore.invoke = self.invoke  # type: ignore[method-assign]

    def invoke(self, statement: Statement) -> Future[Answer]:
        whole: Future[Answer] = Future()
        self.attempts += 1
        if self.attempts > self.times:
            return self._invoke(statement)
        latest = self.node.catalog.latest
        update = Update(
            version=CatalogVersion(latest.version + 1),
            delay_ms=DELAY_MS,
            author=99,
            token=b"r" * 16,
            entries=evaluate(latest, [table(f"rival{self.attempts}")]).entries,
        )

        def written(future: Future[Answer]) -> None:
            assert future.result().answer == 1
            self._invoke(statement).then(lambda own: whole.resolve(own.result()))

        self._invoke(append(update)).then(written)
        return whole


@NODES
def test_who_always_loses_stops_after_ten_attempts(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    rival = Rival(node, times=1_000)
    error = world.wait_error(node.catalog.execute(table("orders")))
    assert isinstance(error, CatalogBusy)
    assert rival.attempts == 10
    # then nothing of it was written, and the versions are the rival's
    world.wait_even(11)
    assert made_in(node, "orders") == []
    world.check_even()
    # and the next one is not held up
    rival.times = 0
    assert world.execute(node.number, table("orders")).catalog.version == 12


@NODES
def test_who_loses_nine_times_gets_in(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    rival = Rival(node, times=9)
    assert world.execute(node.number, table("orders")).catalog.version == 11
    assert rival.attempts == 10


@NODES
def test_who_lost_is_held_against_the_winner(world: DrivenWorld) -> None:
    # given a rival who makes the same table
    node = world[max(world.nodes)]
    rival = Rival(node, times=1)
    error = world.wait_error(node.catalog.execute(table("rival1")))
    # then the second attempt is not made, since the first has lost its sense
    assert isinstance(error, CatalogRefused)
    assert error.reason is Reason.EXISTS
    assert rival.attempts == 1
    # and what refused it can be read
    found = world.wait(node.catalog.at(node.now()))
    assert found.table_named("public", "rival1") is not None


# -- answers that never come --------------------------------------------------------------------


def lose_answers(world: DrivenWorld, to: int, *, count: int) -> None:
    """Lose the next answers to questions of a node."""
    lost: list[Item] = []

    def loses(sender: int, receiver: int, item: Item) -> bool:
        if receiver == to and isinstance(item, AnswerItem) and len(lost) < count:
            lost.append(item)
            return True
        return False

    world.network.loses = loses


def before_write(node: DrivenNode, act: Callable[[], None]) -> None:
    """Do something right before a node's next write to the update log leaves."""
    invoke = node.metastore.invoke

    def hooked(statement: Statement) -> Future[Answer]:
        node.metastore.invoke = invoke  # type: ignore[method-assign]
        act()
        return invoke(statement)

    node.metastore.invoke = hooked  # type: ignore[method-assign]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_command_whose_answer_was_lost_is_known_by_its_token(count: int) -> None:
    world = DrivenWorld()
    node = world.follower()
    before_write(node, lambda: lose_answers(world, node.number, count=count))
    done = world.execute(node.number, [table("orders"), RenameTable(name="orders", to="sales")])
    # then it went in once, and its author heard so
    assert done.applied == (True, True)
    assert made_in(node, "orders") == [done.catalog.version]
    assert names(node) == ["sales"]
    world.network.loses = None
    world.wait_even()
    world.check_even()


def test_a_command_whose_question_was_lost_is_made_again() -> None:
    world = DrivenWorld()
    node = world.follower()
    leader = world.wait_leader().number

    def cut() -> None:
        world.network.cut_one_way(node.address, world[leader].address)

    before_write(node, cut)
    future = node.catalog.execute(table("orders"))
    world.run_for(1_000)
    world.heal()
    done = world.wait(future)
    assert made_in(node, "orders") == [done.catalog.version]


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_a_leader_that_is_cut_off_with_an_update_does_not_double_it(seed: int) -> None:
    # given a follower whose update has reached the leader's log
    world = DrivenWorld(seed)
    node = world.follower()
    leader = world.wait_leader()
    last = [leader.metastore.group.log.last_index]
    before_write(node, lambda: last.append(leader.metastore.group.log.last_index))
    future = node.catalog.execute(table("orders"))
    world.run_until(lambda: len(last) == 2)
    world.run_until(lambda: leader.metastore.group.log.last_index > last[-1])
    # when the leader is cut off, a little later with each seed
    world.run_for(seed * 0.3)
    world.isolate(leader.number)
    world.wait_leader(other_than=leader.number)
    # then its author hears that it is done, and it was done once
    done = world.wait(future)
    assert made_in(node, "orders") == [done.catalog.version]
    world.heal()
    world.wait_even(done.catalog.version)
    assert all(names(one) == ["orders"] for one in world.all())
    world.check_even()


def test_a_leader_that_was_cut_off_says_that_it_does_not_know() -> None:
    # given a leader that is cut off as its own update is about to go out
    world = DrivenWorld()
    leader = world[world.wait_leader().number]
    before_write(leader, lambda: world.isolate(leader.number))
    waiting = [leader.catalog.execute(table(name)) for name in ("orders", "sales", "stock")]
    errors = [world.wait_error(future) for future in waiting]
    # then it can't tell what became of it: that nothing was written would be a guess
    assert isinstance(errors[0], OutcomeUnknown)
    # and those behind it, of which nothing was written, did not wait one after the other
    for error in errors[1:]:
        assert isinstance(error, Unavailable)
        assert not isinstance(error, OutcomeUnknown)
    assert world.loop.elapsed_us() < 10_000_000
    # when it is connected again
    world.heal()
    world.execute(leader.number, table("after"))
    world.wait_even()
    # then what it did not know came to one thing or the other, and only that
    assert names(world[1]) in (["after"], ["after", "orders"])
    world.check_even()


def test_an_unknown_outcome_that_was_compacted_away_stays_unknown() -> None:
    # given an update that goes in, but its author is cut off
    world = DrivenWorld()
    node = world.follower()
    others = [other for other in world.all() if other is not node]

    def cut() -> None:
        for other in others:
            world.network.cut_one_way(other.address, node.address)

    before_write(node, cut)
    future = node.catalog.execute(table("orders"))
    world.run_until(lambda: others[0].catalog.latest.version == 2)
    assert node.catalog.latest.version == 1
    world.isolate(node.number)
    # when that version, and the metastore's history of it, go meanwhile
    world.wait(others[0].catalog.execute(DropTable(name="orders")))
    assert world.wait(others[0].catalog.compact(3))
    world.run_for(1_000)
    world.compact_metastore(others[0].number)
    world.heal()
    error = world.wait_error(future)
    # then its author can't know, and says so; the table is not made again
    assert isinstance(error, OutcomeUnknown)
    assert "compacted away" in error.message
    world.run_for(2_000)
    assert names(node) == []
    world.check_even()


# -- closing ------------------------------------------------------------------------------------


@NODES
def test_whoever_waits_is_told_when_a_node_closes(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    known = node.catalog.execute(table("orders"))
    world.run_until(lambda: node.catalog.latest.version == 2)
    under_way = [node.catalog.execute(table(f"t{n}")) for n in range(3)]
    ready = node.catalog.when_ready(9)
    catalogs = node.catalog
    node.stop()
    # then what was made is not said to be undone, and what was not begun is
    assert isinstance(known.error, OutcomeUnknown)
    assert "version 2 was written" in known.error.message
    for future in under_way[1:]:
        assert isinstance(future.error, Unavailable)
        assert not isinstance(future.error, OutcomeUnknown)
    assert under_way[0].error is not None
    assert isinstance(ready.error, Unavailable)
    # and who asks later is told at once
    assert isinstance(catalogs.execute(table("late")).error, Unavailable)
    assert isinstance(catalogs.when_ready(1).error, Unavailable)
    assert isinstance(catalogs.compact(1).error, Unavailable)
    # and what it knew can still be read
    assert catalogs.version(2).version == 2


@NODES
def test_versions_that_were_never_made_are_unknown(world: DrivenWorld) -> None:
    for node in world.all():
        for number in (-1, 2, 1_000_000):
            with pytest.raises(VersionUnknown) as caught:
                node.catalog.version(number)
            assert caught.value.latest == 1
        assert node.catalog.version(0).all_tables() == []
        assert node.catalog.earliest.version == 0


@NODES
def test_a_new_column_is_there_for_whoever_waited(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    world.execute(node.number, table("orders"))
    column = NewColumn.of("city", "string")
    done = world.execute(node.number, AddColumns(table="orders", columns=(column,)))
    for other in world.all():
        found = world.wait(other.catalog.at(other.now())).table_named("public", "orders")
        assert found == done.catalog.table_named("public", "orders")
        assert found is not None
        assert [one.name for one in found.columns][-1] == "city"
