"""A change that was made, and an answer that does not come: whoever made it never hears that
nothing happened. Calls are cut between the change and what is read for its answer.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lowmark
import lowmark.backend.embedded
from eventually import eventually
from inside import backend_of, proposed
from lowmark.backend.embedded import Embedded
from lowmark.backend.protocol import Request
from lowmark.catalog import DropTable, TableId
from lowmark.client import Database, Staged, Table
from lowmark.client.staging import Commit
from lowmark.errors import (
    AnswerUnread,
    Closed,
    CursorMovesBack,
    Ended,
    EpochUnread,
    LowmarkError,
    NodeUnreachable,
    NotLeader,
    OutcomeUnknown,
    PartlyMade,
    ServerFailed,
)
from lowmark.group import Future
from lowmark.metastore import Put, missing
from lowmark.node import NodeSilent
from lowmark.runtime import DiskFailed
from lowmark.server import Server
from lowmark.server.service import Service
from lowmark.table import Control, Cursor, Fence, Finish, MoveCursor

CHANGES = ("propose", "execute", "write", "advance_watermark")
READS = ("status", "catalog", "catalog_at", "view", "views", "get", "range", "watermark", "hold")


class Line:
    """The line to a database: cut behind the next change, what is read after it fails."""

    def __init__(self) -> None:
        self.cut_behind_change = False
        self.is_cut = False

    def changed(self) -> None:
        self.is_cut |= self.cut_behind_change

    def check(self) -> None:
        if self.is_cut:
            raise NodeUnreachable("10.0.0.1:7070", why="The line is cut.")

    def mend(self) -> None:
        self.cut_behind_change = self.is_cut = False


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    line = Line()

    def cut(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*given: Any, **named: Any) -> Any:
            line.check()
            answer = call(*given, **named)
            if name in CHANGES:
                line.changed()
            return answer

        return asked

    for name in (*CHANGES, *READS):
        monkeypatch.setattr(Embedded, name, cut(name, getattr(Embedded, name)))
    yield line
    line.mend()


@pytest.fixture
def table(db: Database) -> Table:
    table = db.create_table("t", {"id": int}, key="id", partitions=3)
    table.append([{"id": number} for number in range(30)])
    table.cursors.create("c")
    return table


ENDS = {0: 1, 1: 1, 2: 1}
WAYS: dict[str, Callable[[Database, Table], Any]] = {
    "create a cursor": lambda _, table: table.cursors.create("d"),
    "renew a cursor": lambda _, table: table.cursors.renew("c", idle_expiry="1 day"),
    "commit": lambda _, table: table.cursors.commit("c", ENDS),
    "move": lambda _, table: table.cursors.move("c", ENDS),
    "delete a cursor": lambda _, table: table.cursors.delete("c"),
    "create a table": lambda db, _: db.create_table("new", {"id": int}),
    "create it if it is not there": lambda db, _: db.create_table(
        "t", {"id": int}, key="id", partitions=3, if_not_exists=True
    ),
    "alter": lambda _, table: table.alter(add={"v": int}),
    "create a zone": lambda db, _: db.create_zone("z"),
    "drop": lambda db, _: db.drop_table("t"),
    "trim": lambda _, table: table.trim({0: 1}),
    "history": lambda db, _: db.set_history("1 day"),
    "the low watermark": lambda db, _: db.advance_watermark(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_change_whose_answer_can_not_be_read_is_not_said_to_have_failed(
    db: Database, table: Table, line: Line, way: str
) -> None:
    # given a database at a line that is cut right behind the next change
    line.cut_behind_change = True
    # then a call has its answer, or says that it does not know
    try:
        WAYS[way](db, table)
    except OutcomeUnknown:
        assert line.is_cut
    # and never that nothing was done


def test_a_commit_whose_place_can_not_be_read_says_that_the_cursor_was_moved(
    table: Table, line: Line
) -> None:
    line.cut_behind_change = True
    with pytest.raises(AnswerUnread, match="cursor 'c' was moved, but what came of it") as lost:
        table.cursors.commit("c", ENDS)
    assert isinstance(lost.value, OutcomeUnknown)
    line.mend()
    assert table.cursors.get("c").position == ENDS


def test_an_epoch_that_is_decided_is_not_said_to_have_failed(
    table: Table, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given rows that are staged in all partitions
    monkeypatch.setattr("lowmark.client.staging._PATIENCE_S", 0.0)
    done = staged(table)
    # when the line is cut behind the partition that decides, then the others are not bound yet
    line.cut_behind_change = True
    with pytest.raises(AnswerUnread, match="epoch 1 is decided") as lost:
        table.commit([done], query="q", epoch=1)
    assert "Commit it again" in lost.value.hint
    # and the same commit again ends it, once
    line.mend()
    assert table.commit([done], query="q", epoch=1).rows == 30
    assert table.count() == 60


def staged(table: Table) -> Staged:
    """Rows in all partitions."""
    with table.stage() as stage:
        stage.append([{"id": number} for number in range(100, 130)])
        return stage.staged()


# -- partitions that can't be asked, beside others that have done it ------------------------------


class Away:
    """Partitions that can't be asked, or that are asked and carry it out much later."""

    def __init__(self) -> None:
        self.partitions: frozenset[int] = frozenset()
        self.slow: frozenset[int] = frozenset()
        self.late: list[tuple[int, Control]] = []

    def land(self, table: Table) -> None:
        """Have carried out what was late."""
        late, self.late, self.slow = self.late, [], frozenset()
        for number, command in late:
            with contextlib.suppress(LowmarkError):
                proposed(table, command, number)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    away, ask = Away(), lowmark.backend.embedded._proposed

    def asked(way: Any, command: Any) -> Future[Any]:
        if way.number in away.partitions:
            return Future.failed(NotLeader(f"t/{way.number}", leader=None))
        if way.number in away.slow:
            away.late.append((way.number, command))
            return Future.failed(OutcomeUnknown(f"t/{way.number}", why="it was sent"))
        return ask(way, command)

    monkeypatch.setattr(lowmark.backend.embedded, "_proposed", asked)
    return away


