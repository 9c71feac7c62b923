"""A task that does not see the segments of its partition reads the same batches from a server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compaction.world import World
from inside import backend_of
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import SegmentsElsewhere
from lowmark.compaction.holds import release_of
from lowmark.ledger import Tail, tail
from lowmark.ledger.manifest import Manifest


def written(world: World) -> None:
    """Rows that come again, and deletes, in many batches; some of it below an older ledger."""
    for first in range(0, 360, 10):  # more batches than are asked for at once
        world.write(*[(f"k{number:03}", number) for number in range(first, first + 20)])
    world.write(*[(f"k{number:03}", None) for number in range(0, 360, 7)])


def content(world: World, manifest: Manifest) -> list[tuple[str, bytes, bytes]]:
    """Of each file of a ledger: what is said of it, and what is in it and in its index."""
    store = world.table._compactor.ledgers.store
    return [
        (file.digest, store.read(file.path), store.read(file.keys_path)) for file in manifest.files
    ]


@pytest.mark.slow
def test_both_ways_to_read_a_backlog_give_equal_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given equal tables with a ledger and a backlog, of which few batches are read at a time
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 1)
    with World(tmp_path / "one", partitions=2) as world:
        written(world)
        world.compact()
        written(world)
        world.settle()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    found = []
    for name, way in (("one", "segments"), ("two", "flight")):
        world.path = tmp_path / name
        table = world.reopen()
        # when one is compacted from segments, and one over Flight
        run = world.compact(read=way, verify=True)
        sources = {one.read_from for one in run.partitions}
        assert all((one == "segments") == (way == "segments") for one in sources), sources
        assert run.read == way
        # then what readers get is right
        world.check_now()
        manifests = [world.manifest(number) for number in range(table.partitions)]
        found.append([(one.digest, one.horizon, content(world, one)) for one in manifests])
        world.db.close()
    # and the ledgers are equal, byte for byte
    assert found[0] == found[1]
    assert sum(len(files) for _, _, files in found[0]) >= 2


def seen_elsewhere(world: World, monkeypatch: pytest.MonkeyPatch, **other: Any) -> None:
    """Tasks are told of a directory that is not the one that they see."""
    original = Embedded.tail

    def moved(self: Embedded, *given: Any, **named: Any) -> Tail:
        return msgspec.structs.replace(original(self, *given, **named), **other)

    monkeypatch.setattr(Embedded, "tail", moved)


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"place": "a kernel 1:2"}, {"root": "/no/such/folder"}])
def test_a_task_that_sees_another_directory_at_that_path_asks_a_server(
    world: World, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    written(world)
    seen_elsewhere(world, monkeypatch, **other)
    run = world.compact()
    assert run.partitions[0].read_from.startswith("unix:")
    world.check()
    # and if it was told to read segments, it says that it can't
    world.write(("new", 1))
    world.settle()
    with pytest.raises(SegmentsElsewhere, match="partition 0 of table t"):
        world.compact(read="segments")
    world.check()


def test_without_a_server_rows_can_t_be_read_over_flight(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(world)
    world.settle()
    seen_elsewhere(world, monkeypatch, addresses=())
    with pytest.raises(SegmentsElsewhere, match="no server has this database") as refused:
        world.compact(read="flight")
    assert "--read flight" in refused.value.hint
    # but there is another way
    world.compact()
    world.check()


def test_a_task_whose_run_has_no_lease_any_more_reads_nothing(world: World) -> None:
    written(world)
    world.settle()
    works = 0

    def step(name: str) -> None:
        nonlocal works
        works += name == "carry out the work"
        if name == "carry out the work" and works == 1:
            # when the lease of a run is over before its tasks begin
            (run,) = world.table.runs()
            world.ask(release_of(run.run))

    run = world.compact(read="flight", step=step)
    # then they give nothing, and the run takes the lease anew before it tries again
    assert (run.state, works) == ("done", 2)
    assert run.partitions[0].read_from.startswith("unix:")
    world.check()
    # and nothing of it is held in the end
    status = backend_of(world.table).status(world.table.descriptor.id)[0]
    assert status.leases == ()
