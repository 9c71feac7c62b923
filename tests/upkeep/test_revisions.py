"""Old revisions of the metastore go by themselves, and what is in force stays."""

from __future__ import annotations

from lowmark.upkeep.upkeep import forget_old_revisions
from table.world import TableWorld


def test_old_revisions_go_when_there_are_twice_as_many_as_are_kept() -> None:
    # given a metastore with many revisions
    world = TableWorld(nodes=1)
    metastore = world[1].here.metastore
    world.wait(metastore.put(b"first", b"value"))
    for number in range(30):
        world.wait(metastore.put(b"key", b"%d" % number))
    latest, compacted = metastore.state.latest, metastore.state.compacted
    # when fewer than twice as many are there, nothing goes
    many = latest - compacted
    assert world.wait(forget_old_revisions(metastore, kept=many)) == compacted
    # when there are more, all but those go; what is in force is there
    assert world.wait(forget_old_revisions(metastore, kept=10)) == latest - 10
    entry = world.wait(metastore.get(b"first"))
    assert entry is not None
    assert entry.value == b"value"
