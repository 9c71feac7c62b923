"""The first token of a cluster: in a file and in force, whatever happens between the two."""

from __future__ import annotations

import stat
from pathlib import Path
from random import Random

import pytest

import lowmark
from eventually import eventually
from lowmark.errors import LowmarkError, Rejected, TokenUnknown
from lowmark.log import LogConfig
from lowmark.node.first_token import NEW, PATH, FirstToken, prepare, write_new
from lowmark.node.token_reset import reset_token
from lowmark.node.tokens import token_of
from lowmark.runtime import Locked
from lowmark.runtime.sim.disk import SimDisk, WorldStopped
from lowmark.tokens import Secret, digest_of, drawn, token_key
from metastore.world import Node, World
from node.running import Running


class FoundingNode(Node):
    """One that is served: it makes the first token."""

    first: FirstToken

    def start(self, *, join: str = "") -> None:
        self.founding_writes = prepare(self.disk, join=bool(join)) or ()
        super().start(join=join)
        assert self.runtime is not None
        self.first = FirstToken(self.runtime.loop, self.disk, self.metastore)
        self.here.ready.then(lambda _: self.first.propose())


class FoundingWorld(World):
    def new_node(self, number: int) -> FoundingNode:
        return FoundingNode(self, number)


def secret_in(disk: SimDisk, path: str) -> str | None:
    if disk.stat(path) is None:
        return None
    return disk.open(path, "read").read_at(0, 1_000).decode().strip()


def start_until_done(world: FoundingWorld, node: FoundingNode) -> None:
    node.start()
    world.run_until(lambda: node.clock.crashed or node.first.done.done)
    if node.clock.crashed:
        raise WorldStopped


def crash(node: FoundingNode, calls: int) -> None:
    """As a power cut or a kill leaves it, be the node up or on its way."""
    if node.sim_node is not None:
        node.sim_node.crash()
    node.disk = node.disk.killed() if calls % 2 else node.disk.crashed(Random(calls))
    node._down()


def in_force(world: FoundingWorld, node: FoundingNode) -> bytes:
    entry = world.wait(node.metastore.get(token_key("admin")))
    assert entry is not None
    token = token_of(entry)
    assert token is not None
    return token.record.digest


def check(world: FoundingWorld, node: FoundingNode) -> str:
    """The file has a token, it is in force, and nothing else is there."""
    token = secret_in(node.disk, PATH)
    assert token is not None
    Secret(token)
    assert in_force(world, node) == digest_of(token)
    assert [name for name in node.disk.list("") if name.startswith(PATH)] == [PATH]
    return token


def test_a_founding_that_is_killed_at_any_step_ends_with_a_token_in_force() -> None:
    calls, seen = 0, set[tuple[bool, bool]]()
    while True:
        calls += 1
        world = FoundingWorld(calls, nodes=0)
        node = world.new_node(1)
        node.disk.stop_at_call = calls
        try:
            start_until_done(world, node)
        except WorldStopped:
            pass
        else:
            break
        # given the disk that a power cut leaves, or a kill
        crash(node, calls)
        there = {name: secret_in(node.disk, name) for name in (NEW, PATH)}
        seen.add((there[NEW] is not None, there[PATH] is not None))
        # when the node is started again
        start_until_done(world, node)
        # then what a file had is in force, and is in the file
        token = check(world, node)
        assert token in {there[NEW], there[PATH]} or not any(there.values())
    # (each of the three was there: no token yet, one to come, one in force)
    assert seen == {(False, False), (True, False), (False, True)}
    check(world, node)
    assert calls > 30


