"""A manifest is gone, and the backlog was cut: its ledger is found again from the files, proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.damage import damage
from compaction.world import World
from lowmark.client import RowsUnrecoverable

MANIFESTS = ["manifest missing", "manifest cut", "manifest empty", "manifest flipped"]


def history(world: World) -> None:
    """Several runs: files with dead rows, deletes, keys that came again; the backlog is cut."""
    world.write(*[(f"k{number}", number) for number in range(60)])
    world.compact()
    world.write(*[(f"k{number}", 100 + number) for number in range(0, 60, 7)], ("k1", None))
    world.compact()
    world.write(("new", 1), ("k2", None), ("k3", 3))
    world.compact()
    assert world.view().start == world.view().end


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANIFESTS)
@pytest.mark.parametrize("grace_ms", [0, 3_600_000], ids=["alone", "beside older ones"])
def test_a_ledger_without_its_manifest_is_found_again(
    tmp_path: Path, kind: str, grace_ms: int
) -> None:
    with World(tmp_path / "data", grace_ms=grace_ms) as world:
        # given a ledger whose rows nobody else has, and no manifest that says so
        history(world)
        before = world.adopted()
        damage(world, kind)
        # when it is rebuilt
        [one] = world.table.rebuild_ledger()
        # then no row is lost, and it has the digest of before
        assert (one.source in {"files", "retired"}, one.lost, one.same) == (True, (), True)
        assert world.adopted().digest == before.digest
        world.check()
        world.write(("later", 1), ("k4", None))
        world.compact()
        world.check()
        if not grace_ms:
            world.check_tidy()


@pytest.mark.slow
def test_rows_without_a_key_and_of_two_files_are_found_again(tmp_path: Path) -> None:
    with World(tmp_path / "data", options={"keyless_rows": "keep"}) as world:
        for number in range(3):
            world.table.append([{"id": None, "v": number}, {"id": f"k{number}", "v": number}])
            world.compact()
        rows = world.table.read(compacted=True).to_pylist()
        damage(world, "manifest missing")
        [one] = world.table.rebuild_ledger()
        assert (one.source, one.same) == ("files", True)
        assert world.table.read(compacted=True).to_pylist() == rows


def test_files_that_do_not_come_to_what_was_adopted_bring_nothing_back(world: World) -> None:
    # given a ledger without a manifest, and without one of its files
    history(world)
    (world.path / "ledgers" / world.manifest().files[0].path).unlink()
    damage(world, "manifest missing")
    # when it is rebuilt, then the files that are left are not taken for the whole
    with pytest.raises(RowsUnrecoverable):
        world.table.rebuild_ledger()


def test_deletes_that_were_passed_do_not_come_back_with_an_older_file(tmp_path: Path) -> None:
    with World(tmp_path / "data", grace_ms=3_600_000) as world:
        # given a delete that is gone from the ledger, and an older file that still has its key
        world.write(("a", 1), ("b", 2))
        world.compact()
        world.write(("a", None))
        world.compact(rewrite=True)
        world.compact(rewrite=True)
        assert world.adopted().deletes_below == 3
        damage(world, "manifest flipped")
        # when it is rebuilt, then the key stays deleted
        [one] = world.table.rebuild_ledger()
        assert one.lost == ()
        world.check()
