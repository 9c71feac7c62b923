"""A seal behind the last batch of the WAL tells rot from a write that a crash has torn."""

from __future__ import annotations

import pytest

from log.world import World, data_of, number
from lowmark.errors import GroupQuarantined

WAL = f"wal/{number(1)}.wal"


def sealed(*, seal: bool = True) -> World:
    """Entries 1 to 3 and then 4 to 6 in a batch of their own, and a seal if there shall be one."""
    world = World()
    world.append(1, 3)
    world.append(4, 6)
    if seal:
        world.log.seal()
    world.settle()
    world.loop.run_until(lambda: world.log.wal.idle)
    return world


def test_a_last_batch_that_rots_is_damage_if_it_was_sealed() -> None:
    # given a last batch with a seal behind it, and a bit of it that turns after a kill
    world = sealed()
    world.spoil(WAL, data_of(5, 1))
    # when the log is opened, then the group is in quarantine: its node had acknowledged more
    after = world.kill()
    assert after.group.quarantined is not None
    with pytest.raises(GroupQuarantined):
        after.put(4, 4)
    after.check([1, 2, 3])


def test_without_a_seal_it_is_taken_for_torn() -> None:
    world = sealed(seal=False)
    world.spoil(WAL, data_of(5, 1))
    after = world.kill()
    assert after.group.quarantined is None
    assert after.group.last_index == 3


@pytest.mark.parametrize("byte", range(40))
def test_a_seal_that_rots_costs_nothing(byte: int) -> None:
    world = sealed()
    file = world.disk.open(WAL, "read")
    world.disk.flip_bit(WAL, 8 * (file.size() - 40 + byte) + 3)
    after = world.kill()
    after.check(range(1, 7))
    after.append(7, 8)
    after.reopen().check(range(1, 9))


def test_the_next_batch_takes_the_place_of_a_seal() -> None:
    # given a seal, and a power cut at any time while more is written, with and without a seal
    for seal in (False, True):
        world = sealed()
        size = world.disk.open(WAL, "read").size()
        world.put(7, 9)
        world.loop.run_for(0.2)
        for after in world.worlds_after_crash():
            after.check(range(1, 7))
            assert after.group.quarantined is None
        world.await_written(9)
        if seal:
            world.log.seal()
            world.settle()
        # then nothing that was acknowledged is lost, and nothing is called damaged
        for after in world.worlds_after_crash():
            after.check(range(1, 10))
            assert after.group.quarantined is None
        assert world.disk.open(WAL, "read").size() > size


def test_one_batch_is_sealed_once_and_none_while_another_is_written() -> None:
    world = sealed()
    with world.calls() as calls:
        for _ in range(3):
            world.log.seal()
            world.settle()
    assert calls == []
    world.put(7, 7)
    world.log.seal()  # 7 waits
    world.await_written(7)
    with world.calls() as calls:
        world.log.seal()
        world.settle()
        world.loop.run_until(lambda: world.log.wal.idle)
    assert [call.split()[0] for call in calls] == ["write"]


def test_a_disk_that_takes_no_seal_takes_the_next_batch() -> None:
    # given a disk that refuses a seal
    world = sealed(seal=False)
    world.disk.fail_next("write", WAL)
    world.log.seal()
    world.loop.run_until(lambda: world.log.wal.idle)
    # then writes go on, in the same file
    assert world.log.wal.stopped is None
    world.append(7, 9)
    world.kill().check(range(1, 10))


def test_after_a_seal_the_next_file_counts_what_was_synced() -> None:
    # given a sealed file, and a new one after that
    world = sealed()
    world.roll()
    world.append(7, 9)
    # then a power cut that takes the seal away is no damage
    for after in world.worlds_after_crash():
        after.check(range(1, 10))
        assert after.group.quarantined is None