def test_a_change_that_only_some_partitions_could_be_asked_for_is_not_known(
    table: Table, away: Away
) -> None:
    # when a partition can't be asked, then the others have done it, and the error says so
    away.partitions = frozenset({1})
    with pytest.raises(PartlyMade, match="made in partitions 0, 2, and not in partition 1") as some:
        table.cursors.commit("c", ENDS)
    assert isinstance(some.value, OutcomeUnknown)
    assert (some.value.made, some.value.missing) == ([0, 2], [1])
    assert table.cursors.get("c").position == {0: 1, 1: 0, 2: 1}
    # and the same commit again completes it
    away.partitions = frozenset()
    assert table.cursors.commit("c", ENDS).position == ENDS


@pytest.mark.parametrize("gone", [False, True])
def test_an_epoch_that_is_decided_is_to_be_committed_again_whatever_fails(
    table: Table, away: Away, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    # given staged rows, and a partition that can't be asked; in another one they may be gone
    monkeypatch.setattr("lowmark.client.staging._PATIENCE_S", 0.0)
    some, again = staged(table), staged(table)
    commit = Commit(backend_of(table), table.descriptor, [some], query="q", epoch=1)
    first, *others = (number for number in range(3) if number != commit._at)
    if gone:
        commit._bound({commit._at: commit._bind(commit._transactions, commit._plan, commit._at, 1)})
        proposed(table, Finish(some.transaction, commit=False), first)
    away.partitions = frozenset(others)
    # when it is committed, then the error says that this can be done again
    with pytest.raises(EpochUnread) as lost:
        table.commit([again if gone else some], query="q", epoch=1)
    assert isinstance(lost.value, OutcomeUnknown)
    # and that ends it
    away.partitions = frozenset()
    table.commit([again if gone else some], query="q", epoch=1)
    assert table.count() == 60


def test_an_epoch_that_is_done_is_repeated_while_a_partition_is_away(
    table: Table, away: Away
) -> None:
    # given an epoch that is bound everywhere, and rows of a driver that repeats it
    done = table.commit([staged(table)], query="q", epoch=1)
    again = staged(table)
    at = Commit(backend_of(table), table.descriptor, [again], query="q", epoch=1)._at
    # when a partition can't be asked any more, then its repeat ends all the same
    away.partitions = frozenset({(at + 1) % 3})
    repeat = table.commit([again], query="q", epoch=1)
    assert repeat.repeated
    expected = [one for one in done.parts if one.partition not in away.partitions]
    assert [*repeat.parts] == expected
    assert table.count() == 60


def test_a_change_that_no_partition_could_be_asked_for_was_not_made(
    table: Table, away: Away
) -> None:
    away.partitions = frozenset({0, 1, 2})
    with pytest.raises(NotLeader):
        table.cursors.commit("c", ENDS)
    assert table.cursors.get("c").position == dict.fromkeys(ENDS, 0)


def test_a_commit_that_one_partition_refuses_says_so_if_others_have_moved(table: Table) -> None:
    # given a cursor that is further in one partition
    table.cursors.commit("c", {0: 5})
    # when it is to be moved to before that, there and elsewhere
    with pytest.raises(PartlyMade, match="partitions 1, 2, and not in partition 0") as some:
        table.cursors.commit("c", ENDS)
    # then its reader hears that others have moved, and of the refusal
    assert isinstance(some.value.__cause__, CursorMovesBack)
    assert table.cursors.get("c").position == ENDS | {0: 5}
    # and where none has moved, of the refusal alone
    table.cursors.commit("c", {1: 5, 2: 5})
    with pytest.raises(CursorMovesBack):
        table.cursors.commit("c", ENDS)


def test_a_reset_that_one_partition_refuses_says_so_if_others_have_moved(table: Table) -> None:
    # when a reset names a place that one partition does not have
    with pytest.raises(PartlyMade, match="in partition 0, and not in partition 1") as some:
        table.cursors.commit("c", {0: 1, 1: 10**9}, reset=True)
    # then its caller hears that the other one has moved
    assert (some.value.made, some.value.missing) == ([0], [1])
    assert table.cursors.get("c").position == {0: 1, 1: 0, 2: 0}


def test_a_refusal_is_heard_whatever_else_can_not_be_asked(table: Table, away: Away) -> None:
    table.cursors.commit("c", {0: 2})
    away.partitions = frozenset({1})
    backend, wanted = backend_of(table), {at: MoveCursor("c", 1) for at in (1, 0)}
    with pytest.raises(CursorMovesBack):
        backend.propose(table.descriptor.id, wanted)


# -- a reader that journals before it commits -----------------------------------------------------


class Trouble:
    """Fails calls at any step, as a seed says."""

    def __init__(self, seed: int, line: Line, away: Away) -> None:
        self.dice = random.Random(seed)
        self._line = line
        self._away = away

    def begin(self) -> None:
        kind = self.dice.choice(["none", "before", "some", "behind", "late"])
        self._line.is_cut, self._line.cut_behind_change = kind == "before", kind == "behind"
        some = frozenset(self.dice.sample(range(3), self.dice.randrange(1, 3)))
        self._away.partitions = some if kind == "some" else frozenset()
        self._away.slow = some if kind == "late" else frozenset()

    def end(self) -> None:
        self._line.mend()
        self._away.partitions = self._away.slow = frozenset()

    def maybe_land(self, table: Table) -> None:
        """What was late may come at any time, and in the end it does not come any more."""
        if self.dice.random() < 0.5:
            self._away.land(table)


def journal_of(table: Table, trouble: Trouble) -> list[int]:
    """What a reader has in its journal that notes rows before it commits, and strikes them out if
    it hears that the commit was not made. Then it goes on where the cursor stands.
    """
    journal: list[int] = []
    for turn in range(200):
        if turn < 20:
            table.append([{"id": 30 + 3 * turn + number} for number in range(3)])
        limit = trouble.dice.randrange(1, 20)  # often rows of several partitions
        with table.read(cursor="c", columns=["id"], limit=limit) as reader:
            batch, position = reader.to_arrow()["id"].to_pylist(), reader.position
        journal += batch
        trouble.maybe_land(table)
        trouble.begin()
        try:
            table.cursors.commit("c", position)
        except OutcomeUnknown:
            pass  # it may have moved: the rows stay noted, and may come again
        except LowmarkError:
            del journal[len(journal) - len(batch) :]
        trouble.end()
        if turn >= 20 and table.cursors.get("c").position == table.snapshot().ends:
            return journal
    raise AssertionError("the reader did not come to the end")


# The shorter relative of the many seeds are the first ones.
@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.release) for seed in range(5, 105))]
)
def test_no_row_is_passed_by_a_reader_that_journals_before_it_commits(
    table: Table, line: Line, away: Away, seed: int
) -> None:
    journal = journal_of(table, Trouble(seed, line, away))
    assert set(journal) == set(range(90))


