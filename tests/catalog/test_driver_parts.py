"""Snapshots that are too large for one value: written in parts, and read from them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from catalog.making import fresh
from catalog.world import table
from lowmark.catalog import (
    CatalogRefused,
    CreateTable,
    DropTable,
    NewColumn,
    Reason,
    Snapshot,
    cutting,
    history,
    read_log,
    update_log,
)
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.errors import CatalogUnreadable
from lowmark.catalog.history import PartedSnapshot, Update
from lowmark.catalog.serializers import decode, encode_parted, encode_snapshot
from lowmark.catalog.update_log import PART_PREFIX, in_pieces, part_key, update_key
from lowmark.errors import LowmarkError
from lowmark.group import Future, OutcomeUnknown
from lowmark.metastore import Answer, Do, Entry, Put, Remove, Statement
from lowmark.metastore.commands import VALUE_BYTES_MAX
from sim.catalog_world import DrivenNode, DrivenWorld, bytes_of, log_of

REAL_PART_BYTES = update_log.PART_BYTES_MAX
PART_BYTES = 200
NAMES = tuple(f"t{n}" for n in range(8))
NODES = pytest.mark.parametrize("nodes", [1, 3], ids=["one node", "three nodes"])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_log, "PART_BYTES_MAX", PART_BYTES)


@pytest.fixture
def world(nodes: int) -> DrivenWorld:
    return full(nodes)


def full(nodes: int = 3) -> DrivenWorld:
    """Versions 2 and 3 are in force; each has many tables."""
    world = DrivenWorld(nodes=nodes)
    world.execute(1, [table(name) for name in NAMES])
    world.execute(1, [table(f"more_{name}") for name in NAMES])
    world.wait_even(3)
    world.run_for(10)  # by the clocks of all nodes
    return world


def parts_of(node: DrivenNode) -> list[int]:
    """Of which versions this node's copy of the metastore has parts, each as often as it has."""
    keys = [entry.key for entry in node.metastore.range_local(PART_PREFIX).entries]
    return [int(key.removeprefix(PART_PREFIX).split(b".")[0]) for key in keys]


def stands_at(node: DrivenNode, version: int) -> Update | Snapshot | PartedSnapshot:
    entry = node.metastore.get_local(update_key(version))
    assert entry is not None
    return decode(entry.value)


def wait_cut(world: DrivenWorld, version: int) -> None:
    world.run_until(lambda: all(node.catalog.earliest.version == version for node in world.all()))


def restart(world: DrivenWorld) -> None:
    for node in world.all():
        node.crash()
    for number in world.nodes:
        world[number].start()
    world.run_until(lambda: all(node.catalogs is not None for node in world.all()))
    world.wait_leader()


def before_writes(
    monkeypatch: pytest.MonkeyPatch,
    node: DrivenNode,
    act: Callable[[int, Statement], Future[Answer] | None],
) -> None:
    """Have something happen before each write of a node, or in its place; writes are counted.

    It happens in a turn of the loop of its own: it may let the world go on, and a group in the
    midst of its work may not.
    """
    invoke, count = node.metastore.invoke, 0

    def wrapped(statement: Statement) -> Future[Answer]:
        nonlocal count
        count += 1
        number, later = count, Future[Answer]()

        def now() -> None:
            instead = act(number, statement)
            (invoke(statement) if instead is None else instead).then(later.follow)

        assert node.sim_node is not None
        node.sim_node.call_soon(now)
        return later

    monkeypatch.setattr(node.metastore, "invoke", wrapped)


# -- cutting and starting -----------------------------------------------------------------------


