"""TLS between nodes: both sides show a certificate, and each name must be in its bearer's.

No socket here, as in `frames.py`: ciphertext in, bytes out, and the other way round.

**Who may claim a name.** A node is known by its address, `host:port`. It may claim an address if
its certificate is signed by the cluster's authority, is valid now, and names exactly that host as a
subject alternative name, DNS or IP. Nothing else counts: no common name, no wildcard, no port. So a
certificate speaks for a whole host, and whoever holds its key can be any node there.

A certificate that is named in the list of revoked ones counts for nothing, whoever signed it. A
handshake finds that out, and so does a look at a connection that was made before the list was
(`Tls.refusal`). So does the end of a certificate: a connection lasts no longer than the other
side's.

There is no way back to plain text, and nothing older than TLS 1.3. Only while a cluster goes over
to TLS, a node may take both (`real_network`): what it dials, it dials with TLS first.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NoReturn, Self, cast

from lowmark.errors import Rejected
from lowmark.runtime.der import CertificateId, NotDer, certificate_id, revocation_lists
from lowmark.runtime.disk import Buffer

CERTIFICATE, KEY, AUTHORITY, REVOKED = "cert.pem", "key.pem", "ca.pem", "crl.pem"
"""The files of a node's folder."""
TLS_HANDSHAKE = 0x16
"""The first byte of one who dials with TLS; a hello without begins with a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: who we are, how we prove it, whom we believe, and whom no more."""

    certificate: str  # ours, then any between it and the authority
    key: str  # of our certificate; not encrypted
    authority: str  # what signs the certificates of all nodes
    revoked: str = ""  # which of them are revoked; while there is no such file, none is

    @classmethod
    def of_folder(cls, folder: str) -> Self:
        """The files of a folder by their usual names, as `lowmark tls issue` makes one."""
        certificate, key, authority, revoked = (
            os.path.join(folder, name) for name in (CERTIFICATE, KEY, AUTHORITY, REVOKED)
        )
        return cls(certificate=certificate, key=key, authority=authority, revoked=revoked)


class TlsUnusable(Rejected):
    """A file that TLS needs is not what it should be."""

    def __init__(self, path: str, *, what: str, reason: str) -> None:
        super().__init__(
            f"the {what} in {path} can't be used: {reason}",
            hint="A node needs its certificate, that certificate's key, and the authority that"
            " signed it, as PEM files.",
        )
        self.path = path


class KeyMismatch(TlsUnusable):
    """A key that is not of the certificate; for a moment that is so while both are replaced."""

    def __init__(self, path: str) -> None:
        super().__init__(path, what="key", reason="it is not the key of our certificate")


class Untrusted(Exception):
    """The other side is not one of us, or thinks that we are not; the connection is of no use."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tls:
    """What the files said when they were read, ready to be used on any number of connections."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.certificate = _content(files.certificate, what="certificate")
        """As it is in its file, and so is the key: for a server that is given them once."""
        self.key = _content(files.key, what="key")
        self._revoked, list_ends_s = _revoked(files.revoked)
        self.knows_revoked = os.path.exists(files.revoked)
        self._dials = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        self._listens = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self._listens.num_tickets = 0  # no session is ever taken up again
        ours = self._shake_own_hand()
        try:
            self._ours, ends_s, _ = ours.names(), ours.ends_s, ours.certificate
        except Untrusted as odd:
            reason = odd.reason.removeprefix("its certificate ")
            raise TlsUnusable(files.certificate, what="certificate", reason=f"it {reason}") from odd
        self.authorities = frozenset(self._dials.get_ca_certs(binary_form=True))
        """Whom we believe."""
        self.ends = [End(files.certificate, "certificate", ends_s)]
        """Until when what is in the files can be used."""
        if self.authorities:
            self.ends.append(End(files.authority, "authority", self._authority_ends_s()))
        if list_ends_s is not None:
            self.ends.append(End(files.revoked, "list of revoked certificates", list_ends_s))

    def _authority_ends_s(self) -> float:
        """While one is replaced by another, the later one counts."""
        try:
            ends = [str(one["notAfter"]) for one in self._dials.get_ca_certs()]
            return max(map(ssl.cert_time_to_seconds, ends))
        except Exception as error:
            raise TlsUnusable(
                self.files.authority, what="authority", reason=f"it can't be read: {error}"
            ) from error

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
                self.files.certificate,
                what="certificate",
                reason=f"it is {_said(self._ours)}, and others know us as {host}",
            )

    def refusal(self, session: TlsSession, *, now_s: float) -> str | None:
        """Why the other side of a connection that stands is not believed any more, if so."""
        try:
            if session.ends_s <= now_s:
                return "its certificate has expired"
            if session.certificate in self._revoked:
                return "its certificate was revoked"
        except Untrusted as odd:
            return odd.reason
        return None

    def _shake_own_hand(self) -> TlsSession:
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
                self.files.certificate,
                what="certificate",
                reason=f"every peer would refuse it: {reason}",
            ) from refused
        return one


