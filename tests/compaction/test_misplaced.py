"""A valid file of another partition, table or epoch in the place of a ledger's: its checksum is
right, so only what is noted elsewhere tells that it does not belong there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compaction.damage import MISPLACED, NAMED, READS, misplace, outcome, told
from compaction.world import COLUMNS, World
from lowmark.client import Table
from lowmark.errors import Corrupt
from lowmark.ledger import done_path
from lowmark.ledger.errors import LedgerMisplaced
from lowmark.ledger.manifest import decode_manifest, encode_manifest
from lowmark.table.commands import Adopt

A_DAY_MS = 86_400_000
MANIFESTS = [kind for kind in MISPLACED if kind.startswith("manifest")]


class Scene:
    """A table of two partitions, whose ledger before is still there, and whose backlog was cut up
    to that one. And another table of the same shape.
    """

    def __init__(self, path: Path, *, trim: bool = True) -> None:
        self.world = World(path, partitions=2, grace_ms=A_DAY_MS)
        self.world.write(*[(f"k{number}", number) for number in range(40)])
        self.world.compact(trim=trim)
        self.older = self.world.manifest(1)
        self.world.write(*[(f"k{number}", 100 + number) for number in range(20)])
        self.world.compact(trim=False, rewrite=True)
        other = self.world.db.create_table("u", COLUMNS, key="id", partitions=2)
        other.append([{"id": f"k{number}", "v": -number} for number in range(40)])
        self.world.settle(other)
        other.compact(engine="local", trim=trim)

    @property
    def other(self) -> Table:
        return self.world.db.table("u")

    def misplace(self, kind: str) -> Path:
        return misplace(self.world, kind, other=self.other, older=self.older)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    one = Scene(tmp_path / "data")
    with one.world:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("kind", MISPLACED)
def test_a_valid_file_in_the_wrong_place_is_named_by_everybody_and_mended(
    scene: Scene, kind: str
) -> None:
    world = scene.world
    before = world.adopted(0), world.adopted(1)
    path = scene.misplace(kind)
    # then whoever needs it gets an error by name, and everybody else every row
    failed = told(world)
    assert {"get", "get_many", "explain a key"} <= failed
    assert kind.startswith("index") or failed == set(READS)
    # and verify says which file it is
    sound, wrong = world.table.verify_ledgers()
    assert sound.sound
    assert [problem.path for problem in wrong.problems] == [str(path)]
    # when it is compacted, with rows that are new
    world.write(*[(f"k{number}", 200 + number) for number in range(10)])
    there = world.files()
    with pytest.raises(NAMED) as refused:
        world.compact()
    # then the error says which file; partition 1 has adopted nothing, and the other one has
    assert str(path) in refused.value.message
    assert world.adopted(0).epoch > before[0].epoch
    assert world.adopted(1) == before[1]
    # and no sweep has taken what only the right manifest names
    world.table.sweep()
    assert there <= world.files()
    # when it is rebuilt
    rebuilt = world.table.rebuild_ledger()
    # then every row is there again, from here on
    assert [one.done for one in rebuilt] == [False, True]
    assert not any(one.lost for one in rebuilt)
    assert not told(world)
    world.compact()
    world.reopen()
    world.check()
    assert [one.sound for one in world.table.verify_ledgers()] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANIFESTS)
def test_the_error_says_what_was_expected_what_was_found_and_what_to_do(
    scene: Scene, kind: str
) -> None:
    world = scene.world
    wanted, path = world.adopted(1), scene.misplace(kind)
    found = decode_manifest(path.read_bytes(), path=str(path))
    for read in READS:
        error = outcome(world, read)
        assert isinstance(error, LedgerMisplaced)
        assert isinstance(error, Corrupt)
        assert str(path) in error.message
        assert f"table {world.table.descriptor.id}, partition 1, epoch {wanted.epoch}" in str(error)
        assert f"table {found.table}, partition {found.partition}, epoch {found.epoch}" in str(
            error
        )
        assert "lowmark ledger rebuild" in error.hint
    # and everything else that opens a manifest says the same
    shown = world.table.ledgers()[1]
    assert shown.manifest is None
    assert "partition 1" in shown.problem
    assert "partition 1" in (world.table.explain().partitions[1].ledger.problem or "")  # type: ignore[union-attr]
    with pytest.raises(LedgerMisplaced):
        world.table.tide()


def test_a_manifest_in_the_wrong_place_is_found_again_from_the_files_beside_it(
    tmp_path: Path,
) -> None:
    # given ledgers, and nothing else: no backlog, and no ledger before
    with World(tmp_path / "data", partitions=2) as world:
        world.write(*[(f"k{number}", number) for number in range(40)])
        world.compact()
        folder = world.path / "ledgers"
        wrong = (folder / world.adopted(0).manifest).read_bytes()
        (folder / world.adopted(1).manifest).write_bytes(wrong)
        # when it is swept all the same, and rebuilt
        world.reopen()
        world.table.sweep()
        rebuilt = world.table.rebuild_ledger()
        # then it is made of the files that are still there
        assert [(one.source, one.same) for one in rebuilt] == [("sound", None), ("files", True)]
        world.check()
        world.check_tidy()


@pytest.mark.slow
def test_a_backlog_is_not_cut_while_a_file_of_another_ledger_stands_for_its_rows(
    tmp_path: Path,
) -> None:
    for kind in [kind for kind in MISPLACED if not kind.startswith("index")]:
        scene = Scene(tmp_path / kind, trim=False)
        with scene.world as world:
            path = scene.misplace(kind)
            # when there is nothing new, and what is in the ledgers could be cut
            with pytest.raises(NAMED) as refused:
                world.table.compact(engine="local")
            # then it was not cut in partition 1, whose ledger has not got its rows
            assert str(path) in refused.value.message
            assert world.view(1).start == 0


@pytest.mark.slow
def test_a_file_as_large_as_the_right_one_is_told_by_its_footer(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data", trim=False)
    with scene.world as world:
        file = world.manifest(1).files[-1]
        path = world.path / "ledgers" / file.path
        world.db.close()
        data = bytearray(path.read_bytes())
        data[-file.footer_bytes + 3] ^= 1  # as another one's: as long, and with other statistics
        path.write_bytes(bytes(data))
        world.reopen()
        with pytest.raises(NAMED):
            world.table.compact(engine="local")
        assert world.view(1).start == 0


@pytest.mark.slow
def test_a_published_manifest_of_another_partition_is_not_adopted(tmp_path: Path) -> None:
    # given a run that ended after it had published for both partitions, and adopted for the first
    with World(tmp_path / "data", partitions=2) as world:
        world.write(*[(f"k{number}", number) for number in range(40)])
        run = world.stopped_before("adopt partition 1")
        pointers = world.table._compactor.records.pointers(world.table.descriptor.id)
        folder = world.path / "ledgers"
        right = (folder / pointers[1].manifest).read_bytes()
        wrong = (folder / pointers[0].manifest).read_bytes()
        # when the manifest of the first lies in the place of the second's
        (folder / pointers[1].manifest).write_bytes(wrong)
        with pytest.raises(LedgerMisplaced):
            world.table.compact(engine="local", resume=run.run)
        # then it was not adopted; and it is, once it is what was published
        assert world.view(1).ledger is None
        world.check()
        (folder / pointers[1].manifest).write_bytes(right)
        world.table.compact(engine="local")
        assert world.adopted(1).manifest == pointers[1].manifest
        world.check()


def test_a_pointer_at_another_partitions_ledger_is_not_adopted(tmp_path: Path) -> None:
    with World(tmp_path / "data", partitions=2) as world:
        world.write(*[(f"k{number}", number) for number in range(40)])
        world.stopped_before("publish partition 1")
        records, table = world.table._compactor.records, world.table.descriptor.id
        theirs = records.pointers(table)[0]
        seen = records.pointer(table, 1)
        assert records.publish(table, 1, theirs, seen=seen, now_ms=0)
        with pytest.raises(LedgerMisplaced):
            world.table.compact(engine="local", partitions=[1])
        assert world.view(1).ledger is None
        world.check()


@pytest.mark.slow
def test_whoever_resumes_a_run_takes_no_answer_of_another_partition(tmp_path: Path) -> None:
    # given a run that ended when all was written and nothing published
    with World(tmp_path / "data", partitions=2) as world:
        world.write(*[(f"k{number}", number) for number in range(40)])
        run = world.stopped_before("publish partition 0")
        folder, table = world.path / "ledgers", world.table.descriptor.id
        # when the answer of partition 0 lies in the place of partition 1's
        answer = (folder / done_path(table, run.run, 0)).read_bytes()
        (folder / done_path(table, run.run, 1)).write_bytes(answer)
        assert world.table.compact(engine="local", resume=run.run).state == "done"
        # then that partition's work was done again
        world.check()
        assert [one.sound for one in world.table.verify_ledgers()] == [True, True]


@pytest.mark.slow
def test_whoever_resumes_a_run_takes_no_manifest_of_another_partition(tmp_path: Path) -> None:
    with World(tmp_path / "data", partitions=2) as world:
        world.write(*[(f"k{number}", number) for number in range(40)])
        run = world.stopped_before("publish partition 0")
        folder = world.path / "ledgers"
        names = {one.partition: one.manifest for one in run.partitions}
        (folder / names[1]).write_bytes((folder / names[0]).read_bytes())
        assert world.table.compact(engine="local", resume=run.run).state == "done"
        world.check()
        assert [one.sound for one in world.table.verify_ledgers()] == [True, True]


def test_a_ledger_that_was_made_of_another_partitions_files_is_told_by_verify(
    tmp_path: Path,
) -> None:
    """An earlier release took whatever manifest was there, and put its files into the next one."""
    with World(tmp_path / "data", partitions=2) as world:
        world.write(*[(f"k{number}", number) for number in range(40)])
        world.compact()
        theirs, mine, now = world.manifest(0), world.manifest(1), world.adopted(1)
        stolen = msgspec.structs.replace(mine, epoch=now.epoch + 1, files=theirs.files).summed_up()
        name = now.manifest.replace(f"/{now.epoch}-", f"/{stolen.epoch}-")
        path = world.path / "ledgers" / name
        path.write_bytes(encode_manifest(stolen))
        digest = stolen.digest_value().form
        world.ask(Adopt(stolen.epoch, name, now.horizon, digest, now.deletes_below), 1)
        # then whoever reads it is told, and so is who verifies it
        assert told(world) == set(READS)
        sound, wrong = world.table.verify_ledgers()
        assert sound.sound
        assert [problem.path for problem in wrong.problems] == [str(path)]
        assert theirs.files[0].keys_path in wrong.problems[0].why
