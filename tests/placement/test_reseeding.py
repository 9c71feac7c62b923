"""Damaged copies are made anew by themselves, where a majority is sound without them."""

from __future__ import annotations

from typing import Any

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.errors import QuarantinedHere
from lowmark.group import Future
from lowmark.log import Damaged, NewerFormat
from lowmark.placement import RebalanceConfig
from lowmark.placement.assignments import PartitionId
from lowmark.placement.rebuilding import Rebuild
from placement.test_moves import stable
from placement.test_rebuilding import damaged, follower
from table.world import TableNode, TableWorld, log_table

pytestmark = pytest.mark.slow


@pytest.fixture
def world() -> TableWorld:
    world = TableWorld(nodes=3)
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_for(8_000)
    return world


def is_sound(world: TableWorld, table: TableId, node: int, rows: int) -> bool:
    """Whether the copy there votes, and has all rows."""
    tables = world[node].tables_
    copy = None if tables is None else tables.here(table, 0)
    if copy is None or copy.group.stopped is not None or copy.group.log.quarantined is not None:
        return False
    members = copy.group.members()
    return node in members.voters and not members.joint and copy.view.end == rows


def others_of(world: TableWorld, table: TableId, node: int) -> list[int]:
    return [n for n in stable(world, table) if n != node]


@pytest.mark.parametrize("leads", [False, True])
def test_a_damaged_copy_is_made_anew_by_itself(world: TableWorld, leads: bool) -> None:
    # given a partition whose copy, a follower's or the leader's, turns out to be damaged
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = world.leading(table).group.node if leads else follower(world, table)
    before = world[ill].tables.get(table, 0).group.incarnation
    damaged(world, table, ill)
    world.append(table, rows=3)
    # then it is soon another one that has every row, and votes
    world.run_until(lambda: is_sound(world, table, ill, 8))
    assert world[ill].tables.get(table, 0).group.incarnation > before
    # and it counts: with another node away, rows are taken
    world[others_of(world, table, ill)[0]].crash()
    assert world.append(table).first == 8


def test_a_copy_that_a_start_finds_damaged_is_made_anew(world: TableWorld) -> None:
    # given a copy that was damaged, and that could not be made anew, for the others were away
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    others = others_of(world, table, ill)
    world[others[0]].crash()
    damaged(world, table, ill)
    world.run_for(10_000)
    # when its node starts again, and the others are back
    world[ill].crash()
    world[ill].start()
    world[others[0]].start()
    # then it is made anew
    world.run_until(lambda: is_sound(world, table, ill, 5))


def test_nothing_that_others_may_need_is_thrown_away(world: TableWorld) -> None:
    # given a partition of which two copies of three are damaged
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    other = others_of(world, table, ill)[0]
    damaged(world, table, ill)
    damaged(world, table, other)
    # then both stay as they are, however long that lasts
    world.run_for(60_000)
    for number in (ill, other):
        copy = world[number].tables.get(table, 0)
        assert isinstance(copy.group.stopped, QuarantinedHere)
        assert copy.view.end == 5


def test_what_a_newer_release_wrote_is_no_damage(world: TableWorld) -> None:
    # given a copy with a file that this release can't read
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    copy, groups = world[ill].tables.get(table, 0), world[ill].groups
    assert groups is not None
    newer = NewerFormat("a segment", version=9, newest=3)
    groups.quarantine(copy.group.name, newer)
    world.run_until(lambda: isinstance(copy.group.stopped, QuarantinedHere))
    # then it stays for the release that can
    world.run_for(30_000)
    assert world[ill].tables.get(table, 0) is copy


def test_a_copy_that_is_damaged_again_and_again_waits_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient = RebalanceConfig(retry_delay_ms=200, reseed_again_ms=3_000)
    monkeypatch.setattr(TableNode, "rebalance", impatient)
    world = TableWorld(nodes=3)
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_for(8_000)
    # given a copy whose disk is sick: whenever it is made anew, it is damaged again
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    took = []
    for _ in range(4):
        before = world.now_ms()
        damaged(world, table, ill)
        world.run_until(lambda: is_sound(world, table, ill, 5), timeout_ms=1_200_000)
        took.append(world.now_ms() - before)
    # then the first one comes at once, and each later one takes about twice as long
    assert took[0] < took[1] < took[2] < took[3]


def test_a_crash_in_between_is_gone_on_from(world: TableWorld) -> None:
    # given a damaged copy, and a crash of its node a little later each time
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    for wait_ms in (900, 1_000, 1_010, 1_020, 1_050, 1_100, 1_200, 1_500):
        ill = follower(world, table)
        damaged(world, table, ill)
        world.run_for(wait_ms)
        world[ill].crash()
        world[ill].start()
        # then the copy is made anew all the same, and no row is missing
        world.run_until(lambda: is_sound(world, table, ill, 5), timeout_ms=600_000)  # noqa: B023


def test_a_disk_that_takes_no_note_costs_neither_the_copy_nor_the_node(world: TableWorld) -> None:
    # given a disk that refuses to write down that the damaged copy is given up
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    world[ill].disk.fail_next("write", "rejoin/")
    damaged(world, table, ill)
    # then it is tried again
    world.run_until(lambda: is_sound(world, table, ill, 5))


def test_a_copy_that_is_moved_away_meanwhile_takes_no_turn_for_ever(world: TableWorld) -> None:
    # given a copy that is being made anew, and goes
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    damaged(world, table, ill)
    world.run_until(lambda: world[ill].placement._reseeding is not None)
    reseeds = world[ill].placement._reseeding
    assert reseeds is not None
    damages = reseeds._damaged
    world.run_until(lambda: any(one.began is not None for one in damages.values()))
    world.run_until(lambda: world[ill].tables.here(table, 0) is not None)
    world[ill].tables.leave(table, 0)
    # then nothing is waited for any more
    world.run_until(lambda: not damages)


def test_of_many_damaged_copies_a_few_are_made_anew_at_a_time(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given many damaged copies on one node, and leaders that answer late
    tables = [world.create(1, log_table(f"events{number}")) for number in range(8)]
    for table in tables:
        world.append(table, rows=2)
    world.run_for(1_000)
    ill, asked, most = 3, set[PartitionId](), 0
    rebuilding = world[ill].placement.rebuilding
    begin, confirmed = rebuilding.begin, world[ill].placement.leaving.confirmed

    def late(*given: Any, **more: Any) -> Future[tuple[int, ...]]:
        whole: Future[tuple[int, ...]] = Future()
        world.loop.call_later(2_500, lambda: confirmed(*given, **more).then(whole.follow))
        return whole

    def counted(partition: PartitionId, **more: Any) -> Future[Rebuild]:
        nonlocal most
        assert partition not in asked
        asked.add(partition)
        most = max(most, len(asked))
        began = begin(partition, **more)
        began.then(lambda _: asked.discard(partition))
        return began

    monkeypatch.setattr(world[ill].placement.leaving, "confirmed", late)
    monkeypatch.setattr(rebuilding, "begin", counted)
    groups = world[ill].groups
    assert groups is not None
    for table in tables:
        name = world[ill].tables.get(table, 0).group.name
        groups.quarantine(name, Damaged("a segment", offset=0, what="it is"))
    # then no more than `moves_max` are asked for at a time, none twice, and all are sound at last
    world.run_until(
        lambda: all(is_sound(world, table, ill, 2) for table in tables), timeout_ms=300_000
    )
    assert 1 < most <= RebalanceConfig().moves_max
