"""Where a client goes that a server has sent elsewhere: never from TLS to an address without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lowmark.backend.connection import Connection
from lowmark.backend.protocol import Welcome
from lowmark.errors import Corrupt, NodeUnreachable
from lowmark.tokens import drawn
from node.noting import Noting
from runtime.certificates import Authority

OTHER = "lowmark+tls://127.0.0.1:2"
"""No server is there."""


class Says(Noting):
    """A server that says where others are, whatever it is asked."""

    members: Sequence[str] = ()

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        del context, action
        yield msgspec.json.encode(
            Welcome(
                release="x",
                protocol=3,
                cluster="c",
                instance=1,
                hold_ms=1_000,
                machine="",
                info=b"",
                members=tuple(self.members),
            )
        )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def plain() -> Iterator[Says]:
    with Says() as server:
        yield server


@pytest.fixture
def by_tls(authority: Authority, plain: Says) -> Iterator[Says]:
    with Says(authority.files("127.0.0.1")) as server:
        server.members = plain.members = (server.address, plain.address, OTHER)
        yield server


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


def connected(ends: ExitStack, authority: Authority, first: str, *also: str) -> Connection:
    connection = Connection(
        first,
        session=1,
        on_reply=lambda _: None,
        timeout_s=10.0,
        also=also,
        ca=authority.path,
        secret=drawn(),
    )
    ends.callback(connection.close)
    return connection


def test_a_client_of_tls_goes_to_no_server_without(
    by_tls: Says, plain: Says, authority: Authority, ends: ExitStack
) -> None:
    # given a client whose server names another one without TLS
    connection = connected(ends, authority, by_tls.address)
    assert by_tls.shown[0].startswith("Bearer ")
    assert connection.addresses == [by_tls.address, OTHER]
    assert not connection.may_go_to(plain.address)
    # when its server is away
    by_tls.shutdown()
    # then it has nowhere to go, and the other one has seen nothing
    with pytest.raises(NodeUnreachable):
        connection.call("catalog", timeout_s=0.3)
    assert plain.shown == []


def test_a_client_goes_without_tls_where_its_user_has_said_so(
    by_tls: Says, plain: Says, authority: Authority, ends: ExitStack
) -> None:
    # by that address, beside one with TLS
    connection = connected(ends, authority, by_tls.address, plain.address)
    assert set(connection.addresses) == {by_tls.address, plain.address, OTHER}
    # or by having named none with TLS: of a cluster that goes over to it, both are used
    connection = connected(ends, authority, plain.address)
    assert set(connection.addresses) == {plain.address, by_tls.address, OTHER}
    connection.leave()
    with pytest.raises(Corrupt):  # it answers anything with its hello
        connection.call("catalog", timeout_s=10.0)
    assert connection.address == by_tls.address