def test_a_token_in_place_of_a_lost_one_survives_a_kill_at_any_step() -> None:
    calls, outcomes = 0, set[str]()
    while True:
        calls += 1
        world = FoundingWorld(calls, nodes=0)
        node = world.new_node(1)
        start_until_done(world, node)
        old = check(world, node)
        node.stop()
        node.disk.stop_at_call = node.disk.calls + calls
        try:
            write_new(node.disk)
            node.disk.unlink(PATH)
            node.disk.sync_dir("")
            start_until_done(world, node)
        except WorldStopped:
            pass
        else:
            break
        crash(node, calls)
        coming = secret_in(node.disk, NEW) or secret_in(node.disk, PATH)
        start_until_done(world, node)
        token = check(world, node)
        assert token == coming
        outcomes.add("old" if token == old else "new")
    assert outcomes == {"old", "new"}
    assert check(world, node) != old


def test_a_node_that_joins_brings_no_token_along() -> None:
    # given a directory whose founding was killed when its token was there
    world = FoundingWorld(nodes=1)
    first = world[1]
    assert isinstance(first, FoundingNode)
    world.run_until(lambda: first.first.done.done)
    token = check(world, first)
    newcomer = world.new_node(2)
    write_new(newcomer.disk)
    # when it joins another cluster instead
    world.nodes[2] = newcomer
    newcomer.start(join=first.address)
    world.run_until(lambda: newcomer.here.ready.done and newcomer.first.done.done)
    # then that one has the token that it had
    assert check(world, first) == token
    assert not [name for name in newcomer.disk.list("") if name.startswith(PATH)]


# -- real nodes -----------------------------------------------------------------------------------


def is_in_force(running: Running, token: str) -> bool:
    try:
        return running.node.tokens_of_callers.caller(token).name == "admin"
    except LowmarkError:
        return False


def test_the_token_is_there_when_a_founder_is_ready(tmp_path: Path) -> None:
    with Running(tmp_path / "1", name="n1") as running:
        file = tmp_path / "1" / PATH
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = file.read_text().strip()
        assert is_in_force(running, token)
        (listed,) = running.client().range(b"access.token.")
        assert [entry.key for entry in listed.entries] == [b"access.token.admin"]
        # one that joins has none of its own
        with Running(tmp_path / "2", name="n2", join=running.endpoint) as second:
            eventually(lambda: is_in_force(second, token))
            assert not (tmp_path / "2" / PATH).exists()
        with pytest.raises(Locked):
            reset_token(str(tmp_path / "1"), LogConfig())
    # when it is lost, the node gets another one by a command while it is stopped
    assert reset_token(str(tmp_path / "1"), LogConfig()) == str(file)
    assert not file.exists()


def test_a_cluster_of_before_gets_its_first_token_by_a_command(tmp_path: Path) -> None:
    # given a directory that was used inside a process: no token is made for it
    data = str(tmp_path / "d")
    with pytest.raises(Rejected, match="no directory"):
        reset_token(data, LogConfig())
    lowmark.open(data).close()
    assert not [one for one in (tmp_path / "d").iterdir() if one.name.startswith(PATH)]
    # when it gets one, twice, and is served
    reset_token(data, LogConfig())
    before = (tmp_path / "d" / NEW).read_text().strip()
    file = Path(reset_token(data, LogConfig()))
    with Running(tmp_path / "d") as running:
        eventually(file.exists)
        token = file.read_text().strip()
        assert token != before
        eventually(lambda: is_in_force(running, token))
        with pytest.raises(TokenUnknown):
            running.node.tokens_of_callers.table.caller(before, 0)
    # and it stays in force when the node is started again
    with Running(tmp_path / "d") as running:
        assert file.read_text().strip() == token
        eventually(lambda: is_in_force(running, token))


def test_a_file_without_a_token_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Running(tmp_path / "1") as running:
        token = (tmp_path / "1" / PATH).read_text().strip()
    broken = drawn().reveal()[:-1] + "!"
    (tmp_path / "1" / NEW).write_text(broken)
    with Running(tmp_path / "1") as running:
        eventually(lambda: is_in_force(running, token))
    assert (tmp_path / "1" / NEW).read_text() == broken
    assert "a file has no token in it" in caplog.text
    assert broken[8:-1] not in caplog.text
