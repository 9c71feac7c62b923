"""Passes for the tasks of a driver: made with its token, renewed while the work goes on, ended.

`Given` makes a pass and renews it on a thread, until it is closed. What a task shows is
`task_pass.to_show`: tasks import nothing of this.

None is made where none is needed, or the server knows none: the database is in this process, its
server asks for no token, or is of an earlier release. Then the text is empty.
"""

from __future__ import annotations

import logging
import secrets
import threading
from types import TracebackType
from typing import Final, Self

import msgspec

from lowmark.backend.errors import OutcomeUnknown
from lowmark.backend.operating import EndPassAsk, MakePassAsk, PassReply, operated
from lowmark.backend.port import Backend
from lowmark.backend.remote import RemoteBackend
from lowmark.errors import LowmarkError
from lowmark.node.errors import ActionUnknown
from lowmark.tokens import BeyondPass, PassesFull, Right, Secret, Unauthenticated

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


def end(backend: Backend, digest: bytes) -> None:
    """Have a pass end. If that can't be done now, it ends by itself in minutes."""
    asked = EndPassAsk(digest=digest)
    try:
        backend.operate("pass.end", msgspec.json.encode(asked), timeout_s=_END_S)
    except LowmarkError as error:
        logger.info("a pass was not ended", extra={"reason": error.message})


class Given:
    """One pass, which is in force until it is closed."""

    def __init__(self, backend: Backend, right: Right, table: int, *, what: str = "") -> None:
        self._backend, self._right, self._table = backend, right, table
        self._over = threading.Event()
        secret = secret_for(backend, right, table, what)
        if secret is not None and not make(backend, secret.digest(), right, table):
            secret = None
        self._secret = secret
        if secret is not None:
            threading.Thread(target=self._renew, name="lowmark-pass", daemon=True).start()

    @property
    def shown(self) -> str:
        """What tasks are given; empty: there is none."""
        return "" if self._secret is None else self._secret.reveal()

    def close(self) -> None:
        """Let in no task any more. Twice is fine."""
        if self._over.is_set():
            return
        self._over.set()
        if self._secret is not None and not self._backend.closed:
            end(self._backend, self._secret.digest())

    def _renew(self) -> None:
        assert self._secret is not None
        wait_s = RENEW_S
        while not self._over.wait(wait_s) and not self._backend.closed:
            wait_s = renewed(self._backend, self._secret.digest(), self._right, self._table)
            if not wait_s:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def renewed(backend: Backend, digest: bytes, right: Right, table: int) -> float:
    """Renew a pass; gives when to do it again, 0: never, for its token is not in force."""
    try:
        make(backend, digest, right, table)
    except (Unauthenticated, BeyondPass) as refused:
        logger.warning("a pass can't be renewed", extra={"reason": refused.message})
        return 0.0
    except LowmarkError as error:
        logger.warning("a pass was not renewed", extra={"reason": error.message})
        return AGAIN_S
    return RENEW_S
