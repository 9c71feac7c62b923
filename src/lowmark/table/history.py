"""How far back a table is exact: its mark.

The low watermark is for the whole database. A table with the option `history` keeps its own past
for longer: its mark is `now - history`, or the low watermark, whichever is earlier.

Invariants
    1. A run plans with the mark of its table: it puts no row into a ledger that is later than that.
       So the horizon stays behind it.
    2. The `watermark` in a manifest is at or after the time of every row below its horizon, and it
       never falls from one ledger of a partition to the next, whatever becomes of the option.
    3. As of a time at or after the low watermark, a reader holds that time, as ever. As of a time
       before it, and at or after the mark, it takes hold of the backlog and of the ledger's files
       first; then it looks at the manifest that it holds, and is refused if that is later than its
       time. From then on its answer depends on nothing but what it holds: no run, no clock and no
       change of the option can make it another one.
    4. The option says what runs leave, manifests say what is left. So to lengthen it makes earlier
       times readable as far as no run has passed them, and to shorten or remove it lets go with the
       next run that is planned. A clock that is wrong costs times that could have been read; it
       never gives a wrong answer.
    5. A reader needs the catalog's version of its time, and new files get the schema version in
       force at the mark. So the catalog's history is cut up to the earliest mark of a table at
       most (`upkeep.catalog_decision`), and a minute less, because marks follow wall clocks.

A table that was dropped goes when the low watermark passes its drop, with its history.
"""

from __future__ import annotations

from lowmark.catalog import Table
from lowmark.runtime import COUNTER_BITS


def table_mark(table: Table, *, watermark: int, wall_ms: int) -> int:
    """The earliest time as of which a table is exact, as far as it is up to its option."""
    history_ms = table.settings.history_ms
    if not history_ms:  # with none of its own, it is as exact as the database, to the counter
        return watermark
    return min(watermark, max(wall_ms - history_ms, 0) << COUNTER_BITS)
