"""The endpoints that `--join` names, for a node that has lost sight of the others.

A node that comes back asks the nodes that it knows where they were last. If all have moved, none is
there any more; what an operator has named may be of use: an endpoint says where other nodes reach
its node. They are asked for as long as the node knows no leader, for they may start later than it.
The same list does for all nodes, also with a node's own endpoint in it.

An endpoint is asked by Flight, which blocks: on a thread that lives as long as one round takes. It
comes with the token to show there: that thread would not know what the command line has named.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from lowmark.errors import LowmarkError
from lowmark.node.client import NodeClient, Way

_ASK_S = 3.0


class Seeds:
    """Call `look` on the loop, as often as you like; `found` is called on another thread."""

    def __init__(
        self,
        ways: Sequence[Way],
        *,
        cluster: str,
        found: Callable[[str], None],
        ca: str | None = None,
    ) -> None:
        self._ca = ca
        self._ways = ways
        self._cluster = cluster
        self._found = found
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Ask them all, unless that is under way."""
        if self._ways and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._ask, name="lowmark-seeds", daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        for way in self._ways:
            with (
                contextlib.suppress(LowmarkError),  # it is asked again
                NodeClient(way.address, ca=self._ca, timeout_s=_ASK_S, secret=way.secret) as client,
            ):
                peer = client.peer()
                if peer.cluster == self._cluster:
                    self._found(peer.address)
