"""A disk over a folder that must not change."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lowmark.runtime import FileMissing, RealDisk
from lowmark.runtime.overlay_disk import OverlayDisk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with files, a link, and a folder in it."""
    (tmp_path / "d").mkdir()
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "d" / "b").write_bytes(b"bbb")
    (tmp_path / "d" / "s").symlink_to("b")
    return tmp_path


def listing(root: Path) -> dict[str, tuple[int, int, str]]:
    """Every name with its time, its mode, and what is in it."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (stat.st_mtime_ns, stat.st_mode, hashlib.sha256(content).hexdigest())
    return found


def test_everything_can_be_changed_and_the_folder_stays_as_it_was(root: Path) -> None:
    before = listing(root)
    disk = OverlayDisk(RealDisk(str(root), create=False))
    # when files of it are changed, renamed and removed, and others made
    file = disk.open("a", "write")
    file.append([b"d"])
    file.write_at(0, [b"X"])
    other = disk.open("a", "read")
    assert other.read_at(0, 10) == b"Xbcd"
    disk.rename("d", "e")
    disk.link("e/b", "e/c")
    disk.unlink("e/b")
    disk.unlink("a")
    disk.make_dir("n")
    disk.open("n/new", "create").append([b"new"])
    # then that is what it has
    assert disk.list("") == ["e", "n"]
    assert disk.list("e") == ["c", "s"]
    assert disk.open("e/c", "read").read_at(0, 10) == b"bbb"
    assert disk.stat("d/b") is None
    # and the folder is as it was
    assert listing(root) == before


def test_links_of_the_folder_lead_to_its_files(root: Path) -> None:
    disk = OverlayDisk(RealDisk(str(root), create=False))
    assert disk.open("d/s", "read").read_at(0, 10) == b"bbb"
    # also to a folder on another disk
    (root / "far").mkdir()
    (root / "far" / "x").write_bytes(b"x")
    inside = root / "d" / "inside"
    inside.mkdir()
    (inside / "out").symlink_to(root / "far")
    disk = OverlayDisk(RealDisk(str(root / "d"), create=False))
    assert disk.list("inside/out") == ["x"]
    assert disk.open("inside/out/x", "read").read_at(0, 10) == b"x"


def test_names_stay_as_they_were_when_a_folder_was_first_listed(root: Path) -> None:
    disk = OverlayDisk(RealDisk(str(root), create=False))
    there, gone = disk.open("d/b", "read"), disk.list("d")
    # when another process makes a file and removes one
    (root / "d" / "later").write_bytes(b"")
    (root / "d" / "b").unlink()
    # then the new one is not seen, the open one is read to its end, and it can't be opened again
    assert disk.list("d") == gone
    assert there.read_at(0, 10) == b"bbb"
    with pytest.raises(FileMissing):
        disk.open("d/b", "read")
