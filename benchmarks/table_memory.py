"""How much memory a table takes: a process of its own that appends, and says what it weighs.

What is weighed is anonymous memory (`RssAnon`): all that the process holds itself, but not the
pages of files that the system keeps for it. Nothing is given back to the system by hand before.

What is in the WAL is in memory, too, so a process weighs as much more as its WAL file is full, and
for a while longer, until Arrow's allocator gives back what was freed. Two moments differ by all of
that, however little grows. So it is weighed again and again while one WAL file fills and is
replaced, and the most counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.held_memory import anonymous_bytes
from benchmarks.table_workload import BATCH_ROWS, ROW_BYTES, batch_of, opened_table
from clusters.processes import Children, Parent
from lowmark.errors import invariant
from lowmark.log import LogConfig

DEADLINE_S = 1_800.0
LOOKS = 32
"""While a WAL file fills."""


def weighed(folder: Path, wal_bytes: int, marks: list[int]) -> list[int]:
    """What a new process weighs after so many rows, and after so many more."""
    words = [str(folder / "data"), *map(str, [wal_bytes, *marks])]
    with Children(folder) as children:
        child = children.start("benchmarks.table_memory", *words, name="memory")
        said = [child.receive(int, deadline_s=DEADLINE_S) for _ in marks]
        child.finish()
    return said


def main() -> None:
    """Append batches of 10,000, one after the other, and weigh at each mark."""
    parent = Parent()
    folder, (wal_bytes, *marks) = Path(sys.argv[1]), map(int, sys.argv[2:])
    with opened_table(folder, LogConfig(wal_bytes_max=wal_bytes)) as opened:
        rows, a_file = 0, wal_bytes // ROW_BYTES
        for mark in marks:
            most, looked = 0, mark - a_file
            while rows < mark:
                opened.table.append(batch_of(rows, min(BATCH_ROWS, mark - rows)))
                rows += BATCH_ROWS
                if rows >= looked:
                    most, looked = max(most, anonymous_bytes()), rows + a_file // LOOKS
            opened.rest()
            invariant(opened.table.index_size is None, "nobody has looked a key up")
            parent.send(max(most, anonymous_bytes()))


if __name__ == "__main__":
    main()
