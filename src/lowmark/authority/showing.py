"""What certificates say, and what is wrong with them: of a file, a node's folder, an authority."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from lowmark.authority.errors import CertificateRefused
from lowmark.runtime.tls import AUTHORITY, CERTIFICATE, KEY, REVOKED

_BLOCK = re.compile(
    rb"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----.*?-----END (?P=kind)-----", re.DOTALL | re.ASCII
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate, or a list of revoked ones."""

    file: str
    kind: str
    """certificate, authority, or list."""
    name: str
    hosts: tuple[str, ...]
    state: str
    """valid, ended, to come, revoked, or unusable."""
    why: str
    """What is wrong with it, if anything is."""
    ends_at_ms: int | None
    days_left: int | None
    issuer: str
    serial: str
    fingerprint: str
    """SHA-256 of the whole; of a list, nothing."""
    revoked: tuple[str, ...] = ()
    """The serial numbers on a list."""


def shown_at(path: str, *, now: datetime | None = None) -> list[Shown]:
    """All that a file holds; of a folder, all certificates and lists in it and one level below."""
    now = now or datetime.now(UTC)
    if not os.path.isdir(path):
        return list(_of_file(path, now))
    found = list(_of_folder(path, now))
    for name in sorted(os.listdir(path)):
        below = os.path.join(path, name)
        if os.path.exists(os.path.join(below, CERTIFICATE)):
            found += _of_folder(below, now)
    if not found:
        raise CertificateRefused(
            f"there is no certificate in {path}",
            hint=f"A node's folder has {CERTIFICATE}, {KEY} and {AUTHORITY}.",
        )
    return found


def _of_folder(folder: str, now: datetime) -> Iterator[Shown]:
    for name in (AUTHORITY, CERTIFICATE, REVOKED):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            yield from _of_file(path, now, folder=folder)


def _of_file(path: str, now: datetime, *, folder: str = "") -> Iterator[Shown]:
    content = _content(path)
    kinds = {match["kind"] for match in _BLOCK.finditer(content)}
    try:
        if b"X509 CRL" in kinds:
            for match in _BLOCK.finditer(content):
                yield _of_list(path, x509.load_pem_x509_crl(match[0]), now)
            return
        if b"CERTIFICATE" in kinds:
            blocks = [m[0] for m in _BLOCK.finditer(content) if m["kind"] == b"CERTIFICATE"]
            for number, block in enumerate(blocks):
                certificate = x509.load_pem_x509_certificate(block)
                yield _of_certificate(path, certificate, now, folder if number == 0 else "")
            return
    except ValueError as error:
        raise CertificateRefused(f"{path} can't be read: {error}") from error
    what = "a key, which is not shown" if any(b"KEY" in kind for kind in kinds) else "no PEM file"
    raise CertificateRefused(
        f"there is no certificate in {path}: it is {what}",
        hint="Give a certificate, a list of revoked ones, or the folder of a node.",
    )


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CertificateRefused(
            f"{path} can't be read: {error.strerror or error}",
            hint="Give a PEM file, the folder of a node, or the directory of an authority.",
        ) from error


def _of_certificate(path: str, it: x509.Certificate, now: datetime, folder: str) -> Shown:
    """In a node's folder, it is held against the files beside it."""
    is_authority = _is_authority(it)
    state, why = "valid", ""
    if now < it.not_valid_before_utc:
        state, why = "to come", f"it is valid from {it.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on"
    elif now >= it.not_valid_after_utc:
        state, why = "ended", "renew it: lowmark tls issue"
    elif folder and not is_authority:
        state, why = _beside(it, folder)
    return Shown(
        file=path,
        kind="authority" if is_authority else "certificate",
        name=_common_name(it.subject),
        hosts=_hosts(it),
        state=state,
        why=why,
        ends_at_ms=int(it.not_valid_after_utc.timestamp() * 1_000),
        days_left=max(0, (it.not_valid_after_utc - now).days),
        issuer=_common_name(it.issuer),
        serial=f"{it.serial_number:x}",
        fingerprint=it.fingerprint(SHA256()).hex(),
    )


def _beside(it: x509.Certificate, folder: str) -> tuple[str, str]:
    """The state of a certificate by what is in its folder."""
    revoked = os.path.join(folder, REVOKED)
    if os.path.exists(revoked):
        for match in _BLOCK.finditer(_content(revoked)):
            with contextlib.suppress(ValueError):
                listed = x509.load_pem_x509_crl(match[0])
                entry = listed.get_revoked_certificate_by_serial_number(it.serial_number)
                if entry is not None and listed.issuer == it.issuer:
                    day = f"{entry.revocation_date_utc:%Y-%m-%d}"
                    return "revoked", f"since {day}: nodes refuse it; issue another one"
    key = os.path.join(folder, KEY)
    if not os.path.exists(key):
        return "unusable", f"there is no {KEY} beside it"
    try:
        if load_pem_private_key(_content(key), password=None).public_key() != it.public_key():
            return "unusable", f"{KEY} beside it is of another certificate"
    except (ValueError, TypeError) as error:
        return "unusable", f"{KEY} beside it can't be read: {error}"
    return _by_authority(it, os.path.join(folder, AUTHORITY))


def _by_authority(it: x509.Certificate, path: str) -> tuple[str, str]:
    if not os.path.exists(path):
        return "unusable", f"there is no {AUTHORITY} beside it"
    blocks = [m[0] for m in _BLOCK.finditer(_content(path)) if m["kind"] == b"CERTIFICATE"]
    for block in blocks:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            it.verify_directly_issued_by(x509.load_pem_x509_certificate(block))
            return "valid", ""
    return "unusable", f"{AUTHORITY} beside it has not signed it"


def _of_list(path: str, it: x509.CertificateRevocationList, now: datetime) -> Shown:
    ends = it.next_update_utc
    ended = ends is not None and now >= ends
    return Shown(
        file=path,
        kind="list",
        name="",
        hosts=(),
        state="ended" if ended else "valid",
        why="nodes refuse everybody by a list that has ended" if ended else "",
        ends_at_ms=None if ends is None else int(ends.timestamp() * 1_000),
        days_left=None if ends is None else max(0, (ends - now).days),
        issuer=_common_name(it.issuer),
        serial="",
        fingerprint="",
        revoked=tuple(f"{one.serial_number:x}" for one in it),
    )


def _is_authority(it: x509.Certificate) -> bool:
    try:
        return it.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def _hosts(it: x509.Certificate) -> tuple[str, ...]:
    try:
        named = it.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    kinds = (x509.DNSName, x509.IPAddress)
    return tuple(str(one.value) for one in named if isinstance(one, kinds))
