"""Where a node listens, where others are sent, and at which addresses strangers could come in.

One address is enough for a person to remember: the endpoint, for clients. Other nodes use the next
port, unless told otherwise, and a node that joins asks the endpoint where that is.

Each of the two is a `Place` of two addresses: where the node listens, and the one that is given to
others. They differ where the node listens at all addresses of its machine (0.0.0.0), behind a
forwarded port, or where others find the machine by a name. A name that is given to others is not
looked up here: each connection looks it up, so that it may mean another machine tomorrow.

Without TLS and tokens, everything that can connect can read and change all data. So a node takes
only loopback addresses, unless its `Guard` has both, or its operator has said that it may do
without (`insecure`). Then the node says so at each start and in its status, and commands warn.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

from lowmark.errors import Rejected
from lowmark.node.owner import SCHEME, is_plain_path
from lowmark.runtime import AddressInUse, AddressUnusable, host_and_port
from lowmark.runtime.network import named_together, speaks_tls

DEFAULT_ENDPOINT = "127.0.0.1:6570"
_ODD = re.compile(r"[\s,;/@?#]")
"""In no name of a host: it is a URL, or several addresses."""
_Number: TypeAlias = IPv4Address | IPv6Address


class NotLoopback(Rejected):
    """An address that other machines can reach, and nothing that keeps strangers out."""

    def __init__(self, address: str, *, missing: str) -> None:
        super().__init__(
            f"other machines can reach {address}, and the node has no {missing}",
            detail="Everything that can connect to it could read and change all data.",
            hint="Listen at a loopback address: 127.0.0.1 or [::1]. If you trust every machine and"
            " every user that can reach this one, allow it: --insecure, in Python insecure=True.",
        )
        self.address = address


class NotAdvertised(Rejected):
    """A node that listens at all addresses, and does not say which of them others are to use."""

    def __init__(self, address: str, *, option: str) -> None:
        port = host_and_port(address)[1]
        super().__init__(
            f"clients can't connect to {address}: it means all addresses of this machine",
            detail="The node gives clients and other nodes one address to connect to.",
            hint=f"Say which one, by a name or a number: {option} db1.example:{port}.",
        )


@dataclass(frozen=True, slots=True)
class Place:
    """One port of a node."""

    listens_at: str
    """An address of this machine; its host is a number, perhaps the one that means all."""
    advertised: str
    """What others are told to connect to."""

    @property
    def here(self) -> str:
        """Where processes of this machine connect to."""
        host, port = host_and_port(self.listens_at)
        if not is_any(self.listens_at):
            return self.listens_at
        return joined("::1" if ":" in host else "127.0.0.1", port)

    def with_port(self, port: int) -> Place:
        """With the real one in place of a port 0."""
        return replace(
            self,
            listens_at=_with_port(self.listens_at, port),
            advertised=_with_port(self.advertised, port),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What keeps strangers out of a node."""

    tls: bool = False
    """Whether nothing can be read on the way."""
    tokens: bool = False
    """Whether clients are asked who they are."""
    insecure: bool = False
    """Whether its operator has said that it may do without."""

    def check(self, *places: Place) -> None:
        """Refuse addresses at which strangers could come in."""
        for place in () if self.insecure else self._open(places):
            there = place.advertised
            if is_loopback(there):  # it is the other address that others can reach
                there = place.listens_at
            raise NotLoopback(there, missing=self._missing())

    def open_at(self, *places: Place) -> tuple[str, ...]:
        """The addresses, as others are told them, at which strangers can come in."""
        return tuple(place.advertised for place in self._open(places))

    def _open(self, places: Iterable[Place]) -> list[Place]:
        return [
            place
            for place in places
            if self._missing()
            and not (is_loopback(place.listens_at) and is_loopback(place.advertised))
        ]

    def _missing(self) -> str:
        absent = {"TLS": not self.tls, "tokens": not self.tokens}
        return " and no ".join(what for what, is_absent in absent.items() if is_absent)


def place_of(
    listen: str, advertise: str = "", *, guard: Guard, option: str = "--advertise"
) -> Place:
    """Where a node that is started so listens, and what others are told; refused, if strangers
    could come in.
    """
    at = _numeric(listen)
    place = Place(at, _advertised(advertise) if advertise else _as_named(listen, at))
    guard.check(place)
    if is_any(place.advertised):
        raise NotAdvertised(listen, option=option)
    return place


