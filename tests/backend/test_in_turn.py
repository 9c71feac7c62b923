"""Which server a client goes to when its own can't do what it is asked."""

from __future__ import annotations

from itertools import permutations, product

from lowmark.backend.connection import in_turn


def test_a_client_comes_to_every_server_in_whatever_order_each_of_them_lists_the_others() -> None:
    servers = ("127.0.0.1:7", "127.0.0.1:8", "127.0.0.1:9")
    # given servers that list themselves and the others in any order
    for orders in product(permutations(servers), repeat=3):
        lists = dict(zip(servers, orders, strict=True))
        for first in servers:
            # when a client leaves each that it comes to for the next one
            seen, at = [first], first
            for _ in range(2):
                at = in_turn(at, lists[at])[0]
                seen.append(at)
            # then it has been at all of them
            assert sorted(seen) == sorted(servers)


def test_a_server_that_is_not_listed_is_left_for_any_that_is() -> None:
    assert in_turn("b", ["c", "a"]) == ["c", "a"]
    assert in_turn("unix:/x", ["b", "a", "b"]) == ["a", "b"]
    assert in_turn("a", ["a"]) == []
