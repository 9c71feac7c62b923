from __future__ import annotations

import socket

import pytest

from lowmark.errors import LowmarkError, Rejected
from lowmark.node import Guard, NodeOptions, NotAdvertised, NotLoopback
from lowmark.node.addresses import Place, addresses_of, check_free, is_loopback, joined, place_of
from lowmark.runtime import AddressInUse, AddressUnusable

TAKES_ALL = Guard(insecure=True)


def places(**options: object) -> tuple[Place, Place]:
    return NodeOptions(data="n1", **options).places()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("listen", "taken"),
    [
        ("127.0.0.1:6570", "127.0.0.1:6570"),
        ("localhost:1", "127.0.0.1:1"),
        ("127.8.8.8:0", "127.8.8.8:0"),
        ("[::1]:6570", "[::1]:6570"),
        ("[0:0:0:0:0:0:0:1]:6570", "[::1]:6570"),
    ],
)
def test_addresses_of_this_machine_are_taken(listen: str, taken: str) -> None:
    place, _ = places(listen=listen)
    assert place == Place(taken, taken)
    assert place.here == taken


@pytest.mark.parametrize(
    "options",
    [
        {"listen": "10.0.0.7:1"},
        {"listen": "[fd00::1]:1"},
        {"listen": "0.0.0.0:6570", "advertise": "n1.invalid:6570"},
        {"listen": "[::]:6570", "advertise": "127.0.0.1:6570"},
        {"advertise": "10.0.0.7:6570"},
        {"peers": "10.0.0.7:6571"},
        {"peers": "0.0.0.0:6571", "advertise_peers": "10.0.0.7:6571"},
        {"advertise_peers": "n1.invalid:6571"},
    ],
)
def test_an_address_that_others_can_reach_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(NotLoopback) as refused:
        places(**options)
    assert refused.value.address in {*options.values(), "10.0.0.7:6571"}
    assert not is_loopback(refused.value.address)
    assert "no TLS and no tokens" in refused.value.message
    assert "--insecure" in refused.value.hint
    # and taken by those who say that they know
    places(**options, insecure=True)


def test_only_tls_and_tokens_together_keep_strangers_out() -> None:
    place = Place("10.0.0.7:6570", "10.0.0.7:6570")
    for guard, missing in (
        (Guard(), "no TLS and no tokens"),
        (Guard(tls=True), "no tokens"),
        (Guard(tokens=True), "no TLS"),
    ):
        with pytest.raises(NotLoopback) as refused:
            guard.check(place)
        assert refused.value.message.endswith(f"the node has {missing}")
        assert guard.open_at(place) == ("10.0.0.7:6570",)
    both = Guard(tls=True, tokens=True)
    both.check(place)
    assert both.open_at(place) == ()


def test_what_strangers_can_reach_is_named_as_others_know_it() -> None:
    guard = Guard(insecure=True)
    loopback = Place("127.0.0.1:1", "localhost:1")
    everywhere = Place("0.0.0.0:2", "db1.invalid:2")
    forwarded = Place("127.0.0.1:3", "db1.invalid:3")
    guard.check(loopback, everywhere, forwarded)
    assert guard.open_at(loopback, everywhere, forwarded) == ("db1.invalid:2", "db1.invalid:3")
    assert guard.open_at(loopback) == ()


@pytest.mark.parametrize("listen", ["0.0.0.0:6570", "[::]:6570"])
def test_listening_everywhere_needs_an_address_for_others(listen: str) -> None:
    with pytest.raises(NotAdvertised) as refused:
        places(listen=listen, insecure=True)
    assert "--advertise db1.example:6570" in refused.value.hint
    with pytest.raises(NotAdvertised) as refused:
        places(peers=listen, insecure=True)
    assert "--advertise-peers db1.example:6570" in refused.value.hint


@pytest.mark.parametrize("advertise", ["0.0.0.0:6570", "[::]:1", "a,b:1", "http://a:1", "a b:1"])
def test_nobody_is_sent_to_what_is_no_address_of_one_machine(advertise: str) -> None:
    for options in ({"advertise": advertise}, {"advertise_peers": advertise}):
        with pytest.raises(AddressUnusable):
            places(**options, insecure=True)


