"""Why no connection to a server came about, as far as TLS is the reason.

gRPC says only that a socket was closed, or that a handshake failed. So when a client could not
connect, it shakes hands once more, by Python's `ssl`, sends nothing, and says what was wrong: a
server of another authority, of another name, whose certificate has ended; one that speaks no TLS,
or that speaks nothing else.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any, Final

from lowmark.errors import LowmarkError
from lowmark.formatting import time_text
from lowmark.runtime.network import host_and_port, speaks_tls
from lowmark.runtime.profiles import authorities
from lowmark.runtime.refusals import (
    AuthorityUnusable,
    ServerNotTrusted,
    TlsNeeded,
    TlsNotSpoken,
)

PATIENCE_S: Final = 2.0
_ENDED = 10  # OpenSSL's numbers: X509_V_ERR_*
_NOT_YET = 9
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_NAME = frozenset({62, 64})
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})


def roots_for(address: str, ca: str | None) -> dict[str, bytes]:
    """What a Flight client of this address is made with."""
    path = authorities(ca) if speaks_tls(address) else None
    return {} if path is None else {"tls_root_certs": read_authority(path)}


def refusal_at(address: str, ca: str | None) -> LowmarkError | None:
    """See `why_refused`, of an address as users write it."""
    host, port = host_and_port(address)
    return why_refused(host, port, tls=speaks_tls(address), ca=authorities(ca))


def read_authority(path: str) -> bytes:
    """What is in a file of authorities; refused if that is not what it should be."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise AuthorityUnusable(path, reason="it holds no certificate in PEM") from error
    except OSError as error:
        raise AuthorityUnusable(path, reason=error.strerror or str(error)) from error
    return content


def why_refused(host: str, port: int, *, tls: bool, ca: str | None = None) -> LowmarkError | None:
    """What TLS has to do with it that no connection to a server came about; None: nothing.

    `ca` is a file of authorities; None: those of the machine.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if not tls:
            return TlsNeeded(address) if _speaks_tls(host, port) else None
        return _distrust(address, host, port, ca)
    except OSError:
        return None  # nothing answers there; that is said elsewhere


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shaken(context, host, port)
    except ssl.SSLError as error:
        # Whoever refuses us by an alert speaks it, too.
        return "ALERT" in (error.reason or "")
    return True


def _distrust(address: str, host: str, port: int, ca: str | None) -> LowmarkError | None:
    context = ssl.create_default_context(cafile=ca)
    try:
        _shaken(context, host, port)
    except ssl.SSLCertVerificationError as error:
        return _in_words(error, address, host, port, ca)
    except ssl.SSLError as error:
        return TlsNotSpoken(address) if error.reason in _NO_TLS else None
    return None


def _in_words(
    error: ssl.SSLCertVerificationError, address: str, host: str, port: int, ca: str | None
) -> LowmarkError:
    where = f"in {ca}" if ca is not None else "that this machine knows"
    code = error.verify_code
    if code in _UNKNOWN_AUTHORITY:
        reason = f"no authority {where} has signed its certificate"
        hint = "Give the ca.pem of this cluster: ca=…, --ca, or $LOWMARK_CA."
    elif code in _NAME:
        names = ", ".join(_names(host, port, ca)) or "no host"
        reason = f"its certificate is for {names}, not for {host}"
        hint = "Connect by one of these names, or issue a certificate for this one: --host."
    elif code in {_ENDED, _NOT_YET}:
        when = time_text(int(time.time()) * 1_000)[:16]
        what = "has ended" if code == _ENDED else "is not valid yet"
        reason = f"its certificate {what} (it is {when} UTC here)"
        hint = "Renew it on the node (`lowmark tls issue`), or put this machine's clock right."
    else:
        reason = f"its certificate is refused: {error.verify_message}"
        hint = "Look at it on the node: lowmark tls show DIR."
    return ServerNotTrusted(address, reason=reason, hint=hint)


def _names(host: str, port: int, ca: str | None) -> list[str]:
    """For which hosts the certificate of a server is, which an authority of ours has signed."""
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    with contextlib.suppress(OSError):
        found: Any = _shaken(context, host, port)
        return [name.strip() for _, name in found.get("subjectAltName", ())]
    return []


def _shaken(context: ssl.SSLContext, host: str, port: int) -> Any:
    """The server's certificate, after a handshake; nothing is sent after it."""
    context.set_alpn_protocols(["h2"])  # gRPC ends the handshake with one that offers nothing
    with (
        socket.create_connection((host, port), timeout=PATIENCE_S) as bare,
        context.wrap_socket(bare, server_hostname=host, do_handshake_on_connect=False) as secure,
    ):
        secure.do_handshake()
        return secure.getpeercert() or {}
