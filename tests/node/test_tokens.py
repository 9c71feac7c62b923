"""Tokens at one node: made, listed, revoked; what clients see of them; who calls."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.backend.errors import OutcomeUnknown
from lowmark.client import Database
from lowmark.errors import (
    LowmarkError,
    NoSuchToken,
    Rejected,
    TokenExists,
    TokenExpired,
    TokenMissing,
    TokenRevoked,
    TokensUnknown,
    TokenUnknown,
)
from lowmark.metastore import Operation, Put, Remove
from lowmark.metastore.commands import RemoveRange
from lowmark.node import NodeClient, WatchEvent
from lowmark.node import token_actions as limits
from lowmark.node import tokens as tokens_module
from lowmark.node.messages import NodeReply, Nothing, RemoveNodeAsk
from lowmark.node.token_messages import CreateTokenAsk, RevokeTokenAsk, TokenReply, TokensReply
from lowmark.node.tokens import Tokens
from lowmark.tokens import (
    ADMIN_ROLE,
    NODE_ROLE,
    Caller,
    Secret,
    digest_of,
    drawn,
    node_key,
    token_key,
)
from node.running import Running

WAIT_S = 30


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """A node makes sure more often than usual that it knows all tokens."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokens_module, "LOOK_MS", 50)
        yield


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("tokens"), name="n1", tokens=True) as running:
        yield running


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with closing(lowmark.open(tmp_path_factory.mktemp("embedded"))) as db:
        yield db


def tokens_of(running: Running) -> Tokens:
    tokens = running.node.tokens_of_callers
    eventually(lambda: raises_nothing(tokens._check_heard))
    return tokens


def raises_nothing(call: Any) -> bool:
    try:
        call()
    except LowmarkError:
        return False
    return True


def operated(running: Running, action: str, asked: msgspec.Struct, *, by: str = "") -> bytes:
    """What a caller with the token of that name gets."""
    operating, caller = running.node.operating, Caller(by, ADMIN_ROLE, digest=by.encode())
    assert operating is not None
    body = msgspec.json.encode(asked)
    ask = running.node.bridge.ask
    return ask(lambda: operating.operate(action, body, caller), timeout_s=WAIT_S)


def created(running: Running, name: str, *, ttl_ms: int = 0, by: str = "") -> str:
    secret = drawn()
    asked = CreateTokenAsk(name=name, digest=secret.digest(), ttl_ms=ttl_ms)
    operated(running, "token.create", asked, by=by)
    return secret.reveal()


def revoked(running: Running, name: str, *, by: str = "") -> TokenReply:
    said = operated(running, "token.revoke", RevokeTokenAsk(name=name), by=by)
    return msgspec.json.decode(said, type=TokenReply)


def wait_for(error: type[LowmarkError], tokens: Tokens, token: str) -> None:
    def refused() -> bool:
        try:
            tokens.caller(token)
        except error:
            return True
        return False

    eventually(refused)


# -- the API, and what it says ------------------------------------------------------------------


def test_a_token_is_seen_once_and_listed_without_its_secret(db: Database) -> None:
    made = db.tokens.create("job", expires=timedelta(days=30))
    assert made.token.startswith("lm1_")
    assert made.token not in repr(made)
    (listed,) = [one for one in db.tokens.list() if one.name == "job"]
    assert (listed.role, listed.state, listed.by) == ("admin", "in force", "")
    assert listed.expires_ms == listed.created_ms + 30 * 86_400_000
    shown = repr(db.tokens.list())
    assert made.token not in shown
    assert digest_of(made.token).hex() not in shown


def test_a_name_has_one_token_until_that_one_has_ended(db: Database) -> None:
    db.tokens.create("twice")
    with pytest.raises(TokenExists, match="twice"):
        db.tokens.create("twice")
    # when it is revoked, its name can be given again
    assert db.tokens.revoke("twice").state == "revoked"
    db.tokens.create("twice", expires="1 ms")
    # and so it can when it has expired, by the time of the metastore
    eventually(lambda: raises_nothing(lambda: db.tokens.create("twice")))


def test_what_can_not_be_made_or_revoked_is_refused_by_name(db: Database) -> None:
    for name in ("", "a b", ".hidden", "x" * 65, "../admin", "a\n"):
        with pytest.raises(Rejected, match="can't name a token"):
            db.tokens.create(name)
    for expires in ("0 s", "soon", "-1 day", "200 years"):
        with pytest.raises(Rejected, match="no time for a token") as refused:
            db.tokens.create("x", expires=expires)
        assert "a hundred years at most" in refused.value.hint
    with pytest.raises(NoSuchToken, match="nobody"):
        db.tokens.revoke("nobody")


def test_revoking_twice_says_when_it_was_done(db: Database) -> None:
    db.tokens.create("gone")
    once = db.tokens.revoke("gone")
    assert db.tokens.revoke("gone") == once
    assert once.revoked_ms is not None


