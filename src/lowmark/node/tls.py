"""TLS of a node, and of a server in a program: links to other nodes, and where clients come in.

Links have it as soon as the node has certificates. Clients see it if the node requires it of other
nodes as well: while a cluster goes over to TLS (`allow`), they notice nothing.

New certificates are taken up without a restart: links use them by themselves (`runtime`), and the
listener is closed and opened again in place, on a thread of its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Final

from pyarrow import flight

from lowmark.errors import LowmarkError, Rejected
from lowmark.node.bridge import NodeClosing
from lowmark.node.callers import Callers
from lowmark.node.listener import Certificates, Listener
from lowmark.node.strangers import Door
from lowmark.runtime import RealNetwork, TlsFiles
from lowmark.runtime.certificates import Certificates as Watched
from lowmark.runtime.network import Network
from lowmark.runtime.tls import Tls

logger = logging.getLogger(__name__)

_SUITES_VARIABLE: Final = "GRPC_SSL_CIPHER_SUITES"
_NO_SUITE: Final = "ECDHE-PSK-AES128-CBC-SHA"
"""The suites of TLS 1.2 that gRPC offers: one that needs a key which no side has. So no handshake
of 1.2 ends; the suites of 1.3 are separate.
"""

_REST_LOOKS, _REST_LOOKS_MAX = 4, 256
"""The node tries a certificate that the listener did not take again after this many looks at the
files; then after twice as many."""
_BOTH = "it takes nodes without TLS, too: start it with --tls-mode require when all nodes have TLS"


def check_mode(folder: str, mode: str) -> None:
    """Refuse a mode that is none, or is of no use."""
    if mode not in {"allow", "require"}:
        raise Rejected(f"--tls-mode can't be {mode!r}", hint="Use allow or require.")
    if mode == "allow" and not folder:
        raise Rejected("--tls-mode allow needs certificates", hint="Give them by --tls DIR.")


def authority_of(folder: str) -> str | None:
    """Whom a node with this folder believes when it asks others as their client."""
    return TlsFiles.of_folder(folder).authority if folder else None


def only_tls_1_3() -> None:
    """Have Arrow Flight speak no older TLS than 1.3 in this process, as a server and as a client.

    It is no option of pyarrow's. gRPC reads it from the environment, when the process makes its
    first client or server of Flight, so call this before that. The environment is as it was then.
    """
    before = os.environ.get(_SUITES_VARIABLE)
    os.environ[_SUITES_VARIABLE] = _NO_SUITE
    try:
        flight.FlightClient("grpc+tcp://127.0.0.1:1").close()  # it connects when it is asked first
    finally:
        if before is None:
            del os.environ[_SUITES_VARIABLE]
        else:
            os.environ[_SUITES_VARIABLE] = before


class ServedCertificates:
    """A listener that shows clients the certificates of now. On the loop."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._listener: Listener | None = None
        self._served: Tls | None = None
        self._unserved = ""
        """Why clients are not shown the certificate of now."""
        self._refused: Tls | None = None
        """What the listener did not take; it is tried again after this many looks:"""
        self._looks_left = 0
        self._rest_looks = _REST_LOOKS

    @property
    def shown(self) -> Certificates:
        """What a listener is to be made with."""
        self._served = self._watched.tls
        return _shown(self._served)

    def follow(self, listener: Listener) -> None:
        """Have this one, which was made with `shown`, show new ones as well."""
        self._listener = listener
        self._watched.at_look(self._serve_anew)

    def problems(self) -> list[str]:
        """What a person should know."""
        return [*self._watched.problems(), *([self._unserved] if self._unserved else ())]

    def endings(self) -> list[str]:
        """What of it ends soon, or has ended."""
        return self._watched.endings()

    def _serve_anew(self) -> None:
        """Give the listener the certificates of now, if it has others, or does not listen."""
        tls, listener = self._watched.tls, self._listener
        if tls is self._served or listener is None:
            return
        # To try cuts off calls of clients that it listens to; one that does not listen has none.
        if tls is self._refused and listener.listens and self._looks_left:
            self._looks_left -= 1
            return
        self._served = tls

        def reopen() -> None:
            try:
                listener.reopen(_shown(tls))
                self._unserved, self._refused, self._rest_looks = "", None, _REST_LOOKS
                logger.info("clients are shown the new certificate")
            except NodeClosing:
                return
            except Exception as error:
                self._not_served(tls, listener, error)

        try:
            threading.Thread(target=reopen, name="lowmark-reopen", daemon=True).start()
        except RuntimeError as error:  # the machine has no thread for it
            self._not_served(tls, listener, error)

    def _not_served(self, tls: Tls, listener: Listener, error: Exception) -> None:
        """Whatever the reason is, it may be over soon: have a later look try again."""
        what = "clients are not shown the new certificate"
        if not listener.listens:
            what = "clients can't connect since the certificate was renewed"
        why = error.message if isinstance(error, LowmarkError) else repr(error)
        self._unserved = f"{what}: {why}"
        logger.error(what, extra={"reason": why})
        self._refused, self._looks_left = tls, self._rest_looks
        self._rest_looks = min(2 * self._rest_looks, _REST_LOOKS_MAX)
        if self._served is tls:
            self._served = None


class NodeTls:
    """Of one node; without a folder, nothing of it is there. On the loop."""

    def __init__(self, folder: str, mode: str, network: Network) -> None:
        self.mode = mode
        self.ca = authority_of(folder)
        self._network = network if isinstance(network, RealNetwork) and folder else None
        watched = None if self._network is None else self._network.certificates
        self._served = None if watched is None else ServedCertificates(watched)

    def listener(
        self, address: str, *, callers: Callers | None = None, door: Door | None = None
    ) -> Listener:
        """Where clients come in."""
        if self._served is None or self.mode != "require":
            return Listener(address, callers=callers, door=door)
        shown = self._served.shown
        listener = Listener(address, callers=callers, certificates=shown, door=door)
        self._served.follow(listener)
        return listener

    def problems(self, refused: Mapping[str, str]) -> list[str]:
        """What a person should know; `refused`: the nodes with which there is no link, and why."""
        if self._network is None or self._served is None:
            return []
        return [
            *self._served.problems(),
            *([_BOTH] if self._network.tls_optional else ()),
            *(
                f"it and the node at {address} do not believe each other: {why}"
                for address, why in refused.items()
            ),
        ]

    def endings(self) -> list[str]:
        """What of its certificates ends soon, or has ended."""
        return [] if self._served is None else self._served.endings()


def _shown(tls: Tls) -> Certificates:
    return Certificates(certificate=tls.certificate, key=tls.key)
