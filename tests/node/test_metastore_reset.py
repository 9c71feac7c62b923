"""What `lowmark meta reset` refuses, without any node that runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from clusters.ports import free_ports
from lowmark.errors import Rejected
from lowmark.log import LogConfig
from lowmark.node.metastore_reset import answers, check_lost, reset_metastore, voters_besides

NAMES = {1: "n1", 2: "n2", 3: "n3", 4: "n4"}


def refused(others: set[int], lost: list[int]) -> str:
    with pytest.raises(Rejected) as caught:
        check_lost("./n1", others, lost, NAMES)
    return f"{caught.value.message} {caught.value.detail} {caught.value.hint}"


def test_every_other_voter_must_be_named_and_no_other_node() -> None:
    check_lost("./n1", {2, 3}, [3, 2], NAMES)
    assert "add --lost n3." in refused({2, 3}, [2])
    assert "--lost n2 --lost n3" in refused({2, 3}, [])
    assert "not a voter of the metastore: n4" in refused({2, 3}, [2, 3, 4])
    assert "nothing to reset" in refused(set(), [])


@pytest.mark.slow
def test_a_node_is_lost_only_if_nothing_listens_at_its_endpoint() -> None:
    [port] = free_ports(1)
    assert answers(f"127.0.0.1:{port}", cluster="c") == ""
    # a process that accepts and says nothing may be a node that is suspended
    with socket.create_server(("127.0.0.1", port)):
        assert f"a process listens at 127.0.0.1:{port}" in answers(f"127.0.0.1:{port}", cluster="c")


def test_a_directory_without_a_metastore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="is not a data directory"):
        voters_besides(str(tmp_path), LogConfig())
    with pytest.raises(Rejected, match="is not a data directory"):
        reset_metastore(str(tmp_path), LogConfig(), lost=[2], names=NAMES)
