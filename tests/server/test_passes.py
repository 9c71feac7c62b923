"""Passes: what tasks of Spark show. Made by a token, for one table and one thing to do there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from eventually import eventually
from frames.alone import in_task, sent
from lowmark.backend import passing
from lowmark.backend.errors import RequestRefused
from lowmark.backend.operating import MakePassAsk, PassReply, operated
from lowmark.backend.passing import Given, end, make, renew, secret_for
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.values import Hold, ReadRange
from lowmark.catalog import TableId
from lowmark.client import Database
from lowmark.client.appending import TableAppender
from lowmark.errors import (
    BeyondPass,
    LowmarkError,
    PassEnded,
    Rejected,
    StagedRowsMissing,
    TableUnknown,
    TokenMissing,
    TokenRevoked,
)
from lowmark.frames import LowmarkSource
from lowmark.group import Future
from lowmark.metastore import Do, Put, Remove
from lowmark.node import pass_actions as limits
from lowmark.node import tokens as tokens_module
from lowmark.node.addresses import location_of
from lowmark.node.callers import calling
from lowmark.node.token_messages import EndPassAsk
from lowmark.server import Server
from lowmark.table import Finish
from lowmark.tokens import PASS_PREFIX, Right, Secret, drawn, pass_key
from server.world import COLUMNS, Served

T = TypeVar("T")
ROWS = [{"id": number, "status": "new"} for number in range(40)]


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """A node makes sure more often than usual that it knows all tokens."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokens_module, "LOOK_MS", 50)
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("passes"), tokens=True) as served:
        for name in ("orders", "others"):
            served.db.create_table(name, COLUMNS, key="id", partitions=2).append(ROWS)
        yield served


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of the driver's token."""
    return f"t{crc32(request.node.name.encode())}"


@pytest.fixture
def token(served: Served, name: str) -> str:
    return served.db.tokens.create(name).token


@pytest.fixture
def there(served: Served, token: str) -> Iterator[Database]:
    """A driver."""
    with lowmark.connect(served.address, token=token) as there:
        yield there


def table_id(served: Served, name: str = "orders") -> TableId:
    return served.db[name].descriptor.id


def a_pass(there: Database, served: Served, right: Right = Right.READ, **more: Any) -> Given:
    return Given(there.backend, right, table_id(served, **more))


def rows_of(reader: Any) -> int:
    with reader:
        return sum(batch.num_rows for batch in reader)


def passes(served: Served) -> list[Any]:
    return served.backend.node.tokens_of_callers.table.passes


# -- what a pass lets its holder do -------------------------------------------------------------


@pytest.mark.slow
def test_a_pass_to_read_reads_its_table_and_sees_no_other(
    there: Database, served: Served, token: str
) -> None:
    with a_pass(there, served) as given:
        assert given.shown.startswith(PASS_PREFIX)
        with lowmark.connect(served.address, token=given.shown) as task:
            assert rows_of(task["orders"].read(as_of="now")) == len(ROWS)
            assert task["orders"].get(7) is not None
            # its name is that of the token by which it was made
            assert task.backend.caller == there.backend.caller
            # and another table is not there for it, by name or by number
            assert [*task.tables()] == ["orders"]
            with pytest.raises(TableUnknown):
                task["others"]
            other = table_id(served, "others")
            for call in ("view", "views", "status", "hold", "batches", "look_up"):
                with pytest.raises(BeyondPass, match=f"does not allow the call {call} of another"):
                    asked(task, call, other)
            with pytest.raises(BeyondPass, match="does not allow the call propose"):
                task.backend.propose(other, {0: Finish(1, commit=False)})
            with pytest.raises(LowmarkError, match="does not allow the call append"):
                task["orders"].append(ROWS[:1])


def asked(task: Database, call: str, table: int) -> Any:
    backend = task.backend
    assert isinstance(backend, RemoteBackend)
    if call == "batches":
        return list(backend._connection.read("batches", table, 0, (), held=False, timeout_s=5))
    return backend._call(call, table, timeout_s=5.0)


