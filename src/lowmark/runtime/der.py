"""As much of DER as it takes to tell which certificates a revocation list names.

OpenSSL checks a list, and who signed it, in every handshake. Of a connection that stands already
Python gives the other side's certificate alone, as bytes: what is read here is its serial number
and its issuer, and the same of a list. Nothing here judges a signature.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from lowmark.runtime.disk import Buffer

_INTEGER: Final = 0x02
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_TIMES: Final = (_UTC_TIME, _GENERALIZED_TIME)
_CENTURY: Final = 50  # RFC 5280, 4.1.2.5.1: a year of two digits from here on is 19YY

_LIST = re.compile(
    rb"-----BEGIN X509 CRL-----\s*(.*?)\s*-----END X509 CRL-----", re.DOTALL | re.ASCII
)


class NotDer(ValueError):
    """These bytes are no certificate, or no list."""


@dataclass(frozen=True, slots=True)
class CertificateId:
    """What a certificate is known by: its issuer's name, as it is encoded, and its number."""

    issuer: bytes
    serial: int


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Which certificates of an issuer are not to be believed any more."""

    revoked: frozenset[CertificateId]
    ends_s: int | None
    """Seconds since 1970: there is a newer list by then. OpenSSL believes none that is older."""


def certificate_id(der: bytes) -> CertificateId:
    """What a certificate is known by."""
    fields = _Fields(_only(_only(memoryview(der), _SEQUENCE), _SEQUENCE))
    fields.skip(_VERSION)
    serial = _number(fields.take(_INTEGER))
    fields.take(_SEQUENCE)  # how it was signed
    return CertificateId(fields.take_whole(_SEQUENCE), serial)


def revocation_lists(pem: bytes) -> list[RevocationList]:
    """All lists in a file."""
    found = []
    for text in _LIST.findall(pem):
        try:
            der = base64.b64decode(b"".join(text.split()), validate=True)
        except binascii.Error as error:
            raise NotDer(str(error)) from error
        found.append(_revocation_list(der))
    if not found:
        raise NotDer("there is no list in it")
    return found


def _revocation_list(der: bytes) -> RevocationList:
    fields = _Fields(_only(_only(memoryview(der), _SEQUENCE), _SEQUENCE))
    fields.skip(_INTEGER)  # its version
    fields.take(_SEQUENCE)  # how it was signed
    issuer = fields.take_whole(_SEQUENCE)
    fields.take(*_TIMES)  # from when on it holds
    ends = fields.skip(*_TIMES)
    listed = fields.skip(_SEQUENCE)
    revoked = [
        CertificateId(issuer, _number(_Fields(entry).take(_INTEGER)))
        for _, entry, _ in _elements(listed[1] if listed is not None else memoryview(b""))
    ]
    return RevocationList(frozenset(revoked), None if ends is None else _seconds(*ends))


class _Fields:
    """The elements of a sequence, one after another."""

    def __init__(self, content: memoryview) -> None:
        self._left = list(_elements(content))[::-1]

    def take(self, *tags: int) -> memoryview:
        return self._next(*tags)[1]

    def take_whole(self, *tags: int) -> bytes:
        return bytes(self._next(*tags)[2])

    def skip(self, *tags: int) -> tuple[int, memoryview] | None:
        """The next one if it has such a tag."""
        if self._left and self._left[-1][0] in tags:
            tag, content, _ = self._left.pop()
            return tag, content
        return None

    def _next(self, *tags: int) -> tuple[int, memoryview, memoryview]:
        if not self._left or self._left[-1][0] not in tags:
            raise NotDer("it has other fields than it should")
        return self._left.pop()


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Tag, content, and the whole of each element."""
    at = 0
    while at < len(data):
        begin = at
        if len(data) < at + 2:
            raise NotDer("it is cut off")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            if not 0 < size <= 4 or len(data) < at + size:
                raise NotDer("it has a length that can't be")
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if len(data) < at + length:
            raise NotDer("it is cut off")
        yield tag, data[at : at + length], data[begin : at + length]
        at += length


def _only(data: memoryview, tag: int) -> memoryview:
    """The content of the first element."""
    for found, content, _ in _elements(data):
        if found == tag:
            return content
        break
    raise NotDer("it is another thing")


def _number(content: Buffer) -> int:
    return int.from_bytes(content, "big", signed=True)


def _seconds(tag: int, content: memoryview) -> int:
    text = bytes(content).decode("ascii", "replace")
    if tag == _UTC_TIME:
        text = f"{'19' if text[:2] >= str(_CENTURY) else '20'}{text}"
    try:
        return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise NotDer(f"{text!r} is no time") from error
