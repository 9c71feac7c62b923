"""A data directory whose note or metastore is lost or damaged: told at once, by name, everywhere.

What can't be opened is never replaced: what is intact stays, and can be put together again.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c
from typer.testing import CliRunner, Result

import lowmark
from eventually import eventually
from lowmark.cli.app import app
from lowmark.client import Database
from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.log.errors import NewerFormat
from lowmark.metastore import MetastoreDamaged, MetastoreUnreadable
from lowmark.metastore.identity import MetastoreMissing, NodeFileDamaged, NodeFileMissing
from lowmark.node import Node, NodeOptions, NotADatabase

SOON_S = 15.0
"""A node waits a minute for what may still come; here nothing can."""
METASTORE = Path("groups") / "metastore"
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed directory with a table; its metastore has a segment, a snapshot and WAL records."""
    path = tmp_path_factory.mktemp("sound") / "data"
    with lowmark.open(path) as db:
        db.create_table("t", {"id": "int64"}, key="id").append([{"id": 1}, {"id": 2}])
    with lowmark.open(path) as db:
        db.create_table("u", {"id": "int64"}, key="id")
        # what was in the WAL of the first life is in segments, and its file is gone
        eventually(
            lambda: (
                len(list((path / "wal").iterdir())) == 1
                and len(list((path / METASTORE).glob("*.segment"))) == 1
            )
        )
    return path


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data", symlinks=True))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What commands set for their process is put back."""
    root, ours, interval = (
        logging.getLogger(),
        logging.getLogger("lowmark"),
        sys.getswitchinterval(),
    )
    handlers, level = root.handlers[:], ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)
    sys.setswitchinterval(interval)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def flip_entry(data: Path, word: bytes) -> None:
    """Damage that a start finds only when it reads that entry."""
    segment = only((data / METASTORE).glob("*.segment"))
    flip(segment, segment.read_bytes().index(word))


def newer(path: Path) -> None:
    """A note as a later release may write it."""
    note = msgspec.json.decode(path.read_bytes().partition(b"\n")[0])
    body = msgspec.json.encode(note | {"version": 2})
    path.write_bytes(body + b"\n%08x\n" % crc32c(body))


def only(paths: Iterator[Path]) -> Path:
    [path] = paths
    return path


NODE_FILE: dict[str, tuple[Damage, type[LowmarkError]]] = {
    "node missing": (lambda data: (data / "node").unlink(), NodeFileMissing),
    "node cut short": (lambda data: os.truncate(data / "node", 20), NodeFileDamaged),
    "node empty": (lambda data: os.truncate(data / "node", 0), NodeFileDamaged),
    "node with a wrong bit": (lambda data: flip(data / "node", 20), NodeFileDamaged),
    "node of a newer release": (lambda data: newer(data / "node"), NewerFormat),
}
COPY: dict[str, tuple[Damage, type[LowmarkError]]] = {
    "no folder": (lambda data: shutil.rmtree(data / METASTORE), MetastoreMissing),
    "no groups": (lambda data: shutil.rmtree(data / "groups"), MetastoreMissing),
    "no identity": (lambda data: (data / METASTORE / "group").unlink(), MetastoreDamaged),
    "identity": (lambda data: flip(data / METASTORE / "group", 20), MetastoreDamaged),
    "identity of a newer release": (
        lambda data: newer(data / METASTORE / "group"),
        MetastoreDamaged,
    ),
    "segment": (
        lambda data: flip(only((data / METASTORE).glob("*.segment")), 20),
        MetastoreDamaged,
    ),
    "entry with the settings": (
        lambda data: flip_entry(data, b"availability_ms"),
        MetastoreDamaged,
    ),
    "entry with the catalog": (lambda data: flip_entry(data, b"catalog.update."), MetastoreDamaged),
    "no segment": (
        lambda data: only((data / METASTORE).glob("*.segment")).unlink(),
        MetastoreDamaged,
    ),
    "snapshot": (
        lambda data: flip(only((data / METASTORE).rglob("state")), 150),
        MetastoreDamaged,
    ),
    "WAL": (lambda data: flip(only((data / "wal").glob("*.wal")), 600), MetastoreDamaged),
    "no WAL": (lambda data: shutil.rmtree(data / "wal"), MetastoreDamaged),
}
ALL = NODE_FILE | COPY
CASES = pytest.mark.parametrize("case", ALL)


