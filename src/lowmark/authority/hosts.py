"""What a certificate may be for: hosts by name or address, and nodes by a name of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from lowmark.authority.errors import CertificateRefused

Host = str | IPv4Address | IPv6Address
"""A DNS name, or an address."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_BYTES_MAX = 253
_TAKEN = frozenset({"ca.pem", "ca.key", "crl.pem", "issued.jsonl"})


def check_name(name: str) -> str:
    """The name of a node's folder; refused if it could be another place, or is taken."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise CertificateRefused(
            f"{name!r} can't be the name of a node's folder",
            hint="Use up to 64 letters, digits and ._- and begin with a letter or a digit: n1.",
        )
    return name


def host_of(text: str) -> Host:
    """A host as users write it."""
    try:
        return ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        pass
    plain = text.removesuffix(".")
    if not plain or len(plain) > _NAME_BYTES_MAX or not all(map(_is_label, plain.split("."))):
        raise CertificateRefused(
            f"{text!r} is neither the name of a host nor its address", hint=_hint(text)
        )
    if plain.rpartition(".")[2].isdigit():
        raise CertificateRefused(f"{text!r} is no address", hint="An address is like 10.0.0.7.")
    return plain.lower()


def hosts_of(texts: Sequence[str]) -> list[Host]:
    """Several, each once, in their order."""
    return list(dict.fromkeys(host_of(text.strip()) for text in texts))


def _is_label(label: str) -> bool:
    return _LABEL.fullmatch(label) is not None


def _hint(text: str) -> str:
    if "*" in text:
        return "Nodes take no wildcards: give each host by its name, and --host more than once."
    if re.fullmatch(r".*:\d+", text):
        return "A certificate is for a host, whatever its port: leave the port out."
    if not text.isascii():
        return "Write it as DNS has it: the name that begins with xn--."
    return "Give a name that DNS knows, like n1.example, or an address, like 10.0.0.7 or fd00::7."
