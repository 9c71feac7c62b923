"""A database of a program that is served to clients with tokens: who did what is known by them."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight
from typer.testing import CliRunner

import lowmark
from eventually import eventually
from lowmark.cli.app import app
from lowmark.errors import (
    TokenExists,
    TokenMalformed,
    TokenMissing,
    TokenRevoked,
    TokenUnknown,
    Unauthenticated,
)
from lowmark.node import NodeClient
from lowmark.node.addresses import location_of
from lowmark.node.messages import ChangeAsk, Nothing, RebalanceReply, RebalanceSettings
from lowmark.server import Server
from lowmark.tokens import Secret, drawn
from server.world import COLUMNS, Served

runner = CliRunner()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("tokens"), tokens=True) as served:
        yield served


@pytest.fixture
def token(served: Served, request: pytest.FixtureRequest) -> str:
    return served.db.tokens.create(request.node.name[:60]).token


def test_who_did_what_is_known_by_its_token(served: Served) -> None:
    token = served.db.tokens.create("job").token
    with lowmark.connect(served.address, token=token) as there:
        orders = there.create_table("orders", COLUMNS, key="id", partitions=1)
        orders.append([{"id": 1, "status": "new"}])
        (created,) = orders.history()
        there.set_history("1 ms")

        def compacted() -> bool:
            there.advance_watermark()
            orders.compact(engine="local")
            return bool(orders.runs())

        eventually(compacted)
        (run,) = orders.runs()
        made = there.tokens.create("made-by-job")
    assert created.by == f"job@{served.backend.node.info.name}"
    assert run.by.startswith("job@")
    (listed,) = [one for one in served.db.tokens.list() if one.name == made.name]
    assert listed.by == "job"
    # what the program itself does is asked for by no token
    served.db.create_table("own", COLUMNS)
    assert [line.by for line in served.db["own"].history()] == [
        served.backend.node.info.name,
    ]


def test_who_asked_for_a_change_of_the_cluster_is_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    secret = Secret(served.db.tokens.create("operator").token)
    with (
        caplog.at_level(logging.INFO, logger="lowmark"),
        NodeClient(served.address, secret=secret) as client,
    ):
        for paused in (True, False):
            client.ask("rebalance.change", ChangeAsk(paused=paused), RebalanceSettings)
        client.ask("rebalance.status", Nothing(), RebalanceReply)  # it only looks
    noted = [vars(one) for one in caplog.records if one.getMessage() == "a change was asked for"]
    assert [(one["action"], one["by"]) for one in noted] == [("rebalance.change", "operator")] * 2
    assert ["true" in one["asked"] for one in noted] == [True, False]


def test_commands_show_by_which_token_a_version_was_asked_for(
    served: Served, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWMARK_TOKEN", token)
    words = ["table", "create", "asked", "--columns", "id int64", "--node", served.address]
    assert runner.invoke(app, words).exit_code == 0
    done = runner.invoke(
        app, ["catalog", "log", "--limit", "1", "--json", "--node", served.address]
    )
    (last,) = json.loads(done.stdout)
    assert last["author"].startswith("test_commands_show_by_which_token")
    # and which token is meant must be clear
    monkeypatch.setenv("LOWMARK_TOKEN_FILE", "somewhere")
    refused = runner.invoke(app, ["table", "list", "--node", served.address])
    assert "$LOWMARK_TOKEN and $LOWMARK_TOKEN_FILE are both set" in refused.output


def test_a_token_is_taken_from_a_file_and_from_the_environment(
    served: Served, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    monkeypatch.setenv("LOWMARK_TOKEN_FILE", str(file))
    for text in (f"{token}\n", f"\n {token} \r\n# of the operators\n"):  # its first line
        file.write_text(text)
        with lowmark.connect(served.address) as there:
            assert there.tokens.list()
    # and what is given counts before both
    with pytest.raises(TokenUnknown):
        lowmark.connect(served.address, token=drawn().reveal())
    lowmark.connect(served.address, token=f"{token}\n").close()
    monkeypatch.setenv("LOWMARK_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(lowmark.errors.Rejected, match="can't be read"):
        lowmark.connect(served.address)


def test_a_token_that_others_may_read_is_warned_of_once_a_process(
    served: Served, token: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o644)
    for _ in range(2):
        words = ["status", "--node", served.address, "--token-file", str(file)]
        assert runner.invoke(app, words).exit_code == 0
    said = [one.getMessage() for one in caplog.records]
    assert said.count("other users of this machine may read a token; close its file to them") == 1


def test_what_is_no_token_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(TokenMalformed):
        lowmark.connect("127.0.0.1:1", token="lm1_oops", timeout_s=0.1)


def test_no_error_and_no_text_has_the_token(served: Served, token: str) -> None:
    shown = list[str]()
    there = lowmark.connect(served.address, token=token)
    table = there.create_table("secret", COLUMNS, key="id")
    table.append([{"id": 1, "status": "new"}])
    shown += [repr(there), repr(table), repr(table.explain()), repr(there.tokens.list())]
    with pytest.raises(TokenExists) as exists:
        there.tokens.create("test_no_error_and_no_text_has_the_token")
    served.db.tokens.revoke("test_no_error_and_no_text_has_the_token")
    errors: list[BaseException] = [exists.value]
    for call in (lambda: table.get(1), lambda: there.create_table("no", COLUMNS), table.explain):
        with pytest.raises(Unauthenticated) as refused:
            call()
        errors.append(refused.value)
    there.close()
    for error in errors:
        shown += traceback.format_exception(error)
    assert isinstance(errors[-1], TokenRevoked)
    assert not any(token[4:] in one for one in shown)


def test_plain_clients_hear_the_code_for_it(served: Served, token: str) -> None:
    def tables(*headers: tuple[bytes, bytes]) -> int:
        with flight.FlightClient(location_of(served.address)) as client:
            options = flight.FlightCallOptions(headers=list(headers))
            return len(list(client.list_flights(options=options)))

    bearer = (b"authorization", f"Bearer {token}".encode())
    with lowmark.connect(served.address, token=token):  # it is heard of
        assert tables(bearer) >= 0
    for headers in ((), ((b"authorization", b"Bearer no"),), ((b"authorization", b"Basic x"),)):
        with pytest.raises(flight.FlightUnauthenticatedError):
            tables(*headers)
    served.db.tokens.revoke("test_plain_clients_hear_the_code_for_it")
    with pytest.raises(flight.FlightUnauthenticatedError, match="TokenRevoked"):
        tables(bearer)


def test_a_server_without_tokens_beside_it_asks_for_none(served: Served) -> None:
    with lowmark.connect(served.address, token=served.db.tokens.create("x").token) as there:
        assert there.catalog.version >= 0
    with pytest.raises(TokenMissing):
        lowmark.connect(served.address)
    with Server(served.db) as other, lowmark.connect(other.address) as there:
        assert there.catalog.version >= 0


def test_streams_of_plain_clients_end_when_their_token_is_revoked(served: Served) -> None:
    token = served.db.tokens.create("plain-streams").token
    table = served.db.create_table("wide", {"id": "int64", "text": "string"}, partitions=1)
    for at in range(32):  # more than gRPC takes ahead of its reader
        table.append([{"id": at, "text": "x" * (1 << 20)}])
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    path = flight.FlightDescriptor.for_path("wide")
    with flight.FlightClient(location_of(served.address)) as client:
        # given rows that are on their way to a client, and others from it
        info = client.get_flight_info(path, options)
        reader = client.do_get(info.endpoints[0].ticket, options)
        reader.read_chunk()
        rows = pa.table({"id": [1], "text": ["new"]})
        writer, answers = client.do_put(path, rows.schema, options)
        writer.write_table(rows)
        assert answers.read() is not None
        # when their token is revoked
        served.db.tokens.revoke("plain-streams")
        # then neither goes on
        with pytest.raises(flight.FlightUnauthenticatedError, match="TokenRevoked"):
            reader.read_all()
        writer.write_table(rows)
        assert answers.read() is None
        with pytest.raises(pa.ArrowException):
            writer.close()
    assert sum(batch.num_rows for batch in table.read()) == 33
