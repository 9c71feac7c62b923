"""The update log over time: it is cut, and whoever starts, joins or was away reads the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalog.world import table
from lowmark.catalog import DropTable, Snapshot
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.errors import CutRefused, CutTooEarly, VersionCompacted, VersionUnknown
from lowmark.catalog.history import Update
from lowmark.metastore import missing, value_is
from lowmark.runtime import HybridTime, millis_of
from metastore.world import QUICK
from sim.catalog_world import DAY_MS, DrivenNode, DrivenWorld, bytes_of, log_of

NODES = pytest.mark.parametrize("nodes", [1, 3], ids=["one node", "three nodes"])
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def world(nodes: int) -> DrivenWorld:
    return DrivenWorld(nodes=nodes)


def fill(world: DrivenWorld, number: int = 1, names: tuple[str, ...] = NAMES) -> None:
    """One version per table, from version 2 on, and all nodes know them."""
    done = [world.execute(number, table(name)).catalog.version for name in names]
    world.wait_even(done[-1])
    world.run_for(10)  # by the clocks of all nodes


def restart(world: DrivenWorld, *, power: bool = False, skew_ms: int = 0) -> None:
    """All nodes at once; their clocks are wrong from then on."""
    for node in world.all():
        node.crash() if power else node.stop()
    for number in world.nodes:
        world[number].start()
        world[number].clock.skew_ms = skew_ms
    world.run_until(lambda: all(node.catalogs is not None for node in world.all()))
    world.wait_leader()


def wait_cut(world: DrivenWorld, version: int) -> None:
    """Until all nodes begin at a version."""
    world.run_until(lambda: all(node.catalog.earliest.version == version for node in world.all()))


def known(node: DrivenNode) -> list[bytes]:
    return [bytes_of(catalog) for catalog in node.catalog.history]


# -- starting again -----------------------------------------------------------------------------


@pytest.mark.slow
@NODES
@pytest.mark.parametrize("skew_ms", [0, DAY_MS, -DAY_MS], ids=["right", "day ahead", "day behind"])
@pytest.mark.parametrize("power", [False, True], ids=["stopped", "power cut"])
def test_a_start_gives_every_version_the_time_it_had(
    world: DrivenWorld, skew_ms: int, power: bool
) -> None:
    fill(world)
    before = known(world[1])
    times = [catalog.activates_at for catalog in world[1].catalog.history]
    # when all nodes start again, with clocks that are wrong
    restart(world, power=power, skew_ms=skew_ms)
    world.wait_even(6)
    # then all versions are the same, to the byte, and in force at the same times
    for node in world.all():
        assert known(node) == before
        for version, time in enumerate(times):
            assert node.catalog.at_local(time).version == version
            assert world.wait(node.catalog.at(time)).version == version
            if version > 1:
                assert world.wait(node.catalog.at(HybridTime(time - 1))).version == version - 1
    world.check_even()


@pytest.mark.slow
@NODES
@pytest.mark.parametrize("skew_ms", [0, DAY_MS])
def test_a_start_goes_on_where_it_was(world: DrivenWorld, skew_ms: int) -> None:
    fill(world)
    restart(world, skew_ms=skew_ms)
    made = world.execute(max(world.nodes), table("f")).catalog
    assert made.version == 7
    assert made.activates_at > world[1].catalog.version(6).activates_at
    world.wait_even(7)
    world.check_even()


# -- cutting ------------------------------------------------------------------------------------


@pytest.mark.slow
@NODES
def test_a_cut_is_seen_by_all(world: DrivenWorld) -> None:
    fill(world)
    before = known(world[1])
    cut = world[1].catalog.version(4)
    # when one node cuts the log
    assert world.wait(world[max(world.nodes)].catalog.compact(4))
    wait_cut(world, 4)
    for node in world.all():
        # then the log is a snapshot and the updates behind it
        values = [value for value, _ in log_of(node)]
        assert [type(value) for value in values] == [Snapshot, Update, Update]
        assert known(node) == before[4:]
        # then what is left reads as ever
        for version in (4, 5, 6):
            catalog = node.catalog.version(version)
            assert world.wait(node.catalog.at(catalog.activates_at)) is catalog
        # then what is not is refused by name
        for version in (0, 1, 3):
            with pytest.raises(VersionCompacted) as caught:
                node.catalog.version(version)
            assert caught.value.earliest == 4
        for time in (HybridTime(cut.activates_at - 1), HybridTime(1)):
            error = world.wait_error(node.catalog.at(time))
            assert isinstance(error, VersionCompacted)
            assert error.earliest == 4
        with pytest.raises(VersionUnknown) as unknown:
            node.catalog.version(7)
        assert unknown.value.latest == 6
    world.check_even()
    assert world.execute(1, table("f")).catalog.version == 7


@pytest.mark.slow
@NODES
def test_a_second_cut_at_the_same_place_does_nothing(world: DrivenWorld) -> None:
    fill(world)
    first = world[max(world.nodes)]
    assert world.wait(world[1].catalog.compact(3))
    revision = world[1].metastore.state.find(b"catalog.snapshot.version")
    for node in (world[1], first):
        assert not world.wait(node.catalog.compact(3))
        assert not world.wait(node.catalog.compact(2))
    assert world[1].metastore.state.find(b"catalog.snapshot.version") == revision
    # but one further on does
    assert world.wait(first.catalog.compact(6))
    world.run_until(lambda: all(len(node.catalog.history) == 1 for node in world.all()))
    world.check_even()


@NODES
@pytest.mark.parametrize("version", [1, 0, -3])
def test_there_is_nothing_before_version_1_to_cut(world: DrivenWorld, version: int) -> None:
    assert not world.wait(world[max(world.nodes)].catalog.compact(version))
    fill(world, names=("a",))
    assert not world.wait(world[max(world.nodes)].catalog.compact(version))
    assert world[1].catalog.version(0).version == 0


@NODES
def test_a_version_that_is_not_there_can_not_be_kept(world: DrivenWorld) -> None:
    error = world.wait_error(world[max(world.nodes)].catalog.compact(2))
    assert isinstance(error, VersionUnknown)
    assert error.latest == 1


def test_cuts_at_the_same_time_leave_one_log() -> None:
    world = DrivenWorld()
    fill(world)
    futures = [world[number].catalog.compact(version) for number, version in ((1, 3), (2, 6))]
    futures += [world[3].catalog.compact(5), world[2].catalog.compact(4)]
    futures.append(world[1].catalog.compact(6))
    answers = [world.wait(future) for future in futures]
    # then the furthest cut holds, and each place was cut once at most
    assert answers[1] or answers[4]
    assert not (answers[1] and answers[4])
    wait_cut(world, 6)
    world.check_even()


@NODES
def test_cuts_and_commands_do_not_disturb_each_other(world: DrivenWorld) -> None:
    fill(world, names=("a", "b"))
    nodes = len(world.nodes)
    done = [world[n % nodes + 1].catalog.execute(table(f"t{n}")) for n in range(9)]
    cuts = [world[n % nodes + 1].catalog.compact(2 + n % 2) for n in range(6)]
    assert [world.wait(future) is not None for future in done] == [True] * 9
    assert sum(world.wait(future) for future in cuts) in (1, 2)
    world.wait_even(12)
    wait_cut(world, 3)
    world.check_even()


@pytest.mark.slow
@NODES
@pytest.mark.parametrize("skew_ms", [0, DAY_MS, -DAY_MS], ids=["right", "day ahead", "day behind"])
def test_a_start_after_a_cut_begins_there(world: DrivenWorld, skew_ms: int) -> None:
    fill(world)
    assert world.wait(world[1].catalog.compact(4))
    wait_cut(world, 4)
    before = known(world[1])
    restart(world, skew_ms=skew_ms)
    world.wait_even(6)
    wait_cut(world, 4)
    for node in world.all():
        assert known(node) == before
        assert node.catalog.earliest.version == 4
        with pytest.raises(VersionCompacted):
            node.catalog.version(3)
    # when the cut moves on, it begins there, by a clock that is behind, too: it follows the log, by
    # whose times the version is in force
    assert world.wait(world[1].catalog.compact(6))
    restart(world, skew_ms=skew_ms)
    world.wait_even(6)
    wait_cut(world, 6)
    assert [known(node) for node in world.all()] == [before[2:]] * len(world.nodes)


@NODES
def test_the_cut_waits_until_a_version_is_in_force_by_every_clock(world: DrivenWorld) -> None:
    node = world[max(world.nodes)]
    future = node.catalog.execute(table("a"))
    world.run_until(lambda: node.catalog.latest.version == 2)
    due_ms = millis_of(node.catalog.latest.activates_at) + node.here.settings.clock_max_skew_ms + 1
    # when it is to be cut there up to the last millisecond in which a clock may be before it
    while (left_ms := due_ms - millis_of(node.now())) > 0:
        error = node.catalog.compact(2).error
        # then it is refused, says for how long, and the present can be answered
        assert isinstance(error, CutTooEarly)
        assert error.wait_ms == left_ms
        assert world.wait(world.now(node.number)).version in (1, 2)
        world.run_for(min(left_ms, 100) if left_ms > 1 else 1)
    assert world.wait(node.catalog.compact(2))
    wait_cut(world, 2)
    # and its author is not disturbed by it
    assert world.wait(future).catalog.version == 2
    for each in world.all():
        assert world.wait(each.catalog.at(each.now())).version == 2


@pytest.mark.slow
@NODES
def test_a_cut_is_made_only_if_its_condition_holds(world: DrivenWorld) -> None:
    fill(world)
    node = world[max(world.nodes)]
    world.wait(node.metastore.put(b"held", b"4"))
    # when it does not hold, nothing is cut, and that is said
    error = world.wait_error(node.catalog.compact(5, condition=missing(b"held")))
    assert isinstance(error, CutRefused)
    assert node.metastore.get_local(b"catalog.snapshot.version") is None
    # when it does
    assert world.wait(node.catalog.compact(4, condition=value_is(b"held", b"4")))
    wait_cut(world, 4)
    # then it is not asked for where there is nothing to do
    assert not world.wait(node.catalog.compact(4, condition=missing(b"held")))
    world.check_even()


# -- late comers --------------------------------------------------------------------------------


@pytest.mark.slow
@NODES
@pytest.mark.parametrize("cut", [False, True], ids=["whole log", "cut log"])
def test_a_node_that_joins_has_what_the_others_have(world: DrivenWorld, cut: bool) -> None:
    fill(world)
    if cut:
        assert world.wait(world[1].catalog.compact(5))
        world.compact_metastore(1)
        for node in world.all():
            node.metastore.group.snapshot()
        world.run_for(500)
    late = world.add(9)
    assert isinstance(late, DrivenNode)
    world.run_until(lambda: late.catalogs is not None)
    world.wait_even(6)
    assert known(late) == known(world[1])
    assert late.catalog.earliest.version == (5 if cut else 0)
    # and it may write at once
    assert world.execute(9, DropTable(name="a")).catalog.version == 7
    world.wait_even(7)
    world.check_even()


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["stopped", "power cut"])
def test_a_node_that_was_down_while_all_was_cut_catches_up(power: bool) -> None:
    # given a node that is down
    world = DrivenWorld(metastore_config=replace(QUICK, snapshot_entries=20))
    fill(world, names=("a", "b"))
    node = world.follower()
    node.crash() if power else node.stop()
    others = world.all()
    writer = others[0].number
    # when the catalog is cut, the metastore is cut, and its log is, too
    for name in ("c", "d", "e"):
        world.execute(writer, table(name))
    world.run_for(2_000)
    assert world.wait(world[writer].catalog.compact(5))
    cut = world.compact_metastore(writer)
    for n in range(60):
        world.wait(world[writer].metastore.put(b"other", b"%d" % n))
    world.compact_metastore(writer)
    world.run_for(2_000)
    first = min(other.metastore.group.log.row.snapshot_index for other in others)
    assert first > 0
    assert cut > 0
    # then it catches up when it is back, and knows what the others know
    node.start()
    world.run_until(lambda: node.catalogs is not None)
    world.run_until(lambda: node.catalog.latest.version == 6)
    world.run_for(1_000)
    assert node.catalog.earliest.version == 5
    world.check_even()
    assert world.wait(world.now(node.number)).version == 6
    assert world.execute(node.number, table("f")).catalog.version == CatalogVersion(7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_coordinators_in_turn(seed: int) -> None:
    # given writers and cutters at all nodes
    world = DrivenWorld(seed)
    futures = []
    for round_ in range(6):
        futures += [
            node.catalog.execute(table(f"t{round_}of{node.number}")) for node in world.all()
        ]
        # when the metastore's leader changes in the midst of it
        leader = world.wait_leader()
        leader.metastore.group.transfer(leader.number % 3 + 1)
        world.run_for(150)
    done = [world.wait(future) for future in futures]
    # then nobody notices
    assert sorted(one.catalog.version for one in done) == list(range(2, 20))
    world.wait_even(19)
    world.check_even()