def peers_place(endpoint: Place, *, peers: str = "", advertise: str = "", guard: Guard) -> Place:
    """The same for other nodes: the port after the endpoint's, unless it is given.

    What is said of the endpoint's machine counts for this port as well, unless it says itself.
    """
    listen = peers or peers_beside(endpoint.listens_at)
    all_of_them = is_any(_numeric(listen)) and not is_loopback(endpoint.listens_at)
    if not advertise and (all_of_them or not peers):
        host, _ = host_and_port(endpoint.advertised)
        advertise = joined(host, host_and_port(listen)[1])
    return place_of(listen, advertise, guard=guard, option="--advertise-peers")


def peers_beside(endpoint: str) -> str:
    """Where other nodes reach a node by default: the port after the endpoint's."""
    host, port = host_and_port(endpoint)
    if port == 65_535:
        raise AddressUnusable(endpoint, reason="there is no next port for other nodes")
    return joined(host, port + 1 if port else 0)


def addresses_of(given: str) -> list[str]:
    """Addresses of nodes with commas between them; see `named_together`."""
    return [_checked(one) for one in named_together(given.split(","))]


def location_of(address: str) -> str:
    """An address as Flight has it: `host:port`, with `lowmark+tls://` before it if its server
    speaks TLS, or `unix:PATH`.
    """
    if address.startswith(("grpc+", "grpc://")):
        return address
    path = unix_path(address)
    if path is not None:
        if not is_plain_path(path):
            raise Rejected(
                f"{path} can't be the path of a socket: Arrow Flight would take another one",
                hint="Use letters, digits and ._-+ alone.",
            )
        return f"grpc+unix://{path}"
    host, port = host_and_port(address)
    if _ODD.search(host):
        raise Rejected(
            f"{address!r} is not the address of a server",
            hint="Give a host and its port, like 127.0.0.1:6570; of several nodes of a cluster,"
            " with commas between.",
        )
    return f"{'grpc+tls' if speaks_tls(address) else 'grpc+tcp'}://{joined(host, port)}"


def unix_path(address: str) -> str | None:
    """The path of a Unix socket, from the root on; None: it is no such address."""
    if not address.startswith(SCHEME):
        return None
    return os.path.abspath(address.removeprefix(SCHEME).removeprefix("//"))


def joined(host: str, port: int) -> str:
    """Host and port as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_any(address: str) -> bool:
    """Whether it means all addresses of a machine."""
    number = _number(host_and_port(address)[0])
    return number is not None and number.is_unspecified


def is_loopback(address: str) -> bool:
    """Whether only processes of this machine come there, as far as can be known."""
    host, _ = host_and_port(address)
    number = _number(host)
    if number is not None:
        return number.is_loopback
    try:
        return host == "localhost" or all(one.is_loopback for one in _looked_up(address))
    except AddressUnusable:
        return False  # others may know the name, and it is not known what they know


def check_free(address: str) -> None:
    """Say by name that a process listens there already: the server itself can't tell."""
    host, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # there may be no handle for it
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(address) from error
        raise AddressUnusable(address, reason=error.strerror or str(error)) from error


def _numeric(address: str) -> str:
    """With a number in place of a name: the first one that this machine has for it."""
    host, port = host_and_port(_checked(address))
    if host == "localhost":
        return joined("127.0.0.1", port)
    return joined(str(_number(host) or _looked_up(address)[0]), port)


def _as_named(listen: str, at: str) -> str:
    """What others are told if nothing else is said: the name that was given, or the number."""
    host, port = host_and_port(listen)
    return at if host == "localhost" or _number(host) is not None else joined(host, port)


def _advertised(address: str) -> str:
    """As it is given to others."""
    host, port = host_and_port(_checked(address))
    if is_any(address):
        raise AddressUnusable(address, reason="it means all addresses of a machine")
    return joined(str(_number(host) or host), port)


def _looked_up(address: str) -> list[_Number]:
    """What the system says that a name means, in its order."""
    host, port = host_and_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise AddressUnusable(address, reason=f"{host} can't be looked up: {why}") from error
    return [ip_address(one[4][0]) for one in found]


def _number(host: str) -> _Number | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _checked(address: str) -> str:
    host, _ = host_and_port(address)
    if _ODD.search(host):
        raise AddressUnusable(address, reason=f"{host!r} is no name of a host")
    return address


def _with_port(address: str, port: int) -> str:
    host, known = host_and_port(address)
    return joined(host, known or port)
