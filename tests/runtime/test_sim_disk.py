"""The simulated disk's idea of durability, and its faults."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from lowmark.runtime import (
    DiskFailed,
    DiskFull,
    File,
    Locked,
    NoHandles,
)
from lowmark.runtime.sim import SimDisk, WorldStopped

Tree = tuple[tuple[str, bytes], ...]


def durable_file(disk: SimDisk, path: str, data: bytes) -> File:
    """A file whose name and bytes survive any crash."""
    file = disk.open(path, "create")
    file.append([data])
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])
    return file


def get(disk: SimDisk, path: str) -> bytes:
    return disk.open(path, "read").read_at(0, 1 << 30)


def tree(disk: SimDisk) -> Tree:
    """All names, and what is in the files."""
    paths = disk.tree()
    return tuple((path, b"" if path.endswith("/") else get(disk, path)) for path in paths)


def worlds(disk: SimDisk) -> list[Tree]:
    """All worlds after a crash now; each must come only once."""
    found = [tree(image.disk) for image in disk.crash_images(Random(1))]
    assert len(set(found)) == len(found)
    return sorted(found)


def contents(disk: SimDisk, path: str) -> list[bytes]:
    """All that a durable name may hold after a crash now."""
    return sorted({dict(world)[path] for world in worlds(disk)})


def worst(disk: SimDisk) -> SimDisk:
    """The world in which nothing that was not synced survived."""
    images = {len(tree(i.disk)): i for i in disk.crash_images(Random(1)) if "lost" in i.label}
    return images[min(images)].disk


# -- bytes ----------------------------------------------------------------------------------------


def test_what_was_synced_survives_every_crash() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"abc")
    assert worlds(disk) == [(("a", b"abc"),)]


def test_bytes_that_were_not_synced_may_be_kept_lost_torn_late_or_zero() -> None:
    # given a durable file with one more write of four bytes
    disk = SimDisk()
    durable_file(disk, "a", b"ab").append([b"WXYZ"])
    # then these are all its possible contents
    assert contents(disk, "a") == sorted(
        [
            b"abWXYZ",  # kept
            b"ab",  # lost
            b"abWX",  # torn
            b"ab\0\0YZ",  # its end, without its beginning
            b"ab\0\0\0\0",  # its size, without its bytes
        ]
    )


def test_of_several_writes_any_prefix_survives_or_all_but_one() -> None:
    # given three unsynced writes of one byte, which can't be torn
    disk = SimDisk()
    durable_file(disk, "a", b"").append([b"1", b"2", b"3"])
    assert contents(disk, "a") == sorted(
        [
            *(b"", b"1", b"12", b"123"),  # prefixes
            *(b"\x0023", b"1\x003"),  # one lost; without the last it is a prefix
            b"12\x00",  # the last one's size, without its byte
        ]
    )


def test_an_overwrite_that_is_lost_leaves_the_old_bytes() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"abcd").write_at(0, [b"WXYZ"])
    assert contents(disk, "a") == sorted([b"WXYZ", b"abcd", b"WXcd", b"abYZ"])


def test_a_truncate_that_was_not_synced_may_be_undone() -> None:
    disk = SimDisk()
    file = durable_file(disk, "a", b"abcd")
    file.truncate(1)
    assert contents(disk, "a") == [b"a", b"abcd"]
    file.datasync()
    assert contents(disk, "a") == [b"a"]


def test_a_sync_covers_its_own_file_only() -> None:
    disk = SimDisk()
    one = durable_file(disk, "a", b"")
    other = durable_file(disk, "b", b"")
    one.append([b"1"])
    other.append([b"2"])
    one.datasync()
    assert contents(disk, "a") == [b"1"]
    assert contents(disk, "b") == sorted([b"", b"2", b"\0"])


def test_two_files_lose_their_writes_independently() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"").append([b"1"])
    durable_file(disk, "b", b"").append([b"2"])
    found = [(dict(world)["a"], dict(world)["b"]) for world in worlds(disk)]
    assert {(b"1", b"2"), (b"", b"2"), (b"1", b""), (b"", b"")} <= set(found)


def test_a_long_run_of_writes_is_sampled_with_its_ends() -> None:
    # given far more unsynced writes than are enumerated
    disk = SimDisk()
    durable_file(disk, "a", b"").append([b"%03d" % n for n in range(1_000)])
    # then there are many worlds, but not three for each write
    found = contents(disk, "a")
    assert 64 < len(found) < 300
    whole = b"".join(b"%03d" % n for n in range(1_000))
    assert {b"", b"0", whole[:-3], whole[:-2], whole} <= set(found)


def test_writing_after_a_crash_image_was_made_does_not_reach_into_it() -> None:
    # given images, which share their bytes with the disk they came from
    disk = SimDisk()
    file = durable_file(disk, "a", b"abc")
    images = [image.disk for image in disk.crash_images(Random(1))]
    # when the disk, and then one of the images, go on
    file.write_at(0, [b"X"])
    file.sync()
    images[0].open("a", "write").write_at(1, [b"Y"])
    images[0].flip_bit("a", 16)
    # then each sees only its own writes
    assert get(disk, "a") == b"Xbc"
    assert get(images[0], "a") == b"aYb"
    assert contents(disk, "a") == [b"Xbc"]


# -- names ----------------------------------------------------------------------------------------


def test_a_name_that_was_not_synced_may_be_lost_with_its_synced_bytes() -> None:
    disk = SimDisk()
    file = disk.open("a", "create")
    file.append([b"abc"])
    file.sync()
    assert worlds(disk) == [(), (("a", b"abc"),)]


def test_a_synced_name_may_lead_to_no_bytes() -> None:
    disk = SimDisk()
    disk.open("a", "create").append([b"x"])
    disk.sync_dir("")
    assert contents(disk, "a") == sorted([b"", b"x", b"\0"])


def test_a_folder_takes_its_synced_names_along_when_its_own_name_is_lost() -> None:
    disk = SimDisk()
    disk.make_dir("d")
    durable_file(disk, "d/a", b"abc")
    assert worlds(disk) == [(), (("d/", b""), ("d/a", b"abc"))]
    disk.sync_dir("")
    assert worlds(disk) == [(("d/", b""), ("d/a", b"abc"))]


def test_changes_of_different_names_know_no_order() -> None:
    # given two names that were made one after another
    disk = SimDisk()
    disk.open("a", "create")
    disk.open("b", "create")
    # then the second may survive without the first
    names = [tuple(path for path, _ in world) for world in worlds(disk)]
    assert names == [(), ("a",), ("a", "b"), ("b",)]


def test_a_rename_happens_whole_or_not_at_all() -> None:
    disk = SimDisk()
    durable_file(disk, "tmp", b"new")
    durable_file(disk, "a", b"old")
    disk.rename("tmp", "a")
    assert worlds(disk) == [(("a", b"new"),), (("a", b"old"), ("tmp", b"new"))]


def test_a_link_and_an_unlink_without_a_sync_between_may_lose_the_file() -> None:
    # given a file that is moved to another name the careless way
    disk = SimDisk()
    durable_file(disk, "a", b"abc")
    disk.link("a", "b")
    disk.unlink("a")
    # then one world has it under neither name
    assert () in worlds(disk)


def test_a_link_that_was_synced_before_the_unlink_can_not_lose_the_file() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"abc")
    disk.link("a", "b")
    disk.sync_dir("")
    disk.unlink("a")
    assert worlds(disk) == [(("a", b"abc"), ("b", b"abc")), (("b", b"abc"),)]


def test_a_new_file_can_not_wipe_out_one_whose_rename_was_lost() -> None:
    # given a name that is given to another file after its own was renamed away
    disk = SimDisk()
    durable_file(disk, "a", b"old")
    disk.rename("a", "b")
    disk.open("a", "create")
    # then no world lacks the old bytes: changes of one name keep their order
    assert worlds(disk) == [
        (("a", b""), ("b", b"old")),
        (("a", b"old"),),
        (("b", b"old"),),
    ]


def test_an_unlink_that_was_not_synced_may_come_back() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"abc")
    disk.unlink("a")
    assert worlds(disk) == [(), (("a", b"abc"),)]
    disk.sync_dir("")
    assert worlds(disk) == [()]


def test_changes_in_several_folders_are_lost_independently() -> None:
    disk = SimDisk()
    for folder in ("d", "e"):
        disk.make_dir(folder)
    disk.sync_dir("")
    disk.open("d/a", "create")
    disk.open("e/b", "create")
    names = [tuple(path for path, _ in world if path[-1] != "/") for world in worlds(disk)]
    assert sorted(names) == [(), ("d/a",), ("d/a", "e/b"), ("e/b",)]


def test_many_changes_are_sampled_with_every_prefix_and_every_single_loss() -> None:
    # given more unsynced changes than are enumerated: 2 to the power of 10 worlds
    disk = SimDisk()
    for n in range(10):
        disk.open(str(n), "create")
    found = {"".join(path for path, _ in world) for world in worlds(disk)}
    # then the telling ones are there
    everything = "0123456789"
    assert {everything[:n] for n in range(11)} <= found
    assert {everything.replace(n, "") for n in everything} <= found
    assert len(found) < 60


def test_hard_links_are_still_one_file_after_a_crash() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"abc")
    disk.link("a", "b")
    disk.sync_dir("")
    (image,) = disk.crash_images(Random(1))
    found = image.disk.stat("a"), image.disk.stat("b")
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].links == 2
    # and only the names that survived count
    disk.unlink("b")
    for image in disk.crash_images(Random(1)):
        after = image.disk.stat("a")
        assert after is not None
        assert after.links == len(image.disk.tree())


def test_a_symlink_survives_whole() -> None:
    disk = SimDisk()
    disk.symlink("target", "s")
    disk.sync_dir("")
    (image,) = disk.crash_images(Random(1))
    assert image.disk.read_link("s") == "target"


# -- drawn crashes and kills ----------------------------------------------------------------------


def test_drawn_crashes_are_among_the_possible_ones_and_cover_them() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"ab").append([b"WXYZ"])
    disk.open("b", "create")
    dice = Random(7)
    drawn = {tree(disk.crashed(dice)) for _ in range(300)}
    possible = {
        tuple(world + extra)
        for world in [[("a", content)] for content in contents(disk, "a")]
        for extra in ([], [("b", b"")])
    }
    assert drawn == possible


def test_a_crash_of_one_seed_is_one_world() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"").append([b"one", b"two", b"three"])
    assert tree(disk.crashed(Random(3))) == tree(disk.crashed(Random(3)))


def test_a_killed_process_loses_nothing_and_saves_nothing() -> None:
    # given unsynced bytes and a lock
    disk = SimDisk()
    durable_file(disk, "a", b"ab").append([b"c"])
    old = disk.lock("LOCK")
    disk.stop_at_call = disk.calls + 1
    with pytest.raises(WorldStopped):
        disk.open("b", "create")
    # when only the process dies
    disk = disk.killed()
    # then the bytes are there, the lock is free, and calls go through
    assert get(disk, "a") == b"abc"
    disk.lock("LOCK")
    old.release()  # by a ghost
    with pytest.raises(Locked):
        disk.lock("LOCK")
    disk.open("b", "create")
    # but a power cut may still take the bytes
    assert get(worst(disk), "a") == b"ab"


def test_a_world_after_a_crash_has_no_locks_faults_or_stops() -> None:
    disk = SimDisk()
    disk.lock("LOCK")
    disk.sync_dir("")
    disk.fail_next("create", "a")
    disk.stop_at_call = 1
    after = disk.crashed(Random(1))
    after.lock("LOCK")
    after.open("a", "create")


# -- faults ---------------------------------------------------------------------------------------


def test_after_a_failed_sync_the_bytes_before_it_are_never_durable() -> None:
    # given a sync that fails
    disk = SimDisk()
    file = durable_file(disk, "a", b"ab")
    file.append([b"cd"])
    disk.fail_next("datasync", "a")
    with pytest.raises(DiskFailed):
        file.datasync()
    # when the next one succeeds
    file.append([b"ef"])
    file.datasync()
    # then everybody sees the bytes, and yet a crash takes those of the failed one
    assert get(disk, "a") == b"abcdef"
    assert contents(disk, "a") == [b"ab\0\0ef"]


def test_after_a_failed_folder_sync_its_changes_are_never_durable() -> None:
    disk = SimDisk()
    disk.open("a", "create")
    disk.fail_next("sync_dir", "")
    with pytest.raises(DiskFailed):
        disk.sync_dir("")
    disk.open("b", "create")
    disk.sync_dir("")
    assert disk.tree() == ["a", "b"]
    assert worlds(disk) == [(("b", b""),)]


def test_a_fault_hits_one_call_on_one_path() -> None:
    disk = SimDisk()
    disk.fail_next("write", "seg")
    other = disk.open("wal", "create")
    other.append([b"x"])
    file = disk.open("segment", "create")
    with pytest.raises(DiskFailed, match="write of segment"):
        file.append([b"x"])
    assert file.size() == 0
    file.append([b"x"])
    assert file.size() == 1


def test_every_kind_of_call_can_fail_without_an_effect() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"abc")
    disk.make_dir("d")
    file = disk.open("a", "write")
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: disk.open("b", "create"),
        "link": lambda: disk.link("a", "b"),
        "mkdir": lambda: disk.make_dir("b"),
        "rename": lambda: disk.rename("a", "b"),
        "rmdir": lambda: disk.remove_dir("d"),
        "symlink": lambda: disk.symlink("a", "b"),
        "unlink": lambda: disk.unlink("a"),
        "truncate": lambda: file.truncate(1),
        "write": lambda: file.append([b"d"]),
    }
    before = tree(disk)
    for call, use in calls.items():
        disk.fail_next(call, "")
        with pytest.raises(DiskFailed, match=call):
            use()
    assert tree(disk) == before


def test_a_read_can_fail_and_the_next_one_succeed() -> None:
    disk = SimDisk()
    file = durable_file(disk, "a", b"abc")
    disk.fail_next("read", "a")
    with pytest.raises(DiskFailed):
        file.read_at(0, 3)
    assert file.read_at(0, 3) == b"abc"
    disk.fail_next("read", "a")
    with pytest.raises(DiskFailed):
        file.map()
    assert bytes(file.map()) == b"abc"


def test_a_fault_that_could_never_happen_is_a_mistake_of_the_test() -> None:
    with pytest.raises(AssertionError, match="fsync is a call that can fail"):
        SimDisk().fail_next("fsync", "a")


def test_a_full_disk_takes_what_fits_and_refuses_the_rest() -> None:
    # given ten bytes of space
    disk = SimDisk(capacity_bytes=10)
    file = disk.open("a", "create")
    file.append([b"12345678"])
    assert disk.free_bytes() == 2
    # when a write needs one more than there are
    with pytest.raises(DiskFull):
        file.append([b"ab", b"c"])
    # then its beginning is there, as after a short write of the kernel
    assert get(disk, "a") == b"12345678ab"
    assert disk.free_bytes() == 0
    # and an append starts where the failed one did
    file.append([b"XY"])
    assert get(disk, "a") == b"12345678XY"


def test_a_disk_is_full_at_its_capacity_and_not_before() -> None:
    disk = SimDisk(capacity_bytes=4)
    disk.open("a", "create").append([b"1234"])
    assert disk.free_bytes() == 0
    with pytest.raises(DiskFull):
        disk.open("b", "create").append([b"5"])


def test_space_comes_back_with_the_last_name() -> None:
    disk = SimDisk(capacity_bytes=10)
    file = durable_file(disk, "a", b"12345678")
    disk.link("a", "b")
    disk.unlink("a")
    assert disk.free_bytes() == 2
    disk.unlink("b")
    assert disk.free_bytes() == 10
    # and what is still written through an open handle takes none
    file.append([b"9"])
    assert disk.free_bytes() == 10


def test_space_comes_back_with_a_truncate_and_a_rename_over() -> None:
    disk = SimDisk(capacity_bytes=10)
    file = durable_file(disk, "a", b"1234")
    durable_file(disk, "b", b"56")
    file.truncate(1)
    assert disk.free_bytes() == 7
    disk.rename("b", "a")
    assert disk.free_bytes() == 8


def test_free_space_after_a_crash_is_what_the_survivors_leave() -> None:
    disk = SimDisk(capacity_bytes=10)
    durable_file(disk, "a", b"12").append([b"34"])
    free = {get(image.disk, "a"): image.disk.free_bytes() for image in disk.crash_images(Random(1))}
    assert free == {content: 10 - len(content) for content in contents(disk, "a")}


def test_a_fault_of_space_tears_a_write() -> None:
    disk = SimDisk()
    file = disk.open("a", "create")
    disk.fail_next("space", "a")
    with pytest.raises(DiskFull):
        file.append([b"12", b"34"])
    assert get(disk, "a") == b"12"


def test_a_flipped_bit_is_flipped_for_good() -> None:
    disk = SimDisk()
    durable_file(disk, "a", b"\x00\x00")
    disk.flip_bit("a", 9)
    assert get(disk, "a") == b"\x00\x02"
    assert contents(disk, "a") == [b"\x00\x02"]


def test_the_world_stops_before_the_call_that_was_asked_for() -> None:
    # given a world that stops at its third change
    disk = SimDisk()
    disk.stop_at_call = 3
    file = disk.open("a", "create")
    file.append([b"a"])
    # when it comes, then it has no effect, and neither has anything after it
    with pytest.raises(WorldStopped, match="call 3: write a"):
        file.append([b"b"])
    with pytest.raises(WorldStopped):
        disk.unlink("a")
    assert get(disk, "a") == b"a"
    # and a crash can't be mistaken for an error
    assert not issubclass(WorldStopped, Exception)


def test_calls_that_change_something_are_told_and_counted_and_reads_are_not() -> None:
    calls: list[str] = []
    disk = SimDisk(note=calls.append)
    disk.make_dir("d")
    file = durable_file(disk, "d/a", b"abc")
    file.read_at(0, 3)
    file.map()
    disk.stat("d/a")
    disk.list("d")
    disk.rename("d/a", "d/b")
    assert calls == [
        "disk mkdir d",
        "disk create d/a",
        "disk write d/a",
        "disk datasync d/a",
        "disk sync_dir d",
        "disk rename d/b",
    ]
    assert disk.calls == len(calls)


def test_a_change_is_stamped_with_the_wall_clock() -> None:
    now_ms = 100
    disk = SimDisk(wall_ms=lambda: now_ms)
    file = disk.open("a", "create")
    now_ms = 200
    file.append([b"a"])
    found = disk.stat("a")
    assert found is not None
    assert found.changed_ms == 200
    now_ms = 300
    disk.link("a", "b")
    found = disk.stat("a")
    assert found is not None
    assert found.changed_ms == 300


def test_equal_trees_have_equal_fingerprints() -> None:
    def made(content: bytes) -> SimDisk:
        disk = SimDisk()
        durable_file(disk, "a", content)
        return disk

    assert made(b"x").fingerprint() == made(b"x").fingerprint()
    assert made(b"x").fingerprint() != made(b"y").fingerprint()


# -- what is bad for long -----------------------------------------------------------------------


def ailing_disk() -> SimDisk:
    """Two folders with a file each, all of it durable."""
    disk = SimDisk()
    for folder in ("a", "ab"):
        disk.make_dir(folder)
        durable_file(disk, f"{folder}/file", b"data")
    disk.sync_dir("")
    return disk


def test_an_unwritable_folder_is_read_and_refuses_every_change_until_it_is_healed() -> None:
    disk = ailing_disk()
    disk.go_bad("unwritable", "a")
    changes: list[Callable[[], object]] = [
        lambda: disk.open("a/new", "create"),
        lambda: disk.open("a/file", "write"),
        lambda: disk.unlink("a/file"),
        lambda: disk.rename("a/file", "a/other"),
        lambda: disk.make_dir("a/folder"),
    ]
    for change in changes * 7:
        with pytest.raises(DiskFailed, match="Read-only file system"):
            change()
    # given that: it can be read, and a folder whose name only begins alike is well
    assert get(disk, "a/file") == b"data"
    disk.open("ab/new", "create")
    disk.heal()
    disk.open("a/new", "create")


def test_an_unreadable_file_can_not_be_opened_nor_read_until_it_is_healed() -> None:
    disk = ailing_disk()
    open_before = disk.open("a/file", "read")
    disk.go_bad("unreadable", "a/file")
    reads: list[Callable[[], bytes]] = [
        lambda: get(disk, "a/file"),
        lambda: open_before.read_at(0, 1),
    ]
    for read in reads:
        with pytest.raises(DiskFailed, match="Input/output error"):
            read()
    assert get(disk, "ab/file") == b"data"
    disk.heal()
    assert open_before.read_at(0, 4) == b"data"


def test_a_sync_of_a_broken_folder_loses_what_was_not_durable() -> None:
    disk = ailing_disk()
    disk.open("a/new", "create")
    disk.go_bad("broken", "a")
    with pytest.raises(DiskFailed):
        disk.sync_dir("a")
    # then a later sync proves nothing
    disk.heal()
    disk.sync_dir("a")
    assert disk.crashed(Random(1)).list("a") == ["file"]


def test_without_handles_nothing_is_opened_and_what_is_open_goes_on() -> None:
    disk = ailing_disk()
    file = disk.open("a/file", "write")
    disk.open("a/new", "create")
    disk.go_bad("no handles")
    calls: list[Callable[[], object]] = [
        lambda: get(disk, "a/file"),
        lambda: disk.sync_dir("a"),
        lambda: disk.list("a"),
    ]
    for call in calls:
        with pytest.raises(NoHandles, match="Too many open files"):
            call()
    file.append([b" more"])
    file.datasync()
    # and a sync that was never begun has spoilt nothing
    disk.heal()
    disk.sync_dir("a")
    assert disk.crashed(Random(1)).list("a") == ["file", "new"]
