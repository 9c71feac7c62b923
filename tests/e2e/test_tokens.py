"""Three `lowmark serve --tokens` processes: strangers, tokens that end, nodes that are cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lowmark
from eventually import eventually
from lowmark.backend.passing import Given
from lowmark.cli.app import app
from lowmark.client import AppendFailed, Database
from lowmark.errors import LowmarkError
from lowmark.node import NodeClient
from lowmark.tokens import (
    PassEnded,
    Right,
    Secret,
    TokenExpired,
    TokenMissing,
    TokenRevoked,
    TokensUnknown,
    TokenUnknown,
    drawn,
)
from server.nodes import Nodes, table_of

runner = CliRunner()
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tokens")]


class Guarded(Nodes):
    """They ask for tokens. That of an administrator is in a file of the first one."""

    @property
    def token_file(self) -> Path:
        return self._path / "n0" / "admin.token"

    def options(self, *, join: bool) -> list[str]:
        return ["--tokens", *(["--token-file", str(self.token_file)] if join else [])]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("three"), 3) as nodes:
        yield nodes


@pytest.fixture
def db(nodes: Guarded) -> Iterator[Database]:
    db = connected(nodes, 0, admin(nodes))
    yield db
    db.close()


def admin(nodes: Guarded) -> str:
    return nodes.token_file.read_text().strip()


def connected(nodes: Guarded, number: int, token: str | None) -> Database:
    return lowmark.connect(nodes.address(number), token=token, timeout_s=60)


def error_at(nodes: Guarded, number: int, token: str | None) -> type[LowmarkError] | None:
    """What a client of one node hears that shows this."""
    secret = None if token is None else Secret(token)
    with NodeClient(nodes.address(number), secret=secret) as client:
        try:
            client.get(b"topology")
        except LowmarkError as error:
            return type(error)
        return None


def test_only_a_token_in_force_lets_a_client_in_at_every_node(nodes: Guarded, db: Database) -> None:
    # given a token that is in force, one that expires, and one that is revoked
    good, short = db.tokens.create("good").token, db.tokens.create("short", expires="1 ms").token
    gone, strange = db.tokens.create("gone").token, drawn().reveal()
    for number in range(3):
        eventually(lambda number=number: error_at(nodes, number, gone) is None)  # type: ignore[misc]
    db.tokens.revoke("gone")
    for number in range(3):
        # then each node says to each client what is wrong with its token, and no more
        eventually(lambda number=number: error_at(nodes, number, gone) is TokenRevoked)  # type: ignore[misc]
        eventually(lambda number=number: error_at(nodes, number, short) is TokenExpired)  # type: ignore[misc]
        assert error_at(nodes, number, None) is TokenMissing
        eventually(lambda number=number: error_at(nodes, number, strange) is TokenUnknown)  # type: ignore[misc]
        eventually(lambda number=number: error_at(nodes, number, good) is None)  # type: ignore[misc]
    with pytest.raises(TokenMissing, match="asks for a token"):
        connected(nodes, 0, None)
    with pytest.raises(TokenUnknown):
        connected(nodes, 1, drawn().reveal())


# `server/test_passes` does so at one node; tokens are revoked at three by the tests around this one
@pytest.mark.release
def test_a_pass_is_good_at_every_node_and_ends_with_its_token_at_each(
    nodes: Guarded, db: Database
) -> None:
    table = table_of(db, "passed", replicas=3, partitions=2)
    table.append([{"id": number, "status": "new"} for number in range(20)])

    def refused(number: int, shown: str) -> bool:
        try:
            connected(nodes, number, shown).close()
        except PassEnded:
            return True
        return False

    # given passes that were made at one node, by two tokens
    with (
        connected(nodes, 1, db.tokens.create("driver").token) as driver,
        connected(nodes, 1, admin(nodes)) as other,
    ):
        gone = Given(driver.backend, Right.READ, table.descriptor.id)
        kept = Given(other.backend, Right.READ, table.descriptor.id)
        # then a task is let in at each, and reads there what that node leads, and what others do
        for number in range(3):
            eventually(lambda number=number: not refused(number, gone.shown))  # type: ignore[misc]
            with connected(nodes, number, gone.shown) as task:
                rows = task["passed"].read(as_of="now").to_pylist()
                assert sorted(row["id"] for row in rows) == list(range(20))
        # and when one token is revoked, its pass ends at each within a second or so, the other's
        # when its driver ends it
        open_already = connected(nodes, 2, gone.shown)
        db.tokens.revoke("driver")
        for number in range(3):
            eventually(lambda number=number: refused(number, gone.shown))  # type: ignore[misc]
            assert not refused(number, kept.shown)
        with pytest.raises(PassEnded):
            open_already["passed"].read(as_of="now")
        open_already.close()
        kept.close()
        for number in range(3):
            eventually(lambda number=number: refused(number, kept.shown))  # type: ignore[misc]


def test_nodes_that_ask_for_tokens_let_each_other_in(nodes: Guarded, db: Database) -> None:
    # given a table whose partitions have one copy each, all over the cluster
    table = table_of(db, "spread", replicas=1)
    table.append([{"id": number, "status": "new"} for number in range(200)])
    # then any node gives all of it, though the rows are at others
    for number in range(3):
        with connected(nodes, number, admin(nodes)) as other:
            assert sum(batch.num_rows for batch in other["spread"].read(limit=200)) == 200
            assert other["spread"].get(7) is not None
            other["spread"].append([{"id": 1_000 + number, "status": "new"}])


def test_what_is_open_ends_when_its_token_is_revoked(nodes: Guarded, db: Database) -> None:
    table_of(db, "streams", replicas=3, partitions=1).append([{"id": 0, "status": "new"}])
    token = db.tokens.create("worker").token
    with ExitStack() as stack:
        there = stack.enter_context(connected(nodes, 1, token))
        table = there["streams"]
        # given a reader, a producer, a watch and a client with rows to come, all at work
        reader = stack.enter_context(table.read(follow=True))
        next(iter(reader))
        producer = table.producer()
        producer.send({"id": 1, "status": "new"})
        producer.flush()
        client = stack.enter_context(NodeClient(nodes.address(1), secret=Secret(token)))
        watch = client.watch(b"nothing")
        next(watch)
        # when the token is revoked
        db.tokens.revoke("worker")
        began = time.monotonic()

        def append() -> None:
            while True:
                producer.send({"id": 2, "status": "new"})
                producer.flush()

        def follow() -> None:
            for _ in reader:
                pass

        def look() -> None:
            while True:
                table.get(1)

        # then each ends, by name
        ended = {what: _ended(what) for what in (append, follow, look, lambda: next(watch))}
        for thread, _ in ended.values():
            thread.join(60)
        for _, errors in ended.values():
            assert len(errors) == 1
            assert isinstance(errors[0], TokenRevoked | AppendFailed), errors
            assert "the token was revoked" in str(errors[0])
        assert time.monotonic() - began < 30
        with pytest.raises(AppendFailed):
            producer.close()


def _ended(what: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            what()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_commands_show_the_token_of_a_file_and_no_process_shows_it(nodes: Guarded) -> None:
    words = ["status", "--node", nodes.address(1)]
    refused = runner.invoke(app, words)
    assert refused.exit_code == 1
    assert "asks for a token, and the call has none" in refused.output
    assert "hint: Set LOWMARK_TOKEN" in refused.output
    done = runner.invoke(app, [*words, "--token-file", str(nodes.token_file)])
    assert done.exit_code == 0, done.output
    # (the file counts for that one command)
    assert runner.invoke(app, words).exit_code == 1
    secret = admin(nodes)[8:]
    shown = [done.output, *(nodes.said(number) for number in range(3))]
    shown += [Path(f"/proc/{nodes.pid(number)}/cmdline").read_text() for number in range(3)]
    assert not any(secret in one for one in shown)


@pytest.mark.release  # shorter: tests/node/test_tokens.py, with a time that is over at once
def test_a_node_that_is_cut_off_takes_tokens_only_to_say_what_is_wrong(tmp_path: Path) -> None:
    with Guarded(tmp_path, 3) as nodes:
        token = admin(nodes)
        for number in range(3):
            eventually(lambda number=number: error_at(nodes, number, token) is None)  # type: ignore[misc]
        # when a node does not hear the others any more
        nodes.pause(1)
        nodes.pause(2)
        eventually(lambda: error_at(nodes, 0, token) is TokensUnknown)
        # then it says so to clients with a token, and what is wrong; to strangers nothing
        with NodeClient(nodes.address(0), secret=Secret(token)) as client:
            assert client.status().cluster is not None
        assert error_at(nodes, 0, None) is TokenMissing
        with NodeClient(nodes.address(0)) as client, pytest.raises(TokenMissing):
            client.status()
        # and when it does again, it takes them
        nodes.resume(1)
        nodes.resume(2)
        eventually(lambda: error_at(nodes, 0, token) is None)
        # when it is started again alone, it knows the tokens that it last knew
        for number in range(3):
            nodes.kill(number)
        nodes.start(0)
        assert error_at(nodes, 0, token) is TokensUnknown
        with NodeClient(nodes.address(0), secret=Secret(token)) as client:
            assert {one.name for one in client.status().nodes} == {"n0", "n1", "n2"}
        with (
            NodeClient(nodes.address(0), secret=drawn()) as client,
            pytest.raises((TokensUnknown, TokenUnknown)),
        ):
            client.status()


@pytest.mark.release
def test_a_node_comes_back_though_the_token_by_which_it_joined_was_revoked(tmp_path: Path) -> None:
    # given three nodes, of which two have joined by the first token, which is revoked since
    with Guarded(tmp_path, 3) as nodes:
        with connected(nodes, 0, admin(nodes)) as db:
            db.tokens.create("other")
            db.tokens.revoke("admin")
        # when one of them ends and is started as before, then it is ready, and in its cluster
        nodes.kill(2)
        nodes.start(2, join=True)