@NODES
def test_a_large_catalog_is_cut_and_read_again(world: DrivenWorld) -> None:
    writer = world[max(world.nodes)]
    whole = bytes_of(writer.catalog.version(3))
    # when it is cut
    assert world.wait(writer.catalog.compact(3))
    wait_cut(world, 3)
    # then the log names parts, each as large as it may be, and all of it can be read
    for node in world.all():
        parted = stands_at(node, 3)
        assert isinstance(parted, PartedSnapshot)
        assert (parted.version, parted.length) == (3, len(whole))
        assert parted.parts == -(-len(whole) // PART_BYTES) > 2
        assert parts_of(node) == [3] * parted.parts
        [(snapshot, _)] = log_of(node)
        assert isinstance(snapshot, Snapshot)
        assert bytes_of(snapshot.catalog) == whole
    # when all nodes start again
    restart(world)
    world.wait_even(3)
    wait_cut(world, 3)
    for node in world.all():
        # then they have the same version, in force since the same time
        assert [bytes_of(catalog) for catalog in node.catalog.history] == [whole]
        active = node.catalog.latest.activates_at
        assert world.wait(node.catalog.at(active)).table_named("public", "more_t7") is not None
        assert world.wait(node.catalog.at(node.now())).version == 3
    # and the next cut removes the old parts
    world.execute(1, table("later"))
    world.wait_even(4)
    world.run_for(10)
    assert world.wait(writer.catalog.compact(4))
    wait_cut(world, 4)
    for node in world.all():
        assert set(parts_of(node)) == {4}
    world.check_even()


@pytest.mark.slow
def test_a_catalog_larger_than_any_value_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    # given versions that are no larger than they may be, and come to more than a value may have
    monkeypatch.setattr(update_log, "PART_BYTES_MAX", REAL_PART_BYTES)
    world = DrivenWorld()
    columns = tuple(NewColumn.of(f"c{n}", "string", default="x" * 4_000) for n in range(60))
    for first in (0, 20):
        names = [f"t{n}" for n in range(first, first + 20)]
        world.execute(1, [CreateTable(name=name, columns=columns) for name in names])
    world.wait_even(3)
    world.run_for(10)
    assert len(bytes_of(world[1].catalog.latest)) > VALUE_BYTES_MAX
    # when the log is cut
    assert world.wait(world[2].catalog.compact(3))
    wait_cut(world, 3)
    # then all nodes have it, now and when they start again
    world.check_even()
    restart(world)
    world.wait_even(3)
    wait_cut(world, 3)
    world.check_even()


@NODES
def test_a_catalog_that_became_small_is_in_one_piece_again(
    world: DrivenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.wait(world[1].catalog.compact(3))
    monkeypatch.setattr(update_log, "PART_BYTES_MAX", 1 << 20)
    world.execute(1, [DropTable(name=name) for name in NAMES])
    world.wait_even(4)
    assert world.wait(world[1].catalog.compact(4))
    wait_cut(world, 4)
    for node in world.all():
        assert isinstance(stands_at(node, 4), Snapshot)
        assert parts_of(node) == []
    world.check_even()


def test_a_node_that_was_away_while_parts_came_and_went_catches_up() -> None:
    # given a node that is cut off
    world = full()
    node = world.follower()
    other = next(one for one in world.all() if one is not node)
    world.isolate(node.number)
    # when the log is cut twice meanwhile, so that the parts of the first cut are gone
    assert world.wait(other.catalog.compact(2))
    world.execute(other.number, table("later"))
    assert world.wait(other.catalog.compact(4))
    # then it goes through both revisions, each with the parts of its time
    world.heal()
    world.wait_even(4)
    wait_cut(world, 4)
    assert node.catalog.failed is None
    world.check_even()


@NODES
def test_a_node_that_joins_reads_the_parts(world: DrivenWorld) -> None:
    assert world.wait(world[1].catalog.compact(3))
    world.compact_metastore(1)
    for node in world.all():
        node.metastore.group.snapshot()
    world.run_for(500)
    late = world.add(9)
    assert isinstance(late, DrivenNode)
    world.run_until(lambda: late.catalogs is not None)
    world.wait_even(3)
    wait_cut(world, 3)
    world.check_even()


# -- on the way ---------------------------------------------------------------------------------


@pytest.mark.slow
@NODES
def test_a_crash_after_any_part_has_changed_nothing(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(in_pieces(full(nodes)[1].catalog.version(3)).parts)
    for crash_at in range(1, count + 2):
        world = full(nodes)
        node = world[max(world.nodes)]

        def crash(number: int, _: Statement, *, at: int = crash_at) -> Future[Answer] | None:
            return Future() if number >= at else None

        # when an author dies with so many parts written
        with monkeypatch.context() as patched:
            before_writes(patched, node, crash)
            future = node.catalog.compact(3)
            world.run_for(1_000)
            assert not future.done
        assert parts_of(node) == [3] * (crash_at - 1)
        restart(world)
        world.wait_even(3)
        # then the log is as it was, for all
        for each in world.all():
            assert each.catalog.earliest.version == 0
        world.check_even()
        # and the next cut, there or further on, leaves nothing of that
        if crash_at % 2:
            world.execute(1, table("later"))
            world.wait_even(4)
        latest = world[1].catalog.latest.version
        assert world.wait(world[1].catalog.compact(latest))
        wait_cut(world, latest)
        assert set(parts_of(world[1])) == {latest}
        world.check_even()


@pytest.mark.slow
@pytest.mark.parametrize("further", [False, True], ids=["same place", "further on"])
@pytest.mark.parametrize("at", [1, 2, 4, 1_000], ids=["first", "second", "fourth", "last"])
def test_who_loses_a_race_on_the_way_changes_nothing(
    at: int, further: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = full()
    node, other = world[1], world[2]
    winner = 3 if further else 2
    at = min(at, len(in_pieces(node.catalog.version(2)).parts) + 1)

    # when somebody else cuts before one of an author's writes
    def race(number: int, _: Statement) -> Future[Answer] | None:
        if number == at:
            assert world.wait(other.catalog.compact(winner))
        return None

    before_writes(monkeypatch, node, race)
    assert not world.wait(node.catalog.compact(2))
    wait_cut(world, winner)
    # then there is nothing but what the winner wrote
    for each in world.all():
        parted = stands_at(each, winner)
        assert isinstance(parted, PartedSnapshot)
        assert parts_of(each) == [winner] * parted.parts
    world.check_even()


def test_two_authors_with_other_bytes_do_not_mix_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an author whose parts somebody overwrites before the write that counts
    world = full()
    node, other = world[1], world[2]
    last = len(in_pieces(node.catalog.version(3)).parts) + 1
    wrong = Do((Put(part_key(3, 1), b"of another release"),))

    def overwrite(number: int, _: Statement) -> Future[Answer] | None:
        if number == last:
            world.wait(other.metastore.invoke(wrong))
        return None

    before_writes(monkeypatch, node, overwrite)
    # then it is not carried out, but tried again
    assert world.wait(node.catalog.compact(3))
    wait_cut(world, 3)
    world.check_even()


@pytest.mark.slow
def test_an_author_whose_parts_never_stay_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = full()
    node, other = world[1], world[2]
    count = len(in_pieces(node.catalog.version(3)).parts) + 1

    def remove(number: int, _: Statement) -> Future[Answer] | None:
        if number % count == 0:
            world.wait(other.metastore.invoke(Do((Remove(part_key(3, 0)),))))
        return None

    before_writes(monkeypatch, node, remove)
    error = world.wait_error(node.catalog.compact(3))
    assert f"{cutting.CUTS_MAX} times" in error.message
    assert other.catalog.earliest.version == 0


@pytest.mark.parametrize("arrives", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("at", [1, 3, 1_000], ids=["first", "third", "last"])
def test_an_answer_that_is_lost_does_no_harm(
    at: int, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = full()
    node = world[1]
    at = min(at, len(in_pieces(node.catalog.version(3)).parts) + 1)
    invoke = node.metastore.invoke

    def lose(number: int, statement: Statement) -> Future[Answer] | None:
        if number != at:
            return None
        if arrives:
            world.wait(invoke(statement))
        return Future.failed(OutcomeUnknown("metastore", why="the answer was lost"))

    before_writes(monkeypatch, node, lose)
    assert world.wait(node.catalog.compact(3))
    wait_cut(world, 3)
    world.check_even()


@pytest.mark.slow
def test_one_node_loses_power_at_any_disk_call_on_the_way() -> None:
    world = full(1)
    before = world[1].disk.calls
    assert world.wait(world[1].catalog.compact(3))
    calls = world[1].disk.calls - before
    outcomes = set()
    for call in range(1, calls + 2, max(calls // 12, 1)):
        world = full(1)
        node = world[1]
        node.disk.stop_at_call = node.disk.calls + call
        future, sim = node.catalog.compact(3), node.clock
        world.run_until(lambda: sim.crashed or future.done)  # noqa: B023
        crashed = node.disk
        sim.crash()
        for image in crashed.crash_images(Random(call), samples=2):
            node._down()
            node.disk = image.disk
            node.start()
            world.run_until(lambda: node.catalogs is not None)  # noqa: B023
            world.wait_even(3)
            assert node.catalog.failed is None
            outcomes.add(node.catalog.earliest.version)
            world.check_even()
            node.clock.crash()
    assert outcomes <= {0, 3}
    assert 0 in outcomes


# -- damage -------------------------------------------------------------------------------------


@pytest.mark.slow
@NODES
@pytest.mark.parametrize("how", ["missing", "changed", "longer", "swapped"])
def test_parts_that_do_not_fit_stop_the_catalog_by_name(world: DrivenWorld, how: str) -> None:
    node = world[1]
    assert world.wait(node.catalog.compact(3))
    wait_cut(world, 3)
    first, second = (node.metastore.get_local(part_key(3, n)) for n in (0, 1))
    assert first is not None
    assert second is not None
    damage = {
        "missing": Do((Remove(first.key),)),
        "changed": Do((Put(first.key, first.value[:-1] + b"?"),)),
        "longer": Do((Put(first.key, first.value + b"?"),)),
        "swapped": Do((Put(first.key, second.value), Put(second.key, first.value))),
    }[how]
    world.wait(node.metastore.invoke(damage))
    world.run_for(2_000)
    # when a node starts from them, because nothing older is left
    world.compact_metastore(1)
    world.run_for(500)
    for each in world.all():
        each.metastore.group.snapshot()
    world.run_for(500)
    restart(world)
    # then it says what is wrong
    for each in world.all():
        world.run_until(lambda: each.catalog.failed is not None)  # noqa: B023
        failed = each.catalog.failed
        assert isinstance(failed, CatalogUnreadable)
        assert "version 3" in failed.message
        assert isinstance(world.wait_error(each.catalog.at(each.now())), LowmarkError)


def test_parts_of_another_version_are_not_taken() -> None:
    catalog = fresh(*[table(name) for name in NAMES])
    pieces = in_pieces(catalog)
    named = decode(pieces.value)
    assert isinstance(named, PartedSnapshot)
    parts = {part_key(named.version, n): part for n, part in enumerate(pieces.parts)}
    entry = Entry(b"", pieces.value, 1, 1, 1, 7)
    assert list(read_log([entry], parts=parts.get)) == [(Snapshot(catalog), 7)]
    # when nobody has parts, or they are those of another version
    with pytest.raises(CatalogUnreadable, match=r"part 0 of .* is missing"):
        list(read_log([entry]))
    other = PartedSnapshot(
        version=CatalogVersion(5),
        parts=named.parts,
        length=named.length,
        digest=named.digest,
    )
    entry = Entry(b"", encode_parted(other), 1, 1, 1, 7)
    moved = {part_key(5, n): part for n, part in enumerate(pieces.parts)}
    with pytest.raises(CatalogUnreadable, match="stands for version 5"):
        list(read_log([entry], parts=moved.get))


# -- limits -------------------------------------------------------------------------------------


def test_a_snapshot_is_in_parts_only_if_it_is_larger_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = fresh(*[table(name) for name in NAMES])
    whole = encode_snapshot(Snapshot(catalog))
    for more, parts in ((0, 0), (1, 0), (-1, 2)):
        monkeypatch.setattr(update_log, "PART_BYTES_MAX", len(whole) + more)
        pieces = in_pieces(catalog)
        assert len(pieces.parts) == parts
        assert b"".join(pieces.parts) == whole if parts else pieces.value == whole


def test_a_snapshot_has_so_many_parts_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = fresh(*[table(name) for name in NAMES])
    count = len(in_pieces(catalog).parts)
    monkeypatch.setattr(update_log, "PARTS_MAX", count)
    assert len(in_pieces(catalog).parts) == count
    monkeypatch.setattr(update_log, "PARTS_MAX", count - 1)
    with pytest.raises(CatalogRefused) as caught:
        in_pieces(catalog)
    assert caught.value.reason is Reason.LIMIT


def test_the_most_parts_that_there_can_be_are_named_in_one_write() -> None:
    world = full(1)
    node = world[1]
    pieces = in_pieces(node.catalog.version(3))
    many = update_log.Pieces(pieces.version, pieces.value, (b"x",) * history.PARTS_MAX)
    # then the metastore takes such a write: its condition does not hold, as no part is there
    assert world.wait(node.metastore.invoke(update_log.save_snapshot(many, earliest=0))).answer == 0


@pytest.mark.slow
@NODES
def test_a_list_of_commands_that_is_too_large_is_refused_before_it_is_sent(
    world: DrivenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world[max(world.nodes)]
    assert update_log.UPDATE_BYTES_MAX == VALUE_BYTES_MAX
    before_writes(monkeypatch, node, lambda _, statement: sent.append(statement))
    sent: list[Statement] = []
    commands = [table(name) for name in ("a", "b", "c")]
    world.execute(node.number, commands)
    [entry] = [node.metastore.get_local(update_key(4))]
    assert entry is not None
    sent.clear()
    # when the same list is one byte more than an update may have
    world.execute(node.number, [DropTable(name=name) for name in ("a", "b", "c")])
    sent.clear()
    monkeypatch.setattr(update_log, "UPDATE_BYTES_MAX", len(entry.value) - 1)
    error = world.wait_error(node.catalog.execute(commands))
    # then it is refused by name, and nothing was sent
    assert isinstance(error, CatalogRefused)
    assert error.reason is Reason.LIMIT
    assert "Split" in error.hint
    assert not sent
    # but just as large as that is right, and so is a part of it
    monkeypatch.setattr(update_log, "UPDATE_BYTES_MAX", len(entry.value))
    assert world.execute(node.number, commands).applied == (True, True, True)
    world.wait_even(6)
    world.check_even()
