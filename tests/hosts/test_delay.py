"""Delay between hosts: by the kernel's `netem`, and by the relay; both do the same."""

from __future__ import annotations

import random
import time

import pytest

from eventually import eventually
from hosts.delay import has_netem
from hosts.faults import Faults, both
from hosts.hosts import Host, Hosts
from hosts.talking import Datagrams, Line

pytestmark = pytest.mark.slow

DELAY_MS = 20.0


@pytest.fixture(params=["netem", "relay"])
def by_relay(request: pytest.FixtureRequest, hosts: Hosts) -> bool:
    if request.param == "netem" and not has_netem(hosts.bridge.run):
        pytest.skip("this kernel has no netem")
    return bool(request.param == "relay")


def round_ms(here: Host, there: Host) -> float:
    """The shortest of some round trips."""
    found = []
    with Line(here, there) as line:
        for _ in range(5):
            began = time.monotonic()
            line.round()
            found.append((time.monotonic() - began) * 1_000)
    return min(found)


def test_a_round_trip_takes_the_delay_of_both_hosts(hosts: Hosts, by_relay: bool) -> None:
    near, other = hosts.add("near"), hosts.add("other")
    far = hosts.add("far", delay_ms=DELAY_MS, by_relay=by_relay)
    farther = hosts.add("farther", delay_ms=DELAY_MS, by_relay=by_relay)
    # then what leaves a host is late, and what comes to it is not
    assert round_ms(near, far) >= DELAY_MS
    assert round_ms(far, farther) >= 2 * DELAY_MS
    # and others are not: one round that is quick shows it, on a machine that is busy
    eventually(lambda: round_ms(near, other) < DELAY_MS)


def test_a_stream_comes_whole_and_in_order(hosts: Hosts, by_relay: bool) -> None:
    near, far = hosts.add("near"), hosts.add("far", delay_ms=5, by_relay=by_relay)
    data = random.Random(1).randbytes(8 << 20)
    for here, there in ((far, near), (near, far)):
        with Line(here, there) as line, line.sends(data):
            assert line.hear(len(data)) == data


def test_a_late_host_is_cut_and_slow_like_any_other(
    hosts: Hosts, faults: Faults, by_relay: bool
) -> None:
    near, far = hosts.add("near"), hosts.add("far", delay_ms=1, by_relay=by_relay)
    with Line(near, far) as line:
        line.round()
    with faults.cut(both(near, far)), Datagrams(far, near) as datagrams:
        datagrams.send(3)
        eventually(lambda: faults.lost >= 3)
        assert datagrams.heard == 0
    with faults.slow(far, mbit=8), Line(far, near) as line:
        began = time.monotonic()
        with line.sends(bytes(200_000)):
            line.hear(200_000)
        assert time.monotonic() - began > 0.1