def refused(call: Callable[[], object]) -> LowmarkError:
    began = time.monotonic()
    with pytest.raises(LowmarkError) as told:
        call()
    assert time.monotonic() - began < SOON_S
    return told.value


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def files_of(data: Path) -> dict[str, bytes]:
    found = {path for path in data.rglob("*") if path.is_file() and path.name != "LOCK"}
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(found)}


def test_a_metastore_that_can_not_be_read_just_now_is_not_called_damaged(data: Path) -> None:
    # given a file of the metastore that is there, but which the system does not open (ELOOP)
    hidden = data / METASTORE / "group"
    hidden.rename(data / "hidden")
    hidden.symlink_to(hidden.name)
    # then it is told at once that nothing shows damage, and what to see to
    error = refused(lambda: lowmark.open(data))
    assert type(error) is MetastoreUnreadable
    assert isinstance(error, Unavailable)
    assert str(data) in error.message
    assert str(METASTORE / "group") in error.message
    assert "copy" not in error.hint
    # and when it can be read again, all is there
    hidden.unlink()
    (data / "hidden").rename(hidden)
    with lowmark.open(data) as db:
        assert db.table("t").read().to_arrow().num_rows == 2


@CASES
def test_it_is_told_at_once_what_is_lost_and_what_to_do(data: Path, case: str) -> None:
    damage, kind = ALL[case]
    damage(data)
    for _ in range(2):  # also when it was tried before
        error = refused(lambda: lowmark.open(data))
        # then its kind, its file and a way on are named
        assert type(error) is kind
        assert isinstance(error, Corrupt)
        assert str(data) in error.message
        assert ("node" if case in NODE_FILE else "metastore") in error.message
        if "newer" in case:
            assert "this release reads up to 1" in error.message
            assert error.hint == "Use the release that wrote it, or a later one."
        else:
            assert "copy" in error.hint
            assert "no table can" in error.detail or "none can be opened" in error.detail
        if "newer" not in case and case != "no groups":
            assert f"lowmark log dump {data}" in error.hint


@CASES
def test_a_node_that_is_served_ends_with_the_same_words(data: Path, case: str) -> None:
    damage, kind = ALL[case]
    damage(data)
    error = refused(lambda: Node(NodeOptions(data=str(data), listen="127.0.0.1:0")).run())
    assert type(error) is kind


@pytest.mark.parametrize("case", ["node missing", "no folder", "entry with the catalog"])
def test_serve_exits_and_says_why(data: Path, case: str) -> None:
    ALL[case][0](data)
    done = run("serve", "--data", data, "--listen", "127.0.0.1:0")
    assert done.exit_code == 1
    assert not done.stdout
    assert str(data) in done.stderr
    assert "hint: Put" in done.stderr
    # and a command that makes a new database in an empty directory makes none here
    made = run("table", "create", "v", "--columns", "id int64", "--data", data)
    assert made.exit_code == 1
    assert "hint: Put" in made.stderr


@CASES
def test_commands_and_verify_say_it_and_change_nothing(data: Path, case: str) -> None:
    damage, _ = ALL[case]
    damage(data)
    before = files_of(data)
    # when it is looked at without being opened
    verified = run("log", "verify", data)
    shown = run("catalog", "log", "--data", data)
    # then both fail and name it
    assert verified.exit_code == shown.exit_code == 1
    if case in NODE_FILE:
        assert "node " in verified.output
        assert "not a file of ours" not in verified.output
    else:
        assert "no table can" in verified.output
    assert str(data) in shown.output
    # and no command sends its user to another node: there is none
    for done in (shown, run("meta", "range", "--data", data)):
        told = done.stderr.partition("error: ")[2]
        assert "ther node" not in told
        assert "hint: Put" in told or "hint: Use the release" in told
    assert files_of(data) == before


def test_verify_misses_the_record_that_was_in_a_wal_file_as_a_start_does(data: Path) -> None:
    # given a closed directory whose entries are all in segments
    with lowmark.open(data):
        eventually(lambda: len(list((data / "wal").iterdir())) == 1)
    assert run("log", "verify", data).exit_code == 0
    # when its WAL files are lost, which leaves no gap between entries
    for path in (data / "wal").iterdir():
        path.unlink()
    verified = run("log", "verify", data)
    # then both say so, with the same advice
    told = f"the record of {data / METASTORE} is in no WAL file"
    error = refused(lambda: lowmark.open(data))
    assert type(error) is MetastoreDamaged
    assert told in error.message
    assert verified.exit_code == 1
    assert "is in no WAL file" in verified.output
    assert "Put the whole directory back" in verified.output


