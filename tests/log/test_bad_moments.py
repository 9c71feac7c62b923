"""What goes wrong at a moment when something else is wrong, or under way."""

from __future__ import annotations

from log.world import World, number

LONG_MS = 60_000


def owed(world: World) -> World:
    """The log after it was closed with a WAL file that stays for `g`, whose folder was sick."""
    world.disk.go_bad("unwritable", "groups/g")
    world.log.roll()
    world.loop.run_for(LONG_MS)
    world.log.close()
    world.disk.heal()
    return world


def test_a_group_hears_that_its_kept_file_is_lost_though_it_was_unreadable_meanwhile() -> None:
    # given a group that is owed a WAL file, and the file is lost
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    owed(world).disk.unlink(f"wal/{number(1)}.wal")
    # when a start can't read the group, and is through
    world.disk.go_bad("unreadable", "groups/g/group")
    second = world._next(world.disk)
    second.settle()
    second.log.close()
    # then the next one that can read it says that entries are missing
    second.disk.heal()
    third = second._next(second.disk)
    assert "is missing, and its note says that it holds entries" in (third.group.quarantined or "")
    assert third.log.group("other").quarantined is None
