"""What is between hosts: cuts, loss, rates, and cables that are pulled out.

    faults = Faults(hosts)
    with faults.cut([(one, two)]):            # what `one` sends to `two` is lost; not what it hears
        ...
    with faults.lose([(one, two), (two, one)], share=0.3), faults.slow(three, mbit=8):
        ...

Each ends with its `with`, and may be within others. What passes the bridge from one port to another
is judged by nftables there, so that a cut way loses all of it: also what finds out where a host is
(ARP). Nobody is told: a connection hangs, as when a switch fails. A host whose cable is out is
told: its `eth0` has no carrier.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hosts.hosts import Host, Hosts
from lowmark.errors import invariant

Way = tuple[Host, Host]
"""From a host to a host."""

_IN_A_THOUSAND = 1_000


def both(one: Host, two: Host) -> list[Way]:
    """Both ways between two hosts."""
    return [(one, two), (two, one)]


@dataclass(eq=False, slots=True)
class _Loss:
    ways: list[Way]
    share: float


class Faults:
    """The faults of one bridge."""

    def __init__(self, hosts: Hosts) -> None:
        self._bridge = hosts.bridge
        self._losses: list[_Loss] = []
        self._lost = 0

    @contextlib.contextmanager
    def cut(self, ways: Iterable[Way]) -> Iterator[None]:
        """Nothing passes there."""
        with self.lose(ways, share=1.0):
            yield

    @contextlib.contextmanager
    def lose(self, ways: Iterable[Way], *, share: float) -> Iterator[None]:
        """Each packet is lost with this probability."""
        invariant(0.0 < share <= 1.0, f"{share} is a share")
        loss = _Loss(list(ways), share)
        self._losses.append(loss)
        try:
            self._judge()
            yield
        finally:
            self._losses.remove(loss)
            self._judge()

    @contextlib.contextmanager
    def slow(self, host: Host, *, mbit: float) -> Iterator[None]:
        """What it sends and what it hears comes at this rate, each."""
        rate = f"tbf rate {mbit:g}mbit burst 64kb latency 200ms".split()
        parent = ["root"]
        if "netem" in host.run("tc", "qdisc", "show", "dev", "eth0"):
            parent = ["parent", "1:1"]
        host.run("tc", "qdisc", "add", "dev", "eth0", *parent, *rate)
        try:
            self._bridge.run("tc", "qdisc", "add", "dev", host.port, "root", *rate)
            try:
                yield
            finally:
                self._bridge.run("tc", "qdisc", "del", "dev", host.port, "root")
        finally:
            host.run("tc", "qdisc", "del", "dev", "eth0", *parent)

    @contextlib.contextmanager
    def unplug(self, host: Host) -> Iterator[None]:
        """Its cable is out."""
        self._bridge.run("ip", "link", "set", host.port, "down")
        try:
            yield
        finally:
            self._bridge.run("ip", "link", "set", host.port, "up")

    @property
    def lost(self) -> int:
        """How many packets were lost so far."""
        return self._lost + self._counted()

    def _judge(self) -> None:
        """Have the bridge lose what is to be lost now, and nothing else; in one step."""
        self._lost += self._counted()
        words = [
            "add table bridge faults",
            "delete table bridge faults",
            "add table bridge faults",
            "add chain bridge faults between { type filter hook forward priority 0; }",
        ]
        for loss in self._losses:
            chance = ""
            if loss.share < 1.0:
                share = max(1, round(loss.share * _IN_A_THOUSAND))
                chance = f"numgen random mod {_IN_A_THOUSAND} < {share} "
            words += [
                f'add rule bridge faults between iifname "{here.port}" oifname "{there.port}" '
                f"{chance}counter drop"
                for here, there in loss.ways
            ]
        self._bridge.run("nft", "-f", "-", given="\n".join(words) + "\n")

    def _counted(self) -> int:
        found = json.loads(self._bridge.run("nft", "-j", "list", "ruleset"))["nftables"]
        rules = [one["rule"]["expr"] for one in found if "rule" in one]
        return sum(
            part["counter"]["packets"] for rule in rules for part in rule if "counter" in part
        )
