"""TLS between nodes: both sides show a certificate, and each name must be in its bearer's.

No socket here, as in `frames.py`: ciphertext in, bytes out, and the other way round.

**Who may claim a name.** A node is known by its address, `host:port`. It may claim an address if
its certificate is signed by the cluster's authority, is valid now, and names exactly that host as a
subject alternative name, DNS or IP. Nothing else counts: no common name, no wildcard, no port. So a
certificate speaks for a whole host, and whoever holds its key can be any node there.

There is no way back to plain text, and nothing older than TLS 1.3.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NoReturn, cast

from lowmark.errors import Rejected
from lowmark.runtime.disk import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Three PEM files: who we are, how we prove it, and whom we believe."""

    certificate: str  # ours, then any between it and the authority
    key: str  # of our certificate; not encrypted
    authority: str  # what signs the certificates of all nodes


class TlsUnusable(Rejected):
    """A file that TLS needs is not what it should be."""

    def __init__(self, path: str, *, what: str, reason: str) -> None:
        super().__init__(
            f"the {what} in {path} can't be used: {reason}",
            hint="A node needs its certificate, that certificate's key, and the authority that"
            " signed it, as PEM files.",
        )
        self.path = path


class Untrusted(Exception):
    """The other side is not one of us, or thinks that we are not; the connection is of no use."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tls:
    """What the files say, ready to be used on any number of connections."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._dials = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        self._listens = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self._listens.num_tickets = 0  # no session is ever taken up again
        self._ours = self._names_of_ours()

    def dial(self) -> TlsSession:
        """The side of a connection that dialled."""
        return TlsSession(self._dials, server_side=False)

    def answer(self) -> TlsSession:
        """The other side."""
        return TlsSession(self._listens, server_side=True)

    def check_ours(self, host: str) -> None:
        """Refuse to be known by a host name that no peer would believe."""
        if not _names(host, self._ours):
            raise TlsUnusable(
                self._files.certificate,
                what="certificate",
                reason=f"it is {_said(self._ours)}, and others know us as {host}",
            )

    def _names_of_ours(self) -> list[tuple[str, str]]:
        """Shake hands with ourselves: what a peer would refuse is refused here, and by name."""
        one, other, done = self.dial(), self.answer(), False
        try:
            while not done:
                done = one.shake_hands()
                other.received(one.to_send())
                done = other.shake_hands() and done
                one.received(other.to_send())
        except Untrusted as refused:
            cause, reason = refused.__cause__, refused.reason
            if isinstance(cause, ssl.SSLCertVerificationError):
                reason = cause.verify_message
            raise TlsUnusable(
                self._files.certificate,
                what="certificate",
                reason=f"every peer would refuse it: {reason}",
            ) from refused
        return one.names()


class TlsSession:
    """One connection's TLS."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._shaken = False

    def received(self, ciphertext: Buffer) -> None:
        """Take what came from the socket."""
        self._incoming.write(ciphertext)

    def to_send(self) -> bytes:
        """What is to go to the socket now."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def shake_hands(self) -> bool:
        """Go on with the handshake; True when it is done. Send what there is to send, either way.

        Also if it fails: then the other side is told why.
        """
        if not self._shaken:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                raise Untrusted(_reason(error)) from error
            self._shaken = True
        return True

    def read_into(self, room: memoryview) -> int | None:
        """Fill the room as far as possible; None at the proper end of the connection."""
        filled = 0
        try:
            while filled < len(room):
                # Typed as bytes, which it gives only if it is given no room.
                count = cast("int", self._tls.read(len(room) - filled, room[filled:]))
                if count == 0:
                    return filled or None
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return filled or None
        except ssl.SSLError as error:
            raise Untrusted(_reason(error)) from error
        return filled

    def write(self, data: Buffer) -> bytes:
        """Encrypt some bytes, all of them; gives what is to be sent."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self.to_send()

    def names(self) -> list[tuple[str, str]]:
        """What the other side's certificate is for."""
        certificate = self._tls.getpeercert() or {}
        found = cast("tuple[tuple[str, str], ...]", certificate.get("subjectAltName", ()))
        return list(found)

    def refusal(self, host: str) -> str | None:
        """Why the other side can't be this host; None if it can."""
        names = self.names()
        return None if _names(host, names) else f"its certificate is {_said(names)}, not for {host}"


# -- names ----------------------------------------------------------------------------------------


def _names(host: str, names: list[tuple[str, str]]) -> bool:
    try:
        wanted = ip_address(host)
    except ValueError:
        plain = host.lower().rstrip(".")
        return any(kind == "DNS" and name.lower().rstrip(".") == plain for kind, name in names)
    return any(kind == "IP Address" and ip_address(name.strip()) == wanted for kind, name in names)


def _said(names: list[tuple[str, str]]) -> str:
    listed = ", ".join(name.strip() for kind, name in names if kind in {"DNS", "IP Address"})
    return f"for {listed}" if listed else "for no host at all"


# -- errors ---------------------------------------------------------------------------------------

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE")
_OLD_TLS = ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW")


def _reason(error: ssl.SSLError) -> str:
    name = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if name == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it has no certificate"
    if name in _NO_TLS:
        return "it does not speak TLS"
    if name in _OLD_TLS:
        return "it does not speak TLS 1.3"
    if "_ALERT_" in name:
        alert = name.partition("_ALERT_")[2].replace("_", " ").lower()
        return f"it refused us in the TLS handshake: {alert}"
    return f"TLS failed: {name.replace('_', ' ').lower() or error}"


# -- files ----------------------------------------------------------------------------------------


def _context(protocol: ssl._SSLMethod, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # we check it, on both sides, and by our own rule
    context.verify_mode = ssl.CERT_REQUIRED
    _load(
        lambda: context.load_verify_locations(cafile=files.authority),
        path=files.authority,
        what="authority",
    )
    # To a context of its own: our certificate is no authority. It only says whether it can be read.
    _load(
        lambda: ssl.SSLContext(protocol).load_verify_locations(cafile=files.certificate),
        path=files.certificate,
        what="certificate",
    )

    def refuse_to_ask() -> NoReturn:
        raise TlsUnusable(files.key, what="key", reason="it is encrypted")

    _load(
        lambda: context.load_cert_chain(files.certificate, files.key, password=refuse_to_ask),
        path=files.key,
        what="key",
    )
    return context


def _load(load: Callable[[], None], *, path: str, what: str) -> None:
    try:
        with open(path, "rb"):  # OpenSSL does not say which file is missing
            pass
        load()
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = "it is not the key of our certificate"
        else:
            reason = f"it holds no readable {what} ({error.reason or error})"
        raise TlsUnusable(path, what=what, reason=reason) from error
    except OSError as error:
        raise TlsUnusable(path, what=what, reason=error.strerror or str(error)) from error
