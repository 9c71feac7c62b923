"""`verify` on whole directories: it sees what is left over, changes nothing, and is not fooled."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from log.full_house import CONFIG, content, copy_of, full_house, rewrite
from log.world import World, finish, number, send
from lowmark.inspect import Finding, verify_log
from lowmark.inspect.findings import limited
from lowmark.runtime import Locked
from lowmark.runtime.sim import SimDisk, WorldStopped


def findings(disk: SimDisk) -> list[Finding]:
    before, tree = disk.fingerprint(), disk.tree()
    found = list(verify_log(disk))
    assert (disk.fingerprint(), disk.tree()) == (before, tree)
    return found


def test_an_empty_log_has_nothing_wrong() -> None:
    world = World()
    world.log.close()
    assert findings(world.disk) == []


def test_a_log_that_was_closed_properly_has_nothing_wrong() -> None:
    # given a log with segments, a merge, a snapshot and a WAL
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.segment(21, 30)
    world.snapshot(20, live=[3, 15])
    world.compact()
    world.append(31, 35)
    world.log.close()
    # then there is nothing to find, the links of the merge included
    assert world.links() == {2: f"{number(1)}.segment"}
    assert findings(world.disk) == []


def test_a_group_in_quarantine_is_told_with_its_cause() -> None:
    found = findings(full_house())
    assert [(f.kind, f.group, f.what) for f in found] == [("quarantine", "q", "a test wanted it")]


def test_a_directory_that_is_open_elsewhere_is_refused() -> None:
    world = World()
    with pytest.raises(Locked):
        list(verify_log(world.disk))
    world.log.close()
    assert list(verify_log(world.disk)) == []


def test_while_it_verifies_nobody_else_gets_in() -> None:
    house = full_house()
    found = verify_log(house)
    next(found)
    with pytest.raises(Locked):
        house.lock("LOCK")
    found.close()  # type: ignore[attr-defined]
    house.lock("LOCK").release()


def test_progress_ends_at_the_whole() -> None:
    told: list[tuple[int, int]] = []
    list(verify_log(full_house(), lambda done, total, _: told.append((done, total))))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert all(done <= total for done, total in told)
    assert told[-1][0] > told[-1][1] / 2


# -- left-overs -----------------------------------------------------------------------------------

LEFT_OVER = {
    "wal/0000000000000009.wal.tmp": "WAL file",
    "groups/~x/group": "creation or deletion",
    "groups/g/0000000000000009.segment.tmp": "not finished",
    "groups/g/0000000000000001.segment.new": "not finished",
    "groups/g/0000000000000003.segment.link": "not finished",
    "groups/g/0000000000000001-0000000000000003.compacting": "unfinished merge",
    "groups/g/0000000000000009.large": "",
    "groups/g/installing/plan": "not received whole",
    "groups/g/snapshots/0000000000000010-0000000000000001.tmp/state": "not finished",
}


@pytest.mark.parametrize("path", LEFT_OVER)
def test_what_an_interrupted_step_left_is_told(path: str) -> None:
    house = full_house()
    folder = path.rpartition("/")[0]
    if house.stat(folder) is None:
        house.make_dir(folder)
    house.open(path, "create").append([content(house, "groups/g/0000000000000001.large")])
    found = [f for f in findings(house) if f.kind == "left-over" and LEFT_OVER[path] in f.what]
    assert [f.path for f in found if path.startswith(f.path)], findings(house)


def test_an_older_snapshot_beside_a_newer_one_is_left_over() -> None:
    # given a crash between the new snapshot's rename and the old one's removal
    world = World()
    world.segment(1, 20)
    world.snapshot(5, live=[2])
    world.until("unlink", "snapshots/", lambda: world.snapshot(10, live=[2, 7]))
    # then the older one is named, and it is the only thing
    found = findings(world.disk.killed())
    assert [(f.kind, "0000000000000005-" in f.path) for f in found] == [("left-over", True)]


def test_a_received_snapshot_that_was_not_moved_in_is_told() -> None:
    # given a crash right after an installation counts
    world = World()
    world.log.create_group("b")
    world.segment(1, 20)
    world.snapshot(15, live=[3, 9])
    sender = world.group.open_sender("b", last_applied=0)
    installer = world.log.group("b").begin_install(sender.meta, last_applied=0)
    send(sender, installer)
    world.until("link", "groups/b/", lambda: finish(world, installer, [3, 9]))
    # then verify names the folder, and does not call anything missing
    found = findings(world.disk.killed())
    assert [(f.kind, f.path) for f in found] == [("left-over", "groups/b/installed")]


def test_an_unfinished_write_at_the_end_of_the_wal_is_left_over() -> None:
    house = full_house()
    path = "wal/0000000000000008.wal"
    rewrite(house, path, content(house, path) + b"LMwb and then the power went")
    found = [f for f in findings(house) if f.kind == "left-over"]
    assert [f.path for f in found] == [path]
    assert "from 936 on" in found[0].what


# -- what is missing ------------------------------------------------------------------------------


def test_a_live_entry_that_is_in_no_file_is_missing() -> None:
    # given a segment that is gone with two live entries
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.snapshot(20, live=[3, 7, 15])
    world.log.close()
    world.disk.unlink(f"groups/g/{number(1)}.segment")
    # then verify counts them
    (found,) = findings(world.disk)
    assert (found.kind, found.group) == ("missing", "g")
    assert found.what == "2 entries that count are in no file, the first is 3"


def test_a_live_entry_that_a_merge_lost_is_missing_though_the_range_covers_it() -> None:
    # given a merge that holds 3 and 15 of a live set of 3, 7 and 15
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.segment(21, 22)
    world.snapshot(20, live=[3, 15])
    world.compact()
    world.log.close()
    other = World()
    other.segment(1, 22)
    other.snapshot(20, live=[3, 7, 15])
    other.log.close()
    folder = "groups/g/snapshots/0000000000000014-0000000000000001"
    rewrite(world.disk, f"{folder}/live", content(other.disk, f"{folder}/live"))
    # then 7 is missed, although it lies between the two
    (found,) = findings(world.disk)
    assert found.what == "entry 7, which counts, is in no file"


def test_a_gap_between_segments_and_the_wal_is_missing() -> None:
    world = World()
    world.segment(1, 10)
    world.segment(11, 20)
    world.append(21, 25)
    world.log.close()
    world.disk.unlink(f"groups/g/{number(2)}.segment")
    (found,) = findings(world.disk)
    assert (found.kind, found.what) == ("missing", "entries 11 to 20 of g are missing")


def test_a_million_bad_entries_are_counted_not_listed() -> None:
    bad = [Finding("damage", "g", "x", n, f"entry {n}") for n in range(100)]
    found = list(limited(bad))
    assert len(found) == 21
    assert found[-1].what == "and 80 more like these"


# -- verify and a start agree ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_crash_leaves_is_never_called_damage(seed: int) -> None:
    # given a busy log, stopped at a call drawn from the seed
    dice = Random(seed)
    for _ in range(12):
        disk = SimDisk()
        disk.stop_at_call = dice.randrange(20, 260)
        with contextlib.suppress(WorldStopped):
            _busy(World(seed, disk=disk, config=CONFIG))
        # when the power fails, whatever of it went through
        for draw in range(6):
            crashed = disk.crashed(Random(draw)) if draw else copy_of(disk.killed())
            # then there may be left-overs, and nothing else
            found = findings(crashed)
            assert {f.kind for f in found} <= {"left-over"}, (disk.stop_at_call, draw, found)


def _busy(world: World) -> None:
    world.segment(1, 8)
    world.append(9, 9, size=300)
    world.segment(10, 14)
    world.append(13, 15, term=2)
    world.snapshot(12, live=[2, 6, 9, 11])
    world.roll()
    world.compact()
    world.append(16, 20, term=2)
    world.append(18, 19, term=3)
    world.roll()
    world.snapshot(19, live=[2, 9, 17])
    world.compact()
    world.append(20, 24, term=3)
