"""A process with a Spark session of its own: two runs on it, one cancelled; Java killed; closed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import lowmark
from eventually import eventually
from lowmark.backend.errors import Cancelled
from lowmark.client import Database, Table
from lowmark.node import load_settings

MASTER = "local[2]"
ROWS = 20_000


def opened(path: Path) -> Database:
    settings = load_settings(arguments={"watermark": {"availability_ms": 0}})
    return lowmark.open(path, settings=settings)


def fill(table: Table) -> None:
    table.append([{"id": number % 100, "v": number} for number in range(ROWS)])


def settle(db: Database, *tables: Table) -> None:
    def passed() -> bool:
        db.advance_watermark()
        return not any(one.compact(engine="local", dry_run=True).too_young_rows for one in tables)

    eventually(passed)


class Running:
    """A run on a thread, slow enough to be interfered with."""

    def __init__(self, table: Table, rate: int) -> None:
        self.table = table
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(rate,))
        self._thread.start()
        eventually(lambda: any(one.state == "running" for one in table.runs()), deadline_s=240)

    def _run(self, rate: int) -> None:
        try:
            self.table.compact(master=MASTER, read_rate=rate)
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        self._thread.join(240)


def main(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    db = opened(path)
    columns = {"id": "int64", "v": "int64"}
    a, b = (db.create_table(name, columns, key="id", partitions=1) for name in "ab")
    fill(a)
    fill(b)
    settle(db, a, b)
    # two at once; one is cancelled
    first, second = Running(a, 50_000), Running(b, 300_000)
    eventually(lambda: bool(list(path.rglob("*.progress"))), deadline_s=240)
    a.cancel_run(a.runs()[0].run)
    first.wait()
    second.wait()
    facts["states"] = [a.runs()[0].state, b.runs()[0].state]
    facts["cancelled"] = isinstance(first.error, Cancelled)
    # Java dies between two runs
    gateway = db._compactor.spark._session.sparkContext._gateway.proc
    os.kill(gateway.pid, signal.SIGKILL)
    os.waitid(os.P_PID, gateway.pid, os.WEXITED | os.WNOWAIT)
    facts["after a dead Java"] = a.compact(master=MASTER).state
    # the database is closed while a run goes on
    fill(b)
    settle(db, b)
    third = Running(b, 50_000)
    db.close()
    third.wait()
    db = opened(path)
    b = db.table("b")
    left = b.runs()[0]
    facts["after closing"] = left.state
    facts["resumed"] = b.compact(engine="local", resume=left.run, read_rate=0).state
    facts["right"] = all(
        sorted(row["v"] for row in table.read(as_of="now").to_pylist())
        == list(range(ROWS - 100, ROWS))
        for table in (db.table("a"), b)
    )
    db.close()
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
