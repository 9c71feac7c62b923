"""A node in a process of its own, as `lowmark serve` runs it, that can be asked whether it rests.

Nothing is left out or added: the same node, the same settings but for the size of the WAL, the same
switch interval; with TLS, if a folder of certificates is given, and with tokens, if that is said. A
second thread hears what the bench asks.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from benchmarks.server_wire import Order, Rested, There
from clusters.processes import Parent
from lowmark.backend.attached import Attached
from lowmark.cli.serve import SWITCH_INTERVAL_SECONDS
from lowmark.log import LogConfig
from lowmark.node import Node, NodeOptions, Settings
from lowmark.node.tls import only_tls_1_3
from lowmark.server.endpoint import Endpoint
from lowmark.server.on_node import attach

MOMENT_S = 0.001


def main() -> None:
    """Serve until the parent says no more."""
    parent = Parent()
    data, wal_bytes = sys.argv[1], int(sys.argv[2])
    tls, tokens = (*sys.argv[3:], "", "")[:2]
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    Path(data).mkdir(exist_ok=True)
    only_tls_1_3()
    options = NodeOptions(data=data, listen="127.0.0.1:0", tls=tls, tokens=tokens == "tokens")
    node = Node(options, Settings(log=LogConfig(wal_bytes_max=wal_bytes)))
    loop = threading.current_thread()

    def talk() -> None:
        while not isinstance(node.server.data, Endpoint):
            time.sleep(MOMENT_S)
        asked = Attached(node, data, runs_on=loop)
        parent.send(There(address=node.info.endpoint))
        for _ in parent.messages(Order):
            while not asked.ask_now(lambda: node.log.idle):
                time.sleep(MOMENT_S)
            parent.send(Rested(at_ns=time.monotonic_ns()))
        node.stop()

    def ready() -> None:
        attach(node, data)
        threading.Thread(target=talk, name="bench", daemon=True).start()

    node.run(ready)


if __name__ == "__main__":
    main()
