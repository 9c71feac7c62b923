"""The port, answered by a node that this process runs by itself: `lowmark serve`.

The node is started and stopped by others; closing this leaves it running. It may be one of several:
partitions whose copy is not here, or does not lead, are refused by name.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from lowmark.backend.embedded import Embedded
from lowmark.backend.node_thread import SLACK_S
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

    def close(self) -> None:
        """Ask nothing more of it."""
        self._closed = True
