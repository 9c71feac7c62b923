"""Stores: a file is there as a whole, and durable, or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from ledger.remote import remote_store
from lowmark.errors import Rejected
from lowmark.node import data_path, load_settings
from lowmark.runtime import DiskFailed, DiskFull, FileMissing
from lowmark.runtime.disk import StoreFailed
from lowmark.runtime.store import (
    Store,
    text_without_credentials,
    whole_location,
    without_credentials,
)


@pytest.fixture(params=["path", "url", "elsewhere"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "path":
            return Store(str(tmp_path))
        case "url":
            return Store(f"file://{tmp_path}")
        case _:
            return remote_store(str(tmp_path))[0]


class Killed(BaseException):
    """The process ends here."""


# -- files --------------------------------------------------------------------------------------


def test_files_are_written_listed_read_and_removed(store: Store) -> None:
    store.write("t/0/b", b"two")
    store.write("t/0/a", b"one")
    store.write("t/1/c", b"")
    assert [(one.path, one.bytes) for one in store.files("t")] == [
        ("t/0/a", 3),
        ("t/0/b", 3),
        ("t/1/c", 0),
    ]
    assert (store.read("t/0/a"), store.read("t/1/c")) == (b"one", b"")
    with store.open("t/0/b") as file:
        assert file.read_at(2, 1) == b"wo"
    found = store.stat("t/0/a")
    assert found is not None
    assert found.bytes == 3
    store.delete("t/0/a")
    store.delete("t/0/a")
    assert store.stat("t/0/a") is None
    store.delete_folder("t")
    store.delete_folder("t")
    assert store.files("t") == store.files("never/there") == []


def test_what_is_not_there_is_missing_by_name(store: Store) -> None:
    assert store.stat("t/x") is None
    for ask in (store.open, store.read):
        with pytest.raises(FileMissing, match="t/x"):
            ask("t/x")
    store.write("t/x", b"1")
    assert store.stat("t") is None  # a folder is no file


def test_others_open_a_file_by_its_url(store: Store, tmp_path: Path) -> None:
    store.write("t/x", b"1")
    assert Path(store.full_path("t/x")).read_bytes() == b"1"
    assert store.url("t/x") == str(tmp_path / "t" / "x")
    assert Store(store.location).full_path("t/x") == store.full_path("t/x")


def test_a_place_that_arrow_does_not_know_is_refused() -> None:
    with pytest.raises(Rejected, match="not a place that Arrow can reach"):
        Store("nowhere://bucket/prefix")


def test_files_of_this_machine_are_not_copied_to_be_read(tmp_path: Path) -> None:
    for location in (str(tmp_path), f"file://{tmp_path}"):
        store = Store(location)
        store.write("x", bytes(1 << 20))
        before = pa.total_allocated_bytes()
        with store.open("x") as file:
            data = file.read_buffer()
            assert (data.size, pa.total_allocated_bytes()) == (1 << 20, before)


# -- whole or not at all ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Killed(), ValueError("a bug"), OSError(errno.EIO, "bad")])
def test_a_file_whose_writer_stops_is_not_there(store: Store, error: BaseException) -> None:
    expected = DiskFailed if isinstance(error, OSError) else type(error)

    def stop() -> None:
        with store.create("t/x") as stream:
            stream.write(b"half of")
            raise error

    with pytest.raises(expected):
        stop()
    assert store.stat("t/x") is None
    assert store.files("") == []


def test_a_file_that_is_written_again_is_the_old_one_until_it_is_the_new_one(
    tmp_path: Path,
) -> None:
    store = Store(str(tmp_path))
    store.write("x", b"old")
    with store.create("x") as stream:
        stream.write(b"new, and longer")
        assert store.read("x") == b"old"
    assert store.read("x") == b"new, and longer"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_process_that_is_killed_leaves_no_file_of_that_name(tmp_path: Path, call: str) -> None:
    # given a process that dies when it has written a file, before it is synced or renamed
    script = f"""
