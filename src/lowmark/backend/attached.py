"""The port, answered by a node that this process runs by itself: `lowmark serve`.

The node is started and stopped by others; closing this leaves it running. It may be one of several.
Rows go to the node that leads their partition, whichever that is. They are read from the copy here,
which first hears of all that was acknowledged; a partition without a copy here is refused by name,
and its readers ask a node that has one (`spread`).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from lowmark.backend.embedded import Embedded
from lowmark.backend.node_thread import SLACK_S
from lowmark.catalog import Catalog
from lowmark.node import Node


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

    def close(self) -> None:
        """Ask nothing more of it."""
        self._closed = True
