"""What a master's name says: where tasks run, and who must be reached."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from lowmark.spark.errors import MasterNotReached, SessionRefused

__all__ = ["LOOPBACK", "Master", "reach", "read_master"]

LOOPBACK = "127.0.0.1"
TASK_ATTEMPTS = 4
"""What Spark does on clusters. In its local mode it gives up after one, unless told."""

_ANSWERS_WITHIN_S = 5.0
_LOCAL = re.compile(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*(\d+)\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_STANDALONE = re.compile(r"spark://([^/\s]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """A master, by its name."""

    name: str
    in_process: bool = False  # tasks are threads of the one Java process
    same_machine: bool = False  # nothing needs to be reached from elsewhere
    addresses: tuple[tuple[str, int], ...] = ()  # one of them must answer


def read_master(name: str) -> Master:
    """A master's name, understood; in local mode a task gets its further attempts, too."""
    if local := _LOCAL.fullmatch(name):
        slots, attempts = local.groups()
        if slots is not None and slots != "*" and not int(slots):
            raise SessionRefused(f"{name!r} has no core to work on", hint="Give local[1] or more.")
        full = f"local[{slots or 1},{attempts or TASK_ATTEMPTS}]"
        return Master(name=full, in_process=True, same_machine=True)
    if _LOCAL_CLUSTER.fullmatch(name):
        return Master(name=name, same_machine=True)
    if standalone := _STANDALONE.fullmatch(name):
        addresses = tuple(_address(part, name) for part in standalone.group(1).split(","))
        return Master(
            name=name,
            same_machine=all(_is_loopback(host) for host, _ in addresses),
            addresses=addresses,
        )
    if name == "yarn" or name.startswith("k8s://"):
        return Master(name=name)
    raise SessionRefused(
        f"{name!r} is not a Spark master",
        hint="Give local[*], local[2], local-cluster[2,1,1024], spark://host:port, yarn or"
        " k8s://….",
    )


def reach(master: Master) -> None:
    """Raise if nobody answers at any of the master's addresses.

    Spark would ask for a minute and log stack traces meanwhile.
    """
    failures = []
    for host, port in master.addresses:
        try:
            with socket.create_connection((host, port), timeout=_ANSWERS_WITHIN_S):
                return
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
    if failures:
        raise MasterNotReached(master.name, why="; ".join(failures))


def _address(text: str, name: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise SessionRefused(
            f"{name!r} is not a Spark master: {text!r} is not a host and a port",
            hint="Give it as spark://host:port; 7077 is a standalone master's usual port.",
        )
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
