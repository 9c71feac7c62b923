"""`lowmark status` of a cluster in which something is wrong."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eventually import eventually
from lowmark.cli.app import app
from lowmark.cli.formatting import up_text
from lowmark.errors import Corrupt, LowmarkError
from lowmark.inspect import open_offline
from lowmark.log import GroupQuarantined
from lowmark.metastore import ClusterRefused, MetastoreDamaged
from lowmark.node import (
    Node,
    NodeClient,
    NodeOptions,
    Status,
)
from lowmark.node.messages import NodeRow
from lowmark.runtime import DiskFailed
from node.running import QUICK, Running

UNREADABLE = [
    Corrupt("a record is damaged"),
    GroupQuarantined("metastore", cause="a flipped bit"),
    DiskFailed("wal/1", call="read", reason="Input/output error"),
]


def break_reading(running: Running, error: LowmarkError, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, no value can be read from this node's log."""

    def read(_: object) -> None:
        raise error.again()

    monkeypatch.setattr(running.node.cluster.metastore._values, "entries", read)


def damage(data: Path) -> None:
    """Flip some bits early in the WAL, where the cluster's founding stands."""
    [wal] = (data / "wal").glob("*.wal")
    content = bytearray(wal.read_bytes())
    for place in (300, 400, 500):
        content[place] ^= 0xFF
    wal.write_bytes(content)


@contextmanager
def started(data: Path) -> Iterator[Node]:
    """A node that runs, but may never be ready."""
    node = Node(NodeOptions(data=str(data), listen="127.0.0.1:0"), QUICK)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            node.run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield node
    finally:
        node.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert failures == []


def problem_of(status: Status, name: str) -> str:
    [row] = [node for node in status.nodes if node.name == name]
    return row.problem


@pytest.mark.parametrize("error", UNREADABLE, ids=lambda error: type(error).__name__)
def test_a_node_alone_that_can_t_read_its_copy_says_so_and_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LowmarkError
) -> None:
    with Running(tmp_path, name="n1") as running:
        client = running.client()
        break_reading(running, error, monkeypatch)
        for _ in range(2):
            status = client.status()
            assert error.message in problem_of(status, "n1")
            assert status.cluster is not None
            assert status.metastore is not None
            assert [group.group for group in status.groups] == ["metastore"]
        monkeypatch.undo()
        assert problem_of(client.status(), "n1") == ""


@pytest.mark.slow
@pytest.mark.parametrize("error", UNREADABLE, ids=lambda error: type(error).__name__)
def test_one_of_two_that_can_t_read_its_copy_shows_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LowmarkError
) -> None:
    with (
        Running(tmp_path / "1", name="n1") as first,
        Running(tmp_path / "2", name="n2", join=first.endpoint) as second,
    ):
        client = second.client()
        eventually(lambda: len(client.status().groups[0].voters) == 2)
        break_reading(second, error, monkeypatch)
        # when the answer of the other comes in, on the loop
        status = client.status()
        # then nothing has ended, and only one of them has a problem
        assert error.message in problem_of(status, "n2")
        assert problem_of(status, "n1") == ""
        assert {member.name for member in status.groups[0].members} == {"n1", "n2"}
        assert all(member.applied for member in status.groups[0].members)
        monkeypatch.undo()
        assert first.client().status().nodes


@pytest.mark.slow
def test_a_copy_whose_status_can_t_be_had_is_a_problem_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Running(tmp_path / "1", name="n1") as first,
        Running(tmp_path / "2", name="n2", join=first.endpoint) as second,
    ):
        client = first.client()
        eventually(lambda: len(client.status().groups[0].voters) == 2)

        def broken() -> None:
            raise Corrupt("it is damaged")

        monkeypatch.setattr(second.node.cluster.metastore.group, "status", broken)
        # whoever is asked, and whoever asks
        for asked in (client, second.client()):
            status = asked.status()
            assert "it is damaged" in problem_of(status, "n2")
            problems = {member.name: member.problem for member in status.groups[0].members}
            assert problems["n1"] == ""
            assert "it is damaged" in problems["n2"]


