"""Old revisions of the metastore go: the low watermark alone makes one every now and then.

Nobody looks far back there. Watches and readers hold what they need by leases; what the catalog and
placement need stands in keys of their own, whose values in force always stay.
"""

from __future__ import annotations

from lowmark.group import Future
from lowmark.metastore import Metastore

REVISIONS_KEPT = 10_000
"""For whoever wants to see what became of a key lately."""


def forget_old_revisions(metastore: Metastore, *, kept: int = REVISIONS_KEPT) -> Future[int]:
    """Compact the metastore if there are many more than are kept; gives the first one left.

    For the coordinator. Twice as many are let pile up, so that this is rare.
    """
    state = metastore.state
    if state.latest - state.compacted < 2 * kept:
        return Future.of(state.compacted)
    return metastore.compact(state.latest - kept).map(lambda cut: cut.compacted)
