"""A command that is given several nodes: to which it goes, and to which it shows its token."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight
from typer.testing import CliRunner

import lowmark
from clusters.ports import free_ports
from lowmark.authority import Authority
from lowmark.cli.app import app
from lowmark.errors import NodeUnreachable
from lowmark.node.callers import NoCaller
from lowmark.node.listener import Certificates, Listener
from server.world import COLUMNS, Served

pytestmark = pytest.mark.slow

COMMANDS = ("status", "catalog log")
"""One that could read a directory as well, and one that only a node can do."""


class Guarded(Served):
    """A database behind TLS and tokens, as the environment of a command names it."""

    def __init__(self, path: Path) -> None:
        self.authority = Authority.found(str(path / "tls"))
        self.authority.issue("db1", ["127.0.0.1"])
        super().__init__(path / "db", tls=f"{self.authority.folder}/db1", tokens=True)
        self.db.create_table("orders", COLUMNS, key="id", partitions=1)
        self.token = self.db.tokens.create("operator").token

    @property
    def bare(self) -> str:
        return self.address.removeprefix("lowmark+tls://")

    def ran(self, command: str, *nodes: str) -> Any:
        """A command that is given these nodes, the first of them with TLS before it."""
        named = {"LOWMARK_NODE": "lowmark+tls://" + ",".join(nodes), "LOWMARK_TOKEN": self.token}
        env = named | {"LOWMARK_CA": f"{self.authority.folder}/ca.pem"}
        return CliRunner().invoke(app, command.split(), env=env)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as served:
        yield served


@pytest.fixture(scope="module")
def nothing() -> str:
    """An address at which no server answers."""
    return f"127.0.0.1:{free_ports(1)[0]}"


class _Overhears(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self) -> None:
        self.heard: list[object] = []

    def start_call(self, info: object, headers: dict[str, list[str]]) -> None:
        self.heard += headers.get("authorization", ["a call without a token"])


@contextlib.contextmanager
def stranger() -> Iterator[tuple[str, list[object]]]:
    """A server without TLS, and what it has been shown."""
    overhears = _Overhears()
    server = flight.FlightServerBase("grpc+tcp://127.0.0.1:0", middleware={"ears": overhears})
    with server:
        yield f"127.0.0.1:{server.port}", overhears.heard


def test_a_command_goes_to_the_second_node_by_tls_when_the_first_is_down(
    served: Guarded, nothing: str
) -> None:
    for command in COMMANDS:
        ran = served.ran(command, nothing, served.bare)
        assert ran.exit_code == 0, ran.output


def test_no_token_is_shown_without_tls_if_the_first_address_has_it(
    served: Guarded, nothing: str
) -> None:
    # given a stranger at the second of two addresses, and nobody at the first
    with stranger() as (address, heard):
        for command in COMMANDS:
            assert served.ran(command, nothing, address).exit_code != 0
        named = [f"lowmark+tls://{nothing}", address]
        for several in (named, ",".join(named)):
            with pytest.raises(NodeUnreachable):
                lowmark.connect(several, token=served.token, timeout_s=0.5)
        # then it has heard nothing; but it hears who asks it without
        assert heard == []
        CliRunner().invoke(app, ["status"], env={"LOWMARK_NODE": address})
        assert heard


@pytest.mark.parametrize("how", ["of another authority", "cut off from the others"])
def test_a_command_passes_over_a_node_that_answers_and_can_not_be_asked(
    served: Guarded, tmp_path: Path, how: str
) -> None:
    # given a first node whose certificate nobody trusts, or one that knows no tokens
    authority = served.authority
    if how == "of another authority":
        authority = Authority.found(str(tmp_path / "other"))
        authority.issue("db1", ["127.0.0.1"])
    folder = Path(authority.folder, "db1")
    shown = Certificates(
        certificate=(folder / "cert.pem").read_bytes(), key=(folder / "key.pem").read_bytes()
    )
    first = Listener("127.0.0.1:0", callers=NoCaller(), certificates=shown)
    with contextlib.closing(first):
        # then commands go to the second
        for command in COMMANDS:
            ran = served.ran(command, first.address, served.bare)
            assert ran.exit_code == 0, ran.output
        # and alone, the first says why it can't be asked
        ran = served.ran("catalog log", first.address)
        assert ran.exit_code == 1
        said = {"of another authority": "is not trusted", "cut off from the others": "tokens"}
        assert said[how] in ran.output


def test_what_is_no_address_is_wrong_use(nothing: str) -> None:
    for address in ("a b:1", "unix:/a b", f"{nothing},http://a:1", "a:1,"):
        for words, env in ((["--node", address], {}), ([], {"LOWMARK_NODE": address})):
            ran = CliRunner().invoke(app, ["status", *words], env=env)
            assert ran.exit_code == 2, ran.output
            assert "Traceback" not in ran.output
