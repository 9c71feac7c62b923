"""Faults between hosts: each does what it says, while it lasts, to those it names."""

from __future__ import annotations

import time

import pytest

from eventually import eventually
from hosts.faults import Faults, both
from hosts.hosts import Host, Hosts
from hosts.talking import Datagrams, Line
from lowmark.errors import InvariantBroken


def arrives(here: Host, there: Host) -> None:
    """Fail if nothing comes from one to the other."""
    with Datagrams(here, there) as datagrams:
        datagrams.send()
        eventually(lambda: datagrams.heard == 1)


def is_lost(faults: Faults, here: Host, there: Host) -> None:
    """Fail if anything comes from one to the other."""
    before = faults.lost
    with Datagrams(here, there) as datagrams:
        datagrams.send(3)
        eventually(lambda: faults.lost >= before + 3)
        assert datagrams.heard == 0


@pytest.fixture
def three(hosts: Hosts) -> tuple[Host, Host, Host]:
    found = hosts.add("one"), hosts.add("two"), hosts.add("three")
    for here in found:  # each knows where the others are
        for there in found:
            if here is not there:
                arrives(here, there)
    return found


def test_a_cut_in_one_direction(faults: Faults, three: tuple[Host, Host, Host]) -> None:
    one, two, third = three
    with faults.cut([(one, two)]):
        is_lost(faults, one, two)
        arrives(two, one)
        arrives(one, third)
        arrives(third, two)
    arrives(one, two)


def test_a_cut_in_both_directions_holds_a_connection_back_and_does_not_end_it(
    faults: Faults, three: tuple[Host, Host, Host]
) -> None:
    one, two, third = three
    with Line(one, two) as line:
        with faults.cut(both(one, two)):
            is_lost(faults, one, two)
            is_lost(faults, two, one)
            arrives(third, one)
            # given what is sent meanwhile
            before = faults.lost
            line.here.sendall(b"late")
            eventually(lambda: faults.lost > before)
            line.there.setblocking(False)
            with pytest.raises(BlockingIOError):
                line.there.recv(4)
            line.there.settimeout(60)
        # when the cut is over, then it arrives
        assert line.there.recv(4) == b"late"
        line.round()


@pytest.mark.slow
def test_a_host_that_is_cut_off_before_it_was_ever_heard(faults: Faults, hosts: Hosts) -> None:
    # given hosts that have not met: one finds out where the other is by asking all of them
    one, two = hosts.add("one"), hosts.add("two")
    with faults.cut([(one, two)]), Datagrams(one, two) as datagrams:
        datagrams.send()
        eventually(lambda: faults.lost > 0)
        assert datagrams.heard == 0
    arrives(one, two)


def test_of_a_lossy_way_a_share_is_lost(faults: Faults, three: tuple[Host, Host, Host]) -> None:
    one, two, _ = three
    with Datagrams(one, two) as there, Datagrams(two, one) as back:
        with faults.lose([(one, two)], share=0.3):
            there.send(1_000)
            back.send(1_000)
            eventually(lambda: there.heard + faults.lost == 1_000)
            eventually(lambda: back.heard == 1_000)
        # then it is about the share, five standard deviations off at most
        assert 225 <= faults.lost <= 375
    arrives(one, two)


def test_faults_add_up_and_end_one_by_one(faults: Faults, three: tuple[Host, Host, Host]) -> None:
    one, two, third = three
    with faults.cut([(one, two)]):
        with faults.cut([(one, two), (third, two)]):
            is_lost(faults, third, two)
        arrives(third, two)
        is_lost(faults, one, two)
        before = faults.lost
    arrives(one, two)
    assert faults.lost == before  # what was lost is still known


def test_a_cable_that_is_out(faults: Faults, three: tuple[Host, Host, Host]) -> None:
    one, two, third = three

    def carrier() -> bool:
        return "NO-CARRIER" not in one.run("ip", "link", "show", "eth0")

    assert carrier()
    with faults.unplug(one):
        # then the host is told, and the others hear each other
        eventually(lambda: not carrier())
        arrives(two, third)
    eventually(carrier)
    with Line(two, one) as line:
        line.round()


@pytest.mark.slow
@pytest.mark.parametrize("sends", [True, False])
def test_a_slow_host_sends_and_hears_at_its_rate(
    faults: Faults, three: tuple[Host, Host, Host], sends: bool
) -> None:
    one, two, _ = three
    here, there = (one, two) if sends else (two, one)
    with faults.slow(one, mbit=8), Line(here, there) as line:
        size, burst = 400_000, 64_000
        took = seconds_for(line, size)
    # then it takes its time: the rate is held within a factor, whatever else the machine does
    assert took > (size - burst) / 1_000_000 * 0.9
    # and at its end it is over, though a machine that is busy may take as long once or twice
    eventually(lambda: sends_within(here, there, size, took))


def test_what_is_no_share_is_refused(faults: Faults, pair: tuple[Host, Host]) -> None:
    for share in (0.0, 1.1):
        with pytest.raises(InvariantBroken), faults.lose(both(*pair), share=share):
            pass


def sends_within(here: Host, there: Host, size: int, seconds: float) -> bool:
    """Whether so many bytes arrive sooner."""
    with Line(here, there) as line:
        return seconds_for(line, size) < seconds


def seconds_for(line: Line, size: int) -> float:
    """Until so many bytes have arrived."""
    began = time.monotonic()
    with line.sends(bytes(size)):
        line.hear(size)
    return time.monotonic() - began
