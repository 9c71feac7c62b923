"""What a start says about a copy of the metastore that it can't have."""

from __future__ import annotations

import pytest

from log.world import World
from lowmark.metastore import MetastoreUnreadable, check_metastore
from lowmark.metastore.identity import Identity


@pytest.mark.parametrize("peers", [{}, {"2": "n2:1"}])
def test_a_metastore_that_can_not_be_read_just_now_is_not_called_damaged(
    peers: dict[str, str],
) -> None:
    # given a disk that fails to read the metastore's identity at one start
    world = World()
    world.log.create_group("metastore")
    world.append(1, 3, group="metastore")
    disk = world.disk.killed()
    disk.go_bad("unreadable", "groups/metastore/group")
    # then the start does not call it damaged, whether others have a copy or not
    with pytest.raises(MetastoreUnreadable, match="Input/output error") as told:
        check_metastore(
            disk, world._next(disk).log, Identity(number=1, name="n1", cluster="c", peers=peers)
        )
    assert "start again" in told.value.hint
