"""A table is altered all the time at real nodes: history stays short, and rows stay as written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from lowmark.client import Database
from lowmark.node import NodeClient
from server.nodes import COLUMNS, Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("catalog history")]

SETTINGS = {
    "LOWMARK_SCHEMA_SYNC_DELAY_MS": "30",
    "LOWMARK_CLOCK_MAX_SKEW_MS": "20",
    "LOWMARK_WATERMARK_AVAILABILITY_MS": "500",
    "LOWMARK_WATERMARK_INTERVAL_MS": "200",
    "LOWMARK_GROUP_SNAPSHOT_AGE_MS": "500",
}
"""History is short, and so is the time between two snapshots."""
CLOSE = 3
DEADLINE_S = 120.0


class Loop:
    """Does something again and again on a thread, until it is stopped."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        except Exception as error:
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self.check()


class Altered:
    """A table that gets a column after another, and rows with the columns that its writer knows."""

    def __init__(self, altering: Database, writing: Database) -> None:
        self._altering = altering["events"]
        self._writing = writing["events"]
        self.columns = 0
        self.written: list[int] = []
        """How many columns each row was written with, by its id."""

    def alter(self) -> None:
        self._altering.alter(add={f"c{self.columns}": "int64"})
        self.columns += 1

    def write(self) -> None:
        columns = len(self._writing.descriptor.columns) - len(COLUMNS)
        first = len(self.written)
        rows = [
            {"id": row, "status": f"row {row}"} | {f"c{n}": row + n for n in range(columns)}
            for row in range(first, first + 10)
        ]
        self.written += [columns] * len(rows)
        self._writing.append(rows)

    def check(self, row: dict[str, Any]) -> None:
        """A row has what its writer wrote, and nothing in columns that came later."""
        number = row["id"]
        assert row["status"] == f"row {number}"
        for n in range(self.columns):
            wanted = number + n if n < self.written[number] else None
            assert row.get(f"c{n}", wanted) == wanted, f"column c{n} of row {number}"


def histories(nodes: Nodes) -> list[tuple[int, int]]:
    """The earliest and the latest version at each node that is up."""
    found = []
    for number in nodes.up:
        with NodeClient(nodes.address(number)) as client:
            catalog = client.status().catalog
        assert catalog is not None
        found.append((catalog.earliest, catalog.version))
    return found


def coordinator(nodes: Nodes) -> int:
    with NodeClient(nodes.address(nodes.up[0])) as client:
        rows = client.status().nodes
    [name] = [one.name for one in rows if one.role == "coordinator"]
    return int(name.removeprefix("n"))


@pytest.mark.parametrize("versions", [15, pytest.param(30, marks=pytest.mark.release)])
def test_history_stays_short_and_rows_stay_as_they_were_written(
    tmp_path: Path, versions: int
) -> None:
    # given three nodes, and a table that is written to, altered and followed all the time
    with Nodes(tmp_path, 3, started=3, **SETTINGS) as nodes:
        first = coordinator(nodes)
        one, other = (number for number in range(3) if number != first)
        altering, writing, reading = (nodes.connect(number) for number in (one, other, one))
        table_of(altering, "events", replicas=3, partitions=2)
        for db in (writing, reading):  # a node may know of it a moment later
            eventually(lambda db=db: "events" in db.tables())  # type: ignore[misc]
        altered = Altered(altering, writing)
        followed: list[dict[str, Any]] = []
        follower = reading["events"].read(follow=True)
        loops = [Loop(altered.alter), Loop(altered.write)]
        loops.append(Loop(lambda: followed.extend(next(follower).to_pylist())))

        def passed(columns: int) -> bool:
            for loop in loops:
                loop.check()
            return altered.columns >= columns

        # then history is cut meanwhile, at every node
        eventually(lambda: passed(versions // 3), deadline_s=DEADLINE_S)
        before = max(latest for _, latest in histories(nodes)) - versions // 3
        eventually(
            lambda: passed(0) and all(early > before for early, _ in histories(nodes)),
            deadline_s=DEADLINE_S,
        )
        # and when the coordinator is killed, and comes back later
        nodes.kill(first)
        killed_at = altered.columns
        eventually(lambda: passed(killed_at + versions // 3), deadline_s=DEADLINE_S)
        nodes.start(first)
        eventually(
            lambda: passed(max(versions, killed_at + 2 * versions // 3)), deadline_s=DEADLINE_S
        )
        for loop in loops[:2]:
            loop.stop()
        # then it is as short as before
        eventually(
            lambda: all(latest - early <= CLOSE for early, latest in histories(nodes)),
            deadline_s=DEADLINE_S,
        )
        # and each row has what its writer wrote, to a reader that follows and to one that comes now
        count = len(altered.written)
        eventually(lambda: passed(0) and len(followed) >= count, deadline_s=DEADLINE_S)
        follower.close()
        for rows in (followed, nodes.connect(first)["events"].read().to_pylist()):
            assert sorted(row["id"] for row in rows) == list(range(count))
            for row in rows:
                altered.check(row)
        assert {f"c{n}" for n in range(altered.columns)} <= rows[0].keys()
        for db in (altering, writing, reading):
            db.close()