def test_a_pass_to_stage_stages_and_nothing_else(there: Database, served: Served) -> None:
    table = there["orders"]
    with (
        a_pass(there, served, Right.STAGE) as given,
        lowmark.connect(served.address, token=given.shown) as task,
    ):
        with task["orders"].stage() as stage:
            stage.append([{"id": 1_000, "status": "staged"}])
            staged = stage.staged()
        # rows that readers would see at once are refused, and so is a commit, and a read
        with pytest.raises(LowmarkError, match="rows that are not staged"):
            task["orders"].append([{"id": 1_001, "status": "not staged"}])
        with pytest.raises(StagedRowsMissing):  # it does not see whose rows are staged
            task["orders"].commit([staged], query="q", epoch=1)
        commit = {0: Finish(staged.transaction, commit=True)}
        with pytest.raises(BeyondPass, match="the command Finish"):
            task.backend.propose(table_id(served), commit)
        with pytest.raises(BeyondPass):
            task["orders"].read(as_of="now")
        stage = task["orders"].stage()
        stage.append([{"id": 1_002, "status": "given up"}])
        stage.abort()
    # the driver commits it, with its token
    table.commit([staged], query="q", epoch=1)
    assert table.get(1_000) == {"id": 1_000, "status": "staged"}
    assert table.get(1_001) is None


@pytest.mark.parametrize("right", [Right.READ, Right.STAGE])
def test_a_pass_does_not_tell_the_numbers_of_other_writers(
    there: Database, served: Served, right: Right
) -> None:
    # given rows that a writer stages, whose number would let others drop them
    table = there["orders"]
    with table.stage() as stage, a_pass(there, served, right) as given:
        stage.append([{"id": 2_000, "status": "another's"}])
        number = stage.staged().transaction
        seen = there.backend.status(table_id(served))
        assert any(number in one.staging.by_transaction for one in seen.values() if one.staging)
        # when a task looks at the table
        with lowmark.connect(served.address, token=given.shown) as task:
            seen = task.backend.status(table_id(served))
        # then it sees that rows are staged, and not whose they are
        staging = [one.staging for one in seen.values() if one.staging]
        assert sum(one.rows for one in staging) >= 1
        assert not any(one.by_transaction for one in staging)
        stage.abort()


