"""A client shows its token with each call: the header `authorization: Bearer TOKEN`.

Where a client takes its token from, if it was given none: the file that the command line names;
the environment, `LOWMARK_TOKEN`, or `LOWMARK_TOKEN_FILE` and the first line of that file; the
profile in use. Never an argument: every user of a machine can see the arguments of a process.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyarrow import flight

from lowmark.errors import Rejected
from lowmark.runtime.profiles import profile_in_use
from lowmark.tokens import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

HEADER: Final = "authorization"
VARIABLE: Final = "LOWMARK_TOKEN"
FILE_VARIABLE: Final = "LOWMARK_TOKEN_FILE"
_BYTES_MAX: Final = 4_096
_named: ContextVar[str] = ContextVar("the file that a command line names", default="")


@contextmanager
def token_file(path: str) -> Iterator[None]:
    """In here, the token is that of a file, whatever the environment says."""
    before = _named.set(path)
    try:
        yield
    finally:
        _named.reset(before)


def found_secret() -> Secret | None:
    """The token that the command line, the environment or the profile in use names, the first of
    them that does; else None.
    """
    if path := _named.get():
        return secret_in(path)
    token, path = (os.environ.get(name, "").strip() for name in (VARIABLE, FILE_VARIABLE))
    if token and path:
        raise Rejected(f"${VARIABLE} and ${FILE_VARIABLE} are both set", hint="Unset one of them.")
    if path:
        return secret_in(path)
    if not token and (profile := profile_in_use()):
        if profile.token_file:
            return secret_in(profile.token_file)
        token = profile.token
    return Secret(token) if token else None


def secret_in(path: str) -> Secret:
    """The token in a file: its first line, whatever stands below."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                _warn(path)
            text = file.read(_BYTES_MAX)
    except OSError as error:
        raise Rejected(
            f"the file of a token can't be read: {path}: {error.strerror}",
            hint="Name the file that has the token: admin.token in the directory of the node that"
            " founded the cluster, say.",
        ) from error
    first, _, _ = text.decode(errors="replace").strip().partition("\n")
    return Secret(first.strip())


@cache  # a command asks for its token several times
def _warn(path: str) -> None:
    logger.warning(
        "other users of this machine may read a token; close its file to them",
        extra={"file": path, "command": f"chmod 600 {path}"},
    )


def secret_of(token: str | Secret | None) -> Secret | None:
    """The token that a client was given; without, what `found_secret` finds."""
    if token is None:
        return found_secret()
    return token if isinstance(token, Secret) else Secret(token.strip())


class _Header(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def sending_headers(self) -> dict[str, str]:
        return self._headers


class _Shows(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, secret: Secret) -> None:
        self._header = _Header({HEADER: f"Bearer {secret.reveal()}"})

    def start_call(self, info: Any) -> _Header:
        del info
        return self._header


def showing(secret: Secret | None) -> list[Any]:
    """The middleware of a Flight client that shows a token; none, if it has none."""
    return [] if secret is None else [_Shows(secret)]
