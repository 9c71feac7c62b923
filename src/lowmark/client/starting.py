"""Where a reader begins that starts at a time.

Times are with rows: of rows that were cut, or that a run has left out, there may be none any more.
So what is asked is not which row comes first, but before which offset every row is known to be
earlier (`first_from`). A reader begins there. If rows are gone between that offset and the next one
that is left, they may be of the time or later: the reader comes to a gap, as it does when it starts
at an offset. What bounds them:

    the backlog     a row that is left and earlier: all rows before it are earlier, too
    the cut         no row below the backlog's start is later than `View.cut_time`
    the ledger      no row below its horizon is later than when it was adopted, or than the low
                    watermark that it was planned at; and its own rows, dead ones too, have times
"""

from __future__ import annotations

from lowmark.backend.ledgers import OpenLedger
from lowmark.table import View


def needs_ledger(view: View, time: int) -> bool:
    """Whether the backlog can't say by itself where a reader begins at a time."""
    if view.ledger is None or not view.start or time > view.cut_time:
        return False
    if view.offset_from(time) > view.start:
        return False
    return not 0 < view.ledger.time < time


def first_from(view: View, ledger: OpenLedger | None, time: int) -> int:
    """All rows before this offset are earlier than a time; between it and the first row that is
    left and is not, some may be gone that are not. `ledger` is that of the view, if it is needed.
    """
    found = view.offset_from(time)
    if found > view.start or time > view.cut_time:
        return found
    known = 0
    if view.ledger is not None:
        later = 0 < view.ledger.time < time
        if ledger is not None:
            later |= 0 < ledger.manifest.watermark < time
        known = view.ledger.horizon if later else 0
        if ledger is not None and not later:
            known = ledger.behind_earlier(time)
    return found if known >= view.start else known


def may_follow(view: View, ledger: OpenLedger | None, first: int) -> bool:
    """Whether rows may have come before a time for which `first_from` gave this offset: then its
    reader may know keys. What was at offset 0 may be gone, and may have been earlier.
    """
    if first or not view.start:
        return first > 0
    return ledger is None or not ledger.files or ledger.files[0].first > 0
