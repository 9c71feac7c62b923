"""`db.cluster` of a database in this process: it has one node, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowmark
from lowmark.backend.embedded import Embedded
from lowmark.client import Database
from lowmark.client.cluster import new_node
from lowmark.errors import Rejected
from lowmark.group import GroupConfig
from lowmark.node import Settings

OWN = 3 << 20


def rate(db: Database) -> int:
    """What the node sends to members that catch up, at most."""
    backend = db.backend
    assert isinstance(backend, Embedded)
    return backend.ask_now(lambda: backend.node.groups.throttle.bytes_per_s)


def test_a_pause_leaves_the_limit_of_the_settings_in_force(tmp_path: Path) -> None:
    settings = Settings(group=GroupConfig(install_bytes_per_s=OWN))
    with lowmark.open(tmp_path / "d", settings=settings) as db:
        assert rate(db) == OWN
        # when moves are paused, then the limit is still that of the settings
        assert db.cluster.pause().bytes_per_s is None
        assert rate(db) == OWN
        # and an operator's counts instead of it, also none
        db.cluster.throttle(1 << 20)
        assert rate(db) == 1 << 20
        assert db.cluster.resume().bytes_per_s == 1 << 20
        db.cluster.throttle(0)
        assert rate(db) == 0
    with lowmark.open(tmp_path / "d", settings=settings) as db:
        assert rate(db) == 0


def test_a_pause_outlives_the_process(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "d") as db:
        db.cluster.pause()
    with lowmark.open(tmp_path / "d") as db:
        assert db.cluster.rebalance().settings.paused


def test_a_node_that_could_join_is_its_name_or_its_name_and_rack() -> None:
    assert (new_node("n4").name, new_node("n4").rack) == ("n4", "")
    assert (new_node(" n4:r2").name, new_node("n4:r2").rack) == ("n4", "r2")
    for text in ("", " ", ":r2"):
        with pytest.raises(Rejected, match="names no node"):
            new_node(text)
