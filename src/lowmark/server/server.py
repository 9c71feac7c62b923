"""An embedded database that is served: a listener, and the endpoint that answers for it.

It listens from the moment it is made; a call that comes before the endpoint is there is refused as
if the server was starting: clients ask again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

from lowmark.backend.exits import at_exit, come_first
from lowmark.backend.forks import check_fork, made
from lowmark.backend.protocol import CALL, HELLO
from lowmark.client import Database
from lowmark.errors import LowmarkError, Rejected
from lowmark.formatting import insecure_words
from lowmark.node.action import Action, Call
from lowmark.node.addresses import Guard, Place, location_of, place_of, unix_path
from lowmark.node.callers import calling
from lowmark.node.listener import Listener
from lowmark.node.owner import SCHEME
from lowmark.node.strangers import Door
from lowmark.node.tls import ServedCertificates
from lowmark.runtime import TlsFiles, host_and_port
from lowmark.runtime.certificates import Certificates
from lowmark.runtime.network import TLS_SCHEME
from lowmark.server.endpoint import HOLD_MS, Endpoint, served
from lowmark.server.limits import Limits
from lowmark.server.sessions import Holding

logger = logging.getLogger(__name__)

_WATCH_S = 10.0
"""How long the node of a database may take to read certificates."""


class Server:
    """Serves a database that this process has open. It listens from the moment it is made.

    `address` is `host:port` on this machine (port 0: a free one), or `unix:PATH`; a socket at that
    path must be no other process's. One that other machines can reach is refused (`NotLoopback`),
    unless `insecure` says that all of them may read and change all data. `advertise` is what Flight
    clients are told to connect to, if that is not `address`. `tls` is a folder with cert.pem,
    key.pem and ca.pem, as `lowmark tls issue` makes it: clients connect by TLS alone, and new files
    are taken up within a second or two. With `tokens`, it takes only calls that show a token, which
    `db.tokens` makes. The database stays open when the server is closed. `on_held` is told which
    clients hold anything (see `Sessions`).
    """

    def __init__(
        self,
        database: Database,
        address: str = "127.0.0.1:0",
        *,
        advertise: str = "",
        insecure: bool = False,
        tls: str | os.PathLike[str] = "",
        tokens: bool = False,
        limits: Limits | None = None,
        hold_ms: int = HOLD_MS,
        on_held: Callable[[Holding], None] = lambda _: None,
    ) -> None:
        backend = served(database)
        check_fork(address)
        location_of(address)  # refuses what is none
        path = unix_path(address)
        place = Place(address, address)
        guard = Guard(insecure=insecure, tls=bool(tls), tokens=tokens)
        if path is None:
            place = place_of(address, advertise, guard=guard)
        elif tls:
            raise Rejected(
                "a server on a Unix socket speaks no TLS", hint="Nothing of it leaves the machine."
            )
        self._lock = threading.Lock()
        self._closed = False
        callers = backend.node.tokens_of_callers
        if tokens:
            backend.node.bridge.call(callers.ask)
        self._node = backend.node
        self._watched = self._watch(os.fspath(tls), place) if tls else None
        certificates = None if self._watched is None else ServedCertificates(self._watched)
        self._shown = certificates
        try:
            self.listener = Listener(
                place.listens_at if path is None else f"{SCHEME}{path}",
                callers=callers if tokens else None,
                certificates=None if certificates is None else certificates.shown,
                door=Door() if tokens else None,
                on_open=_opened,
            )
        except BaseException:
            self._end_watch()
            raise
        try:
            if certificates is not None:
                backend.node.bridge.call(partial(certificates.follow, self.listener))
                backend.node.of_servers.append(certificates)
            if path is None:
                place = place.with_port(host_and_port(self.listener.address)[1])
            open_at = guard.open_at(place) if path is None else ()
            if open_at:
                logger.warning(insecure_words(f"the server at {place.listens_at}", open_at))
            self.address = f"{TLS_SCHEME if tls else ''}{place.advertised}"
            """Where clients reach it; a port 0 has been replaced by the real one."""
            _open.add(self)
            self.endpoint = Endpoint(
                database,
                self.listener,
                advertised=place.advertised if path is None else "",
                open_at=open_at,
                limits=limits,
                hold_ms=hold_ms,
                on_held=on_held,
            )
        except BaseException:
            _open.discard(self)
            self._end_watch()
            self.listener.close()
            raise
        # What may be asked of the node itself, as of one that is served: all that there is by then.
        self.listener.actions = ChainMap({}, backend.node.actions)
        self.listener.offer_to_ours({one: self._action(one) for one in (HELLO, CALL)})
        self.listener.data = self.endpoint
        self.listener.starting = False

    def _watch(self, folder: str, place: Place) -> Certificates:
        """The certificates in a folder, looked at by the node of the database."""
        files = TlsFiles.of_folder(folder)

        def watch() -> Certificates:
            watched = Certificates(self._node.loop, files)
            try:
                watched.check_ours(host_and_port(place.advertised)[0])
            except BaseException:
                watched.end()
                raise
            return watched

        return self._node.bridge.ask_now(watch, timeout_s=_WATCH_S)

    def _end_watch(self) -> None:
        if self._watched is not None and self._shown is not None:
            self._watched.end()
            with contextlib.suppress(ValueError):
                self._node.of_servers.remove(self._shown)

    def _action(self, name: str) -> Action:
        def act(body: bytes, call: Call) -> Iterable[bytes]:
            with calling(call.caller):
                return [self.endpoint.act(name, body)]

        return act

    def refuse(self) -> None:
        """Take nothing new; what is under way goes on."""
        self.listener.refuse()

    def close(self) -> None:
        """End it, within a few seconds: clients that do not let go are cut off. Twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _open.discard(self)
        self._end_watch()
        self.listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_open: weakref.WeakSet[Server] = weakref.WeakSet()
_pid = os.getpid()


def _opened(one: Any) -> None:
    made(one)
    come_first()  # before Flight's own hook for its server


def _close_all() -> None:
    if os.getpid() == _pid:  # in a child they are the parent's
        for one in list(_open):
            with contextlib.suppress(LowmarkError):
                one.close()


at_exit("servers", _close_all)
