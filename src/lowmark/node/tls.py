"""A node's TLS: its links to other nodes, and where clients come in.

Links have it as soon as the node has certificates. Clients see it if the node requires it of other
nodes as well: while a cluster goes over to TLS (`allow`), they notice nothing.

New certificates are taken up without a restart: links use them by themselves (`runtime`), and the
listener is closed and opened again in place, on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from lowmark.errors import LowmarkError, Rejected
from lowmark.node.bridge import NodeClosing
from lowmark.node.callers import Callers
from lowmark.node.listener import Certificates, Listener
from lowmark.node.strangers import Door
from lowmark.runtime import RealNetwork, TlsFiles
from lowmark.runtime.network import Network
from lowmark.runtime.tls import Tls

logger = logging.getLogger(__name__)

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


class NodeTls:
    """Of one node; without a folder, nothing of it is there. On the loop."""

    def __init__(self, folder: str, mode: str, network: Network) -> None:
        self.mode = mode
        self.ca = authority_of(folder)
        self._network = network if isinstance(network, RealNetwork) and folder else None
        self._listener: Listener | None = None
        self._served: Tls | None = None
        self._unserved = ""
        """Why clients are not shown the certificate of now."""
        self._refused: Tls | None = None
        """What the listener did not take; the node tries it again after this many looks:"""
        self._looks_left = 0
        self._rest_looks = _REST_LOOKS

    def listener(
        self, address: str, *, callers: Callers | None = None, door: Door | None = None
    ) -> Listener:
        """Where clients come in."""
        watched = None if self._network is None else self._network.certificates
        if watched is None or self.mode != "require":
            return Listener(address, callers=callers, door=door)
        self._served = watched.tls
        shown = _shown(watched.tls)
        self._listener = Listener(address, callers=callers, certificates=shown, door=door)
        watched.at_look(self._serve_anew)
        return self._listener

    def problems(self, refused: Mapping[str, str]) -> list[str]:
        """What a person should know; `refused`: the nodes with which there is no link, and why."""
        if self._network is None or self._network.certificates is None:
            return []
        return [
            *self._network.certificates.problems(),
            *([self._unserved] if self._unserved else ()),
            *([_BOTH] if self._network.tls_optional else ()),
            *(
                f"it and the node at {address} do not believe each other: {why}"
                for address, why in refused.items()
            ),
        ]

    def _serve_anew(self) -> None:
        """Give the listener the certificates of now, if it has others, or does not listen."""
        assert self._network is not None
        assert self._network.certificates is not None
        tls, listener = self._network.certificates.tls, self._listener
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


def _shown(tls: Tls) -> Certificates:
    return Certificates(certificate=tls.certificate, key=tls.key)
