"""What any disk does: one suite, run on the machine's disk, on the simulated one, and on one that
keeps what is written in memory.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from lowmark.runtime import Disk, DiskFailed, DiskFull, FileMissing, Locked, RealDisk, real_disk
from lowmark.runtime.disk import FileExists, Stat
from lowmark.runtime.overlay_disk import OverlayDisk
from lowmark.runtime.sim import SimDisk

OTHER_PROCESS = """
import sys
from lowmark.runtime import Locked, RealDisk
try:
    RealDisk(sys.argv[1]).lock("LOCK")
except Locked as error:
    sys.exit(str(error))
"""


@pytest.fixture(params=["real", "simulated", "overlay"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "simulated":
        return SimDisk()
    real = RealDisk(str(tmp_path / "root"))
    return real if request.param == "real" else OverlayDisk(real)


@pytest.fixture(params=["real", "simulated"])
def locking(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """Those that can be locked."""
    return SimDisk() if request.param == "simulated" else RealDisk(str(tmp_path / "root"))


def put(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, "create")
    file.append([data])
    file.close()


def get(disk: Disk, path: str) -> bytes:
    file = disk.open(path, "read")
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def stat(disk: Disk, path: str) -> Stat:
    found = disk.stat(path)
    assert found is not None
    return found


# -- files ----------------------------------------------------------------------------------------


def test_appended_buffers_lie_one_after_another(disk: Disk) -> None:
    # given a file with two appends, the first one of several kinds of buffers
    file = disk.open("a", "create")
    file.append([b"ab", bytearray(b"cd"), memoryview(b"ef")])
    file.append([b"gh"])
    # then it reads as one run of bytes
    assert file.read_at(0, 100) == b"abcdefgh"
    assert file.size() == 8


def test_an_append_goes_behind_what_was_there_when_the_file_was_opened(disk: Disk) -> None:
    put(disk, "a", b"old")
    file = disk.open("a", "write")
    file.append([b" new"])
    assert get(disk, "a") == b"old new"


def test_a_write_beyond_the_end_fills_the_gap_with_zeros(disk: Disk) -> None:
    file = disk.open("a", "create")
    file.write_at(4, [b"x", b"y"])
    assert file.read_at(0, 10) == b"\0\0\0\0xy"
    # and the next append comes after it
    file.append([b"z"])
    assert file.read_at(0, 10) == b"\0\0\0\0xyz"


def test_a_write_in_the_middle_leaves_the_rest(disk: Disk) -> None:
    put(disk, "a", b"abcdef")
    file = disk.open("a", "write")
    file.write_at(2, [b"XY"])
    file.append([b"g"])
    assert get(disk, "a") == b"abXYefg"


@pytest.mark.parametrize("nothing", [[], [b""], [b"", b""]])
def test_writing_nothing_far_behind_the_end_does_not_move_it(
    disk: Disk, nothing: list[bytes]
) -> None:
    file = disk.open("a", "create")
    file.write_at(10, nothing)
    file.append([b"a"])
    assert get(disk, "a") == b"a"


def test_one_write_takes_more_buffers_than_one_system_call_does(disk: Disk) -> None:
    # given 2,500 buffers; Linux takes 1,024 at a time
    buffers = [str(n % 10).encode() * (n % 7) for n in range(2_500)]
    file = disk.open("a", "create")
    file.append(buffers)
    assert file.read_at(0, 1 << 20) == b"".join(buffers)
    # and the end is known
    file.append([b"!"])
    assert file.read_at(file.size() - 1, 5) == b"!"


def test_a_view_of_wide_items_counts_by_its_bytes(disk: Disk) -> None:
    file = disk.open("a", "create")
    file.append([memoryview(b"abcdefgh").cast("Q")])
    file.append([b"i"])
    assert file.read_at(0, 100) == b"abcdefghi"


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [(0, 3, b"abc"), (2, 2, b"c"), (3, 1, b""), (99, 1, b""), (1, 0, b""), (0, 0, b"")],
)
def test_a_read_stops_at_the_end(disk: Disk, offset: int, length: int, expected: bytes) -> None:
    put(disk, "a", b"abc")
    assert disk.open("a", "read").read_at(offset, length) == expected


def test_a_map_outlives_its_handle_and_its_name(disk: Disk) -> None:
    # given a mapped file
    put(disk, "a", b"abc" * 5_000)
    file = disk.open("a", "read")
    view = file.map()
    # when both are gone
    file.close()
    disk.unlink("a")
    # then the bytes are still there, and nobody can change them
    assert bytes(view) == b"abc" * 5_000
    assert view.readonly


def test_an_empty_file_can_be_mapped(disk: Disk) -> None:
    put(disk, "a", b"")
    assert bytes(disk.open("a", "read").map()) == b""


def test_a_map_made_after_a_write_shows_it(disk: Disk) -> None:
    file = disk.open("a", "create")
    file.append([b"one"])
    assert bytes(file.map()) == b"one"
    file.append([b"two"])
    assert bytes(file.map()) == b"onetwo"


def test_a_truncated_file_goes_on_from_its_new_end(disk: Disk) -> None:
    file = disk.open("a", "create")
    file.append([b"abcdef"])
    file.truncate(2)
    assert file.size() == 2
    file.append([b"x"])
    assert get(disk, "a") == b"abx"
    # and it can be stretched the same way
    file.truncate(5)
    assert get(disk, "a") == b"abx\0\0"


def test_a_reader_sees_what_a_writer_wrote_after_it_was_opened(disk: Disk) -> None:
    writer = disk.open("a", "create")
    reader = disk.open("a", "read")
    writer.append([b"abc"])
    assert reader.size() == 3
    assert reader.read_at(0, 10) == b"abc"


def test_an_open_file_outlives_its_name(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open("a", "write")
    disk.unlink("a")
    file.append([b"d"])
    assert file.read_at(0, 10) == b"abcd"


def test_every_kind_of_sync_is_taken(disk: Disk) -> None:
    disk.make_dir("d")
    file = disk.open("d/a", "create")
    file.append([b"a"])
    file.datasync()
    file.sync()
    disk.sync_dir("d")
    disk.sync_dir("")
    assert get(disk, "d/a") == b"a"


def test_a_closed_file_is_of_no_use(disk: Disk) -> None:
    file = disk.open("a", "create")
    file.append([b"a"])
    file.close()
    file.close()  # twice is fine
    for use in (
        lambda: file.read_at(0, 1),
        lambda: file.append([b"b"]),
        file.map,
        file.size,
        file.datasync,
    ):
        with pytest.raises(DiskFailed):
            use()


def test_a_file_open_for_reading_can_not_be_changed(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open("a", "read")
    with pytest.raises(DiskFailed):
        file.append([b"d"])
    with pytest.raises(DiskFailed):
        file.truncate(0)
    assert get(disk, "a") == b"abc"


# -- names ----------------------------------------------------------------------------------------


def test_create_refuses_a_taken_name_and_open_a_missing_one(disk: Disk) -> None:
    put(disk, "a", b"")
    with pytest.raises(FileExists):
        disk.open("a", "create")
    with pytest.raises(FileMissing):
        disk.open("b", "read")
    with pytest.raises(FileMissing):
        disk.open("b", "write")
    with pytest.raises(FileMissing):
        disk.open("no/where", "create")
    with pytest.raises(FileMissing):
        disk.open("a/below", "read")


def test_a_folder_is_no_file(disk: Disk) -> None:
    disk.make_dir("d")
    with pytest.raises(DiskFailed):
        disk.open("d", "read")
    with pytest.raises(DiskFailed):
        disk.unlink("d")


def test_a_rename_replaces_the_file_that_is_there(disk: Disk) -> None:
    put(disk, "old", b"new content")
    put(disk, "new", b"old content")
    disk.rename("old", "new")
    assert disk.list("") == ["new"]
    assert get(disk, "new") == b"new content"


def test_a_rename_of_one_file_onto_its_other_name_removes_neither(disk: Disk) -> None:
    # POSIX says so, and compaction meets it after a crash between link and rename
    put(disk, "a", b"abc")
    disk.link("a", "b")
    disk.rename("a", "b")
    assert disk.list("") == ["a", "b"]
    assert stat(disk, "a").links == 2


def test_a_folder_can_be_renamed_with_all_that_is_in_it(disk: Disk) -> None:
    disk.make_dir("d")
    put(disk, "d/a", b"abc")
    disk.rename("d", "e")
    assert disk.list("") == ["e"]
    assert get(disk, "e/a") == b"abc"


def test_what_can_not_be_renamed_stays(disk: Disk) -> None:
    disk.make_dir("full")
    put(disk, "full/a", b"")
    disk.make_dir("d")
    put(disk, "f", b"")
    with pytest.raises(FileMissing):
        disk.rename("absent", "b")
    with pytest.raises(DiskFailed):
        disk.rename("d", "full")
    with pytest.raises(DiskFailed):
        disk.rename("f", "d")
    with pytest.raises(DiskFailed):
        disk.rename("d", "f")
    with pytest.raises(AssertionError, match="stays within its folder"):
        disk.rename("f", "d/f")
    assert disk.list("") == ["d", "f", "full"]


def test_a_link_is_a_second_name_of_the_same_file(disk: Disk) -> None:
    disk.make_dir("d")
    put(disk, "a", b"abc")
    disk.link("a", "d/b")
    # then both are one file
    assert stat(disk, "a").inode == stat(disk, "d/b").inode
    assert stat(disk, "a").device == stat(disk, "d/b").device
    assert stat(disk, "a").links == 2
    # and it stays until the last name goes
    disk.unlink("a")
    assert get(disk, "d/b") == b"abc"
    assert stat(disk, "d/b").links == 1


def test_a_link_onto_a_taken_name_is_refused(disk: Disk) -> None:
    put(disk, "a", b"aaa")
    put(disk, "b", b"bbb")
    with pytest.raises(FileExists) as refused:
        disk.link("a", "b")
    assert refused.value.path == "b"
    assert get(disk, "b") == b"bbb"


def test_a_link_to_nothing_says_what_is_missing(disk: Disk) -> None:
    put(disk, "there", b"")
    disk.make_dir("d")
    with pytest.raises(FileMissing) as missing:
        disk.link("absent", "b")
    assert missing.value.path == "absent"
    with pytest.raises(FileMissing):
        disk.link("there", "no/where")
    with pytest.raises(DiskFailed):
        disk.link("d", "e")


def test_a_rename_over_one_of_two_names_leaves_the_other(disk: Disk) -> None:
    put(disk, "a", b"aaa")
    disk.link("a", "b")
    put(disk, "c", b"ccc")
    disk.rename("c", "a")
    assert stat(disk, "b").links == 1
    assert get(disk, "b") == b"aaa"
    assert get(disk, "a") == b"ccc"


def test_a_symlink_is_relative_to_its_own_folder(disk: Disk) -> None:
    disk.make_dir("d")
    disk.make_dir("e")
    put(disk, "d/a", b"abc")
    disk.symlink("a", "d/s")
    disk.symlink("../d/a", "e/s")
    assert get(disk, "d/s") == b"abc"
    assert get(disk, "e/s") == b"abc"
    assert disk.read_link("e/s") == "../d/a"
    assert stat(disk, "d/s").kind == "symlink"
    assert stat(disk, "d/s").inode != stat(disk, "d/a").inode


def test_a_symlink_may_point_nowhere_and_still_takes_its_name(disk: Disk) -> None:
    disk.symlink("absent", "s")
    with pytest.raises(FileMissing):
        disk.open("s", "read")
    with pytest.raises(FileExists):
        disk.open("s", "create")
    with pytest.raises(FileExists):
        disk.symlink("other", "s")
    assert disk.read_link("s") == "absent"
    disk.unlink("s")
    assert disk.stat("s") is None


def test_symlinks_that_go_in_circles_are_noticed(disk: Disk) -> None:
    disk.symlink("b", "a")
    disk.symlink("a", "b")
    with pytest.raises(DiskFailed):
        disk.open("a", "read")


def test_a_symlink_can_be_renamed_over_a_file(disk: Disk) -> None:
    put(disk, "001", b"dense")
    put(disk, "002", b"sparse")
    disk.symlink("001", "002.tmp")
    disk.rename("002.tmp", "002")
    assert get(disk, "002") == b"dense"
    assert disk.list("") == ["001", "002"]


def test_a_hard_link_to_a_symlink_is_a_symlink(disk: Disk) -> None:
    put(disk, "a", b"abc")
    disk.symlink("a", "s")
    disk.link("s", "t")
    assert stat(disk, "t").kind == "symlink"
    assert stat(disk, "t").inode == stat(disk, "s").inode
    assert stat(disk, "a").links == 1


def test_only_a_symlink_can_be_read_as_one(disk: Disk) -> None:
    put(disk, "a", b"")
    with pytest.raises(DiskFailed):
        disk.read_link("a")
    with pytest.raises(FileMissing):
        disk.read_link("b")


def test_stat_tells_sizes_and_kinds_without_following(disk: Disk) -> None:
    disk.make_dir("d")
    put(disk, "d/a", b"abc")
    disk.symlink("a", "d/s")
    assert stat(disk, "d").kind == "folder"
    assert stat(disk, "").kind == "folder"
    assert (stat(disk, "d/a").kind, stat(disk, "d/a").size) == ("file", 3)
    assert stat(disk, "d/a").links == 1
    assert disk.stat("d/b") is None
    assert disk.stat("d/a/b") is None
    assert disk.stat("x/y/z") is None


def test_a_list_is_sorted_and_an_absent_folder_has_no_names(disk: Disk) -> None:
    names = [f"{n:03}" for n in range(40)]
    Random(1).shuffle(names)
    disk.make_dir("d")
    for name in names:
        put(disk, f"d/{name}", b"")
    assert disk.list("d") == sorted(names)
    assert disk.list("") == ["d"]
    assert disk.list("absent") == []
    assert disk.list("d/000") == []


def test_folders_are_made_one_at_a_time_and_removed_when_empty(disk: Disk) -> None:
    disk.make_dir("d")
    put(disk, "d/a", b"")
    with pytest.raises(FileExists):
        disk.make_dir("d")
    with pytest.raises(FileMissing):
        disk.make_dir("x/y")
    with pytest.raises(DiskFailed):
        disk.remove_dir("d")
    disk.unlink("d/a")
    disk.remove_dir("d")
    assert disk.stat("d") is None
    with pytest.raises(FileMissing):
        disk.remove_dir("d")


def test_what_is_not_there_can_not_be_unlinked_or_synced(disk: Disk) -> None:
    with pytest.raises(FileMissing):
        disk.unlink("a")
    with pytest.raises(FileMissing):
        disk.sync_dir("d")


# -- the rest -------------------------------------------------------------------------------------


def test_a_lock_is_refused_by_name_until_it_is_released(locking: Disk) -> None:
    disk = locking
    # given a lock
    lock = disk.lock("LOCK")
    # when somebody else wants it
    with pytest.raises(Locked) as refused:
        disk.lock("LOCK")
    # then the error says what is locked, and another lock is another matter
    assert refused.value.path == disk.describe("")
    disk.lock("OTHER").release()
    # and a released one can be had again
    lock.release()
    lock.release()
    again = disk.lock("LOCK")
    lock.release()  # an old holder has no say
    with pytest.raises(Locked):
        disk.lock("LOCK")
    again.release()


def test_what_a_holder_says_of_itself_reaches_those_that_are_refused(locking: Disk) -> None:
    disk = locking
    # given a holder that has said something, and then something shorter
    lock = disk.lock("LOCK")
    lock.note(b"a long note")
    lock.note(b"a note")
    # when the lock is wanted, then the refusal has the last note
    with pytest.raises(Locked) as refused:
        disk.lock("LOCK")
    assert refused.value.note == b"a note"
    # and it goes with the claim
    lock.release()
    again = disk.lock("LOCK")
    with pytest.raises(Locked) as refused:
        disk.lock("LOCK")
    assert refused.value.note == b""
    again.release()


def test_a_note_that_is_to_stay_is_there_for_the_next_holder(locking: Disk) -> None:
    # given a holder that finds nothing, and leaves a note
    lock = locking.lock("LOCK", note=lambda left: b"first, after " + left)
    assert lock.left == b""
    lock.note(b"stays", stays=True)
    lock.release()
    # then the next one finds it, and what it makes of it stands there from the beginning
    lock = locking.lock("LOCK", note=lambda left: b"after " + left)
    assert lock.left == b"stays"
    with pytest.raises(Locked) as refused:
        locking.lock("LOCK")
    assert refused.value.note == b"after stays"
    # and goes with it, if it is not to stay
    lock.release()
    assert locking.lock("LOCK").left == b""


def test_an_unsigned_lock_needs_its_file_and_leaves_it_as_it_is(locking: Disk) -> None:
    disk = locking
    # given no lock file, then there is nothing to claim, and none is made
    with pytest.raises(FileMissing):
        disk.lock("LOCK", sign=False)
    assert disk.list("") == []
    # given one, then it is claimed like any other, and not a byte of it changes
    put(disk, "LOCK", b"abc")
    lock = disk.lock("LOCK", sign=False)
    with pytest.raises(Locked):
        disk.lock("LOCK")
    lock.release()
    assert get(disk, "LOCK") == b"abc"


def test_free_space_is_a_number_above_zero(disk: Disk) -> None:
    assert disk.free_bytes() > 0


@pytest.mark.slow
def test_a_lock_holds_against_another_process(tmp_path: Path) -> None:
    # given a locked folder
    lock = RealDisk(str(tmp_path)).lock("LOCK")
    other = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    # when another process tries, then it is told where and by whom
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert str(tmp_path) in refused.stderr
    holder = (tmp_path / "LOCK").read_text()
    assert f"process {holder}" in refused.stderr
    # also when the holder has said more of itself
    lock.note(b"{}")
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert f"(process {holder})" in refused.stderr
    # and when the lock is released, it gets in
    lock.release()
    assert subprocess.run(other, check=False).returncode == 0


def test_one_that_only_looks_is_not_named_as_the_holder_of_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path))
    (tmp_path / "LOCK").write_text("1")
    with (tmp_path / "LOCK").open() as looking, (tmp_path / "LOCK").open() as refused:
        # given a look, and one that was refused for a holder that is gone by now
        fcntl.flock(looking, fcntl.LOCK_SH)
        said = disk._refused(os.dup(refused.fileno()), "LOCK", BlockingIOError())
        # then it is not told to end the process that looks
        assert isinstance(said, Locked)
        assert not said.unsigned
        assert "process 1)" in said.message
        # but one that shares the lock for longer is what is in the way
        monkeypatch.setattr(real_disk, "_LOOK_S", 0.0)
        with pytest.raises(Locked, match=f"process {os.getpid()}, ") as shared:
            disk.lock("LOCK")
        assert shared.value.unsigned


def test_a_look_for_the_holder_of_a_lock_is_in_the_way_of_none(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    # given no lock file, then there is no holder, and none is made
    assert disk.holder("LOCK") is None
    assert list(tmp_path.iterdir()) == []
    # given a holder, then it is named
    lock = disk.lock("LOCK")
    lock.note(b"a note")
    found = disk.holder("LOCK")
    assert found is not None
    assert found.note == b"a note"
    lock.release()
    # given threads that look all the time, then the lock is had all the same, each time
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            disk.holder("LOCK")

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for one in lookers:
        one.start()
    try:
        for _ in range(200):
            disk.lock("LOCK").release()
    finally:
        over.set()
        for one in lookers:
            one.join()


def test_a_root_is_made_unless_told_otherwise(tmp_path: Path) -> None:
    RealDisk(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(FileMissing):
        RealDisk(str(tmp_path / "c"), create=False)


def test_a_path_is_described_as_a_person_would_look_it_up(tmp_path: Path) -> None:
    assert RealDisk(str(tmp_path)).describe("wal/001") == f"{tmp_path}/wal/001"


def test_what_the_system_refuses_has_a_name(tmp_path: Path) -> None:
    # given a path that is too long for any file system
    with pytest.raises(DiskFailed, match="File name too long"):
        RealDisk(str(tmp_path)).open("x" * 5_000, "create")


def test_a_full_disk_has_a_name(tmp_path: Path) -> None:
    # given Linux's device that is always full, behind a name of ours
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    disk = RealDisk(str(tmp_path))
    disk.symlink(str(full), "a")
    with pytest.raises(DiskFull):
        disk.open("a", "write").append([b"x"])
