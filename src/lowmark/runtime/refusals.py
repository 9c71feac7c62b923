"""What a client hears of TLS when it gets no connection to a server (see `handshake`)."""

from __future__ import annotations

from lowmark.errors import Rejected
from lowmark.runtime.network import TLS_SCHEME


class AuthorityUnusable(Rejected):
    """A file of authorities that can't be read."""

    def __init__(self, path: str, *, reason: str) -> None:
        super().__init__(
            f"the authority in {path} can't be used: {reason}",
            hint="Give the cluster's ca.pem: ca=…, --ca, or $LOWMARK_CA.",
        )


class ServerNotTrusted(Rejected):
    """A server could not prove that it is the one which was meant."""

    def __init__(self, address: str, *, reason: str, hint: str) -> None:
        super().__init__(f"the server at {address} is not trusted: {reason}", hint=hint)


class TlsNeeded(Rejected):
    """A server that speaks TLS was asked without."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the server at {address} speaks TLS, and this client was told to do without",
            hint=f'Connect to "{TLS_SCHEME}{address}", with the cluster\'s ca.pem: ca=…, --ca, or'
            " $LOWMARK_CA.",
        )


class TlsNotSpoken(Rejected):
    """A server that speaks no TLS was asked with it."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the server at {address} speaks no TLS",
            detail="What is sent to it can be read on the way.",
            hint=f"Start it with `lowmark serve --tls DIR`; or leave {TLS_SCHEME} out.",
        )