def test_a_node_with_a_damaged_directory_says_what_is_damaged(tmp_path: Path) -> None:
    # given a node whose directory was damaged while it was down
    with Running(tmp_path, name="n1") as running:
        for number in range(30):
            running.client().put(b"k%d" % number, bytes(100))
    damage(tmp_path)
    # when it is started: no other node has what it has lost
    with pytest.raises(MetastoreDamaged, match=r"wal is damaged at byte \d+"):
        Node(NodeOptions(data=str(tmp_path), listen="127.0.0.1:0"), QUICK)
    # then the directory itself says what it knows all the same
    with open_offline(str(tmp_path)) as store:
        [member] = store.status().groups[0].members
        assert "can't be read" in member.problem


@pytest.mark.slow
def test_a_damaged_member_shows_what_the_others_say(tmp_path: Path) -> None:
    with Running(tmp_path / "1", name="n1") as first:
        client = first.client()
        with Running(tmp_path / "2", name="n2", join=first.endpoint) as second:
            for number in range(30):
                client.put(b"k%d" % number, bytes(100))
            eventually(lambda: len(second.client().status().groups[0].voters) == 2)
            number = first.node.info.number
        damage(tmp_path / "2")
        with started(tmp_path / "2") as node, NodeClient(node.info.endpoint) as damaged:

            def said() -> bool:
                [group] = damaged.status().groups
                by_node = {member.node: member for member in group.members}
                assert "quarantine" in by_node[node.info.number].problem
                return bool(by_node[number].applied)

            eventually(said)  # once the other knows where this one is now
            assert problem_of(damaged.status(), "n2")


@pytest.mark.slow
def test_a_node_that_is_gone_is_shown_as_silent_while_its_lease_lasts(tmp_path: Path) -> None:
    # given two nodes whose leases last for long
    patient = replace(QUICK, metastore=replace(QUICK.metastore, lease_ms=60_000))
    with (
        Running(tmp_path / "1", name="n1", settings=patient) as first,
        Running(tmp_path / "2", name="n2", join=first.endpoint, settings=patient) as second,
    ):
        client = first.client()

        def row(name: str) -> NodeRow:
            return next(node for node in client.status().nodes if node.name == name)

        eventually(lambda: (row("n2").up, row("n2").silent_ms, row("n2").problem) == (True, 0, ""))
        # when the second one sends nothing any more, as if it was killed
        second.node.loop.call_from_thread(second.node.groups.transport.close)
        # then it is still up, by its lease, and the other one says for how long it was silent
        eventually(lambda: (row("n2").silent_ms or 0) >= 100)
        seen, own = row("n2"), row("n1")
        assert (seen.up, own.silent_ms) == (True, 0)
        assert str(up_text(seen)).startswith("silent for ")
        # and by its name
        assert seen.problem.startswith("node n2 ")
        shown = CliRunner().invoke(app, ["status", "--node", first.endpoint]).stdout
        assert re.search(r"n2 +silent for \d", shown)
        assert not re.search(r"\d{12,}", shown)  # no node by its number
        assert "node n2" in shown


@pytest.mark.slow
def test_why_a_node_was_not_let_in_again_is_shown_to_whoever_asks(tmp_path: Path) -> None:
    with (
        Running(tmp_path / "1", name="n1") as first,
        Running(tmp_path / "2", name="n2", join=first.endpoint) as second,
    ):
        clients = [first.client(), second.client()]
        eventually(lambda: len(clients[0].status().groups[0].voters) == 2)

        def refuse() -> None:
            second.node.cluster.refused = ClusterRefused("the address is taken")

        def shown() -> bool:
            # It asks again by and by, and is let in: so each look begins with a refusal.
            second.node.bridge.ask_now(refuse, timeout_s=10)
            return all("the address is taken" in problem_of(c.status(), "n2") for c in clients)

        eventually(shown)