def test_an_answer_that_was_lost_is_asked_for_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a database that carries each change out, and loses the first answer to it
    backend, lost = backend_of(db), set[str]()
    operate = backend.operate

    def losing(action: str, body: bytes, **more: Any) -> bytes:
        said = operate(action, body, **more)
        if action != "token.list" and action not in lost:
            lost.add(action)
            raise OutcomeUnknown("metastore", why="the answer was lost")
        return said

    monkeypatch.setattr(backend, "operate", losing)
    # when a token is made and revoked
    made = db.tokens.create("lossy")
    assert made.name == "lossy"
    assert [one.state for one in db.tokens.list() if one.name == "lossy"] == ["in force"]
    lost.discard("token.revoke")
    assert db.tokens.revoke("lossy").state == "revoked"
    # then both were done once, and each was asked for again
    assert lost >= {"token.create", "token.revoke"}


def test_tokens_that_ended_long_ago_make_room_for_others(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        db.tokens.create(f"old-{number}")
        db.tokens.revoke(f"old-{number}")
    monkeypatch.setattr(limits, "KEPT_MS", -1)
    db.tokens.create("newer")
    left = {one.name for one in db.tokens.list()}
    assert "newer" in left
    assert not any(name.startswith("old-") for name in left)


def test_there_are_no_more_tokens_than_a_cluster_keeps(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOKENS_MAX", len(db.tokens.list()))
    with pytest.raises(lowmark.errors.TokensFull):
        db.tokens.create("one-more")


# -- the metastore's keys -------------------------------------------------------------------------


def test_no_client_sees_a_digest_or_touches_a_record(running: Running, stack: ExitStack) -> None:
    token = created(running, "hidden")
    digest = digest_of(token)
    running.node.bridge.ask(
        lambda: running.node.cluster.metastore.put(b"access.other", digest), timeout_s=WAIT_S
    )
    client = stack.enter_context(NodeClient(running.endpoint, secret=Secret(token)))
    key = token_key("hidden")
    entry = client.get(key).entry
    assert entry is not None
    assert entry.value is not None
    assert "digest" not in json.loads(entry.value or b"{}")
    seen = repr([client.get(key), *client.history(key), *client.range(b"")])
    watch = client.watch(b"access.", from_revision=1)
    for told in watch:
        seen += repr(told)
        if isinstance(told, WatchEvent) and told.revision >= entry.revision:
            break
    for form in (digest.hex(), repr(digest)[2:-1], b64encode(digest).decode()):
        assert form not in seen
    with pytest.raises(Rejected, match="belongs to Lowmark itself"):
        client.put(key, b"{}")
    with pytest.raises(Rejected, match="belongs to Lowmark itself"):
        client.remove(key)


def test_the_port_neither_gives_nor_takes_records(db: Database) -> None:
    db.tokens.create("port")
    backend, key = db.backend, token_key("port")
    with pytest.raises(Rejected, match="belongs to the tokens"):
        backend.get(key)
    assert not [one for one in backend.range(b"") if one.key.startswith(b"access.")]
    changes: list[Operation] = [
        Put(key, b""),
        Remove(key),
        RemoveRange(b"a", b"b"),
        RemoveRange(key, key + b"x"),
    ]
    for change in changes:
        with pytest.raises(Rejected, match="belongs to the tokens"):
            backend.write([change])
    assert backend.write([RemoveRange(b"access/", b"b"), RemoveRange(b"a", b"access.")])
    assert "port" in {one.name for one in db.tokens.list()}


# -- who calls ------------------------------------------------------------------------------------


def test_a_caller_is_known_by_its_token_until_that_is_revoked(running: Running) -> None:
    tokens, token = tokens_of(running), created(running, "caller", by="admin")
    eventually(lambda: raises_nothing(lambda: tokens.caller(token)))
    caller = tokens.caller(token)
    assert (caller.name, caller.role) == ("caller", "admin")
    tokens.check(caller)
    for missing in (None, ""):
        with pytest.raises(TokenMissing):
            tokens.caller(missing)
    with pytest.raises(TokenUnknown):
        tokens.caller(drawn().reveal())
    assert revoked(running, "caller", by="other").revoked_by == "other"
    wait_for(TokenRevoked, tokens, token)
    with pytest.raises(TokenRevoked):
        tokens.check(caller)
    # a new token of the same name is another one
    other = created(running, "caller")
    eventually(lambda: raises_nothing(lambda: tokens.caller(other)))
    with pytest.raises(TokenUnknown):
        tokens.caller(token)


def test_a_token_expires_by_the_time_of_the_metastore(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, token = tokens_of(running), created(running, "short", ttl_ms=3_600_000)
    eventually(lambda: raises_nothing(lambda: tokens.caller(token)))
    # given a node whose own clock is years off: that changes nothing
    monkeypatch.setattr(running.node.loop, "wall_ms", lambda: 1 << 42)
    assert tokens.caller(token).name == "short"
    # when the metastore's time goes on by an hour
    now_ms = tokens.now_ms()
    monkeypatch.setattr(tokens, "now_ms", lambda: now_ms + 3_600_000)
    with pytest.raises(TokenExpired):
        tokens.caller(token)


def test_a_node_that_does_not_hear_the_metastore_takes_only_what_it_last_knew(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, token = tokens_of(running), created(running, "cut-off")
    eventually(lambda: raises_nothing(lambda: tokens.caller(token)))
    caller = tokens.caller(token)
    # given that more time has passed since it was last heard than may
    monkeypatch.setattr(tokens_module, "UNHEARD_MS", -1)
    with pytest.raises(TokensUnknown, match="has not heard the metastore for"):
        tokens.check(caller)
    # then only what says what is wrong, and repairs it, is done by what was last known
    tokens.check(tokens.caller(token), last_known=True)
    # and that it does not know a token says nothing about the cluster
    with pytest.raises(TokensUnknown):
        tokens.caller(drawn().reveal())
    # when it hears it again
    monkeypatch.undo()
    eventually(lambda: raises_nothing(lambda: tokens.check(caller)))


def test_what_a_node_shows_to_others_is_its_own_and_lets_no_client_in(running: Running) -> None:
    tokens = tokens_of(running)
    eventually(lambda: raises_nothing(lambda: tokens.caller(tokens.own.reveal())))
    caller = tokens.caller(tokens.own.reveal())
    assert (caller.name, caller.role) == (str(running.node.info.number), NODE_ROLE)
    assert node_key(running.node.info.number) == b"access.node.%s" % caller.name.encode()
    # and it is not among the tokens of clients
    listed = msgspec.json.decode(operated(running, "token.list", Nothing()), type=TokensReply)
    assert caller.name not in {one.name for one in listed.tokens}


def test_an_idle_node_that_asks_for_tokens_writes_nothing_for_that(running: Running) -> None:
    tokens = tokens_of(running)
    metastore = running.node.cluster.metastore
    heard, latest = tokens._heard_us, metastore.state.latest
    assert heard is not None
    eventually(lambda: (tokens._heard_us or 0) > heard + 500_000)
    assert metastore.state.latest == latest


def test_a_node_asks_every_client_for_its_token(running: Running) -> None:
    address, token = running.endpoint, created(running, "client")

    def asked(secret: Secret | None) -> TokenReply:
        with NodeClient(address, secret=secret) as client:
            ask = CreateTokenAsk(name="made", digest=made.digest())
            return client.ask("token.create", ask, TokenReply)

    made = drawn()
    with pytest.raises(TokenMissing):
        asked(None)
    with pytest.raises(TokenUnknown):
        asked(drawn())
    eventually(lambda: raises_nothing(lambda: asked(Secret(token))))
    # who has made it is known by its token
    assert (asked(Secret(token)).by, asked(Secret(token)).state) == ("client", "in force")
    revoked(running, "client")
    wait_for(TokenRevoked, tokens_of(running), token)
    with pytest.raises(TokenRevoked):
        asked(Secret(token))


def test_a_stream_that_is_open_ends_when_its_token_is_revoked(running: Running) -> None:
    token = created(running, "watcher")
    eventually(lambda: raises_nothing(lambda: tokens_of(running).caller(token)))
    with NodeClient(running.endpoint, secret=Secret(token)) as client:
        watch = client.watch(b"fruit")
        next(watch)
        began = time.monotonic()
        revoked(running, "watcher")
        with pytest.raises(TokenRevoked):
            next(watch)
        assert time.monotonic() - began < 20


def test_a_node_says_that_no_client_can_call_it_only_if_that_is_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = "the cluster has none"
    # given a cluster of before: it was founded inside a process, without a token
    lowmark.open(tmp_path / "before").close()
    with Running(tmp_path / "before", tokens=True):
        eventually(lambda: words in caplog.text)
    caplog.clear()
    # a founder that has just made its first token says no such thing
    with Running(tmp_path / "founder", tokens=True) as running:
        eventually(lambda: running.node.tokens_of_callers._warned)
    assert words not in caplog.text


def test_a_node_is_let_in_by_the_others_until_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(tmp_path / "1", name="n1", tokens=True) as first:
        tokens = tokens_of(first)
        # given a node that asks for no tokens itself, in a cluster where another one does
        monkeypatch.setenv("LOWMARK_TOKEN_FILE", str(tmp_path / "1" / "admin.token"))
        with Running(tmp_path / "2", name="n2", join=first.endpoint) as second:
            own = second.node.tokens_of_callers.own.reveal()
            eventually(lambda: raises_nothing(lambda: tokens.caller(own)))
            assert tokens.caller(own).name == str(second.node.info.number)
            # then it is named as an open way in, whichever node is asked
            for node in (first, second):
                warnings = node.client().status().warnings
                [warning] = [one for one in warnings if one.kind == "no-tokens"]
                assert warning.holder == "n2"
                assert second.endpoint in warning.text
                assert "start it again with --tokens" in warning.text
            # when it is removed
            done = first.client().ask("node.remove", RemoveNodeAsk(node="n2"), NodeReply)
            assert done.node == "n2"
            # then what it shows lets it in no more
            wait_for(TokenUnknown, tokens, own)
