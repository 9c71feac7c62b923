"""Where a node listens: an endpoint for clients, and a port for other nodes.

One address is enough for a person to remember: the endpoint. Other nodes use the next port, unless
told otherwise, and a node that joins asks the endpoint where that is.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from ipaddress import ip_address

from lowmark.errors import Rejected
from lowmark.runtime import AddressInUse, AddressUnusable, host_and_port

DEFAULT_ENDPOINT = "127.0.0.1:6570"


class NotLoopback(Rejected):
    """An address that other machines can reach."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the address {address} is not a loopback address",
            detail="It has no TLS and asks for no token yet: only this machine may reach it.",
            hint="Use 127.0.0.1 or [::1].",
        )


def check_loopback(address: str) -> str:
    """The address, with `localhost` as a number; refused if another machine could reach it."""
    host, port = host_and_port(address)
    if host == "localhost":
        return joined("127.0.0.1", port)
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise NotLoopback(address)
    return joined(host, port)


def peers_beside(endpoint: str) -> str:
    """Where other nodes reach a node by default: the port after the endpoint's."""
    host, port = host_and_port(endpoint)
    if port == 65_535:
        raise AddressUnusable(endpoint, reason="there is no next port for other nodes")
    return joined(host, port + 1 if port else 0)


def joined(host: str, port: int) -> str:
    """Host and port as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_free(address: str) -> None:
    """Say by name that a process listens there already: the server itself can't tell."""
    host, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(address) from error
            raise AddressUnusable(address, reason=error.strerror or str(error)) from error