@pytest.mark.parametrize("case", ["node missing", "node empty", "no folder", "no groups"])
def test_what_was_taken_away_can_be_put_back(sound: Path, data: Path, case: str) -> None:
    damage, _ = ALL[case]
    damage(data)
    refused(lambda: lowmark.open(data))
    # then nothing was made in its place, and nothing that belongs to it has gone
    if case == "node missing":
        assert not (data / "node").exists()
    if case in COPY:
        assert not (data / METASTORE).exists()
        (data / "groups").mkdir(exist_ok=True)
    # when it is put back
    for name in ("node", "groups"):
        if (sound / name).is_file():
            shutil.copy(sound / name, data / name)
        else:
            shutil.copytree(sound / name, data / name, symlinks=True, dirs_exist_ok=True)
    # then all is there again
    with lowmark.open(data) as db:
        assert db.tables() == ["t", "u"]
        assert db["t"].read().to_arrow().num_rows == 2


def test_a_sound_directory_has_nothing_to_be_told(data: Path) -> None:
    done = run("log", "verify", data)
    assert done.exit_code == 0, done.output
    with lowmark.open(data) as db:
        assert db["t"].read().to_arrow().num_rows == 2


def test_ledgers_without_a_note_are_not_taken_for_a_new_database(tmp_path: Path) -> None:
    # given a directory of which only compacted rows are left
    ledger = tmp_path / "ledgers" / "1" / "0" / "rows.parquet"
    ledger.parent.mkdir(parents=True)
    ledger.write_bytes(b"rows")
    # then no new database is made there, which would sweep them
    error = refused(lambda: lowmark.open(tmp_path))
    assert type(error) is NotADatabase
    assert "ledgers" in error.detail
    assert ledger.read_bytes() == b"rows"


def test_a_directory_shows_the_low_watermark_that_was_set(data: Path) -> None:
    with lowmark.open(data) as db:
        moved = db.advance_watermark("now").after
    done = run("status", "--data", data, "--json")
    assert done.exit_code == 0
    found = msgspec.json.decode(done.stdout)["watermark"]
    assert found["time_ms"] == moved >> 16
    assert found["goal_ms"] >= found["time_ms"]
    assert found["holders"] == []


# -- what lies where a folder should --------------------------------------------------------------


def table_folder(data: Path) -> Path:
    return next(path for path in sorted((data / "groups").iterdir()) if path.name != "metastore")


@pytest.mark.parametrize("which", ["a group's folder", "groups"])
def test_verify_looks_behind_a_symlink_as_a_start_does(
    data: Path, tmp_path: Path, which: str
) -> None:
    # given a folder that lies elsewhere, and a symlink in its place
    place = data / "groups" if which == "groups" else table_folder(data)
    shutil.move(place, tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    # then nothing is wrong with it
    assert run("log", "verify", data).exit_code == 0
    # and what is wrong behind it is found
    flip(table_folder(data) / "group", 20)
    verified = run("log", "verify", data)
    assert verified.exit_code == 1
    assert "1 damage" in verified.output


@pytest.mark.parametrize(
    ("put", "told"),
    [
        (lambda place: place.write_text("x"), "is a file, and no folder"),
        (lambda place: place.symlink_to("/nowhere"), "is a symlink that leads to no folder"),
        (lambda place: place.mkdir(), "is empty"),
        (lambda _: None, "is missing"),
    ],
)
def test_what_lies_in_the_place_of_a_folder_is_told(data: Path, put: Damage, told: str) -> None:
    place = table_folder(data)
    shutil.rmtree(place)
    put(place)
    verified = run("log", "verify", data, "--json")
    [found] = msgspec.json.decode(verified.stdout)["findings"]
    assert (found["kind"], found["group"]) == ("missing", place.name)
    assert told in found["what"]
    with lowmark.open(data) as db, pytest.raises(Corrupt, match=told):
        list(db.table("t" if place.name.startswith(table_id(db, "t")) else "u").read())


def table_id(db: Database, name: str) -> str:
    return f"table.{db.table(name).descriptor.id}."


def test_verify_says_one_thing_of_all_folders_that_are_away(data: Path) -> None:
    shutil.rmtree(data / "groups")
    findings = msgspec.json.decode(run("log", "verify", data, "--json").stdout)["findings"]
    assert {found["kind"] for found in findings} == {"missing"}
    assert len(findings) > 2
    for found in findings:
        assert found["hint"].startswith("Put the folder back, or mount its disk")
        assert "roster" not in found["hint"]
