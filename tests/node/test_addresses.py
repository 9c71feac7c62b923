from __future__ import annotations

import socket

import pytest

from lowmark.errors import LowmarkError
from lowmark.node.messages import NotLoopback, check_free, check_loopback, peers_beside
from lowmark.runtime import AddressInUse, AddressUnusable


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("127.0.0.1:6570", "127.0.0.1:6570"),
        ("localhost:1", "127.0.0.1:1"),
        ("127.8.8.8:0", "127.8.8.8:0"),
        ("[::1]:6570", "[::1]:6570"),
    ],
)
def test_addresses_of_this_machine_are_taken(given: str, taken: str) -> None:
    assert check_loopback(given) == taken


@pytest.mark.parametrize("address", ["0.0.0.0:6570", "10.0.0.7:1", "[::]:1", "n1.example:1"])
def test_an_address_that_others_can_reach_is_refused(address: str) -> None:
    with pytest.raises(NotLoopback) as refused:
        check_loopback(address)
    assert address in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:x", ":6570", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(AddressUnusable):
        check_loopback(address)


def test_other_nodes_use_the_next_port() -> None:
    assert peers_beside("127.0.0.1:6570") == "127.0.0.1:6571"
    assert peers_beside("[::1]:6570") == "[::1]:6571"
    assert peers_beside("127.0.0.1:0") == "127.0.0.1:0"
    with pytest.raises(AddressUnusable):
        peers_beside("127.0.0.1:65535")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUse) as refused:
            check_free(address)
    assert isinstance(refused.value, LowmarkError)
    assert address in refused.value.message
    check_free(address)
