"""An authority in a directory: what it has issued, what it issues, and what it revokes.

`issue`, step by step; a crash after any of them leaves what a repetition puts right:

    1. the certificate is noted in issued.jsonl
    2. the list of revoked certificates and the authority's certificate are in the node's folder
    3. the key is there: until step 4 it does not match, and a running node goes on with what it has
    4. the certificate is there

`found`: first the key is there, then the certificate. A key alone is used by the next `found`.

`revoke`:

    1. the new list is in the directory
    2. it is in the folder of each node in the directory
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lowmark.authority.errors import AuthorityRefused, CertificateRefused
from lowmark.authority.files import OWNER_ALONE, append, in_our_words, in_turn, make_folder, put
from lowmark.authority.hosts import Host, check_name, hosts_of
from lowmark.formatting import counted
from lowmark.runtime.tls import AUTHORITY, CERTIFICATE, KEY, REVOKED

AUTHORITY_KEY: Final = "ca.key"
ISSUED: Final = "issued.jsonl"
AUTHORITY_DAYS: Final = 3_650
DAYS: Final = 365
DAYS_MAX: Final = 3_650
_LOST: Final = f"Put {AUTHORITY} back: each node's folder has it."
_ELSEWHERE: Final = "Issue certificates by it (`lowmark tls issue`), or give another directory."
_BEFORE = timedelta(hours=1)
"""So much earlier a certificate is valid: other machines' clocks may be behind."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was issued, as it is noted."""

    name: str
    serial: str
    hosts: tuple[str, ...]
    issued_at_ms: int
    ends_at_ms: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """What a revocation came to."""

    serials: tuple[str, ...]
    """The certificates that are on the list now and were not before."""
    lists: tuple[str, ...]
    """Where the list was written."""