def test_a_node_that_gives_no_answer_in_time_may_have_moved_a_cursor(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a node of which the answer to a change does not come
    ask, table_id = lowmark.backend.embedded._proposed, table.descriptor.id

    def asked(way: Any, command: Any) -> Future[Any]:
        ask(way, command)
        return Future()

    monkeypatch.setattr(lowmark.backend.embedded, "_proposed", asked)
    # then its caller does not take it for one that was not made
    with pytest.raises(OutcomeUnknown, match="no answer within"):
        backend_of(table).propose(table_id, {0: MoveCursor("c", 1)}, timeout_s=0.05)
    eventually(lambda: table.cursors.get("c").position[0] == 1)


# -- producers of one name that are opened at the same moment -------------------------------------


class Rivals:
    """Others that begin the same epoch in one partition, right before it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.slept: list[float] = []
        self._s = 0.0
        propose = Embedded.propose

        def second(backend: Embedded, table: TableId, commands: Any, **named: Any) -> Any:
            fences = [one for one in commands.values() if isinstance(one, Fence)]
            if fences and self.left:
                self.left -= 1
                propose(backend, table, {1: fences[0]})
            return propose(backend, table, commands, **named)

        clock = SimpleNamespace(monotonic=lambda: self._s, sleep=self._sleep)
        monkeypatch.setattr("lowmark.client.table_writing.time", clock)
        monkeypatch.setattr(Embedded, "propose", second)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._s += seconds


def test_a_producer_waits_by_chance_for_others_of_its_name_that_are_opened_just_now(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given others that win one partition a few times
    rivals = Rivals(monkeypatch)
    rivals.left = 3
    # then it is opened, after a while that is another one each time
    with table.producer(name="p") as producer:
        producer.send({"id": 100})
    assert table.count() == 31
    assert len({*rivals.slept, 0.0}) == 4


def test_a_producer_that_never_won_all_partitions_does_not_say_that_another_has_replaced_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rivals(monkeypatch).left = 1 << 30
    with pytest.raises(OutcomeUnknown, match="others of its name in table t were opened") as it:
        table.producer(name="p")
    assert "one of that name at a time" in it.value.hint


# -- a node that gives no answer ------------------------------------------------------------------

NODE_ASKS: dict[str, Callable[[Embedded, TableId], Any]] = {
    "propose": lambda db, table: db.propose(table, {0: MoveCursor("c", 1)}, timeout_s=0.05),
    "write": lambda db, _: db.write([Put(b"t.a", b"1")], timeout_s=0.05),
    "write if": lambda db, _: db.write(
        [Put(b"t.a", b"1")], condition=missing(b"t.a"), timeout_s=0.05
    ),
    "execute": lambda db, _: db.execute([DropTable(name="t")], timeout_s=0.05),
    "operate": lambda db, _: db.operate("node.drain", b'{"node": "n1"}', timeout_s=0.05),
}


@pytest.mark.parametrize("why", ["silent", "a disk that fails"])
@pytest.mark.parametrize("way", NODE_ASKS)
def test_whatever_keeps_a_node_from_an_answer_its_caller_does_not_know_what_came_of_a_change(
    table: Table, monkeypatch: pytest.MonkeyPatch, way: str, why: str
) -> None:
    # given a node of which no answer comes, for a cause or for none
    backend = backend_of(table)
    wal = backend.node.log.wal
    eventually(lambda: wal.idle)
    monkeypatch.setattr(backend.node.bridge, "call", lambda _: None)
    if why != "silent":
        monkeypatch.setattr(wal, "_failures", 5)
        monkeypatch.setattr(wal, "stopped", DiskFailed("1.wal", call="write", reason="gone"))
    # then whatever it was asked to change may have been changed
    with pytest.raises(OutcomeUnknown, match="no answer within" if why == "silent" else "gone"):
        NODE_ASKS[way](backend, table.descriptor.id)
    # but what only looks can be asked again
    with pytest.raises(NodeSilent if why == "silent" else DiskFailed):
        backend.operate("node.drain", b'{"node": "n1", "look": true}', timeout_s=0.05)


# -- a server that is closed between a change and its answer --------------------------------------


@pytest.mark.parametrize("how", [Closed, Ended])
def test_a_server_that_closes_behind_a_change_does_not_say_that_it_was_not_made(
    db: Database, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: type
) -> None:
    changed: list[str] = []

    def reply(service: Service, value: object, request: Request | None = None) -> bytes:
        if isinstance(value, dict) and any(isinstance(one, Cursor) for one in value.values()):
            changed.append("moved")
            raise how("data")
        return answered(service, value, request)

    answered = Service._reply
    with Server(db, f"unix:{tmp_path}/s") as server, lowmark.connect(server.address) as distant:
        there = distant["t"]
        monkeypatch.setattr(Service, "_reply", reply)
        with pytest.raises(OutcomeUnknown):
            there.cursors.commit("c", ENDS)
    # it was asked once
    assert changed == ["moved"]
    assert table.cursors.get("c").position == ENDS


def test_a_server_that_fails_behind_a_change_does_not_say_that_it_was_not_made(
    db: Database, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server with a mistake behind the change that it makes
    with Server(db, f"unix:{tmp_path}/s") as server, lowmark.connect(server.address) as distant:
        there, propose = distant["t"], Embedded.propose

        def mistaken(*given: Any, **named: Any) -> Any:
            propose(*given, **named)
            raise ZeroDivisionError

        monkeypatch.setattr(Embedded, "propose", mistaken)
        # then its client hears of the mistake, and that the cursor may have moved
        with pytest.raises(ServerFailed, match="failed to answer propose: ZeroDivisionError") as it:
            there.cursors.commit("c", ENDS)
    assert isinstance(it.value, OutcomeUnknown)
    assert table.cursors.get("c").position == ENDS
