"""Values live in the log, and the log's phases run on them.

Keys are overwritten at different paces, so that what is live lies scattered over many segments.
Phase 1 removes segments in which nothing lives, phase 3 merges sparse ones, phase 4 copies what
is scattered to the end; every value that can be asked for must read all the time.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowmark.log import EntryGone
from lowmark.metastore import Do, Put
from metastore.world import FAST, QUICK, TINY_LOG, Node, Watcher, World

KEYS = 40
CONFIG = replace(QUICK, snapshot_entries=150)


class Expected:
    """What every key was at every revision that can be read."""

    def __init__(self) -> None:
        self.now: dict[bytes, bytes] = {}
        self.at: dict[int, dict[bytes, bytes]] = {}

    def wrote(self, revision: int, changes: dict[bytes, bytes]) -> None:
        self.now = {**self.now, **changes}
        self.at[revision] = self.now


def overwrite(world: World, expected: Expected, rounds: range) -> None:
    """Some keys in every round, some in every second, and so on; a few only once."""
    metastore = world.wait_leader().metastore
    for number in rounds:
        changes = {}
        for key in range(KEYS):
            if number % (key + 1) == 0:
                changes[b"t.%02d" % key] = b"%d of %d, and more" % (number, key) * (1 + key % 5)
        answer = world.wait(metastore.invoke(Do(tuple(Put(k, v) for k, v in changes.items()))))
        expected.wrote(answer.revision, changes)


def reads_all(world: World, node: Node, expected: Expected) -> None:
    """Every key, at the latest revision and at each that is left, on a node, from its own log."""
    here = node.metastore
    world.wait(here.get(b"t.00"))  # it has heard of everything
    here._values._cache.clear()
    here._values._cached_bytes = 0
    page = here.range_local(b"t.")
    assert {entry.key: entry.value for entry in page.entries} == expected.now
    for revision, values in expected.at.items():
        if revision >= here.state.compacted:
            old = here.range_local(b"t.", at=revision)
            assert {entry.key: entry.value for entry in old.entries} == values


def compact(world: World, revision: int) -> None:
    world.run_for(QUICK.lease_ms)
    cut = world.wait(world.wait_leader().metastore.compact(revision))
    assert cut.compacted == revision
    nodes = world.nodes.values()
    world.run_until(lambda: all(n.metastore.state.compacted == revision for n in nodes))


def snapshot(world: World) -> None:
    """A snapshot on every node; what is dead below it may go."""
    groups = [node.metastore.group for node in world.nodes.values()]
    targets = [group.applied for group in groups]
    for group in groups:
        group.snapshot()
    world.run_until(
        lambda: all(
            group.status().snapshot_index >= target
            for group, target in zip(groups, targets, strict=True)
        )
    )
    for node in world.nodes.values():
        assert node.log is not None
        node.log.roll()
    idle(world)


def merge(world: World) -> None:
    for node in world.nodes.values():
        node.metastore.group.log.compact()
    idle(world)


def idle(world: World) -> None:
    logs = [node.log for node in world.nodes.values() if node.log is not None]
    world.run_until(lambda: all(log.idle for log in logs))


def segments(node: Node) -> list[int]:
    return [segment.number for segment in node.metastore.group.log.state.segments]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_all_three_phases_run_on_scattered_values_and_every_value_still_reads(seed: int) -> None:
    # given keys that are overwritten at different paces, and a history that is cut now and then
    world = World(seed=seed, log_config=TINY_LOG, metastore_config=CONFIG)
    world.run_for(2_000)
    expected = Expected()
    overwrite(world, expected, range(1, 400))
    snapshot(world)
    before = {node.number: segments(node) for node in world.nodes.values()}
    compact(world, sorted(expected.at)[-60])
    # when snapshots follow, phase 1 removes whole segments
    snapshot(world)
    for node in world.nodes.values():
        assert set(before[node.number]) - set(segments(node)), "phase 1 has removed segments"
        live = set(node.metastore.group.machine.live_indexes())
        assert live == set(world.wait_leader().metastore.state.live)
        reads_all(world, node, expected)
    # and phase 3 merges sparse ones
    merge(world)
    for node in world.nodes.values():
        runs = node.metastore.group.log.runs
        assert any(run.merges and run.sources > 1 and run.result == "done" for run in runs)
        reads_all(world, node, expected)
    # and phase 4 copies what is scattered to the end, on every node
    leader = world.wait_leader()
    scattered = sorted(leader.metastore.state.live)
    copied = world.wait(leader.metastore.group.rewrite(scattered))
    assert copied == len(scattered)
    for node in world.nodes.values():
        world.wait(node.metastore.get(b"t.00"))
        assert min(node.metastore.state.live) > scattered[-1]
        reads_all(world, node, expected)
    # and their old places go with the next snapshot, phases 1 and 3
    overwrite(world, expected, range(400, 420))
    compact(world, sorted(expected.at)[-30])
    snapshot(world)
    merge(world)
    for node in world.nodes.values():
        with pytest.raises(EntryGone):
            node.metastore.group.read_command(scattered[0])
        reads_all(world, node, expected)
    # and after a restart of every node at once everything still reads
    for node in world.nodes.values():
        node.crash()
    for node in world.nodes.values():
        node.start()
    world.wait_leader()
    for node in world.nodes.values():
        reads_all(world, node, expected)
    # and on a node that joins by a snapshot
    world.wait_leader().metastore.group.snapshot()
    world.run_for(200)
    joined = world.add(4)
    world.run_until(lambda: joined.metastore.state.latest >= max(expected.at))
    assert joined.metastore.group.status().snapshot_index > 0
    assert joined.metastore.group.log.first_index > 1
    reads_all(world, joined, expected)
    # and watches and conditions go on, on it as on all others
    watcher = Watcher()
    joined.metastore.watch(
        prefix=b"t.",
        from_revision=joined.metastore.state.compacted + 1,
        on_event=watcher.on_event,
        on_end=watcher.on_end,
    )
    overwrite(world, expected, range(420, 430))
    world.run_until(lambda: watcher.revisions[-1:] == [max(expected.at)])
    assert watcher.revisions == [r for r in expected.at if r > joined.metastore.state.compacted]
    reads_all(world, joined, expected)


def test_a_snapshot_on_disk_holds_no_value() -> None:
    # given values that nobody could mistake
    world = World(nodes=1, log_config=TINY_LOG, metastore_config=CONFIG)
    for number in range(50):
        world.wait(world[1].metastore.put(b"t.%d" % number, b"a value that stands out %d" % number))
    snapshot(world)
    # then they are in no file of the snapshot
    disk = world[1].disk
    states = [path for path in disk.tree() if path.endswith("/state")]
    assert states
    for path in states:
        stat = disk.stat(path)
        assert stat is not None
        data = disk.open(path, "read").read_at(0, stat.size)
        assert b"t.17" in data
        assert b"stands out" not in data


@pytest.mark.slow
def test_snapshots_are_taken_by_themselves_after_so_many_entries() -> None:
    world = World(log_config=TINY_LOG, metastore_config=CONFIG)
    for number in range(500):
        world.wait(world[1].metastore.put(b"k", b"%d" % number))
    world.run_for(500)
    for node in world.nodes.values():
        group = node.metastore.group
        assert group.applied - group.status().snapshot_index < 150 + 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_rewrite_that_runs_beside_writes_and_cuts_loses_nothing(seed: int) -> None:
    # given scattered values
    world = World(
        seed=seed,
        log_config=TINY_LOG,
        metastore_config=CONFIG,
        config=replace(FAST, rewrite_chunk_entries=4),
    )
    world.run_for(1_000)
    expected = Expected()
    overwrite(world, expected, range(1, 150))
    compact(world, sorted(expected.at)[-40])
    snapshot(world)
    # when they are copied while keys are overwritten and the history is cut
    leader = world.wait_leader()
    rewriting = leader.metastore.group.rewrite(sorted(leader.metastore.state.live))
    at = 150
    while not rewriting.done:
        overwrite(world, expected, range(at, at + 3))
        at += 3
    assert rewriting.result() > 0
    compact(world, sorted(expected.at)[-5])
    snapshot(world)
    merge(world)
    # then every value reads on every node, before and after a restart
    for node in world.nodes.values():
        reads_all(world, node, expected)
        node.restart()
        world.wait_leader()
        reads_all(world, node, expected)
