"""What a node shows where it is to join: its token, and by which way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import flight

from eventually import eventually
from lowmark.authority import Authority
from lowmark.errors import ClusterRefused, Rejected
from lowmark.fault import encode_fault
from lowmark.node import Node, NodeOptions
from lowmark.node.messages import PeerAddress
from lowmark.node.showing import token_file
from lowmark.tokens import TokenMissing, drawn
from node.noting import Noting
from node.running import QUICK, Running

SEED = PeerAddress(address="192.0.2.1:1", cluster="c", tls="allow", ledgers="/nowhere")
"""What the stranger answers. A node on loopback goes no further: that one could not reach it."""


class Stranger(Noting):
    """A server without TLS where a node of the cluster should be."""

    wants_token = False
    seed = SEED

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        del context, action
        if self.wants_token and not self.shown[-1]:
            fault = TokenMissing()
            raise flight.FlightUnauthenticatedError(fault.message, encode_fault(fault))
        yield msgspec.json.encode(self.seed)


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with Stranger() as server:
        yield server


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    token = drawn().reveal()
    monkeypatch.setenv("LOWMARK_TOKEN", token)
    return token


@pytest.fixture
def folder(tmp_path: Path) -> str:
    authority = Authority.found(str(tmp_path / "tls"))
    authority.issue("n1", ["127.0.0.1"])
    return f"{authority.folder}/n1"


def options(data: Path, join: str, tls: str, **more: Any) -> NodeOptions:
    return NodeOptions(data=str(data), listen="127.0.0.1:0", join=join, tls=tls, **more)


def test_a_node_that_requires_tls_asks_nothing_without_it(
    tmp_path: Path, stranger: Stranger, token: str, folder: str
) -> None:
    # when a node is to join where no TLS is spoken, then it is refused, and says what to do
    with pytest.raises(ClusterRefused, match="speaks no TLS at its endpoint") as refused:
        Node(options(tmp_path / "1", stranger.address, folder), QUICK)
    assert "--tls-mode allow" in refused.value.hint
    # and the stranger has seen no call
    assert stranger.shown == []


def test_a_node_that_takes_both_shows_its_token_by_tls_alone(
    tmp_path: Path, stranger: Stranger, token: str, folder: str
) -> None:
    def refused(**more: Any) -> str:
        stranger.shown.clear()
        with pytest.raises(Rejected) as error:
            Node(options(tmp_path / "1", stranger.address, folder, tls_mode="allow", **more), QUICK)
        return str(error.value)

    # when it asks where no TLS is spoken, then it shows no token there
    assert "could not connect to this one" in refused()
    assert stranger.shown == [""]
    # and if one is asked for, it says why it shows none
    stranger.wants_token = True
    assert "asks for a token, and speaks no TLS" in refused()
    assert stranger.shown == [""]
    # unless its operator trusts the network
    assert "could not connect to this one" in refused(insecure=True)
    assert stranger.shown == [f"Bearer {token}"]
    # and an address that was given with TLS is asked by TLS alone
    stranger.address = f"lowmark+tls://{stranger.address}"
    assert "speaks no TLS at its endpoint" in refused(insecure=True)
    assert stranger.shown == []


def test_a_node_that_looks_for_the_others_shows_the_token_of_its_command(
    tmp_path: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a node that was started with --token-file, and comes back
    monkeypatch.delenv("LOWMARK_TOKEN", raising=False)
    token = drawn().reveal()
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    with Running(tmp_path / "1"):
        pass
    stranger.seed = PeerAddress(address="127.0.0.1:1", ledgers="/nowhere")
    with token_file(str(file)), Running(tmp_path / "1", join=stranger.address) as running:
        assert stranger.shown == [f"Bearer {token}"]
        stranger.shown.clear()
        # when it asks there again, on a thread of its own
        running.node.cluster.look_for_others()
        # then it shows that token
        eventually(lambda: len(stranger.shown) > 0)
        assert set(stranger.shown) == {f"Bearer {token}"}
