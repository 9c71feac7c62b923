"""Make the data directory of a release, and note what it answers: once, when it is released.

    python tests/golden/make_directory.py

writes `tests/golden/VERSION.tar.gz` and `VERSION.json`. Later releases open the directory and must
give the same answers (`test_releases`). It is left as a killed process leaves it: part of the rows
is in the WAL alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import lowmark
from golden.answers import answers_of
from lowmark.catalog import AddColumns, DropColumns, NewColumn, RenameColumn, parse_type

HERE = Path(__file__).parent
YEARS = 100 * 365 * 24 * 3_600 * 1_000


def write(data: str) -> None:
    """Some of everything that a directory can hold; then end without closing it."""
    db = lowmark.open(data, watermark_availability_ms=YEARS)
    columns = {"id": "int64", "status": "string", "amount": "decimal(12,2)", "at": "timestamp"}
    orders = db.create_table("orders", columns, key="id", partitions=2)
    for turn in range(4):
        orders.append(
            [{"id": n, "status": f"s{turn}", "amount": f"{n}.{turn}0"} for n in range(60)]
        )
    orders.delete([3, 4, 5])
    kept = NewColumn(name="note", type=parse_type("string"), default="none")
    db.execute([AddColumns(table="orders", columns=(kept,))])
    db.execute([RenameColumn(table="orders", column="status", to="state")])
    orders.append([{"id": 7, "state": "before the ledger", "note": "n"}])
    events = db.create_table("events", {"what": "string", "where": "list<int32>"}, partitions=1)
    events.append([{"what": f"e{n}", "where": [n, n + 1]} for n in range(20)])
    gone = db.create_table("gone", {"id": "string"}, key="id")
    gone.append([{"id": "x"}])
    db.drop_table("gone")
    db.advance_watermark("now")
    orders.compact(engine="local")
    orders.cursors.create("billing")
    orders.cursors.create("mirror", kind="compacted")
    orders.append([{"id": n, "state": "after the ledger"} for n in range(50, 70)])
    orders.delete([8])
    db.execute([DropColumns(table="orders", columns=("at",))])
    with orders.producer(name="import") as producer:
        producer.send({"id": 100, "state": "by a producer"})
    sys.stdout.write(json.dumps(answers_of(db), indent=1, default=str) + "\n")
    sys.stdout.flush()
    os._exit(0)


def _bare(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the name of the user who made it."""
    member.uname = member.gname = ""
    return member


def main() -> None:
    """Make it, in a process of its own."""
    version = lowmark.__version__
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        command = [sys.executable, __file__, str(data)]
        made = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        (HERE / f"{version}.json").write_text(made.stdout)
        with tarfile.open(HERE / f"{version}.tar.gz", "w:gz") as archive:
            archive.add(data, "data", filter=_bare)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1])
    else:
        main()
