"""`lowmark rebalance`, `lowmark node` and `lowmark zone baseline`, on real nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eventually import eventually
from lowmark.cli.app import app
from lowmark.client import Database
from lowmark.errors import Rejected
from server.nodes import Nodes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rebalance")]

PARTITIONS = 6
ROWS = 600
PATIENT_S = 120.0


class World:
    """A cluster with one table, and the commands on it."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.at = 0
        """The node that is asked."""
        with self.connect() as db:
            db.alter_zone("default", replicas=1, scale_up="100ms")
            orders = db.create_table("orders", {"id": "int64"}, key="id", partitions=PARTITIONS)
            orders.append([{"id": number} for number in range(ROWS)])
        self.names = [
            next(row["node"] for row in self.rows() if row["endpoint"] == nodes.address(number))
            for number in nodes.up
        ]

    def connect(self) -> Database:
        return self.nodes.connect(self.at)

    @property
    def where(self) -> list[str]:
        return ["--node", self.nodes.address(self.at)]

    def run(self, *words: str, code: int = 0) -> str:
        """What it says on stdout; of one that fails, on stderr."""
        done = CliRunner().invoke(app, [*words, *self.where])
        assert done.exit_code == code, (words, done.output, done.exception)
        return done.stdout if code == 0 else done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "lowmark", *words, *self.where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.json("node", "list")
        return rows

    def held(self) -> dict[str, int]:
        return {row["node"]: row["partitions"] for row in self.rows()}

    def moves(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.json("rebalance", "status")["moves"]
        return rows

    def settled(self, total: int = PARTITIONS, **held: int) -> bool:
        """Whether nothing moves, and there are this many replicas; on these nodes, this many."""
        found = self.held()
        return (
            sum(found.values()) == total
            and not self.moves()
            and all(found[name] == count for name, count in held.items())
        )

    def wait(self, total: int = PARTITIONS, **held: int) -> None:
        eventually(lambda: self.settled(total, **held), deadline_s=PATIENT_S)

    def check_rows(self) -> None:
        with self.connect() as db:
            assert db["orders"].read().to_arrow().num_rows == ROWS


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Nodes(tmp_path_factory.mktemp("cluster"), 3) as nodes:
        yield World(nodes)


@pytest.fixture
def world(shared: World) -> World:
    """Three nodes with two partitions each, whatever a test before has left."""
    shared.at = 0
    shared.run("rebalance", "resume")
    shared.run("rebalance", "throttle", "off")
    for row in shared.rows():
        if row["draining"]:
            shared.run("node", "drain", row["node"], "--stop")
    shared.run("zone", "baseline", "default", "auto")
    shared.run("zone", "alter", "default", "--replicas", "1")
    shared.wait(**dict.fromkeys(shared.names, 2))
    return shared


# -- looking ------------------------------------------------------------------------------------


def test_nodes_are_listed_with_what_they_hold(world: World) -> None:
    rows = world.rows()
    assert [row["node"] for row in rows] == sorted(world.names)
    assert all(row["up"] and not row["draining"] for row in rows)
    assert sum(row["leads"] for row in rows) == PARTITIONS
    said = world.run("node", "list")
    assert all(name in said for name in world.names)


def test_a_quiet_cluster_moves_nothing(world: World) -> None:
    found = world.json("rebalance", "status")
    assert found["moves"] == found["draining"] == found["silent"] == []
    assert found["settings"] == {"paused": False, "bytes_per_s": 0}
    assert found["totals"]["moves"] == 0
    for words in (("status",), ("status", "--watch")):
        assert "nothing moves" in world.run("rebalance", *words)


def test_a_plan_says_what_a_new_node_would_get(world: World) -> None:
    # when a node is thought of
    found = world.json("rebalance", "plan", "--add-node", "n9:r2")
    # then partitions would go there, and are copied once each
    assert found["moves"]
    assert all(move["then"] == ["n9"] and move["bytes"] > 0 for move in found["moves"])
    assert found["replicas"] == len(found["moves"])
    assert found["bytes"] == sum(move["bytes"] for move in found["moves"])
    assert ["one replica" in warning for warning in found["warnings"]] == [True]
    said = world.run("rebalance", "plan", "--add-node", "n9:r2")
    assert "would move" in said
    assert "warning: zone default would have one replica" in said
    # and nothing has changed
    assert world.settled()


def test_a_plan_of_more_replicas_and_of_a_node_that_leaves(world: World) -> None:
    more = world.json("rebalance", "plan", "--replicas", "default=3")
    assert (len(more["moves"]), more["replicas"]) == (PARTITIONS, 2 * PARTITIONS)
    assert more["warnings"] == []
    too_many = world.json("rebalance", "plan", "--replicas", "default=5")
    assert ["3 of 5 replicas" in warning for warning in too_many["warnings"]] == [True]
    gone = world.names[1]
    fewer = world.json("rebalance", "plan", "--remove-node", gone)
    assert [move["now"] for move in fewer["moves"]] == [[gone]] * 2
    assert not any(gone in move["then"] for move in fewer["moves"])
    assert "nothing would move" in world.run("rebalance", "plan")


# -- replicas and baselines -----------------------------------------------------------------------


def test_replicas_are_added_by_an_altered_zone(world: World) -> None:
    world.run("zone", "alter", "default", "--replicas", "3")
    world.wait(3 * PARTITIONS)
    assert world.held() == dict.fromkeys(sorted(world.names), PARTITIONS)
    assert world.json("status")["warnings"] == []
    world.check_rows()


def test_a_baseline_by_hand_and_by_itself_again(world: World) -> None:
    # given a zone whose nodes come and go by themselves
    found = world.json("zone", "baseline", "default")
    assert found == {
        "zone": "default",
        "nodes": sorted(world.names),
        "replicas": 1,
        "chosen": False,
    }
    # when two are named, at a node that may not be the coordinator
    world.at = 2
    two = sorted(world.names[:2])
    assert world.json("zone", "baseline", "default", *two) == found | {"nodes": two, "chosen": True}
    # then all partitions are there
    world.wait(**{world.names[2]: 0})
    assert "named by hand" in world.run("zone", "baseline", "default")
    # and come back
    assert not world.json("zone", "baseline", "default", "auto")["chosen"]
    world.wait(**{world.names[2]: 2})
    world.check_rows()


# -- draining -----------------------------------------------------------------------------------


def test_everything_leaves_a_node_that_is_drained_and_comes_back(world: World) -> None:
    node = world.names[1]
    # when it is drained
    done = world.json("node", "drain", node)
    # then nothing is left on it, and that is seen everywhere
    assert done == {
        "node": node,
        "draining": True,
        "partitions": 0,
        "leads": 0,
        "bytes_left": 0,
        "stuck": [],
    }
    assert (world.held()[node], sum(world.held().values())) == (0, PARTITIONS)
    assert [row["node"] for row in world.rows() if row["draining"]] == [node]
    assert world.json("rebalance", "status")["draining"] == [node]
    assert [one["name"] for one in world.json("status")["nodes"] if one["draining"]] == [node]
    assert "draining" in world.run("status")
    assert f"draining  {node}" in world.run("rebalance", "status")
    # and a drain of a drained node has nothing to do
    assert "nothing is left on it" in world.run("node", "drain", node)
    # when it is ended, then it gets its share again
    assert "may have partitions again" in world.run("node", "drain", node, "--stop")
    world.wait(**{node: 2})
    assert "draining" not in world.run("status")
    world.check_rows()


def test_a_drain_of_a_zone_s_only_node_says_so_and_what_to_do(world: World) -> None:
    node = world.names[1]
    # given a zone on one node
    world.run("zone", "baseline", "default", node)
    world.wait(**{node: PARTITIONS})
    # when it is drained
    said = world.run("node", "drain", node, "--no-wait")
    # then the command says that nothing can leave it, and why; and so does the status
    reason = "zone default has no other node: its nodes were named by hand"
    text = f"{PARTITIONS} partitions of zone default can't leave node {node}: {reason}."
    assert f"warning: {text} Name others: `lowmark zone baseline default NODE …`" in said
    assert f"warning: {text}" in world.run("rebalance", "status")
    [stuck] = world.json("rebalance", "status")["stuck"]
    assert (stuck["node"], stuck["zone"], stuck["partitions"]) == (node, "default", PARTITIONS)
    assert stuck["reason"] == reason
    assert "lowmark zone baseline default auto" in stuck["hint"]
    # and one who waits for it
    waiting = world.start("node", "drain", node)
    assert waiting.stderr is not None
    assert text in waiting.stderr.readline()
    # when that was done, then it is drained
    world.run("zone", "baseline", "default", "auto")
    said, _ = waiting.communicate(timeout=PATIENT_S)
    assert "nothing is left on it" in said
    assert world.json("rebalance", "status")["stuck"] == []


def test_paused_moves_wait_and_go_on(world: World) -> None:
    node = world.names[2]
    # given moves that are paused
    assert "moves: paused" in world.run("rebalance", "pause")
    # when a node is drained
    said = world.run("node", "drain", node, "--no-wait")
    assert f"node {node} is being drained: 2 partitions left" in said
    # then its moves are known, and stand still
    eventually(lambda: len(world.moves()) == 2)
    assert {move["stage"] for move in world.moves()} == {"paused"}
    assert world.held()[node] == 2
    status = world.run("rebalance", "status")
    assert "paused" in status
    assert "2 partitions to move" in status
    # when they go on, then it is drained
    assert "moves: running" in world.run("rebalance", "resume")
    looks = [
        json.loads(line)
        for line in world.run("rebalance", "status", "--watch", "--json").splitlines()
    ]
    assert looks[-1]["moves"] == []
    assert world.json("node", "drain", node)["partitions"] == 0


def test_who_waits_for_a_drain_may_go(world: World) -> None:
    node = world.names[0]
    world.run("rebalance", "pause")
    waiting = world.start("node", "drain", node)
    assert waiting.stderr is not None
    line = waiting.stderr.readline()
    # between them stands how much is to be sent, once a leader has said so
    assert f"{node}: 2 partitions left, 2 led by it" in line
    assert "; moves are paused" in line
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert f"the drain of node {node} goes on" in said
    assert [row["node"] for row in world.rows() if row["draining"]] == [node]
    # and another one hears that it was ended
    waiting = world.start("node", "drain", node)
    assert waiting.stderr is not None
    assert waiting.stderr.readline()
    world.run("node", "drain", node, "--stop")
    _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert f"the drain of node {node} was ended meanwhile" in said


def test_moves_are_cancelled(world: World) -> None:
    node = world.names[1]
    world.run("rebalance", "pause")
    world.run("node", "drain", node, "--no-wait")
    eventually(lambda: len(world.moves()) == 2)
    first, second = (move["partition"] for move in world.moves())
    said = world.run("rebalance", "cancel", "orders", str(first))
    assert said == f"partition {first} of orders stays where it is\n"
    eventually(lambda: [move["partition"] for move in world.moves()] == [second])
    assert world.json("rebalance", "cancel") == {
        "cancelled": [{"table": "orders", "partition": second}],
        "too_late": [],
    }
    eventually(lambda: not world.moves())
    assert "nothing moves there" in world.run("rebalance", "cancel", "orders")
    assert world.held()[node] == 2


def test_a_limit_counts_until_it_is_lifted(world: World) -> None:
    said = world.run("rebalance", "throttle", "50MiB")
    assert "limit: 50.0 MiB a second for each node" in said
    world.at = 1
    eventually(lambda: world.json("rebalance", "status")["settings"]["bytes_per_s"] == 50 << 20)
    # a pause leaves it as it is
    assert world.json("rebalance", "pause") == {"paused": True, "bytes_per_s": 50 << 20}
    assert world.json("rebalance", "resume") == {"paused": False, "bytes_per_s": 50 << 20}
    assert world.json("rebalance", "throttle", "off") == {"paused": False, "bytes_per_s": 0}


# -- wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("node", "drain", "nope"), 1, "there is no node nope in this cluster"),
        (("node", "drain", "n1", "--stop", "--no-wait"), 2, "--stop waits for nothing"),
        (("node", "remove", "nope"), 1, "there is no node nope in this cluster"),
        (("rebalance", "plan", "--remove-node", "nope"), 1, "there is no node nope"),
        (("rebalance", "plan", "--add-node", ":r1"), 2, "names no node"),
        (("rebalance", "plan", "--replicas", "default"), 2, "--replicas can't be 'default'"),
        (("rebalance", "plan", "--replicas", "default=0"), 2, "can't be 'default=0'"),
        (("rebalance", "plan", "--replicas", "nope=3"), 1, "there is no zone nope"),
        (("rebalance", "throttle", "-5"), 2, "RATE can't be less than 1 B"),
        (("rebalance", "throttle", "0"), 2, "off for no limit"),
        (("rebalance", "throttle", "fast"), 2, "'fast' is not a size"),
        (("rebalance", "throttle", "9999999999GiB"), 2, "RATE can't be more than"),
        (("rebalance", "cancel", "nope"), 1, "there is no table nope"),
        (("rebalance", "cancel", "orders", "77"), 1, "table orders has no partition 77"),
        (("rebalance", "cancel", "orders", "x"), 2, "Invalid value for"),
        (("zone", "baseline", "nope"), 1, "there is no zone nope"),
        (("zone", "baseline", "default", "nope"), 1, "there is no node nope"),
        (
            ("zone", "baseline", "default", "auto", "n1"),
            2,
            "auto and names of nodes are both given",
        ),
    ],
)
def test_what_can_t_be_done_is_told(
    shared: World, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in shared.run(*words, code=code)


def test_a_name_that_is_taken_can_t_join(shared: World) -> None:
    taken = shared.names[0]
    said = shared.run("rebalance", "plan", "--add-node", taken, code=1)
    assert f"there is a node {taken} already" in said
    said = shared.run("rebalance", "plan", "--add-node", "n9", "--add-node", "n9", code=1)
    assert "there is a node n9 already" in said


# -- in Python ------------------------------------------------------------------------------------


def test_a_program_does_the_same(world: World) -> None:
    node = world.names[1]
    with world.connect() as db:
        cluster = db.cluster
        assert cluster.rebalance().moves == ()
        assert cluster.plan(add=["n9:r1"], remove=[node], replicas={"default": 2}).moves
        assert cluster.throttle(1 << 20).bytes_per_s == 1 << 20
        assert cluster.pause().paused
        assert cluster.drain(node).draining
        eventually(lambda: len(cluster.rebalance().moves) == 2)
        assert len(cluster.cancel("orders").cancelled) == 2
        assert not cluster.drain(node, stop=True).draining
        assert not cluster.resume().paused
        assert cluster.throttle(0).bytes_per_s == 0
        cluster.drain(node)
        eventually(lambda: not cluster.drained(node).partitions, deadline_s=PATIENT_S)
        cluster.drain(node, stop=True)
        assert cluster.baseline("default", [node]).nodes == (node,)
        assert not cluster.baseline("default", "auto").chosen
        assert not cluster.baseline("default").chosen
        for wrong in (
            lambda: cluster.drain("nope"),
            lambda: cluster.remove("nope"),
            lambda: cluster.throttle(-1),
            lambda: cluster.plan(replicas={"default": 0}),
            lambda: cluster.plan(add="n4"),
            lambda: cluster.cancel(partition=1),
            lambda: cluster.baseline("default", []),
        ):
            with pytest.raises(Rejected):
                wrong()


# -- nodes that go --------------------------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path) -> Iterator[World]:
    with Nodes(
        tmp_path,
        3,
        # A move to a node that is down fails soon, and is an alarm soon.
        LOWMARK_GROUP_CATCH_UP_STALL_MS="300",
        LOWMARK_REBALANCE_RETRY_DELAY_MS="100",
        LOWMARK_REBALANCE_RETRY_MAX="2",
    ) as nodes:
        yield World(nodes)


def test_a_node_is_drained_and_removed(other: World) -> None:
    # given three nodes with one replica of each partition
    first, second, third = other.names
    other.wait()
    # when one is to be removed, then it is refused, with what to do
    said = other.run("node", "remove", third, code=1)
    assert f"node {third} can't be removed now" in said
    assert "It has the only copy of 2 partitions of public.orders." in said
    assert f"hint: Run `lowmark node drain {third}` and wait" in said
    assert third in other.held()
    # when it is drained first, then it goes
    other.run("node", "drain", third)
    said = other.run("node", "remove", third)
    assert f"node {third} is out of the cluster" in said
    assert "warning" not in said
    assert sorted(other.held()) == sorted([first, second])
    # and so does the coordinator, whose directory has the ledgers
    other.at = 1
    other.run("node", "drain", first)
    done = other.json("node", "remove", first)
    assert done["keep"].endswith("/n0/ledgers")
    other.wait()
    assert other.held() == {second: PARTITIONS}
    other.check_rows()
    assert "no other node would be left" in other.run("node", "drain", second, code=1)


def test_a_move_that_fails_is_an_alarm_until_its_node_is_removed(other: World) -> None:
    # given a node that is down, and has nothing
    third = other.names[2]
    other.run("node", "drain", third)
    other.nodes.kill(2)
    other.run("node", "drain", third, "--stop")
    eventually(lambda: not all(row["up"] for row in other.rows()), deadline_s=PATIENT_S)
    # when partitions are to go there
    other.run("zone", "baseline", "default", *other.names)
    plan = other.json("rebalance", "plan", "--replicas", "default=3")
    [warning] = [text for text in plan["warnings"] if f"node {third} is down" in text]
    assert warning.endswith("partitions would move there, and wait until it is up")
    said = other.run("rebalance", "plan", "--replicas", "default=3")
    assert f"warning: node {third} is down: " in said
    other.run("zone", "alter", "default", "--replicas", "3")
    # then that fails, with a reason and an age, and is a warning: a node that is up may be slow
    # besides, and be named for a while, but it is the one that is down which stays
    stuck: list[dict[str, Any]] = []

    def is_stuck() -> bool:
        stuck[:] = [move for move in other.moves() if move["alarm"] and third in move["reason"]]
        return bool(stuck)

    eventually(is_stuck, deadline_s=PATIENT_S)
    move = stuck[0]
    assert third in move["pending"]
    assert move["attempts"] >= 2
    assert move["failing_ms"] > 0
    assert "warning: partition" in other.run("rebalance", "status")
    warnings = [one for one in other.json("status")["warnings"] if one["kind"] == "move-failing"]
    assert warnings[0]["table"] == "orders"
    assert "It has failed" in warnings[0]["text"]
    other.check_rows()
    # when the node is removed, then the others are enough
    other.run("node", "remove", third)
    other.wait(2 * PARTITIONS)
    kinds = [one["kind"] for one in other.json("status")["warnings"]]
    assert kinds == ["replicas-missing"]
    other.check_rows()