@pytest.mark.parametrize(
    ("options", "clients", "peers"),
    [
        # the port after the endpoint's, on the same machine
        ({}, ("127.0.0.1:6570", "127.0.0.1:6570"), ("127.0.0.1:6571", "127.0.0.1:6571")),
        ({"listen": "[::1]:0"}, ("[::1]:0", "[::1]:0"), ("[::1]:0", "[::1]:0")),
        (
            {"listen": "0.0.0.0:6570", "advertise": "db1.example:16570"},
            ("0.0.0.0:6570", "db1.example:16570"),
            ("0.0.0.0:6571", "db1.example:6571"),
        ),
        (
            {"listen": "[::]:6570", "advertise": "[FD00::1]:6570"},
            ("[::]:6570", "[fd00::1]:6570"),
            ("[::]:6571", "[fd00::1]:6571"),
        ),
        # where it listens for nodes is said, and is an address of one machine
        (
            {"listen": "0.0.0.0:6570", "advertise": "db1.example:6570", "peers": "10.0.0.7:7000"},
            ("0.0.0.0:6570", "db1.example:6570"),
            ("10.0.0.7:7000", "10.0.0.7:7000"),
        ),
        # it is none, but the machine is known
        (
            {"listen": "10.0.0.7:6570", "peers": "0.0.0.0:7000"},
            ("10.0.0.7:6570", "10.0.0.7:6570"),
            ("0.0.0.0:7000", "10.0.0.7:7000"),
        ),
        # all is said
        (
            {
                "listen": "10.0.0.7:6570",
                "advertise": "db1.example:1",
                "peers": "10.0.1.7:7000",
                "advertise_peers": "db1.peers.example:2",
            },
            ("10.0.0.7:6570", "db1.example:1"),
            ("10.0.1.7:7000", "db1.peers.example:2"),
        ),
    ],
)
def test_what_is_said_of_one_port_counts_for_the_other(
    options: dict[str, str], clients: tuple[str, str], peers: tuple[str, str]
) -> None:
    assert places(**options, insecure=True) == (Place(*clients), Place(*peers))


def test_a_name_is_looked_up_to_listen_and_given_to_others_as_it_is() -> None:
    # given a name of this machine, by which the system knows a number
    name = socket.gethostname()
    try:
        number = socket.getaddrinfo(name, 7, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        pytest.skip("this machine does not know its own name")
    # when a node listens there, then it listens at the number, and others get the name
    place = place_of(f"{name}:7", guard=TAKES_ALL)
    assert place == Place(joined(str(number), 7), f"{name}:7")
    assert place_of("localhost:7", "db1.example:7", guard=TAKES_ALL) == Place(
        "127.0.0.1:7", "db1.example:7"
    )
    # and a name that nothing knows is refused
    with pytest.raises(AddressUnusable, match=r"nowhere\.invalid can't be looked up"):
        place_of("nowhere.invalid:6570", guard=TAKES_ALL)
    with pytest.raises(AddressUnusable, match="can't be looked up"):
        place_of(f"{'a' * 70}.invalid:6570", guard=TAKES_ALL)


def test_a_name_is_of_this_machine_only_if_all_that_it_means_is() -> None:
    assert is_loopback("localhost:1")
    assert not is_loopback("nowhere.invalid:1")
    assert not is_loopback("0.0.0.0:1")


def test_a_free_port_is_put_into_both_addresses_but_not_over_a_given_one() -> None:
    assert Place("0.0.0.0:0", "[::1]:0").with_port(7) == Place("0.0.0.0:7", "[::1]:7")
    assert Place("0.0.0.0:0", "a:9").with_port(7) == Place("0.0.0.0:7", "a:9")


def test_processes_of_this_machine_use_loopback_where_a_node_listens_everywhere() -> None:
    assert Place("0.0.0.0:7", "db1.example:9").here == "127.0.0.1:7"
    assert Place("[::]:7", "db1.example:9").here == "[::1]:7"
    assert Place("10.0.0.7:7", "db1.example:9").here == "10.0.0.7:7"


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:x", ":6570", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(AddressUnusable):
        places(listen=address)


def test_other_nodes_can_not_use_a_port_after_the_last() -> None:
    with pytest.raises(AddressUnusable):
        places(listen="127.0.0.1:65535")


def test_several_nodes_to_join_are_named_with_commas_between() -> None:
    assert addresses_of("a:1, [::1]:2,a:1") == ["a:1", "[::1]:2"]
    NodeOptions(data="n1", join="a:1,b:2").check()
    for wrong in ("a", "a:1,", "a:1;b:2"):
        with pytest.raises(Rejected):
            NodeOptions(data="n1", join=wrong).check()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUse) as refused:
            check_free(address)
    assert isinstance(refused.value, LowmarkError)
    assert address in refused.value.message
    check_free(address)