@dataclass(frozen=True, slots=True)
class End:
    """When a file can't be used any more."""

    path: str
    what: str
    ends_s: float
    """Seconds since 1970."""


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
        with _reading():
            certificate: Any = self._tls.getpeercert() or {}
            return list(certificate.get("subjectAltName", ()))

    @cached_property
    def ends_s(self) -> float:
        """When the other side's certificate ends: seconds since 1970. It has shaken hands."""
        with _reading():
            certificate: Any = self._tls.getpeercert()
            return ssl.cert_time_to_seconds(certificate["notAfter"])

    @cached_property
    def certificate(self) -> CertificateId:
        """By what the other side's certificate is known."""
        with _reading():
            return certificate_id(self._tls.getpeercert(binary_form=True) or b"")

    @property
    def shaken(self) -> bool:
        """Whether the handshake is done."""
        return self._shaken

    def refusal(self, host: str) -> str | None:
        """Why the other side can't be this host; None if it can."""
        try:
            names = self.names()
        except Untrusted as odd:
            return odd.reason
        return None if _names(host, names) else f"its certificate is {_said(names)}, not for {host}"


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """An authority may sign what Python can't read: a name that is no text, say. However reading
    fails, the other side is refused, and nothing else comes of it.
    """
    try:
        yield
    except Exception as error:
        raise Untrusted(f"its certificate can't be read: {error}") from error


# -- names ----------------------------------------------------------------------------------------


def _names(host: str, names: list[tuple[str, str]]) -> bool:
    try:
        wanted = ip_address(host)
    except ValueError:
        plain = host.lower().rstrip(".")
        return any(kind == "DNS" and name.lower().rstrip(".") == plain for kind, name in names)
    return any(kind == "IP Address" and _number(name) == wanted for kind, name in names)


def _number(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name.strip())
    except ValueError:
        return None  # of as many bytes as no number has: so says OpenSSL of it


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
    if os.path.exists(files.revoked):
        _load(
            lambda: context.load_verify_locations(cafile=files.revoked),
            path=files.revoked,
            what="list of revoked certificates",
        )
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF

    def refuse_to_ask() -> NoReturn:
        raise TlsUnusable(files.key, what="key", reason="it is encrypted")

    _load(
        lambda: context.load_cert_chain(files.certificate, files.key, password=refuse_to_ask),
        path=files.key,
        what="key",
    )
    return context


def _content(path: str, *, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TlsUnusable(path, what=what, reason=error.strerror or str(error)) from error


def _revoked(path: str) -> tuple[frozenset[CertificateId], int | None]:
    """Which certificates are revoked, and until when that is known."""
    if not os.path.exists(path):
        return frozenset(), None
    what = "list of revoked certificates"
    try:
        with open(path, "rb") as file:
            found = revocation_lists(file.read())
    except OSError as error:
        raise TlsUnusable(path, what=what, reason=error.strerror or str(error)) from error
    except NotDer as error:
        raise TlsUnusable(path, what=what, reason=f"it holds no readable {what}") from error
    ends = [one.ends_s for one in found if one.ends_s is not None]
    revoked = frozenset(name for one in found for name in one.revoked)
    return revoked, min(ends, default=None)


def _load(load: Callable[[], None], *, path: str, what: str) -> None:
    try:
        with open(path, "rb"):  # OpenSSL does not say which file is missing
            pass
        load()
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise KeyMismatch(path) from error
        reason = f"it holds no readable {what} ({error.reason or error})"
        raise TlsUnusable(path, what=what, reason=reason) from error
    except OSError as error:
        raise TlsUnusable(path, what=what, reason=error.strerror or str(error)) from error