class Authority:
    """Of one directory."""

    def __init__(
        self, folder: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
    ) -> None:
        self.folder = folder
        self.certificate = certificate
        self._key = key

    @classmethod
    def found(cls, folder: str, *, now: datetime | None = None) -> Self:
        """Make one in a directory that has none, or finish one of which only the key is there."""
        now = now or datetime.now(UTC)
        path = os.path.join(folder, AUTHORITY_KEY)
        with in_our_words(f"no authority could be made in {folder}"):
            _check_none(folder)  # before the directory is changed
            make_folder(folder)
            with in_turn(folder):
                _check_none(folder)
                if os.path.lexists(path):
                    key = _key_in(path)
                else:
                    key = generate_private_key(SECP256R1())
                    put(path, _pem_of_key(key), mode=OWNER_ALONE)
                certificate = _authority_certificate(key, now)
                put(os.path.join(folder, AUTHORITY), certificate.public_bytes(Encoding.PEM))
        return cls(folder, certificate, key)

    @classmethod
    def of(cls, folder: str) -> Self:
        """The one that is there."""
        path = os.path.join(folder, AUTHORITY_KEY)
        try:
            with open(os.path.join(folder, AUTHORITY), "rb") as file:
                certificate = x509.load_pem_x509_certificate(file.read())
            key = _key_in(path)
        except FileNotFoundError as error:
            raise AuthorityRefused(
                f"{folder} is not the directory of an authority: there is no {error.filename}",
                hint=_how_to_have(folder),
            ) from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise AuthorityRefused(f"the authority in {folder} can't be read: {reason}") from error
        if key.public_key() != certificate.public_key():
            raise AuthorityRefused(
                f"{path} is not the key of {AUTHORITY} beside it",
                hint="Put back both files of one authority.",
            )
        return cls(folder, certificate, key)

    # -- issuing --------------------------------------------------------------------------------

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        *,
        days: int = DAYS,
        now: datetime | None = None,
    ) -> Issued:
        """A node's folder, or new files in it. Without hosts: those of the last time."""
        now = now or datetime.now(UTC)
        check_name(name)
        wanted = hosts_of(hosts)
        if not 1 <= days <= DAYS_MAX:
            raise CertificateRefused(f"a certificate can't be valid for {days} days")
        ends, last = now + timedelta(days=days), self.certificate.not_valid_after_utc
        if ends > last:
            left = max(0, (last - now).days)
            raise CertificateRefused(
                f"the authority ends on {last:%Y-%m-%d}, before a certificate for"
                f" {counted(days, 'day')} would",
                hint=f"Give --days {left} or less, or make a new authority in another directory.",
            )
        with in_our_words(f"no certificate could be issued in {self.folder}"), in_turn(self.folder):
            if not wanted:
                wanted = self._hosts_before(name)
            key = generate_private_key(SECP256R1())
            certificate = self._certificate(name, wanted, key, now, ends)
            issued = Issued(
                name,
                f"{certificate.serial_number:x}",
                tuple(map(str, wanted)),
                _millis(now),
                _millis(certificate.not_valid_after_utc),
            )
            append(os.path.join(self.folder, ISSUED), _noted(issued))
            folder = os.path.join(self.folder, name)
            if not os.path.isdir(folder):
                make_folder(folder)
            self._hand_list(folder)
            put(os.path.join(folder, AUTHORITY), self.certificate.public_bytes(Encoding.PEM))
            put(os.path.join(folder, KEY), _pem_of_key(key), mode=OWNER_ALONE)
            put(os.path.join(folder, CERTIFICATE), certificate.public_bytes(Encoding.PEM))
        return issued

    def issued(self, name: str) -> list[Issued]:
        """All that this node got, oldest first."""
        return [one for one in self._all_issued() if one.name == name]

    def _hosts_before(self, name: str) -> list[Host]:
        before = self.issued(name)
        if not before:
            raise CertificateRefused(
                f"no certificate was issued for {name} yet: say which hosts it is for",
                hint="Give each name and address by which clients and other nodes reach it:"
                f" --host {name}.example --host 10.0.0.7",
            )
        return hosts_of(before[-1].hosts)

    def _certificate(
        self,
        name: str,
        hosts: Sequence[Host],
        key: EllipticCurvePrivateKey,
        now: datetime,
        ends: datetime,
    ) -> x509.Certificate:
        names: list[x509.GeneralName] = [
            x509.IPAddress(host)
            if isinstance(host, IPv4Address | IPv6Address)
            else x509.DNSName(host)
            for host in hosts
        ]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        known_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(known_by, critical=False)
            .sign(self._key, SHA256())
        )

    # -- revoking -------------------------------------------------------------------------------

    def revoke(self, name: str, *, now: datetime | None = None) -> Revoked:
        """Put every certificate that this node got, and that has not ended, on the list. Twice is
        fine: the list is handed to the folders once more.
        """
        now = now or datetime.now(UTC)
        check_name(name)
        with in_our_words(f"nothing could be revoked in {self.folder}"), in_turn(self.folder):
            given = self.issued(name)
            if not given:
                known = sorted({one.name for one in self._all_issued()})
                raise CertificateRefused(
                    f"no certificate was issued for {name}",
                    hint=f"There are certificates for {', '.join(known)}." if known else "",
                )
            entries = {one.serial_number: one for one in self._listed()}
            fresh = [
                one
                for one in given
                if int(one.serial, 16) not in entries and one.ends_at_ms > _millis(now)
            ]
            for one in fresh:
                entry = x509.RevokedCertificateBuilder().serial_number(int(one.serial, 16))
                entries[int(one.serial, 16)] = entry.revocation_date(now).build()
            path = os.path.join(self.folder, REVOKED)
            put(path, self._list(list(entries.values()), now))
            folders = [os.path.join(self.folder, each) for each in sorted(os.listdir(self.folder))]
            of_nodes = [f for f in folders if os.path.exists(os.path.join(f, CERTIFICATE))]
            for folder in of_nodes:
                self._hand_list(folder)
        written = [path, *(os.path.join(folder, REVOKED) for folder in of_nodes)]
        return Revoked(tuple(one.serial for one in fresh), tuple(written))

    def _listed(self) -> list[x509.RevokedCertificate]:
        try:
            with open(os.path.join(self.folder, REVOKED), "rb") as file:
                return list(x509.load_pem_x509_crl(file.read()))
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise AuthorityRefused(
                f"{os.path.join(self.folder, REVOKED)} can't be read: {error}",
                detail="What it names is revoked; a new list without it would undo that.",
                hint="Put it back from the folder of a node.",
            ) from error

    def _list(self, entries: Sequence[x509.RevokedCertificate], now: datetime) -> bytes:
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        known_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - _BEFORE)
            # It lasts as long as the authority: a list that has ended would refuse every node.
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(_millis(now)), critical=False)
            .add_extension(known_by, critical=False)
        )
        for entry in entries:
            made = made.add_revoked_certificate(entry)
        return made.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def _hand_list(self, folder: str) -> None:
        """The list into a node's folder, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(self.folder, REVOKED), "rb") as file:
                content = file.read()
            put(os.path.join(folder, REVOKED), content)

    # -- what was noted -------------------------------------------------------------------------

    def _all_issued(self) -> list[Issued]:
        try:
            with open(os.path.join(self.folder, ISSUED), "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            # A line that is torn is of a command that was killed: its certificate was never there.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                noted: dict[str, Any] = json.loads(line)
                found.append(Issued(**noted | {"hosts": tuple(noted["hosts"])}))
        return found


def _noted(issued: Issued) -> bytes:
    fields = {name: getattr(issued, name) for name in Issued.__dataclass_fields__}
    return json.dumps(fields).encode()


def _check_none(folder: str) -> None:
    """Refuse a directory that has an authority. A key alone is none yet: its `init` was killed."""

    def has(name: str) -> bool:
        return os.path.lexists(os.path.join(folder, name))

    there = AUTHORITY if has(AUTHORITY) else AUTHORITY_KEY if has(ISSUED) else ""
    if there and has(there):
        raise AuthorityRefused(
            f"there is {there} in {folder} already",
            detail="A new authority would make every certificate of the one that is there"
            " worthless.",
            hint=_LOST if there == AUTHORITY_KEY else _ELSEWHERE,
        )


def _how_to_have(folder: str) -> str:
    """What to do where one of the two files is missing."""
    if os.path.lexists(os.path.join(folder, AUTHORITY)):
        return (
            f"Put {AUTHORITY_KEY} back: nothing can be issued without it. Or make another"
            " authority, in another directory."
        )
    if os.path.lexists(os.path.join(folder, ISSUED)):
        return _LOST
    return f"Make one: lowmark tls init {folder}"


def _key_in(path: str) -> EllipticCurvePrivateKey:
    try:
        with open(path, "rb") as file:
            key = load_pem_private_key(file.read(), password=None)
    except (ValueError, TypeError) as error:
        raise AuthorityRefused(f"the authority's key in {path} can't be read: {error}") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise AuthorityRefused(
            f"{path} is no key that `lowmark tls init` has made",
            hint="Put back both files of one authority.",
        )
    return key


def _authority_certificate(key: EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = _named(f"Lowmark authority {x509.random_serial_number() & 0xFFFFFFFF:08x}")
    known_by = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(known_by, critical=False)
        .sign(key, SHA256())
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(**given: bool) -> x509.KeyUsage:
    kinds = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**dict.fromkeys(kinds, False) | given)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _millis(time: datetime) -> int:
    return int(time.timestamp() * 1_000)
