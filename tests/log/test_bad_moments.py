"""What goes wrong at a moment when something else is wrong, or under way."""

from __future__ import annotations

from log.world import World, number
from lowmark.log import Damaged

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


def test_a_quarantine_that_is_saved_while_a_note_is_written_lets_the_file_go() -> None:
    # given a group whose quarantine can't be written down, so that a WAL file is to stay for it
    world = World()
    world.log.create_group("other")
    world.append(1, 10)
    for place in ("groups/g/quarantine.tmp", "quarantine"):
        world.disk.go_bad("unwritable", place)
    state = world.group.state
    world.log.quarantine(state, Damaged("a file", offset=0, what="a test"))

    def saved() -> None:
        state.quarantine_saved = True
        world.log.segment_writer.look_again()

    # when it is durable while the note beside the file is on its way
    world.before("rename", ".kept", saved)
    world.log.roll()
    world.loop.run_until(lambda: state.quarantine_saved)
    # then the writer looks again when the note is there, and lets both go
    world.loop.run_for(LONG_MS)
    assert not world.log.segment_writer.kept
    assert world.disk.list("wal") == [f"{number(2)}.wal"]
