"""What `lowmark.open` takes for a directory, what it refuses, and that it says what to call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lowmark
from lowmark.errors import Rejected

COLUMNS = {"id": "int64"}


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("127.0.0.1:7570", "./127.0.0.1:7570"),
        ("node1:6570,node2:6570", "--node node1:6570"),
        ("localhost:6570", "--node localhost:6570"),
        ("[::1]:6570", "--node"),
        ("db.example.org:6570", 'lowmark.connect("db.example.org:6570")'),
        ("lowmark://127.0.0.1:7570", "--node 127.0.0.1:7570"),
        ("http://127.0.0.1:7570/", 'lowmark.connect("127.0.0.1:7570")'),
        ("s3://bucket/orders", 'location = "s3://bucket/orders"'),
        ("gs://bucket/orders", "location"),
        ("hdfs://name/orders", "location"),
        ("file:///srv/orders", "its path: /srv/orders"),
        ("file:orders", "its path: orders"),
    ],
)
def test_an_address_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, instead: str
) -> None:
    # given an empty folder
    monkeypatch.chdir(tmp_path)
    # when an address is opened as if it were a directory
    with pytest.raises(Rejected) as refused:
        lowmark.open(given)
    # then it is refused, the hint says what to call instead, and nothing was made
    assert given in refused.value.message
    assert instead in refused.value.hint
    assert os.listdir(tmp_path) == []


def test_an_address_that_went_through_pathlib_is_refused_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Rejected, match="s3:/bucket"):
        lowmark.open(Path("s3://bucket/orders"))
    assert os.listdir(tmp_path) == []


def test_a_directory_may_look_like_an_address_if_it_is_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lowmark.open("./127.0.0.1:7570") as db:
        db.create_table("t", COLUMNS)
    assert os.listdir(tmp_path) == ["127.0.0.1:7570"]


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a home, and another current directory
    home, current = tmp_path / "home", tmp_path / "current"
    home.mkdir()
    current.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(current)
    # when a path with a tilde is opened
    with lowmark.open("~/shop") as db:
        assert db.path == str(home / "shop")
    # then it is in that home, and there is no folder called ~
    assert os.listdir(home) == ["shop"]
    assert os.listdir(current) == []
    with pytest.raises(Rejected, match="no user"):
        lowmark.open("~nobody-of-this-name/shop")
    assert os.listdir(current) == []


def test_a_folder_with_files_of_others_is_left_alone(tmp_path: Path) -> None:
    # given a folder of a project
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "wal").mkdir()  # other programs have one, too
    # when it is opened as a database
    with pytest.raises(lowmark.errors.NotADatabase) as refused:
        lowmark.open(tmp_path)
    # then it says what it found there, and has added nothing
    assert "notes.txt" in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "wal"]


@pytest.mark.parametrize(
    "left",
    [
        (),
        ("LOCK",),
        ("LOCK", "wal/"),
        ("LOCK", "wal/", "groups/", "node~"),
        ("lost+found/",),
        ("lowmark.toml",),
        (".DS_Store",),
    ],
)
def test_what_an_interrupted_open_or_the_system_leaves_is_no_hindrance(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    # given a folder with no more in it than a first open, a new file system or a user's settings
    for name in left:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).touch()
    # when it is opened, then it is a database, and is one when it is opened again
    with lowmark.open(tmp_path) as db:
        db.create_table("t", COLUMNS)
    with lowmark.open(tmp_path, create=False) as db:
        assert db.tables() == ["t"]


def test_a_database_with_something_of_a_user_in_it_still_opens(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "shop"):
        pass
    (tmp_path / "shop" / "README").write_text("the shop's orders")
    with lowmark.open(tmp_path / "shop"):
        pass


def test_ledgers_without_their_log_are_not_taken_for_a_new_database(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    with pytest.raises(lowmark.errors.NotADatabase, match="ledgers"):
        lowmark.open(tmp_path)


def test_open_makes_nothing_if_it_must_not(tmp_path: Path) -> None:
    # given no directory, an empty one, and what first opens left that were killed
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    begun, further = tmp_path / "begun", tmp_path / "further"
    for made in (begun / "wal", further / "wal", further / "groups"):
        made.mkdir(parents=True)
        (made.parent / "LOCK").touch()
    (further / "node~").touch()
    # when they are opened to be used, not made
    for path in (missing, empty, begun, further):
        with pytest.raises(lowmark.errors.NotADatabase) as refused:
            lowmark.open(path, create=False)
        assert str(path) in refused.value.message
        assert "create=False" in refused.value.hint
    # then they are as they were
    assert not missing.exists()
    assert os.listdir(empty) == []
    assert sorted(os.listdir(begun)) == ["LOCK", "wal"]
    assert sorted(os.listdir(further)) == ["LOCK", "groups", "node~", "wal"]


def test_a_database_that_lost_its_node_file_is_not_taken_for_none(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "shop"):
        pass
    (tmp_path / "shop" / "node").unlink()
    for create in (False, True):
        with pytest.raises(lowmark.errors.NodeFileMissing):
            lowmark.open(tmp_path / "shop", create=create)


def test_a_file_is_no_directory_and_nothing_is_made_below_one(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id\n1\n")
    with pytest.raises(lowmark.errors.NotADatabase, match=r"orders\.csv is a file"):
        lowmark.open(tmp_path / "orders.csv")
    with pytest.raises(lowmark.errors.NotADatabase, match=r"can't be made.*orders\.csv"):
        lowmark.open(tmp_path / "orders.csv" / "data")
    with pytest.raises(lowmark.errors.NotADatabase, match="can't be made"):
        lowmark.open("/proc/lowmark/data")


@pytest.mark.parametrize("given", [b"data", 7, None])
def test_what_is_no_path_is_refused(given: object) -> None:
    with pytest.raises(Rejected, match="path"):
        lowmark.open(given)  # type: ignore[arg-type]