def test_a_pass_sees_the_files_of_its_table_alone(
    there: Database, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = table_id(served), table_id(served, "others")
    names = frozenset(f"table-{one}/0/manifest" for one in (own, other, int(f"{own}0")))
    monkeypatch.setattr(served.backend, "files_in_use", lambda: names)
    with (
        a_pass(there, served) as given,
        lowmark.connect(served.address, token=given.shown) as task,
    ):
        assert task.backend.files_in_use() == {f"table-{own}/0/manifest"}


def test_a_pass_to_stage_stages_for_its_table_alone(there: Database, served: Served) -> None:
    with (
        a_pass(there, served, Right.STAGE) as given,
        lowmark.connect(served.address, token=given.shown) as task,
    ):
        # a client that is not ours may say any table
        stage = there["others"].stage()
        stage._backend = task.backend
        stage._appender = TableAppender(task.backend, table_id(served, "others"), "others")
        with pytest.raises(BeyondPass, match="the call propose of another table"):
            stage.append([{"id": 1, "status": "x"}])
        stage._sent.add(0)
        with pytest.raises(LowmarkError, match="rows for another table"):
            stage.append([{"id": 1, "status": "x"}])


@pytest.mark.parametrize("right", Right)
def test_a_pass_makes_no_token_and_no_pass(there: Database, served: Served, right: Right) -> None:
    with a_pass(there, served, right) as given:
        backend = RemoteBackend(served.address, secret=Secret(given.shown))
        client, header = plain(served, given)
        asks = MakePassAsk(
            digest=drawn().digest(), table=table_id(served), right="read", ttl_ms=1_000
        )
        for action, body in (
            ("token.create", {"name": "mine", "digest": "A" * 43 + "="}),
            ("token.list", {}),
            ("pass.make", msgspec.to_builtins(asks)),
            ("status", {}),
            ("meta.get", {"key": ""}),
            ("catalog.execute", {"commands": ""}),
        ):
            data = msgspec.json.encode(body)
            with pytest.raises(BeyondPass):  # by the port, and by the action itself
                backend.operate(action, data)
            with pytest.raises(flight.FlightUnauthorizedError, match=f"the action {action}"):
                list(client.do_action(flight.Action(action, data), header))
        # nor is one made of it by a client of ours, which takes it for what it is
        assert secret_for(backend, Right.READ, table_id(served)) is None
        with pytest.raises(BeyondPass):
            backend.write([Put(b"x", b"y")])
        with pytest.raises(BeyondPass):
            backend.get(b"topology")
        backend.close()
        client.close()


def test_a_pass_ends_nothing_that_it_did_not_begin(there: Database, served: Served) -> None:
    # given a reader of the driver, and a task that knows its numbers, though nothing shows them
    reader = there["orders"].read(follow=True)
    [(number, kept)] = served.backend._kept.items()
    driver = there.backend
    with (
        a_pass(there, served) as given,
        lowmark.connect(served.address, token=given.shown) as task,
    ):
        other = task.backend
        assert isinstance(other, RemoteBackend)
        assert isinstance(driver, RemoteBackend)
        # when the task releases the hold of the reader, or takes it for its own
        other._call("release", Hold(number))
        ranges = {0: ReadRange(0, None)}
        with pytest.raises(RequestRefused, match="another client has this hold"):
            other._call("hold", table_id(served), ranges, hold=Hold(number), holder="", why="")
        # or ends the session of the driver
        mine, other._connection._session = other._connection._session, driver._connection._session
        for call in ("leave", "renew"):
            with pytest.raises(RequestRefused, match="belongs to another token"):
                other._call(call)
        with pytest.raises(RequestRefused, match="belongs to another token"):
            other._call("release", Hold(number))
        other._connection._session = mine
        # then the reader has what it held
        assert served.backend._kept == {number: kept}
    # and ends it itself
    reader.close()
    eventually(lambda: not served.backend._kept)


def test_a_plain_client_does_nothing_with_a_pass(there: Database, served: Served) -> None:
    # any table could be named in what it asks
    with a_pass(there, served) as given:
        client, header = plain(served, given)
        path = flight.FlightDescriptor.for_path("orders")
        ticket = b'{"table": "orders", "partition": 0, "as_of": 0}'
        for call in (
            lambda: list(client.list_flights(options=header)),
            lambda: client.get_flight_info(path, header),
            lambda: client.get_schema(path, header),
            lambda: client.do_get(flight.Ticket(ticket), header).read_all(),
            lambda: put(client, path, header),
        ):
            with pytest.raises(
                (flight.FlightError, pa.ArrowException, OSError), match="BeyondPass"
            ):
                call()
        client.close()


def plain(served: Served, given: Given) -> tuple[Any, Any]:
    """A client with none of our code that shows the pass."""
    header = (b"authorization", f"Bearer {given.shown}".encode())
    client = flight.FlightClient(location_of(served.address))
    return client, flight.FlightCallOptions(headers=[header])


def put(client: Any, path: Any, header: Any) -> None:
    rows = pa.Table.from_pylist(ROWS)
    writer, _ = client.do_put(path, rows.schema, header)
    writer.write_table(rows)
    writer.close()


# -- when it ends -------------------------------------------------------------------------------


def refused(served: Served, shown: str) -> bool:
    try:
        served.backend.node.tokens_of_callers.caller(shown)
    except PassEnded:
        return True
    return False


def swept(served: Served) -> None:
    """As the node that coordinates does every now and then."""
    actions = served.backend.node._passes
    assert actions is not None
    served.backend.node.bridge.call(actions._sweep)


def test_a_pass_ends_with_its_query_also_in_what_is_open(there: Database, served: Served) -> None:
    # given a task that reads
    given = a_pass(there, served)
    task = lowmark.connect(served.address, token=given.shown)
    assert rows_of(task["orders"].read(as_of="now"))
    # when the query ends
    given.close()
    # then the task is refused, and nothing is left of the pass
    with pytest.raises(PassEnded, match="the pass has ended"):
        task["orders"].read(as_of="now")
    with pytest.raises(PassEnded):
        lowmark.connect(served.address, token=given.shown)
    digest = Secret(given.shown).digest()
    assert not [one for one in passes(served) if one.record.digest == digest]
    task.close()


def after(first: Future[Any], then: Callable[[], Future[T]]) -> Future[T]:
    whole: Future[T] = Future()
    first.then(lambda _: then().then(whole.follow))
    return whole


def test_when_the_end_of_a_pass_is_answered_its_node_lets_no_task_in(
    there: Database, served: Served, token: str
) -> None:
    # given a pass, and one that ended at another node a moment ago
    node, given, other = served.backend.node, a_pass(there, served), a_pass(there, served)
    caller, actions = node.tokens_of_callers.caller(token), node._passes
    assert actions is not None

    def end(shown: str) -> Future[bool]:
        with calling(caller):
            ended = actions.end(EndPassAsk(digest=Secret(shown).digest()))
        return ended.map(lambda _: refused(served, shown))  # in the moment of the answer

    def gone() -> Future[bool]:
        key = pass_key(Secret(other.shown).digest())
        return after(node.cluster.metastore.invoke(Do((Remove(key),))), lambda: end(other.shown))

    # when it is ended, for the first time or again, then no call after the answer is let in
    assert node.bridge.ask(lambda: end(given.shown), timeout_s=30)
    assert node.bridge.ask(gone, timeout_s=30)


def test_a_renewal_brings_back_no_pass_that_was_ended(there: Database, served: Served) -> None:
    # given a pass that was ended
    table = table_id(served)
    secret = secret_for(there.backend, Right.READ, table, "some work")
    assert secret is not None
    assert make(there.backend, secret.digest(), Right.READ, table)
    assert renew(there.backend, secret.digest(), Right.READ, table)
    end(there.backend, secret.digest())
    # when a renewal comes late, or once more
    for _ in range(2):
        assert not renew(there.backend, secret.digest(), Right.READ, table)
    # then it has ended all the same
    assert refused(served, secret.reveal())
    # and the same pass may be made again for new work
    assert make(there.backend, secret.digest(), Right.READ, table)
    assert not refused(served, secret.reveal())
    end(there.backend, secret.digest())


@pytest.mark.parametrize("first", ["renewal", "end"])
def test_a_renewal_under_way_brings_back_no_pass_that_is_ended_meanwhile(
    there: Database, served: Served, token: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a renewal and an end that both have seen the record, and are about to write
    monkeypatch.setattr(limits, "_FRESH", 1 << 40)
    node, given = served.backend.node, a_pass(there, served)
    caller, actions = node.tokens_of_callers.caller(token), node._passes
    assert actions is not None
    digest = Secret(given.shown).digest()
    asks = MakePassAsk(digest=digest, table=table_id(served), right="read", ttl_ms=1_000)

    def cross() -> Future[bool]:
        with calling(caller):
            early = actions.renew(asks) if first == "renewal" else None
            ended = actions.end(EndPassAsk(digest=digest))
            renewal = early or actions.renew(asks)
        return after(renewal, lambda: ended).map(lambda _: refused(served, given.shown))

    # when both are done, then it has ended
    assert node.bridge.ask(cross, timeout_s=30)
    assert digest not in [one.record.digest for one in passes(served)]


def test_a_pass_whose_record_went_is_made_again_by_work_that_goes_on(
    there: Database, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a driver that was away for longer than its pass and its record
    monkeypatch.setattr(passing, "RENEW_S", 0.05)
    given = a_pass(there, served)
    end(there.backend, Secret(given.shown).digest())
    # when it renews the pass, then the pass is in force again
    eventually(lambda: not refused(served, given.shown))
    # and when the work is over, it has ended for good
    given.close()
    assert refused(served, given.shown)


@pytest.mark.slow
def test_what_a_pass_holds_of_history_ends_soon_after_it(there: Database, served: Served) -> None:
    # given a task that holds the low watermark, and goes on saying that it is there
    with Server(served.db, tokens=True, hold_ms=400) as server:
        given = a_pass(there, served)
        task = lowmark.connect(server.address, token=given.shown).backend
        hold = task.hold_history(served.backend.now().time, "a task that looks back")
        assert hold.number in served.backend._kept
        # when its pass ends
        given.close()
        # then its calls are refused, so it is taken for silent
        eventually(lambda: hold.number not in served.backend._kept)
        task.close()


def test_a_token_that_is_revoked_ends_its_passes(
    there: Database, served: Served, name: str
) -> None:
    given = a_pass(there, served)
    shown = given.shown
    assert not refused(served, shown)
    served.db.tokens.revoke(name)
    with pytest.raises(PassEnded) as ended:
        lowmark.connect(served.address, token=shown)
    assert "was revoked" in ended.value.detail
    # and a driver whose token is gone renews no more
    digest = Secret(shown).digest()
    with pytest.raises(TokenRevoked):
        renew(there.backend, digest, Right.READ, table_id(served))
    assert shown not in str(ended.value) + ended.value.detail + ended.value.hint
    swept(served)
    eventually(lambda: not [one for one in passes(served) if one.record.digest == digest])


@pytest.mark.slow
def test_a_token_that_expires_ends_its_passes(served: Served) -> None:
    short = served.db.tokens.create("short", expires=timedelta(seconds=2)).token
    with lowmark.connect(served.address, token=short) as there:
        given = a_pass(there, served)
        assert given.shown
        eventually(lambda: refused(served, given.shown))


@pytest.mark.slow
def test_a_pass_that_is_not_renewed_ends_by_the_metastores_time(
    there: Database, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given one that is renewed, and one whose driver died
    monkeypatch.setattr(passing, "TTL_MS", 1_500)
    monkeypatch.setattr(passing, "RENEW_S", 0.3)
    lives, dies = a_pass(there, served), secret_for(there.backend, Right.READ, table_id(served))
    assert dies is not None
    assert make(there.backend, dies.digest(), Right.READ, table_id(served))
    before = {one.record.digest: one.expires_ms for one in passes(served)}
    # when its time is over
    eventually(lambda: refused(served, dies.reveal()))
    # then it lets no task in; the text of the other one is good as before
    digest = Secret(lives.shown).digest()
    assert not refused(served, lives.shown)
    [kept] = [one for one in passes(served) if one.record.digest == digest]
    assert kept.expires_ms > before[digest]
    # and the record of the one goes by itself
    monkeypatch.setattr(limits, "KEPT_MS", 0)
    swept(served)
    eventually(lambda: dies.digest() not in [one.record.digest for one in passes(served)])
    lives.close()


def test_what_is_made_again_soon_is_not_written_again(there: Database, served: Served) -> None:
    secret = secret_for(there.backend, Right.READ, table_id(served), "application 1")
    same = secret_for(there.backend, Right.READ, table_id(served), "application 1")
    assert secret is not None
    assert secret == same
    assert secret != secret_for(there.backend, Right.STAGE, table_id(served), "application 1")
    assert make(there.backend, secret.digest(), Right.READ, table_id(served))
    before = [one.revision for one in passes(served)]
    assert make(there.backend, secret.digest(), Right.READ, table_id(served))
    assert [one.revision for one in passes(served)] == before
    # and it stays what it is
    with pytest.raises(Rejected, match="another pass of this digest"):
        make(there.backend, secret.digest(), Right.STAGE, table_id(served))


def test_there_are_so_many_passes(
    there: Database, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = a_pass(there, served)
    now_ms = served.backend.node.tokens_of_callers.now_ms()
    table = served.backend.node.tokens_of_callers.table
    here = sum(table.pass_in_force(one, now_ms) for one in table.passes)
    monkeypatch.setattr(limits, "PASSES_MAX", here + 1)
    last = a_pass(there, served)
    assert last.shown
    # one more is none: executors show a token, or are refused
    assert a_pass(there, served).shown == ""
    # what is there may be renewed, and one that ends leaves its place
    assert make(there.backend, Secret(last.shown).digest(), Right.READ, table_id(served))
    given.close()
    more = a_pass(there, served)
    assert more.shown
    last.close()
    more.close()


def test_only_the_token_that_made_a_pass_ends_it(there: Database, served: Served) -> None:
    given = a_pass(there, served)
    digest = Secret(given.shown).digest()
    other = served.db.tokens.create("not-its-own").token
    with lowmark.connect(served.address, token=other) as stranger:
        operated(stranger.backend, "pass.end", EndPassAsk(digest=digest), PassReply)
        with pytest.raises(Rejected, match="another pass"):
            make(stranger.backend, digest, Right.READ, table_id(served))
    assert not refused(served, given.shown)
    given.close()


@pytest.mark.parametrize(
    ("table", "right", "ttl_ms"),
    [(0, "read", 1), (1, "write", 1), (1, "read", 0), (1, "run", 10**9)],
)
def test_what_is_no_pass_is_refused(there: Database, table: int, right: str, ttl_ms: int) -> None:
    asks = MakePassAsk(digest=drawn().digest(), table=table, right=right, ttl_ms=ttl_ms)
    with pytest.raises(Rejected, match="a pass can't be"):
        operated(there.backend, "pass.make", asks, PassReply)


def test_where_no_token_is_asked_for_there_is_no_pass(tmp_path: Path) -> None:
    with Served(tmp_path) as open_to_all:
        open_to_all.db.create_table("orders", COLUMNS, key="id")
        # whatever the environment has
        with lowmark.connect(open_to_all.address, token=drawn().reveal()) as there:
            assert a_pass(there, open_to_all).shown == ""
            asks = MakePassAsk(digest=drawn().digest(), table=1, right="read", ttl_ms=1)
            assert not operated(there.backend, "pass.make", asks, PassReply).there
        # and a database of this process has none
        assert a_pass(open_to_all.db, open_to_all).shown == ""


# -- source and sink ----------------------------------------------------------------------------


@pytest.fixture
def driver(token: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process with a token in its environment; without, it is a task of an executor."""
    monkeypatch.setenv("LOWMARK_TOKEN", token)
    return monkeypatch


READS = [
    {},
    {"startingOffsets": "earliest"},
    {"readChangeFeed": "true", "startingVersion": "earliest"},
]


@pytest.mark.parametrize("more", READS, ids=["table", "log", "changes"])
def test_tasks_read_with_the_pass_that_their_plan_has(
    served: Served, driver: pytest.MonkeyPatch, more: dict[str, str], token: str
) -> None:
    # given a plan, made where there is a token
    source = LowmarkSource({"node": served.address, "table": "others", **more})
    reader: Any = source.reader(source.schema())
    parts: Any = reader.partitions()
    assert PASS_PREFIX not in repr(parts) + repr(reader) + repr(vars(reader))
    # when a task carries it out where there is none
    driver.delenv("LOWMARK_TOKEN")
    task = sent(reader)
    assert sum(batch.num_rows for part in parts for batch in task.read(sent(part))) == len(ROWS)
    # then it is its pass that has let it in
    for part in parts:
        part.shows = ""
    with pytest.raises(TokenMissing):
        next(iter(task.read(sent(parts[0]))))


def test_tasks_of_a_stream_read_with_its_pass_until_it_stops(
    served: Served, driver: pytest.MonkeyPatch, token: str
) -> None:
    source = LowmarkSource(
        {"node": served.address, "table": "others", "startingOffsets": "earliest"}
    )
    reader: Any = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts, task = reader.partitions(start, end), sent(reader)
    driver.delenv("LOWMARK_TOKEN")
    assert sum(batch.num_rows for part in parts for batch in task.read(sent(part))) == len(ROWS)
    reader.stop()
    assert refused(served, parts[0].shows)


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_tasks_write_with_the_pass_of_their_write_until_it_is_over(
    served: Served, driver: pytest.MonkeyPatch, ends: str, token: str
) -> None:
    source = LowmarkSource({"node": served.address, "table": "orders"})
    writer: Any = source.writer(source.schema(), False)
    rows = pa.RecordBatch.from_pylist([{"id": 5_000, "status": ends}])
    driver.delenv("LOWMARK_TOKEN")
    with in_task(attempt=3):
        message = sent(writer).write(iter([rows]))
    assert writer._shows
    assert not refused(served, writer._shows)
    driver.setenv("LOWMARK_TOKEN", token)
    getattr(sent(writer), ends)([sent(message)])
    assert refused(served, writer._shows)
    found = served.db["orders"].get(5_000)
    assert found is None or found["status"] == "commit"


def test_a_task_with_a_token_of_its_own_shows_that(
    served: Served, driver: pytest.MonkeyPatch, token: str
) -> None:
    # given executors whose environment names a token, as before there were passes
    source = LowmarkSource({"node": served.address, "table": "others"})
    reader: Any = source.reader(source.schema())
    parts: Any = reader.partitions()
    # then whatever became of the pass does not matter
    for part in parts:
        part.shows = drawn().pass_for("nothing").reveal()
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == len(ROWS)


def test_a_server_of_an_earlier_release_makes_no_pass_and_nothing_else_changes(
    there: Database, served: Served, driver: pytest.MonkeyPatch
) -> None:
    operating = served.backend.node.operating
    assert operating is not None
    known = {name: how for name, how in operating._answers.items() if "pass." not in name}
    driver.setattr(operating, "_answers", known)
    assert a_pass(there, served).shown == ""
    source = LowmarkSource({"node": served.address, "table": "others"})
    reader: Any = source.reader(source.schema())
    parts: Any = reader.partitions()
    assert {part.shows for part in parts} == {""}
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == len(ROWS)


def test_a_task_waits_until_a_node_has_heard_of_its_pass(
    there: Database, served: Served, driver: pytest.MonkeyPatch
) -> None:
    source = LowmarkSource({"node": served.address, "table": "others"})
    reader: Any = source.reader(source.schema())
    parts: Any = reader.partitions()
    # given a pass that is not known yet
    secret = secret_for(there.backend, Right.READ, table_id(served, "others"))
    assert secret is not None
    parts[0].shows = secret.reveal()
    driver.delenv("LOWMARK_TOKEN")
    found = list[int]()
    task = threading.Thread(
        target=lambda: found.append(sum(batch.num_rows for batch in reader.read(parts[0])))
    )
    task.start()
    assert make(there.backend, secret.digest(), Right.READ, table_id(served, "others"))
    task.join()
    assert found == [sum(batch.num_rows for batch in reader.read(parts[0]))]


@pytest.mark.slow
def test_a_run_of_compaction_has_a_pass_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given tasks that ask the server for batches, in a process without a token
    shown = list[str]()
    given = Given.__init__

    def noted(self: Given, *args: Any, **named: Any) -> None:
        given(self, *args, **named)
        shown.append(self.shown)

    monkeypatch.setattr(Given, "__init__", noted)
    with Served(tmp_path, tokens=True) as served:
        token = served.db.tokens.create("job").token
        with lowmark.connect(served.address, token=token) as there:
            there.set_history("1 ms")
            table = there.create_table("orders", COLUMNS, key="id", partitions=2)
            table.append(ROWS)

            def compacted() -> bool:
                there.advance_watermark()
                table.compact(engine="local", read="flight")
                return any(one.rows_read for one in table.runs())

            # when a run is made
            eventually(compacted)
            # then its tasks had a pass, and it has ended with the run
            assert shown
            assert all(one.startswith(PASS_PREFIX) and refused(served, one) for one in shown)
            # and what is in the ledger is read with a pass, too
            table.append(ROWS[:3])
            with (
                Given(there.backend, Right.READ, table.descriptor.id) as reads,
                lowmark.connect(served.address, token=reads.shown) as task,
            ):
                assert rows_of(task["orders"].read(as_of="now")) == len(ROWS)
                assert rows_of(task["orders"].read(compacted=True)) >= len(ROWS)
                assert task["orders"].get(20) == ROWS[20]
