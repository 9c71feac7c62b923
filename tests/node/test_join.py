"""`--join` for a directory that belongs to a cluster already: it must be the same one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from eventually import eventually
from lowmark.metastore import ClusterRefused
from lowmark.node import Node, NodeOptions, NodeUnreachable
from lowmark.node import node as node_module
from lowmark.node.action import reply
from lowmark.node.listener import Listener
from lowmark.node.messages import Nothing, PeerAddress
from node.running import QUICK, Running


def options(data: Path, join: str) -> NodeOptions:
    return NodeOptions(data=str(data), listen="127.0.0.1:0", join=join)


def test_a_node_of_one_cluster_does_not_join_another(tmp_path: Path) -> None:
    # given two that each founded a cluster
    with Running(tmp_path / "2", name="n2") as second:
        own = second.client().peer().cluster
    with Running(tmp_path / "1", name="n1") as first:
        other = first.client().peer().cluster
        # when one is started to join the other
        with pytest.raises(ClusterRefused, match="another cluster") as refused:
            Node(options(tmp_path / "2", first.endpoint), QUICK)
        # then both are named, and what to do
        assert own in refused.value.detail
        assert other in refused.value.detail
        assert "--join" in refused.value.hint
        # and nothing was left open or changed
        with Running(tmp_path / "2") as second:
            assert second.client().peer().cluster == own


@pytest.mark.slow
def test_a_node_may_name_its_own_cluster_again(tmp_path: Path) -> None:
    with Running(tmp_path / "1", name="n1") as first:
        with Running(tmp_path / "2", name="n2", join=first.endpoint) as second:
            eventually(lambda: bool(second.client().peer().cluster))
            assert second.client().peer().cluster == first.client().peer().cluster
        with Running(tmp_path / "2", join=first.endpoint) as again:
            assert [n.name for n in again.client().status().nodes] == ["n1", "n2"]


@pytest.mark.slow
def test_a_node_that_knows_others_does_not_need_the_one_it_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Running(tmp_path / "1", name="n1") as first:
        with Running(tmp_path / "2", name="n2", join=first.endpoint) as second:
            client = second.client()
            eventually(lambda: len(client.status().groups[0].voters) == 2)
        with (
            caplog.at_level(logging.WARNING),
            Running(tmp_path / "2", join="127.0.0.1:1") as again,
        ):
            assert len(again.client().status().nodes) == 2
    assert "it goes back to the nodes it knows" in caplog.text


def test_a_node_that_knows_nobody_else_needs_the_one_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "JOIN_PATIENCE_S", 0.1)
    with Running(tmp_path):
        pass
    with pytest.raises(NodeUnreachable):
        Node(options(tmp_path, "127.0.0.1:1"), QUICK)


def test_a_node_that_belongs_nowhere_yet_is_no_other_cluster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # given a node that waits to be let in, or an older one that does not say
    with Running(tmp_path):
        pass
    nowhere = Listener("127.0.0.1:0")
    address = PeerAddress(address="127.0.0.1:1")
    nowhere.actions["cluster.peer-address"] = reply(Nothing, lambda _: address)
    # then the directory's own cluster is gone back to, and that is said
    with caplog.at_level(logging.WARNING), Running(tmp_path, join=nowhere.address) as running:
        assert running.client().status().cluster is not None
    assert "no cluster is known" in caplog.text
    nowhere.close()
