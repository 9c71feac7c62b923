"""Who shows a token, by the table of a node: in force, expired, revoked, unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lowmark.tokens import (
    NODE_ROLE,
    PASS_ROLE,
    PassEnded,
    Record,
    Right,
    Scope,
    Secret,
    State,
    Table,
    Token,
    TokenExpired,
    TokenMalformed,
    TokenRevoked,
    TokenUnknown,
    drawn,
    node_key,
    pass_key,
    shown,
    token_key,
)


def token(name: str, secret: Secret, *, at_ms: int = 1_000, **fields: Any) -> Token:
    value = Record(digest=secret.digest(), **fields).encode()
    found = Token.of(token_key(name), value, revision=1, time_ms=at_ms)
    assert found is not None
    return found


def test_a_token_is_in_force_until_its_time_is_over() -> None:
    secret = drawn()
    one = token("job", secret, ttl_ms=500)
    table = Table([one, token("other", drawn())])
    assert one.expires_ms == 1_500
    # the last millisecond in which it is in force, and the first in which it is not
    assert table.caller(secret.reveal(), 1_499).name == "job"
    with pytest.raises(TokenExpired):
        table.caller(secret.reveal(), 1_500)
    assert [one.state(now) for now in (1_499, 1_500)] == [State.IN_FORCE, State.EXPIRED]
    assert [one.ended_ms(now) for now in (1_499, 1_500)] == [None, 1_500]


def test_a_token_without_an_end_is_in_force_until_it_is_revoked() -> None:
    secret = drawn()
    assert Table([token("job", secret)]).caller(secret.reveal(), 1 << 50).role == "admin"
    with pytest.raises(TokenRevoked):
        Table([token("job", secret, revoked_by="")]).caller(secret.reveal(), 0)


def test_what_no_table_has_is_unknown_and_what_is_no_token_malformed() -> None:
    table = Table([token("job", drawn())])
    with pytest.raises(TokenUnknown):
        table.caller(drawn().reveal(), 0)
    with pytest.raises(TokenUnknown):
        Table().caller(drawn().reveal(), 0)
    with pytest.raises(TokenMalformed):
        table.caller("lm1_no", 0)


def test_digests_that_begin_alike_are_told_apart() -> None:
    mine = drawn()
    digest = mine.digest()
    alike = Token("other", Record(digest=digest[:8] + bytes(24)), 0, 1, 0)
    table = Table([alike, token("job", mine)])
    assert table.caller(mine.reveal(), 0).name == "job"
    with pytest.raises(TokenUnknown):
        Table([alike]).caller(mine.reveal(), 0)


def test_a_client_can_not_have_the_role_of_a_node_nor_a_node_that_of_a_client() -> None:
    record = Record(digest=drawn().digest(), role=NODE_ROLE).encode()
    assert Token.of(token_key("7"), record, revision=1, time_ms=0) is None
    node = Token.of(node_key(7), record, revision=1, time_ms=0)
    assert node is not None
    assert (node.name, node.of_node) == ("7", True)
    plain = Record(digest=drawn().digest()).encode()
    assert Token.of(node_key(7), plain, revision=1, time_ms=0) is None
    assert Table([node]).named("7") is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"{}",
        b"\xff",
        b'{"digest":"AAAA"}',
        b'{"digest":"%s","ttl_ms":-1}' % (b"A" * 43),
    ],
)
def test_a_value_that_is_no_record_lets_no_one_in(value: bytes) -> None:
    assert Record.decode(value) is None
    assert Token.of(token_key("x"), value, revision=1, time_ms=0) is None
    assert shown(token_key("x"), value) == b""


def test_a_record_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    record = Record(digest=drawn().digest(), by="admin")
    later = json.loads(record.encode()) | {"tables": ["orders"]}
    assert Record.decode(json.dumps(later).encode()) == record


def test_clients_see_all_of_a_record_but_its_digest() -> None:
    record = Record(digest=drawn().digest(), ttl_ms=5, by="admin")
    seen = json.loads(shown(token_key("x"), record.encode()))
    assert seen == {"role": "admin", "ttl_ms": 5, "by": "admin"}
    assert shown(b"topology", b"{}") == b"{}"


def test_a_role_is_always_written_and_a_record_of_before_without_one_is_an_administrators() -> None:
    record = Record(digest=drawn().digest())
    written = json.loads(record.encode())
    assert written.pop("role") == "admin"
    assert Record.decode(json.dumps(written).encode()) == record


def test_a_role_of_a_later_release_gives_no_rights_here() -> None:
    # given the record of a token that a later release has made, with fewer rights
    record = Record(digest=drawn().digest(), role="reader").encode()
    # then this release, which knows only one role, lets it do nothing
    assert Token.of(token_key("report"), record, revision=1, time_ms=0) is None


# -- passes -------------------------------------------------------------------------------------


def a_pass(secret: Secret, maker: Secret, *, at_ms: int = 1_000, **fields: Any) -> Token | None:
    said: dict[str, Any] = {"role": PASS_ROLE, "table": 7, "right": "read", "ttl_ms": 500}
    said |= {"digest": secret.digest(), "of": maker.digest()}
    value = Record(**(said | fields)).encode()
    return Token.of(pass_key(secret.digest()), value, revision=1, time_ms=at_ms)


def test_a_pass_is_in_force_until_it_is_renewed_no_more_and_while_its_token_is() -> None:
    maker = drawn()
    secret = maker.pass_for("a read")
    one = a_pass(secret, maker)
    assert one is not None
    table = Table([token("job", maker, ttl_ms=2_000), one])
    # its holder is named by the token, and may do one thing with one table
    caller = table.caller(secret.reveal(), 1_499)
    assert (caller.name, caller.role, caller.token) == ("job", "pass", "job")
    assert caller.scope == Scope(7, Right.READ)
    assert table.caller(maker.reveal(), 1_499).scope is None
    with pytest.raises(PassEnded, match="the pass has ended"):
        table.caller(secret.reveal(), 1_500)
    # when its record is written again, its time begins anew, but that of its token does not
    renewed = a_pass(secret, maker, at_ms=2_900)
    assert renewed is not None
    table = Table([token("job", maker, ttl_ms=2_000), renewed])
    assert table.pass_in_force(renewed, 2_999)
    assert not table.pass_in_force(renewed, 3_000)
    with pytest.raises(PassEnded) as ended:
        table.caller(secret.reveal(), 3_000)
    assert "The token by which it was made has expired" in ended.value.detail


@pytest.mark.parametrize("gone", ["revoked", "not there", "a node's", "a pass"])
def test_a_pass_without_a_token_that_made_it_lets_no_one_in(gone: str) -> None:
    maker = drawn()
    secret = maker.pass_for("a read")
    if gone == "a pass":
        maker = secret
    one = a_pass(secret, maker)
    assert one is not None
    others = {
        "revoked": [token("job", maker, revoked_by="admin")],
        "a node's": [of_node(maker)],
    }
    with pytest.raises(PassEnded):
        Table([one, *others.get(gone, [])]).caller(secret.reveal(), 1_001)


def of_node(secret: Secret) -> Token:
    value = Record(digest=secret.digest(), role=NODE_ROLE).encode()
    found = Token.of(node_key(1), value, revision=1, time_ms=0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "odd",
    [
        {"right": "drop"},
        {"right": ""},
        {"table": 0},
        {"table": -1},
        {"ttl_ms": 0},
        {"of": b"x"},
        {"role": "admin"},
        {"role": "node"},
        {"role": "reader"},
    ],
)
def test_a_record_that_is_no_whole_pass_lets_no_one_in(odd: dict[str, Any]) -> None:
    maker = drawn()
    secret = maker.pass_for("a read")
    assert a_pass(secret, maker, **odd) is None
    # and under the key of a token, or of a node, a pass is none, either
    for key in (token_key("job"), node_key(1)):
        value = Record(digest=secret.digest(), role=PASS_ROLE, right="read", table=7).encode()
        assert Token.of(key, value, revision=1, time_ms=0) is None
    with pytest.raises(PassEnded):
        Table([token("job", maker)]).caller(secret.reveal(), 1_001)


def test_clients_see_no_digest_of_a_pass() -> None:
    maker = drawn()
    record = Record(digest=drawn().digest(), role=PASS_ROLE, right="read", of=maker.digest())
    assert json.loads(shown(pass_key(record.digest), record.encode())) == {
        "role": "pass",
        "right": "read",
    }
