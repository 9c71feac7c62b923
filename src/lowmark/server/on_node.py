"""A node's own server gives rows out, too: its database is attached when the node is ready."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from lowmark.backend.attached import Attached
from lowmark.backend.protocol import CALL, HELLO
from lowmark.client import Database
from lowmark.errors import LowmarkError
from lowmark.node import Node, NodeClosing
from lowmark.node.server import Action
from lowmark.server.endpoint import Endpoint

logger = logging.getLogger(__name__)


def attach(node: Node, data: str) -> None:
    """Have a node that is ready answer clients of its tables. Called on the node's loop; it is
    there a moment later, and clients that come before ask again.
    """
    loop = threading.current_thread()

    def run() -> None:
        try:
            database = Database(Attached(node, data, runs_on=loop))
            endpoint = Endpoint(database, node.server.address)
        except LowmarkError as error:
            logger.error("this node gives no rows to clients", extra={"reason": error.one_line()})
            return
        node.server.data = endpoint

    node.server.actions |= {one: _action(node, one) for one in (HELLO, CALL)}
    threading.Thread(target=run, name="lowmark-attach", daemon=True).start()


def _action(node: Node, name: str) -> Action:
    def act(body: bytes, gone: object) -> Iterable[bytes]:
        del gone
        endpoint = node.server.data
        if not isinstance(endpoint, Endpoint):
            raise NodeClosing  # it is about to be there: clients ask again
        return [endpoint.act(name, body)]

    return act
