"""The port, answered by a node that this process runs by itself: `lowmark serve`.

The node is started and stopped by others; closing this leaves it running. It may be one of several.
Rows go to the node that leads their partition, whichever that is. They are read from the copy here,
which first hears of all that was acknowledged; a partition without a copy here is refused by name,
and its readers ask a node that has one (`spread`).
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import msgspec

from lowmark.backend.embedded import Embedded
from lowmark.backend.node_thread import SLACK_S
from lowmark.catalog import Catalog
from lowmark.errors import Unavailable
from lowmark.ledger.claim import claim, prove
from lowmark.ledger.home import HOME_KEY, LedgerHome, decode_home
from lowmark.metastore import Compare, Put, Revision, missing
from lowmark.node import Node


class LedgersUnknown(Unavailable):
    """A node that does not know yet where the ledgers of its cluster are."""

    def __init__(self) -> None:
        super().__init__(
            "the first node of this cluster has not said yet where its ledgers are",
            hint="Wait until that node is up; the others begin then.",
        )


class Attached(Embedded):
    """See `Embedded`. Make it on another thread than the node's, when the node is ready."""

    def __init__(
        self, node: Node, data: str | os.PathLike[str], *, runs_on: threading.Thread
    ) -> None:
        self.node = node
        self.data = Path(data)
        self._closed = False
        self._failure = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._timeout_s = node.settings.group.request_timeout_ms / 1_000 + SLACK_S
        self._made = threading.Event()
        self._made.set()
        self._thread = runs_on
        self._settle_in()

    def _claim_ledgers(self) -> None:
        """See `Embedded`. A node gives no rows before it has proven that it sees the ledgers.

        Its own directory is its own. Any other place was claimed before the first table was made:
        one without the claim is another place, or was emptied, and must not be taken for ours.
        """
        info = self.info
        own = info.ledger_location == super()._ledger_home()
        fresh = info.ledgers_elsewhere and self._is_first() and not self.catalog(fresh=True).tables
        if fresh or (own and not info.ledgers_elsewhere):
            claim(self.store, info.cluster)
        prove(self.store, info.cluster, token=str(self.node.info.number))
        self.info = replace(info, ledgers_claimed=True)
        self.node.says_ledgers(info.ledger_location)

    def wait_for_copies(self) -> None:
        """Not all of them may ever be here."""

    def _catch_up(self) -> None:
        """Other nodes' clocks are in the log, too: they are followed within limits."""

    def catalog(self, *, fresh: bool = False) -> Catalog:
        """See `Backend`. Another node may have written a version that was not heard of here yet."""
        if fresh and not self.closed:
            clock = self.node.runtime.clock
            self.ask(lambda: self.catalogs.at(clock.now()))
        return super().catalog()

    def _ledger_home(self) -> str:
        """See `Embedded`. All nodes of a cluster have one place for ledgers: the directory of the
        first of them, which may have some from before there were others. It is noted in the
        metastore by that node; if the directory was moved, again.
        """
        own = super()._ledger_home()
        while True:
            noted = self.get(HOME_KEY)
            home = None if noted is None else decode_home(noted.value)
            number = self.node.info.number
            mine = self._is_first() if home is None else home.node == number
            if home is not None and (not mine or home.path == own):
                return home.path
            if not mine:
                raise LedgersUnknown
            unchanged = missing(HOME_KEY)
            if noted is not None:
                unchanged = Revision(HOME_KEY, Compare.EQ, noted.revision)
            value = msgspec.json.encode(LedgerHome(node=number, path=own))
            self.write([Put(HOME_KEY, value)], condition=unchanged)

    def _is_first(self) -> bool:
        nodes = self.ask_now(self.node.cluster.nodes)
        return nodes[0].number == self.node.info.number

    def close(self) -> None:
        """Ask nothing more of it."""
        self._closed = True
