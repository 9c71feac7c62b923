"""A folder that is missing is not a deleted group: the roster knows which groups there are."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from log.world import QUIET, Ended, World
from lowmark.errors import Corrupt, LowmarkError
from lowmark.inspect import dump_log, verify_log
from lowmark.log import Damaged, GroupExists, Log, files, wal_format
from lowmark.log.errors import FolderMissing, FolderMistaken
from lowmark.log.files import SharedFolder
from lowmark.log.identity import create_folder
from lowmark.log.roster import Roster, read_entries, read_marks
from lowmark.runtime import (
    DiskFailed,
)
from lowmark.runtime.sim import (
    SimDisk,
    sim_runtime,
)
from lowmark.runtime.sim.disk import WorldStopped


def two_groups() -> World:
    """Entries of two groups, in segments and in the WAL."""
    world = World()
    world.log.create_group("other")
    world.segment(1, 10)
    world.append(11, 20)
    world.append(1, 5, group="other")
    world.settle()
    return world


def open_log(disk: SimDisk, *, read_only: bool = False) -> Log:
    return Log.open(sim_runtime(7, disk=disk), QUIET, read_only=read_only)


def check_roster(disk: SimDisk) -> None:
    """The roster and the folders say the same."""
    folders = {name for name in disk.list("groups") if not name.startswith("~")}
    assert read_entries(disk).keys() == folders
    assert all(len(found) == 1 for found in read_entries(disk).values())


def found_by_verify(disk: SimDisk) -> list[tuple[str, str | None, str]]:
    return [(finding.kind, finding.group, finding.path) for finding in verify_log(disk)]


# -- a folder that is away ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "kill", "crash"])
@pytest.mark.parametrize("leaves", ["nothing", "an empty folder"])
def test_a_folder_that_is_away_for_some_starts_costs_no_entry(end: str, leaves: str) -> None:
    # given a group in segments and in the WAL, whose folder is away after the process ended
    world = two_groups()
    if end == "close":
        world.log.close()
    disk = world.disk.crashed(Random(1)) if end == "crash" else world.disk.killed()
    folder = disk.take_away("groups/g")
    if leaves == "an empty folder":
        disk.make_dir("groups/g")
        disk.sync_dir("groups")
    for term in (2, 3):
        # when the log is opened, the group says which folder is missing, and its name is not free
        log = open_log(disk)
        with pytest.raises(FolderMissing, match="groups/g") as told:
            log.group("g")
        assert "roster/g@" in told.value.hint
        with pytest.raises(GroupExists):
            log.create_group("g")
        # and the other group goes on; its WAL files come and go
        other = log.group("other")
        other.append(term, [b"more"] * 5)
        log.roll()
        log._loop.run_until(lambda log=log: log.idle)  # type: ignore[misc]
        assert other.written_index == other.last_index
        log.close()
        assert ("missing", "g", "groups/g") in found_by_verify(disk)
    # then all of it is there when the folder is
    if leaves == "an empty folder":
        disk.take_away("groups/g")
    disk.put_back("groups/g", folder)
    after = world._next(disk)
    assert after.group.quarantined is None
    assert after.group.last_index == 20
    after.check(range(1, 21))
    after.settle()
    after.log.close()
    assert found_by_verify(disk) == []


def test_a_quarantine_outside_of_a_folder_that_is_away_stays() -> None:
    # given a quarantine that is written down in the node's own folder
    world = two_groups()
    world.disk.go_bad("unwritable", "groups/g")
    world.log.quarantine(world.group.state, Damaged("a file", offset=0, what="a test wanted it"))
    world.settle()
    world.disk.heal()
    # when the folder is away for one start
    disk = world.disk.killed()
    folder = disk.take_away("groups/g")
    open_log(disk).close()
    disk.put_back("groups/g", folder)
    # then the group is still in quarantine
    assert open_log(disk).group("g").quarantined


def test_a_group_whose_folder_is_away_can_be_deleted_and_made_anew() -> None:
    world = two_groups()
    disk = world.disk.killed()
    folder = disk.take_away("groups/g")
    log = open_log(disk)
    log.delete_group("g")
    log._loop.run_until(lambda: log.idle)
    assert read_entries(disk).keys() == {"other"}
    log._loop.run_until(lambda: not log.segment_writer.kept)  # no WAL file stays for it
    assert log.create_group("g").last_index == 0
    log.close()
    check_roster(disk)
    # and the old folder, if it comes back over the new one, is not taken for it
    disk.take_away("groups/g")
    disk.put_back("groups/g", folder)
    with pytest.raises(FolderMistaken, match="groups/g"):
        open_log(disk).group("g")


def test_another_group_s_folder_is_not_taken_for_a_group_s_own() -> None:
    # given a folder of the same name from elsewhere, in the place of a group's own
    world, elsewhere = two_groups(), World(seed=9)
    elsewhere.segment(1, 3, term=4)
    disk = world.disk.killed()
    folder = disk.take_away("groups/g")
    disk.put_back("groups/g", elsewhere.disk.take_away("groups/g"))
    before = disk.tree()
    # then nobody takes it for the group, and nothing in it is changed
    log = open_log(disk)
    with pytest.raises(FolderMistaken) as told:
        log.group("g")
    assert told.value.folder == "groups/g"
    log._loop.run_until(lambda: log.idle)
    log.close()
    assert [p for p in disk.tree() if "groups/g" in p] == [p for p in before if "groups/g" in p]
    assert ("damage", "g", "groups/g") in found_by_verify(disk)
    # and the right one is read again
    disk.put_back("groups/g", folder)
    after = world._next(disk)
    after.check(range(1, 21))


def test_a_folder_that_is_given_up_makes_room_for_a_new_group() -> None:
    # given a folder that is lost, and a person who says so in the roster
    world = two_groups()
    disk = world.disk.killed()
    disk.take_away("groups/g")
    [entry] = [name for name in disk.list("roster") if name.startswith("g@")]
    disk.rename(f"roster/{entry}", f"roster/~{entry}")
    # then its name is free, and no WAL file stays for it
    log = open_log(disk)
    log._loop.run_until(lambda: log.idle)
    assert not log.unreadable
    assert not log.segment_writer.kept
    log.create_group("g")
    check_roster(disk)
    assert found_by_verify_of(log) == []


def found_by_verify_of(log: Log) -> list[tuple[str, str | None, str]]:
    log.close()
    assert isinstance(log.disk, SimDisk)
    return found_by_verify(log.disk)


# -- a folder that is away, and nothing in the roster says that it was ever there -----------------


def forget(disk: SimDisk, what: str) -> None:
    """Lose a group's entry, or the whole roster."""
    if what == "the roster":
        disk.take_away("roster")
    for name in disk.list("roster"):
        if name.startswith("g@"):
            disk.unlink(f"roster/{name}")


