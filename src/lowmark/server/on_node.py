"""A node's own server gives rows out, too: its database is attached when the node is ready."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from lowmark.backend.protocol import CALL, HELLO
from lowmark.backend.spread import Spread
from lowmark.client import Database
from lowmark.errors import LowmarkError, Unavailable
from lowmark.node import Node, NodeClosing
from lowmark.node.action import Action, Call
from lowmark.node.callers import calling
from lowmark.server.adopting import Adopter
from lowmark.server.endpoint import HOLD_MS, Endpoint
from lowmark.server.limits import Limits
from lowmark.server.noting import OwnerNote

logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
_AGAIN_S_MAX = 8.0


def attach(node: Node, data: str, *, limits: Limits | None = None) -> None:
    """Have a node that is ready answer clients of its tables. Called on the node's loop; it is
    there a moment later, and clients that come before ask again. If it can't be made, they hear
    why; if that may pass, it is tried again.
    """
    loop = threading.current_thread()
    node.says_ledgers("")  # a node that joins waits until it is known

    def run() -> None:
        told, again_s = "", _AGAIN_S
        while True:
            try:
                _attach(node, data, loop, limits)
                node.server.no_data = None
                return
            except LowmarkError as error:
                reason = error.one_line()
                if reason != told:
                    logger.error("this node gives no rows to clients", extra={"reason": reason})
                told, node.server.no_data = reason, error
                if not isinstance(error, Unavailable):
                    return
            except Exception:  # a mistake of ours: clients hear of it, and it may pass
                logger.exception("this node gives no rows to clients")
                node.server.no_data = Unavailable(
                    "this node gives no rows because of an internal error",
                    hint="See the node's log.",
                )
            if not loop.is_alive():
                return
            time.sleep(again_s)
            again_s = min(2 * again_s, _AGAIN_S_MAX)

    node.server.offer_to_ours({one: _action(node, one) for one in (HELLO, CALL)})
    threading.Thread(target=run, name="lowmark-attach", daemon=True).start()


def _attach(node: Node, data: str, loop: threading.Thread, limits: Limits | None) -> None:
    note = OwnerNote(node, hold_ms=HOLD_MS)
    backend = Spread(node, data, runs_on=loop)
    try:
        database = Database(backend)
        node.server.data = Endpoint(database, node.server, limits=limits, on_held=note.held)
        backend.on_close(Adopter(backend).close)
        note.answers_at(node.address_here)
    except BaseException:
        backend.close()  # the next attempt makes its own
        raise


def _action(node: Node, name: str) -> Action:
    def act(body: bytes, call: Call) -> Iterable[bytes]:
        endpoint = node.server.data
        if not isinstance(endpoint, Endpoint):
            # It is about to be there, and clients ask again; or it can't be.
            raise NodeClosing if node.server.no_data is None else node.server.no_data.again()
        with calling(call.caller):
            return [endpoint.act(name, body)]

    return act
