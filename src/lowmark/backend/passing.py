"""Passes for the tasks of a driver: made with its token, renewed while the work goes on, ended.

`Given` makes a pass and has a `Renewer` renew it, until it is closed. What a task shows is
`task_pass.to_show`: tasks import nothing of this.

A making and a renewal are two things to a node: a renewal of what was ended does nothing. So it may
be under way while the pass is ended, and may be asked again when its answer was lost. A renewer
that hears that there is no record, and knows that nothing but its own process ends the pass, makes
it again: it was away for longer than the pass and its record last. It does so before the process
ends the pass, or not at all. A making whose answer was lost may be carried out after that: then the
pass lasts until its time is over, once.

None is made where none is needed, or the server knows none: the database is in this process, its
server asks for no token, or is of an earlier release. Then the text is empty.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import msgspec

from lowmark.backend.errors import Closed, OutcomeUnknown
from lowmark.backend.operating import EndPassAsk, MakePassAsk, PassReply, operated
from lowmark.backend.port import Backend
from lowmark.backend.remote import RemoteBackend
from lowmark.errors import LowmarkError, Rejected
from lowmark.node.errors import ActionUnknown
from lowmark.tokens import PassesFull, Right, Secret, Unauthenticated

logger = logging.getLogger(__name__)

TTL_MS: Final = 300_000
"""A pass that is renewed no more ends after this."""
RENEW_S: Final = 75.0
AGAIN_S: Final = 5.0
"""A renewal that failed is tried again after this."""
_END_S: Final = 5.0


def secret_for(backend: Backend, right: Right, table: int, what: str = "") -> Secret | None:
    """The pass of this client's token for a table: the same for the same `what`. None: none is
    needed, or this client has no token of which one can be made.
    """
    if not isinstance(backend, RemoteBackend) or not backend.caller:
        return None
    secret = backend.secret
    if secret is None or secret.is_pass:
        return None
    return secret.pass_for(f"{backend.info.cluster} {right} {table} {what or secrets.token_hex(8)}")


def make(backend: Backend, digest: bytes, right: Right, table: int) -> bool:
    """Have a pass in force, from now on for its time; says whether it is. It may be asked again."""
    asked = MakePassAsk(digest=digest, table=table, right=right, ttl_ms=TTL_MS)
    try:
        try:
            return operated(backend, "pass.make", asked, PassReply).there
        except OutcomeUnknown:  # what was done is done once
            return operated(backend, "pass.make", asked, PassReply).there
    except ActionUnknown:
        return False  # of an earlier release: executors have a token, or nothing
    except PassesFull as full:
        logger.warning("tasks get no pass", extra={"reason": full.message})
        return False


def renew(backend: Backend, digest: bytes, right: Right, table: int) -> bool:
    """Have a pass in force for its time from now on, if it is there still; says whether it is. A
    renewal brings back nothing that was ended, however late it comes.
    """
    asked = MakePassAsk(digest=digest, table=table, right=right, ttl_ms=TTL_MS)
    return operated(backend, "pass.renew", asked, PassReply).there


def end(backend: Backend, digest: bytes) -> bool:
    """Have a pass end; says whether the server did it. If not, it ends by itself in minutes."""
    asked = EndPassAsk(digest=digest)
    try:
        backend.operate("pass.end", msgspec.json.encode(asked), timeout_s=_END_S)
    except LowmarkError as error:
        logger.info("a pass was not ended", extra={"reason": error.message})
        return False
    return True


class Given:
    """One pass, which is in force until it is closed."""

    def __init__(self, backend: Backend, right: Right, table: int, *, what: str = "") -> None:
        self._backend = backend
        self._renewer: Renewer | None = None
        secret = secret_for(backend, right, table, what)
        if secret is not None and not make(backend, secret.digest(), right, table):
            secret = None
        self._secret = secret
        if secret is not None:
            self._renewer = Renewer(lambda: backend)
            self._renewer.keep(secret.digest(), right, table, again=True)

    @property
    def shown(self) -> str:
        """What tasks are given; empty: there is none."""
        return "" if self._secret is None else self._secret.reveal()

    def close(self) -> None:
        """Let in no task any more. Twice is fine."""
        renewer, self._renewer = self._renewer, None
        if renewer is not None and self._secret is not None:
            renewer.close()
            if not self._backend.closed:
                end(self._backend, self._secret.digest())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(slots=True)
class _Kept:
    """A pass that is renewed."""

    right: Right
    table: int
    at_s: float
    """When it is due."""
    again: bool
    """It is made again if its record is gone: nothing but this process ends it."""
    over: bool = False
    """It is due to be ended."""


class Renewer:
    """Renews passes of one client, and ends them, on a thread of its own.

    While the server can't be reached it tries one of them every `AGAIN_S`, and says so once. A pass
    that the server refuses to renew, or that was ended elsewhere, is renewed no more.
    """

    def __init__(self, client: Callable[[], Backend]) -> None:
        """`client` is asked for before each call: it connects, if it has not."""
        self._client = client
        self._kept: dict[bytes, _Kept] = {}
        self._changed = threading.Condition()
        self._making = threading.Lock()
        """Held while a pass is made again: none is after a close."""
        self._over = False
        self._away_until_s = 0.0
        self._away = False
        self._thread = threading.Thread(target=self._run, name="lowmark-pass", daemon=True)
        self._thread.start()

    def keep(
        self, digest: bytes, right: Right, table: int, *, in_s: float | None = None, again: bool
    ) -> None:
        """Renew a pass from now on, first in a while. One that is renewed already is left alone."""
        at_s = time.monotonic() + (RENEW_S if in_s is None else in_s)
        with self._changed:
            self._kept.setdefault(digest, _Kept(right, table, at_s, again))
            self._changed.notify_all()

    def keeps(self, digest: bytes) -> bool:
        """Whether it goes on renewing this pass."""
        return digest in self._kept

    @property
    def idle(self) -> bool:
        """Whether there is nothing to renew, or to end."""
        return not self._kept

    def forget(self, digest: bytes) -> None:
        """Renew a pass no more."""
        with self._changed:
            self._kept.pop(digest, None)

    def _forget_all(self, *, over: bool) -> None:
        with self._changed:
            for digest in [one for one, kept in self._kept.items() if kept.over is over]:
                del self._kept[digest]

    def end(self, digest: bytes) -> None:
        """Renew a pass no more, and have it end."""
        with self._changed:
            if digest in self._kept:
                self._kept[digest].over = True
                self._changed.notify_all()

    def close(self) -> None:
        """Renew nothing more; what is to be ended is ended all the same. None is made any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        with self._making:
            return

    def join(self, timeout_s: float) -> None:
        """Wait until it is done, after `close`."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (found := self._next()) is not None:
            digest, one = found
            try:
                client = self._client()
            except LowmarkError as error:  # files of certificates may be changing, say
                self._failed(digest, error, refused=isinstance(error, Unauthenticated))
                continue
            try:
                if one.over:
                    self._end(client, digest)
                else:
                    self._renew(client, digest, one)
            except Closed:
                return
            except ActionUnknown as error:  # a node of an earlier release: another one may know it
                self._failed(digest, error, refused=False)
            except Rejected as error:
                self._failed(digest, error, refused=True)
            except LowmarkError as error:
                self._failed(digest, error, refused=False)

    def _next(self) -> tuple[bytes, _Kept] | None:
        """What is due, once it is; None: nothing will be."""
        with self._changed:
            while True:
                over = [found for found in self._kept.items() if found[1].over]
                if over:
                    return over[0]
                if self._over:
                    return None
                first = min(self._kept.items(), key=lambda found: found[1].at_s, default=None)
                wait_s = None
                if first is not None:
                    wait_s = max(first[1].at_s, self._away_until_s) - time.monotonic()
                    if wait_s <= 0:
                        return first
                self._changed.wait(wait_s)

    def _renew(self, client: Backend, digest: bytes, one: _Kept) -> None:
        there = renew(client, digest, one.right, one.table)
        if not there and not one.again:
            self.forget(digest)
        elif not there:
            with self._making:
                if not self._over and self.keeps(digest):
                    make(client, digest, one.right, one.table)
        one.at_s = time.monotonic() + RENEW_S
        if self._away:
            self._away = False
            logger.info("passes are renewed again")

    def _end(self, client: Backend, digest: bytes) -> None:
        if end(client, digest):
            self.forget(digest)
        else:  # a server that hangs: not one after another
            self._forget_all(over=True)

    def _failed(self, digest: bytes, error: LowmarkError, *, refused: bool) -> None:
        reason, one = error.one_line(), self._kept.get(digest)
        if one is not None and one.over:
            self._forget_all(over=True)
        elif isinstance(error, Unauthenticated):
            logger.warning("passes can't be renewed", extra={"reason": reason})
            self._forget_all(over=False)
        elif refused:
            logger.warning("a pass can't be renewed", extra={"reason": reason})
            self.forget(digest)
        else:
            self._away_until_s = time.monotonic() + AGAIN_S
            if one is not None:  # the next attempt is another one's, if there is one
                one.at_s = self._away_until_s
            if not self._away:
                self._away = True
                logger.warning("passes are not renewed now", extra={"reason": reason})