@pytest.mark.parametrize("end", ["close", "kill", "crash"])
@pytest.mark.parametrize("lost", ["its entry", "the roster"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_folder_and_its_entry_that_are_away_cost_no_entry(
    end: str, lost: str, flushed: bool
) -> None:
    # given a group with records in the WAL: entries, or only the record of its own
    world = two_groups()
    world.group.put_meta(b"a vote", finish := Ended())
    world.loop.run_until(lambda: finish.over)
    if flushed:
        world.log.roll()
        world.settle()
    if end == "close":
        world.log.close()
    disk = world.disk.crashed(Random(1)) if end == "crash" else world.disk.killed()
    # and its folder is away, and what the roster said of it, too
    folder = disk.take_away("groups/g")
    forget(disk, lost)
    assert ("missing", "g", "groups/g") in found_by_verify(disk)
    for term in (2, 3):
        # when the log is opened, then it is not taken for deleted
        log = open_log(disk)
        with pytest.raises(FolderMissing, match="groups/g") as told:
            log.group("g")
        assert "roster/~g@" in told.value.hint
        with pytest.raises(GroupExists):
            log.create_group("g")
        # and the other group goes on; its WAL files come and go
        other = log.group("other")
        other.append(term, [b"more"] * 5)
        log.roll()
        log._loop.run_until(lambda log=log: log.idle)  # type: ignore[misc]
        assert other.written_index == other.last_index
        log.close()
        assert ("missing", "g", "groups/g") in found_by_verify(disk)
    # then all of it is there when the folder is
    disk.put_back("groups/g", folder)
    after = world._next(disk)
    after.check(range(1, 21))
    assert after.group.meta == b"a vote"
    check_roster(disk)
    after.settle()
    after.log.close()
    assert found_by_verify(disk) == []


def test_a_quarantine_outside_of_a_folder_that_is_away_stays_without_an_entry() -> None:
    world = two_groups()
    world.disk.go_bad("unwritable", "groups/g")
    world.log.quarantine(world.group.state, Damaged("a file", offset=0, what="a test wanted it"))
    world.settle()
    world.disk.heal()
    disk = world.disk.killed()
    folder = disk.take_away("groups/g")
    forget(disk, "its entry")
    open_log(disk).close()
    disk.put_back("groups/g", folder)
    assert open_log(disk).group("g").quarantined


def test_a_group_without_folder_and_entry_can_be_deleted_and_made_anew() -> None:
    world = two_groups()
    disk = world.disk.killed()
    disk.take_away("groups/g")
    forget(disk, "the roster")
    log = open_log(disk)
    log.delete_group("g")
    log._loop.run_until(lambda: log.idle)
    # then a start that finds its records knows that it was deleted
    for image in disk.crash_images(Random(1)):
        assert not open_log(image.disk).unreadable
    log._loop.run_until(lambda: not log.segment_writer.kept)
    assert log.create_group("g").last_index == 0
    log.close()
    assert not open_log(disk).unreadable


def test_the_deletion_that_is_told_to_a_person_is_one_that_a_start_takes() -> None:
    # given a group that is lost, and a person who does what the error says
    world = two_groups()
    disk = world.disk.killed()
    disk.take_away("groups/g")
    forget(disk, "the roster")
    log = open_log(disk)
    hint = log.unreadable["g"].hint
    log.close()
    [mark] = [word for word in hint.replace(":", " ").split() if word.startswith("roster/~g@")]
    disk.open(mark, "create").close()
    # then its name is free
    assert not open_log(disk).unreadable


@pytest.mark.parametrize("has_roster", [False, True])
def test_what_an_earlier_release_deleted_is_not_missing(has_roster: bool) -> None:
    # given a WAL of a release without a roster, whose deletions leave no mark
    world = two_groups()
    disk = world.disk.killed()
    of_an_earlier_release(disk)
    disk.take_away("groups/g")
    forget(disk, "its entry" if has_roster else "the roster")
    # then its records are passed over, as that release did
    assert [one for one in found_by_verify(disk) if one[0] == "missing"] == []
    log = open_log(disk)
    assert not log.unreadable
    log.create_group("g")


def of_an_earlier_release(disk: SimDisk) -> None:
    """Take from each WAL file what says that there is a roster."""
    for name in disk.list("wal"):
        file = disk.open(f"wal/{name}", "write")
        data = file.read_at(0, wal_format.FILE_HEADER_BYTES)
        header = wal_format.decode_header(name, data)
        plain = wal_format.WalHeader(header.number, header.previous_number, header.previous_bytes)
        file.write_at(0, [wal_format.encode_header(plain)])
        file.datasync()
        file.close()


# -- marks of deletions come, and go --------------------------------------------------------------


def test_a_deleted_group_leaves_a_mark_until_no_wal_file_has_records_of_it() -> None:
    # given a group that is deleted while the WAL has records of it
    world = two_groups()
    world.log.delete_group("g")
    world.settle()
    assert read_marks(world.disk).keys() == {"g"}
    # then a start knows that, however often
    for _ in range(2):
        for image in world.disk.crash_images(Random(1)):
            log = open_log(image.disk)
            assert not log.unreadable
            assert [group.name for group in log.groups()] == ["other"]
    # and the mark goes with the last of the records
    world.log.roll()
    world.settle()
    assert not read_marks(world.disk)
    for image in world.disk.crash_images(Random(1)):
        assert not open_log(image.disk).unreadable


def test_a_mark_goes_after_a_start_has_flushed_the_records() -> None:
    world = two_groups()
    world.log.delete_group("g")
    world.settle()
    log = open_log(world.disk.killed())
    assert read_marks(world.disk)
    log._loop.run_until(lambda: log.idle)
    assert not read_marks(world.disk)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["a start", "a roll-over"])
def test_a_crash_while_a_mark_goes_brings_no_missing_group(at: str) -> None:
    # given a deleted group with records in the WAL, and a crash at each call of what lets both go
    calls = 0
    while True:
        world = two_groups()
        world.log.delete_group("g")
        world.settle()
        disk, log = world.disk, world.log
        calls += 1
        disk.stop_at_call = disk.calls + calls
        try:
            if at == "a start":
                disk._locks.clear()
                log = open_log(disk)
            log.roll()
            log._loop.run_until(lambda: log.idle)  # noqa: B023
        except WorldStopped:
            pass
        else:
            break
        # then no start takes it for missing
        for image in disk.crash_images(Random(calls)):
            again = open_log(image.disk)
            assert not again.unreadable, image.label
            assert [group.name for group in again.groups()] == ["other"]
    assert calls > 10
    assert not read_marks(disk)


def test_a_mark_goes_at_a_start_that_finds_no_wal_file() -> None:
    world = two_groups()
    world.log.close()
    world.disk.open(f"roster/~gone@{bytes(16).hex()}", "create").close()
    for name in world.disk.list("wal"):
        world.disk.unlink(f"wal/{name}")
    log = open_log(world.disk)
    log._loop.run_until(lambda: log.idle)
    assert not read_marks(world.disk)


def test_many_deletions_leave_no_marks() -> None:
    world = World()
    for _ in range(5):
        for i in range(40):
            world.log.create_group(f"group-{i}")
        for i in range(40):
            world.log.delete_group(f"group-{i}")
        world.settle()
        assert sum(map(len, read_marks(world.disk).values())) == 40
        world.log.roll()
        world.settle()
        assert not read_marks(world.disk)


def test_a_mark_that_can_not_be_removed_goes_at_the_next_start() -> None:
    world = two_groups()
    world.log.delete_group("g")
    world.settle()
    world.disk.fail_next("unlink", "roster/~g")
    world.log.roll()
    world.settle()
    assert read_marks(world.disk)
    log = open_log(world.disk.killed())
    log._loop.run_until(lambda: log.idle)
    assert not read_marks(world.disk)


def test_a_mark_stays_while_a_kept_wal_file_names_its_group() -> None:
    # given a WAL file that is kept for a group that can't be read, until that is deleted
    world = two_groups()
    disk = world.disk.killed()
    disk.take_away("groups/g")
    log = open_log(disk)
    log._loop.run_until(lambda: log.idle)
    assert log.segment_writer.kept
    log.delete_group("g")
    disk.fail_next("create", ".kept")  # its note can't be written again for a while
    log._loop.run_until(lambda: not read_entries(disk).keys() & {"g"})
    # then, whatever a crash leaves, it was deleted
    for image in disk.crash_images(Random(1)):
        assert not open_log(image.disk).unreadable
    log._loop.run_until(lambda: log.idle and not log.segment_writer.kept)
    log.roll()
    log._loop.run_until(lambda: log.idle)
    assert not read_marks(disk)


@pytest.mark.parametrize("call", ["rename", "sync_dir"])
def test_a_group_whose_deletion_can_not_be_taken_back_for_sure_takes_nothing(call: str) -> None:
    # given a crash between the mark and the folder's end, and a roster that can't be written then
    world = two_groups()
    world.before("rename", "groups/~other", stop)
    world.log.delete_group("other")
    with pytest.raises(WorldStopped):
        world.settle()
    disk = world.disk.killed()
    assert read_marks(disk).keys() == {"other"}
    disk.fail_next(call, "roster")
    # then it is left alone: a mark may be on the disk that says that it is gone
    log = open_log(disk)
    assert "other" in log.unreadable
    with pytest.raises(GroupExists):
        log.create_group("other")
    log._loop.run_until(lambda: log.idle)
    log.close()
    # and a start that can write has all of it
    for image in disk.crash_images(Random(1)):
        log = open_log(image.disk)
        assert log.group("other").last_index == 5
        check_roster(image.disk)
        assert not read_marks(image.disk)


def stop() -> None:
    raise WorldStopped


def test_the_records_of_an_older_group_of_the_same_name_do_not_make_it_missing() -> None:
    # given records of a group whose entry a person removed, to have another folder count
    world, elsewhere = two_groups(), World(seed=9)
    elsewhere.segment(1, 3, term=4)
    elsewhere.log.close()
    disk = world.disk.killed()
    disk.take_away("groups/g")
    forget(disk, "its entry")
    disk.put_back("groups/g", elsewhere.disk.take_away("groups/g"))
    log = open_log(disk)
    assert log.group("g").last_index == 3
    # when that one is deleted, then both are
    log.delete_group("g")
    log._loop.run_until(lambda: not log._leaving)
    for image in disk.crash_images(Random(1)):
        assert not open_log(image.disk).unreadable


def test_looking_only_changes_nothing() -> None:
    world = two_groups()
    world.log.close()
    world.disk.take_away("groups/g")
    world.disk.unlink(f"roster/{world.disk.list('roster')[1]}")
    before = world.disk.fingerprint()
    log = open_log(world.disk, read_only=True)
    assert isinstance(log.unreadable["g"], FolderMissing)
    assert log.group("other").last_index == 5
    log.close()
    found = found_by_verify(world.disk)
    assert ("missing", "g", "groups/g") in found
    assert [kind for kind, group, _ in found if group == "other"] == ["left-over"]
    [piece] = [line for line in dump_log(world.disk) if getattr(line, "problem", "")]
    assert "missing" in piece.problem
    assert world.disk.fingerprint() == before


def test_what_is_no_entry_is_pointed_out_and_passed_over() -> None:
    world = two_groups()
    world.log.close()
    world.disk.open("roster/notes.txt", "create").close()
    assert found_by_verify(world.disk) == [("unknown file", None, "roster/notes.txt")]
    assert not open_log(world.disk).unreadable


# -- directories of earlier releases --------------------------------------------------------------


def without_roster(world: World) -> SimDisk:
    world.log.close()
    world.disk.take_away("roster")
    return world.disk


def test_a_directory_without_a_roster_gets_one() -> None:
    disk = without_roster(two_groups())
    assert found_by_verify(disk) == []
    log = open_log(disk)
    assert not log.unreadable
    check_roster(disk)
    # then a folder that is away is noticed from now on, also after a crash
    for image in disk.crash_images(Random(1)):
        image.disk.take_away("groups/g")
        assert isinstance(open_log(image.disk).unreadable["g"], FolderMissing)


@pytest.mark.parametrize("call", ["mkdir", "create", "sync_dir"])
def test_a_roster_that_can_not_be_written_keeps_no_log_from_starting(call: str) -> None:
    # given a roster that can't be written at one start
    disk = without_roster(two_groups())
    disk.fail_next(call, "roster")
    world = World(disk=disk)
    world.check(range(1, 21))
    # when a group is made and deleted all the same
    world.log.create_group("new")
    world.log.delete_group("new")
    world.settle()
    world.log.close()
    # then the next start writes the roster, whatever a crash leaves
    open_log(disk).close()
    for image in disk.crash_images(Random(1)):
        log = open_log(image.disk)
        assert not log.unreadable
        assert [group.name for group in log.groups()] == ["g", "other"]
        check_roster(image.disk)


# -- crashes and failures in the middle -----------------------------------------------------------


def create(log: Log) -> None:
    log.create_group("new")


def delete(log: Log) -> None:
    log.delete_group("other")


def delete_and_create(log: Log) -> None:
    if "other" in {*log.unreadable, *(group.name for group in log.groups())}:
        log.delete_group("other")
    log._loop.run_until(lambda: log.idle)
    log.create_group("other")


@pytest.mark.slow
@pytest.mark.parametrize("act", [create, delete, delete_and_create])
def test_a_crash_at_any_step_leaves_a_roster_that_agrees(act: Callable[[Log], None]) -> None:
    calls = 0
    while True:
        world = two_groups()
        calls += 1
        world.disk.stop_at_call = world.disk.calls + calls
        try:
            act(world.log)
            world.settle()
        except WorldStopped:
            pass
        else:
            break
        for image in world.disk.crash_images(Random(calls)):
            log = open_log(image.disk)
            # no group is missing, and what was acknowledged of the others is there
            assert not log.unreadable, image.label
            assert log.group("g").last_index == 20
            check_roster(image.disk)
            # from here on, any of them would be missed
            names = [group.name for group in log.groups()]
            for again in image.disk.crash_images(Random(calls), samples=1):
                for name in names:
                    again.disk.take_away(f"groups/{name}")
                assert [*open_log(again.disk).unreadable] == names
    assert calls > 5


STEPS = [
    (call, path)
    for call in ("create", "rename", "unlink", "sync_dir", "mkdir", "rmdir", "datasync")
    for path in ("roster", "groups")
]


@pytest.mark.parametrize("act", [create, delete, delete_and_create])
@pytest.mark.parametrize(("call", "path"), STEPS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_at_any_step_is_made_good_by_trying_again(
    act: Callable[[Log], None], call: str, path: str, times: int
) -> None:
    # given a disk that fails a step of creating or deleting a group
    world = two_groups()
    for _ in range(times):
        world.disk.fail_next(call, path)
    # when that is tried until it works
    for _ in range(2 * times + 1):
        try:
            act(world.log)
        except LowmarkError:
            continue
        finally:
            world.settle()
        if "other" not in world.log.unreadable:
            break
    world.disk.heal()
    # then the group is there or gone, whatever a crash leaves
    ends: dict[Callable[[Log], None], list[str]] = {
        create: ["g", "new", "other"],
        delete: ["g"],
        delete_and_create: ["g", "other"],
    }
    names = ends[act]
    assert [group.name for group in world.log.groups()] == names
    check_roster(world.disk)
    for image in world.disk.crash_images(Random(1)):
        entries = read_entries(image.disk)
        assert entries.keys() == set(names), image.label
        log = open_log(image.disk)
        assert entries.keys() <= {group.name for group in log.groups()}
        assert log.group("g").last_index == 20
    # and after a kill, too
    log = open_log(world.disk.killed())
    assert [group.name for group in log.groups()] == names
    assert not log.unreadable


@pytest.mark.parametrize("path", ["groups", "roster"])
def test_a_new_group_whose_name_another_lane_s_failed_sync_dropped_is_not_created(
    path: str,
) -> None:
    # given a failed sync of the other lane, right before the sync that makes a new name durable
    world = two_groups()
    folder = getattr(world.log._roster, "_groups" if path == "groups" else "_folder")

    def other_lane() -> None:
        world.disk.fail_next("sync_dir", path)
        with pytest.raises(DiskFailed):
            folder.sync(world.disk)

    step = ("rename", "groups/new") if path == "groups" else ("create", "roster/new")
    world.before(*step, lambda: world.before("sync_dir", path, other_lane))
    # then its creator is not told that it is there
    with pytest.raises(DiskFailed):
        world.log.create_group("new")
    world.log.create_group("new")
    # and what is told later holds, whatever a crash leaves
    for image in world.disk.crash_images(Random(1)):
        assert "new" in read_entries(image.disk)
        assert open_log(image.disk).group("new").last_index == 0


def test_a_folder_that_was_put_there_meanwhile_is_not_removed_for_a_new_group() -> None:
    # given a creation that failed, and a folder of the same name that came from elsewhere then
    world, elsewhere = two_groups(), World(seed=9)
    elsewhere.log.create_group("new")
    world.disk.fail_next("create", "roster/new")
    with pytest.raises(DiskFailed):
        world.log.create_group("new")
    world.disk.take_away("groups/new")
    world.disk.put_back("groups/new", elsewhere.disk.take_away("groups/new"))
    # then it stays
    with pytest.raises(DiskFailed):
        world.log.create_group("new")
    assert "group" in world.disk.list("groups/new")


def test_a_second_entry_of_a_group_that_is_there_goes() -> None:
    world = two_groups()
    world.log.close()
    world.disk.open(f"roster/g@{bytes(16).hex()}", "create").close()
    log = open_log(world.disk)
    assert log.group("g").last_index == 20
    check_roster(world.disk)


def test_the_roster_costs_one_listing_at_a_start() -> None:
    # given many groups that are written down
    world = World()
    for i in range(50):
        world.log.create_group(f"group-{i}")
    world.log.close()
    # when they are read, then no file of the roster is opened, and none is made again
    with world.calls() as calls:
        roster = Roster(world.disk)
        roster.read()
        assert len(roster.names()) == 51
        open_log(world.disk).close()
    assert [call for call in calls if "roster" in call] == ["sync_dir roster"]


@pytest.mark.parametrize("lies_there", ["b", "an older a"])
def test_a_group_s_deletion_removes_no_other_group_s_folder(lies_there: str) -> None:
    # given a folder of another group, or of another incarnation, in the place of a group's own
    disk = SimDisk()
    disk.make_dir(files.GROUPS)
    roster = Roster(disk)
    for name in ("a", "b"):
        roster.create(name, name.encode() * 16)
    disk.rename("groups/a", "groups/away")
    if lies_there == "b":
        disk.rename("groups/b", "groups/a")
    else:
        create_folder(disk, "a", b"z" * 16, groups=SharedFolder(files.GROUPS))
    # when the group is deleted
    roster = Roster(disk)
    roster.read()
    with pytest.raises(Corrupt):
        roster.delete("a")
    # then that folder is there, and so is the entry: nothing was changed
    assert disk.stat(f"groups/a/{files.IDENTITY}") is not None
    assert "a" in read_entries(disk)
    # and with its own folder in its place it is deleted
    disk.rename("groups/a", "groups/b" if lies_there == "b" else "groups/other")
    disk.rename("groups/away", "groups/a")
    roster.delete("a")
    assert disk.stat("groups/a") is None
    assert set(read_entries(disk)) == {"b"}