import os
from lowmark.runtime.store import Store
store = Store({str(tmp_path)!r})
os.makedirs({str(tmp_path / "t")!r})
os.{call} = lambda *_: os._exit(9)
store.write("t/x", b"all of it")
"""
    ran = subprocess.run([sys.executable, "-c", script], check=False)
    assert ran.returncode == 9
    # then its name is not there, and what is left can be told from a file
    store = Store(str(tmp_path))
    assert store.stat("t/x") is None
    assert [one.path for one in store.files("t")] == ["t/x.tmp"]
    # and another process writes it
    store.write("t/x", b"all of it")
    assert [one.path for one in store.files("t")] == ["t/x"]


def test_content_and_name_are_synced_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a store that tells what it does
    done: list[str] = []
    real_replace, real_open = os.replace, os.open
    opened: dict[int, str] = {}

    def open_(path: str, flags: int, mode: int = 0o777) -> int:
        handle = real_open(path, flags, mode)
        opened[handle] = os.path.relpath(path, tmp_path)
        return handle

    def replace(source: str, target: str) -> None:
        done.append(f"rename {os.path.relpath(source, tmp_path)}")
        real_replace(source, target)

    monkeypatch.setattr("lowmark.runtime.store.os.open", open_)
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(f"sync {opened[handle]}"))
    monkeypatch.setattr(os, "replace", replace)
    # when a file is written into a new folder
    Store(str(tmp_path)).write("t/0/x", b"1")
    # then folders are durable first, then the content, then the name
    assert done == [
        "sync .",
        "sync t",
        "sync t/0/x.tmp",
        "rename t/0/x.tmp",
        "sync t/0",
    ]


# -- full, and failing --------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed)],
)
def test_a_disk_that_is_full_or_fails_is_told_and_nothing_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    expected: type[Exception],
) -> None:
    store = Store(str(tmp_path))
    store.write("t/before", b"1")

    def fails(*_: object) -> None:
        raise OSError(code, "as a test wanted it")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        with pytest.raises(expected, match="t/x"):
            store.write("t/x", b"1")
    assert [one.path for one in store.files("")] == ["t/before"]
    store.write("t/x", b"1")


def test_a_store_elsewhere_that_is_full_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    store, remote = remote_store(str(tmp_path))
    remote.space_bytes = 10
    with pytest.raises(DiskFull, match="t/x"):
        store.write("t/x", b"1234567812345678")
    assert store.files("") == []
    remote.space_bytes = None
    store.write("t/x", b"1234567812345678")


@pytest.mark.parametrize(
    "call", ["open_output_stream", "open_input_file", "get_file_info", "delete_file"]
)
def test_a_store_that_can_not_be_reached_is_told_by_name(tmp_path: Path, call: str) -> None:
    store, remote = remote_store(str(tmp_path))
    store.write("t/x", b"1")
    remote.broken = call
    calls: dict[str, Callable[[], object]] = {
        "open_output_stream": lambda: store.write("t/y", b"1"),
        "open_input_file": lambda: store.read("t/x"),
        "get_file_info": lambda: store.stat("t/x"),
        "delete_file": lambda: store.delete("t/x"),
    }
    with pytest.raises(StoreFailed, match="the line is dead") as failed:
        calls[call]()
    # and the hint is about the store, not about a disk
    assert "credentials" in failed.value.hint
    assert "disk" not in failed.value.hint


# -- credentials --------------------------------------------------------------------------------


SECRETS = ("KEYID", "SE/CRET", "SE%2FCRET", "PASSWORD", "SIGNED")


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3://KEYID:SE%2FCRET@b/p?region=eu", "s3://b/p?region=eu"),
        ("s3://KEYID:SE/CRET@b/p", "s3://b/p"),
        ("s3://KEYID@b/p", "s3://b/p"),
        ("s3://b/p?secret_key=PASSWORD&scheme=http", "s3://b/p?scheme=http"),
        ("s3://b/p?region=eu&session_token=PASSWORD", "s3://b/p?region=eu"),
        ("abfss://:PASSWORD@account/p", "abfss://account/p"),
        ("abfss://c@account/p?client_secret=PASSWORD", "abfss://c@account/p"),
        ("https://account/p?sv=1&sig=SIGNED", "https://account/p?sv=1"),
        ("hdfs://me:PASSWORD@host:9000/p", "hdfs://host:9000/p"),
        ("gs://PASSWORD@b/p", "gs://b/p"),
        ("s3://b/p?region=eu;secret_key=PASSWORD", "s3://b/p?region=eu"),
        ("s3://b/p?secret_key=PASSWORD;region=eu", "s3://b/p?region=eu"),
        ("s3://b/p#secret_key=PASSWORD", "s3://b/p"),
    ],
)
def test_credentials_of_a_location_are_found_and_refused(location: str, shown: str) -> None:
    assert without_credentials(location) == shown
    for text in (f"{location} failed", f'location = "{location}".'):
        hidden = text_without_credentials(text)
        assert not any(secret in hidden for secret in SECRETS)
    # when a database is to be founded with them, then that is refused with the way to give them
    with pytest.raises(Rejected, match="with credentials in it") as refused:
        whole_location(location)
    told = str(refused.value)
    assert "AWS_ACCESS_KEY_ID" in told
    assert "AWS_PROFILE" in told
    assert not any(secret in told for secret in SECRETS)
    with pytest.raises(Rejected) as refused:
        load_settings(environment={"LOWMARK_LEDGER_LOCATION": location})
    assert not any(secret in str(refused.value) for secret in SECRETS)


@pytest.mark.parametrize(
    "location",
    [
        "s3://bucket/a@b?region=eu&endpoint_override=host:9000&scheme=http",
        "gs://anonymous@bucket/p",
        "hdfs://me@host:9000/p",
        "abfss://container@account.dfs.core.windows.net/p",
        "file:///srv/a@b",
        "/srv/key=1/a:b@c",
    ],
)
def test_what_has_no_credentials_stays_as_it_is(location: str) -> None:
    assert without_credentials(location) == whole_location(location) == location
    assert text_without_credentials(location) == location


@pytest.mark.parametrize(
    "location", ["s3:/KEYID:PASSWORD@b/p", "s3:KEYID:PASSWORD@b", "gs:PASSWORD@b"]
)
def test_a_url_that_is_misspelt_does_not_show_its_credentials(location: str) -> None:
    with pytest.raises(Rejected, match="with credentials in it") as refused:
        whole_location(location)
    assert "PASSWORD" not in str(refused.value)


def test_a_store_that_has_credentials_shows_them_nowhere() -> None:
    # given a store of a database that an earlier release has made
    store = Store("s3://KEYID:SE%2FCRET@bucket/p?region=eu&endpoint_override=127.0.0.1:1")
    # then other processes get what they need to open it, and all others see its place
    assert "SE%2FCRET" in store.address
    assert store.location == "s3://bucket/p?region=eu&endpoint_override=127.0.0.1:1"
    assert store.url("a/b") == "s3://bucket/p/a/b?region=eu&endpoint_override=127.0.0.1:1"
    # and what Arrow says of it is told without them
    with pytest.raises(StoreFailed) as failed, store.told("a", "read"):
        raise OSError(f"no answer from {store.address}")
    assert "no answer from s3://bucket/p" in str(failed.value)
    with pytest.raises(Rejected, match="not a place that Arrow can reach") as refused:
        Store("nowhere://KEYID:PASSWORD@bucket/p")
    told = f"{refused.value}{refused.value.__cause__}"
    assert not any(secret in told + str(failed.value) for secret in SECRETS)
    with pytest.raises(Rejected, match="is not a directory") as refused:
        data_path("s3://KEYID:PASSWORD@bucket/p")
    assert not any(secret in str(refused.value) for secret in SECRETS)
