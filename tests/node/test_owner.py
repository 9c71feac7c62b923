"""Where the owner of a directory can be reached by others of its machine."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from lowmark.errors import Rejected
from lowmark.node.owner import SCHEME, Owner, new_address, remove_address


def path_of(address: str) -> Path:
    return Path(address.removeprefix(SCHEME))


def test_an_owner_is_read_back_from_its_note_and_half_a_note_is_none() -> None:
    owner = Owner.here("unix:/data/endpoint/1.sock", {"log.wal_bytes_max": "4096"})
    note = owner.note()
    assert Owner.noted(note) == owner
    assert owner.pid == os.getpid()
    assert all(Owner.noted(note[:end]) is None for end in range(len(note)))
    assert Owner.noted(b"\xff\xfe") is None


def test_no_address_is_given_twice_and_those_of_dead_owners_are_removed(tmp_path: Path) -> None:
    # given a socket that a dead owner left
    first = path_of(new_address(str(tmp_path)))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(first))
    assert first.is_socket()
    # when the next owner takes an address
    second = path_of(new_address(str(tmp_path)))
    # then it is another one, and the old name is gone
    assert second != first
    assert list(second.parent.iterdir()) == []
    # and removing it twice is harmless
    remove_address(SCHEME + str(second))


def test_no_other_user_can_enter_the_folder_of_a_socket(tmp_path: Path) -> None:
    # given a folder that all may enter, whatever the umask is
    (tmp_path / "endpoint").mkdir()
    (tmp_path / "endpoint").chmod(0o755)
    # when the owner takes an address
    folder = path_of(new_address(str(tmp_path))).parent
    # then only its user may
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_path_that_is_too_long_for_a_socket_goes_to_a_private_folder_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # given two directories with long paths, and the user's own folder for such things
    own = Path(tempfile.mkdtemp(dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(own))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    data = [tmp_path / name / ("x" * 120) for name in ("a", "b")]
    for one in data:
        one.mkdir(parents=True)
    # when both have a socket there
    paths = [path_of(new_address(str(one))) for one in data]
    for path in paths:
        assert len(os.fsencode(path)) <= 107
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    # then the next owner of one removes that one's name alone
    new_address(str(data[0]))
    assert [path.exists() for path in paths] == [False, True]
    assert stat.S_IMODE(paths[0].parent.stat().st_mode) == 0o700


def test_a_folder_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    # given a symlink to a folder where the folder of sockets should be
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "endpoint").symlink_to("elsewhere")
    # then no socket is made behind it
    with pytest.raises(Rejected, match="endpoint is not a folder"):
        new_address(str(tmp_path))
