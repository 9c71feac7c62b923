"""What readers of guests hold stays when the owner dies, whatever the next one does at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowmark
from eventually import eventually
from lowmark.access import opening
from lowmark.backend import remote
from lowmark.client import Database, Reader
from lowmark.node import owner

OWNS = """
import sys, lowmark
from lowmark.node import Settings
from lowmark.node.settings import LedgerSettings
db = lowmark.open(sys.argv[1], settings=Settings(ledger=LedgerSettings(grace_ms=0)))
def compact():
    db.advance_watermark("now")
    state = db["t"].compact(engine="local").state
    db["t"].sweep()
    return state
print("open", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
BATCHES, ROWS = 40, 40
COUNT = BATCHES * ROWS


class Owner:
    """A process that has the directory open, and does what it is told line by line."""

    def __init__(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNS, str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "open"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, code: str) -> list[str]:
        """Have it do something; gives what it said."""
        assert self.process.stdin is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        said: list[str] = []
        while (line := self.line()) != "done":
            assert line or self.process.poll() is None, "it ended"
            said.append(line)
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    made: list[Owner] = []
    yield made
    for one in made:
        one.kill()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None:
                pipe.close()


def rows(low: int) -> list[dict[str, object]]:
    return [{"id": n, "text": f"{n:08}" * 1_000} for n in range(low, low + ROWS)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A table of 12 MiB, half of it in ledgers, which no process has open."""
    path = tmp_path / "d"
    with lowmark.open(path) as db:
        table = db.create_table("t", {"id": "int64", "text": "string"}, key="id", partitions=2)
        for at in range(BATCHES // 2):
            table.append(rows(at * ROWS))
        db.advance_watermark("now")
        assert table.compact(engine="local", trim=False).state == "done"
        for at in range(BATCHES // 2, BATCHES):
            table.append(rows(at * ROWS))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A table whose rows are all in a ledger and in the backlog, which no process has open."""
    path = tmp_path / "small"
    with lowmark.open(path) as db:
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
        table.append([{"id": n} for n in range(10)])
        db.advance_watermark("now")
        assert table.compact(engine="local", trim=False).state == "done"
    return path


def left_by_a_dead_owner(
    data: Path, held_ms: int, guests: frozenset[int] | None = None, *, history: bool = True
) -> None:
    """As one leaves the lock file whose guests hold something."""
    until_ms = time.time_ns() // 1_000_000 + held_ms
    awaited = owner.Awaited(until_ms, guests, history)
    note = owner.Owner.here("unix:/gone", {}, awaited=awaited).note()
    (data / "LOCK").write_bytes(b"1".ljust(32) + note)


def noted(data: Path) -> owner.Owner:
    found = owner.Owner.noted((data / "LOCK").read_bytes()[32:])
    assert found is not None
    return found


@pytest.mark.slow
def test_an_owner_cuts_sweeps_and_moves_nothing_until_the_time_of_guests_is_over(
    small: Path,
) -> None:
    # given a directory whose owner died while guests held something
    left_by_a_dead_owner(small, 60_000)
    with lowmark.open(small, owner=True) as db:
        # then the low watermark stays, no row is cut, and no file removed; and it is said why
        moved = db.advance_watermark("now")
        assert moved.after == moved.before
        assert "guests of the process before" in moved.held_by[0].why
        trimmed = db["t"].trim({0: 10})[0]
        assert (trimmed.safe.position, trimmed.batches) == (0, 0)
        assert [hold.holder for hold in trimmed.safe.held_by] == ["guests"]
        assert "*" in db.backend.files_in_use()
        assert db["t"].sweep() == []
        # and the next owner would wait, too, if this one died
        assert noted(small).held_until_ms > 0
    assert noted(small).held_until_ms > 0


@pytest.mark.slow
def test_guests_that_held_no_history_do_not_keep_the_low_watermark(small: Path) -> None:
    # given a directory whose owner died while guests held rows and files, and no time
    left_by_a_dead_owner(small, 60_000, history=False)
    with lowmark.open(small, owner=True) as db:
        # then the low watermark goes on; no row is cut, and no file removed
        moved = db.advance_watermark("now")
        assert moved.after == moved.wanted
        assert db["t"].trim({0: 10})[0].safe.position == 0
        assert "*" in db.backend.files_in_use()
        # and the next owner would hear the same
        assert noted(small).held_until_ms > 0
        assert not noted(small).history


def test_a_note_of_an_earlier_release_does_not_say_that_guests_hold_no_history(
    tmp_path: Path,
) -> None:
    left_by_a_dead_owner(tmp_path, 60_000, history=False)
    note = json.loads((tmp_path / "LOCK").read_bytes()[32:])
    assert note.pop("history") is False
    found = owner.awaited_after(json.dumps(note).encode(), 0)
    assert found is not None
    assert found.history


@pytest.mark.slow
def test_an_owner_does_what_is_due_when_the_time_of_guests_is_over(small: Path) -> None:
    left_by_a_dead_owner(small, 300)
    with lowmark.open(small, owner=True) as db:
        eventually(lambda: db["t"].trim({0: 10})[0].safe.position == 10)
        moved = db.advance_watermark("now")
        assert moved.after == moved.wanted
        assert "*" not in db.backend.files_in_use()
    assert (small / "LOCK").read_bytes() == b""
    # and one whose guests are long gone waits for none
    left_by_a_dead_owner(small, -1)
    with lowmark.open(small, owner=True) as db:
        assert "*" not in db.backend.files_in_use()


@pytest.mark.slow
def test_the_lock_file_says_whether_guests_hold_anything(small: Path) -> None:
    with lowmark.open(small, owner=True), lowmark.open(small) as guest:
        assert noted(small).held_until_ms == 0
        reader = guest["t"].read()
        assert noted(small).held_until_ms > 0
        # and whether it is history: only that keeps the low watermark for the next owner
        assert not noted(small).history
        past = guest["t"].read(as_of="now")
        assert noted(small).history
        past.close()
        eventually(lambda: not noted(small).history)
        assert noted(small).held_until_ms > 0
        reader.close()
        eventually(lambda: noted(small).held_until_ms == 0)
    assert (small / "LOCK").read_bytes() == b""


@pytest.mark.slow
def test_a_guest_holds_at_once_what_it_had_when_there_is_another_owner(small: Path) -> None:
    # given a guest with a reader of a ledger, which does not take the owner's place: it looks for
    # the owner by itself every now and then
    first = lowmark.open(small, owner=True)
    with lowmark.open(small, read_only=True) as guest:
        reader = guest["t"].read(compacted=True, batch_bytes=1)
        (manifest,) = first.backend.files_in_use()
        # when another process owns the directory, with a newer ledger
        first.close()
        (small / "LOCK").write_bytes(b"")  # no time for guests
        with lowmark.open(small, owner=True) as second:
            second["t"].append([{"id": n} for n in range(10)])
            second.advance_watermark("now")
            assert second["t"].compact(engine="local").state == "done"
            # then any call of the guest has it hold the ledger that its reader reads
            guest["t"].count()
            assert manifest in second.backend.files_in_use()
            assert sorted(ids(reader)) == list(range(10))
            # and lets it go
            reader.close()
            eventually(lambda: manifest not in second.backend.files_in_use())


@pytest.mark.slow
def test_an_owner_waits_no_longer_when_all_guests_are_back(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two guests that hold something, whose owner dies, and who do not take its place; closing
    # one of them finds the next owner, however busy the machine is
    monkeypatch.setattr(remote, "_CLOSE_S", 60.0)
    first = lowmark.open(small, owner=True)
    guests = [guest_of(small, monkeypatch), guest_of(small, monkeypatch)]
    readers = [guest["t"].read() for guest in guests]
    named = noted(small).guests
    assert len(named) == 2
    first.close()
    with lowmark.open(small, owner=True) as second:
        assert set(noted(small).guests) == set(named)
        # when one of them is back, then the other is waited for
        assert len(readers[0].to_pylist()) == 10
        assert second["t"].trim({0: 10})[0].safe.position == 0
        # when the other one has nothing to come back to, then none is
        guests[1].close()
        eventually(lambda: second["t"].trim({0: 10})[0].safe.position == 10)
        guests[0].close()
    assert (small / "LOCK").read_bytes() == b""


KINDS: dict[str, dict[str, Any]] = {
    "changes": {},
    "compacted": {"compacted": True},
    "as of a time": {"as_of": "now"},
}


def ids(reader: Reader) -> list[int]:
    return [one for batch in reader for one in batch["id"].to_pylist()]


def guest_of(data: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """One that only reads: it never takes the owner's place, however long the next one takes to
    start, and waits for it.
    """
    monkeypatch.setattr(opening, "_AWAY_S", 60.0)
    return lowmark.open(data, read_only=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ends"), [*((kind, "killed") for kind in KINDS), ("compacted", "closed")]
)
def test_a_reader_has_every_row_once_though_the_next_owner_compacts_and_sweeps_at_once(
    data: Path, owners: list[Owner], monkeypatch: pytest.MonkeyPatch, kind: str, ends: str
) -> None:
    # given a guest with a reader that is half-way through what it reads
    owners.append(Owner(data))
    with guest_of(data, monkeypatch) as db:
        reader = db["t"].read(columns=["id", "text"], batch_bytes=100_000, **KINDS[kind])
        found = next(reader)["id"].to_pylist()
        # when its owner ends, and another process opens the directory, replaces every row,
        # compacts, cuts and sweeps, before it hears of the guest
        owners[0].kill() if ends == "killed" else owners[0].close()
        owners.append(Owner(data))
        owners[1].do(f"rows = [{{'id': n, 'text': 'new'}} for n in range({COUNT})]")
        owners[1].do("db['t'].append(rows)")
        owners[1].do("compact()")
        owners[1].do("db['t'].append(rows)")
        owners[1].do("compact()")
        # then the reader has all rows that were there, each once
        found += ids(reader)
        assert len(found) == COUNT
        assert sorted(found) == list(range(COUNT))


@pytest.mark.slow
def test_no_cut_passes_a_reader_of_a_guest_that_outlives_the_owner(
    data: Path, owners: list[Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a guest with a reader, and an owner that compacts and cuts while it reads
    owners.append(Owner(data))
    with guest_of(data, monkeypatch) as db:
        reader = db["t"].read(columns=["id", "text"], batch_bytes=100_000)
        found = next(reader)["id"].to_pylist()
        (said,) = owners[0].do("print('run', compact())")
        assert said == "run done"
        # when the owner is killed
        owners[0].kill()
        owners.append(Owner(data))
        # then the reader has all rows
        found += ids(reader)
        assert sorted(found) == list(range(COUNT))
