"""Batches are the live entries of a partition's log, and the log's phases run on them.

Phase 1 removes segments in which nothing lives, phase 3 merges sparse ones, phase 4 copies what is
scattered to the end. Offsets do not change by any of it, and every row that is left reads back.
"""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from group.cluster import FAST, TINY_LOG
from lowmark.group import open_command
from lowmark.log import EntryGone
from lowmark.table import (
    Appended,
    Change,
    CommandRefused,
    CreateCursor,
    DeleteCursor,
    Fence,
    Finish,
    MoveCursor,
    Outgoing,
    Producing,
    RenewLease,
    TakeLease,
    Tick,
    Trim,
    Trimmed,
    View,
    decode_rows,
    encode_batch,
)
from lowmark.table.commands import Control
from sim.table_ledger import SCHEMA, rows_message
from sim.table_world import PartitionNode, PartitionWorld, TableShape

PRODUCER = b"p" * 16


class Table:
    """A partition with a small log, what was appended to it, and the phases by hand."""

    def __init__(self, members: int = 3, *, seed: int = 1) -> None:
        numbers = tuple(range(1, members + 1))
        shape = TableShape(nodes=members, founders=numbers, config=FAST, log_config=TINY_LOG)
        self.world = PartitionWorld(seed, shape)
        self.values: list[str] = []
        """By offset."""

    @property
    def leader(self) -> PartitionNode:
        return self.world.wait_leader()

    @property
    def nodes(self) -> list[PartitionNode]:
        return list(self.world.nodes.values())

    def ask(self, *commands: Control) -> list[object]:
        return [self.world.wait(self.leader.here.ask(command)) for command in commands]

    def rows(self, count: int) -> list[tuple[int, str]]:
        first = len(self.values)
        return [
            (number % 17, f"row {number} " + "x" * 40) for number in range(first, first + count)
        ]

    def append(self, rows: int = 3, *, transaction: int = 0) -> Appended:
        fresh = self.rows(rows)
        batch = encode_batch(rows_message(fresh), rows=rows, schema=1, transaction=transaction)
        answer = self.world.wait(self.leader.here.append(batch))
        if not transaction:
            assert answer.first == len(self.values)
            self.values += [value for _, value in fresh]
        return answer

    def snapshot(self) -> None:
        """A snapshot at every node, and everything that is not in a segment yet flushed to one."""
        self.world.wait_even()
        groups = [node.here.group for node in self.nodes]
        goals = [group.applied for group in groups]
        for group in groups:
            group.snapshot()
        pairs = list(zip(groups, goals, strict=True))
        self.world.run_until(lambda: all(g.log.row.snapshot_index >= at for g, at in pairs))
        for node in self.nodes:
            assert node.log is not None
            node.log.roll()
        self.idle()

    def merge(self) -> None:
        for node in self.nodes:
            node.here.group.log.compact()
        self.idle()

    def idle(self) -> None:
        logs = [node.log for node in self.nodes if node.log is not None]
        self.world.run_until(lambda: all(log.idle for log in logs))

    def read(self, node: PartitionNode, view: View, *, held: bool = False) -> dict[int, str]:
        """All rows that a view names, by offset, from a node's own log."""
        plan = node.here.plan(view.places.tolist(), held=held)
        found: dict[int, str] = {}
        for first, entry in zip(view.first.tolist(), plan.execute(node.disk), strict=True):
            rows = decode_rows(open_command(entry.data).data, SCHEMA)
            found |= dict(enumerate(rows.column("value").to_pylist(), start=first))
        return {offset: value for offset, value in found.items() if offset >= view.start}

    def reads_all(self) -> None:
        """Every offset that is left reads back right, on every node."""
        self.world.wait_even()
        for node in self.nodes:
            view = node.here.view
            assert view.end == len(self.values)
            expected = dict(enumerate(self.values))
            assert self.read(node, view) == {
                offset: value for offset, value in expected.items() if offset >= view.start
            }

    def segments(self, node: PartitionNode) -> set[int]:
        return {segment.number for segment in node.here.group.log.state.segments}

    def live(self, node: PartitionNode) -> BitMap64:
        """What the log takes for live."""
        return node.here.group.log.row.live

    def is_overdue(self, cursor: str) -> bool:
        return self.leader.here.state.cursors[cursor].overdue

    def control(self, number: int) -> None:
        """One of each kind of entry that holds no rows."""
        name = f"{number}"
        self.ask(
            CreateCursor(name, number, "raw", None),
            MoveCursor(name, len(self.values)),
            DeleteCursor(name),
            TakeLease(name, number, len(self.values), ttl_ms=1),
            Fence(number.to_bytes(16, "big"), 1),
            Tick(),
        )


def test_batches_are_live_and_everything_else_is_dead_after_the_next_snapshot() -> None:
    # given batches, staged ones, and entries of every other kind between them
    table = Table(1)
    group = table.leader.here.group
    batches = []
    for number in range(1, 20):
        table.append()
        batches.append(group.applied)
        table.control(number)
        if number % 5 == 0:
            table.append(2, transaction=number)
            batches.append(group.applied)
    # when a snapshot is taken
    table.snapshot()
    # then exactly the batches are live
    assert list(table.live(table.leader)) == batches
    # and a finish changes nothing about that, an abort does
    table.ask(Finish(5, commit=True), Finish(10, commit=False))
    table.values += [value for _, value in table.rows(2)]
    table.snapshot()
    aborted = batches[11]
    assert list(table.live(table.leader)) == [at for at in batches if at != aborted]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_all_three_phases_run_on_a_table_and_every_offset_still_reads(seed: int) -> None:
    # given a table with many entries of other kinds between its batches
    table = Table(seed=seed)
    producing = Producing(table.leader.run, producer=PRODUCER, timeout_ms=5_000)
    for number in range(1, 120):
        if number % 3:
            table.append(1 + number % 4)
        else:
            rows = table.rows(2)
            out = Outgoing(rows_message(rows), 2, 1, Change.UPSERT)
            table.world.wait(producing.send(table.leader.here, out))
            table.values += [value for _, value in rows]
        table.control(number)
    table.snapshot()
    before = {node.number: table.segments(node) for node in table.nodes}
    # when retention cuts the front off, phase 1 removes whole segments
    (cut,) = table.ask(Trim(len(table.values) // 2, expire=True))
    assert isinstance(cut, Trimmed)
    assert cut.batches > 30
    table.snapshot()
    for node in table.nodes:
        assert before[node.number] - table.segments(node)
    table.reads_all()
    # and phase 3 merges what is sparse, since most entries are dead
    table.merge()
    for node in table.nodes:
        runs = node.here.group.log.runs
        assert any(run.merges and run.sources > 1 and run.result == "done" for run in runs)
    table.reads_all()
    # and phase 4 copies what is scattered to the end, at every node
    scattered = table.live(table.leader).copy()
    assert table.world.wait(table.leader.here.group.rewrite()) == len(scattered)
    table.world.wait_even()
    for node in table.nodes:
        assert min(node.here.machine.live_indexes()) > max(scattered)
    table.reads_all()
    # and their old places go with the next snapshot
    table.append()
    table.snapshot()
    table.merge()
    for node in table.nodes:
        with pytest.raises(EntryGone):
            node.here.plan([max(scattered)])
        assert not table.live(node) & scattered
    table.reads_all()
    # and after a restart of every node at once all is as it was
    views = {node.number: node.here.view for node in table.nodes}
    for node in table.nodes:
        node.crash()
    for node in table.nodes:
        node.start()
    table.reads_all()
    for node in table.nodes:
        view = node.here.view
        assert (view.start, view.end) == (views[node.number].start, views[node.number].end)
        assert view.first.tolist() == views[node.number].first.tolist()
        assert view.time.tolist() == views[node.number].time.tolist()
    # and the table goes on where it was, numbers of producers included
    table.append()
    assert table.leader.here.state.producers.epoch_of(PRODUCER) == 0
    table.reads_all()


@pytest.mark.slow
def test_staged_rows_move_too_and_get_their_offsets_later() -> None:
    # given rows that wait for their transaction while the log is compacted
    table = Table()
    table.append(3, transaction=9)
    for number in range(1, 80):
        table.append()
        table.control(number)
    table.append(2, transaction=9)
    table.snapshot()
    table.ask(Trim(len(table.values) - 6, expire=True))
    table.snapshot()
    table.world.wait(table.leader.here.group.rewrite())
    table.snapshot()
    table.merge()
    # when it is committed
    first = len(table.values)
    done = table.ask(Finish(9, commit=True))
    # then they read back, all of them
    assert done[0].first == first  # type: ignore[attr-defined]
    for node in table.nodes:
        table.world.wait_even()
        values = table.read(node, node.here.view)
        assert [values[offset][:4] for offset in range(first, first + 5)] == ["row "] * 5
        node.check_all()


def test_a_reader_that_holds_an_old_view_reads_on_through_all_phases() -> None:
    # given a reader with a view of everything, and a hold on what it names
    table = Table(1)
    for number in range(1, 60):
        table.append()
        table.control(number)
    table.snapshot()
    node = table.leader
    view, log = node.here.view, node.here.group.log
    log.hold("a reader", kind="reader", pins=BitMap64(view.places), why="it reads")
    plan = node.here.plan(view.places.tolist(), held=True)
    expected = dict(enumerate(table.values))
    # when all batches are copied to other places, and then nearly all of them expire
    table.world.wait(node.here.group.rewrite())
    table.ask(Trim(len(table.values) - 4, expire=True))
    table.snapshot()
    table.merge()
    assert len(node.here.machine.live_indexes()) == 2
    # then the view reads as it did, and so does the plan that was made before
    assert table.read(node, view, held=True) == expected
    assert len(plan.execute(node.disk)) == view.count
    # and when it lets go, the log lets them go
    before = len(table.segments(node))
    log.release("a reader", "reader")
    table.idle()
    table.merge()
    assert len(table.segments(node)) < before
    table.reads_all()


def test_a_cursor_and_a_lease_keep_what_they_hold_in_the_log() -> None:
    # given a cursor in the first third and a lease in the second
    table = Table(1)
    for number in range(1, 60):
        table.append()
        table.control(number)
    third = len(table.values) // 3
    table.ask(CreateCursor("slow", 1, "raw", third), TakeLease("l", 1, 2 * third, ttl_ms=60_000))
    table.ask(Trim(len(table.values), expire=True))
    table.snapshot()
    table.merge()
    assert table.leader.here.view.start == third
    table.reads_all()
    # when the cursor goes, the lease holds; when it moves, no more than it needs
    table.ask(DeleteCursor("slow"), Trim(len(table.values), expire=True))
    assert table.leader.here.view.start == 2 * third
    table.ask(RenewLease("l", 1, len(table.values) - 1), Trim(len(table.values), expire=True))
    table.snapshot()
    table.merge()
    # then what is left is the batch in which it stands
    assert len(table.live(table.leader)) == 1
    table.reads_all()


@pytest.mark.slow
def test_a_table_with_nothing_left_has_a_log_with_nothing_live() -> None:
    table = Table()
    for number in range(1, 40):
        table.append()
        table.control(number)
    table.ask(Trim(len(table.values), expire=True))
    table.snapshot()
    table.merge()
    for node in table.nodes:
        assert not table.live(node)
        assert len(table.segments(node)) <= 1
    for node in table.nodes:
        node.crash()
        node.start()
    assert table.append().first == len(table.values) - 3
    table.reads_all()


def test_a_lease_that_no_snapshot_could_write_down_is_refused() -> None:
    """Its end was too large a number: no copy could take a snapshot any more."""
    table = Table(1)
    table.append()
    for ttl_ms in (2**64 - 1, 0, -1):
        asked = table.leader.here.ask(TakeLease("l", 1, 0, ttl_ms))
        table.world.run_until(lambda asked=asked: asked.done)  # type: ignore[misc]
        assert isinstance(asked.error, CommandRefused)
    table.snapshot()
    table.reads_all()


def test_a_compacted_cursor_is_not_late_because_its_first_row_was_cut_off() -> None:
    """The time of a row that is gone was taken for the beginning of all times."""
    # given a cursor that holds nothing, and may be 20 seconds behind
    table = Table(1)
    table.append()
    table.append()
    table.ask(CreateCursor("c", 1, "compacted", 0, max_lag_ms=20_000))
    # when what it has not seen is cut off
    table.ask(Trim(4, expire=True))
    # then it is late only when the rest has been there for that long
    assert not table.is_overdue("c")
    table.world.run_for(21_000)
    table.ask(Tick())
    assert table.is_overdue("c")
    # and not at all when nothing is left
    table.append()
    table.ask(CreateCursor("d", 1, "compacted", 6, max_lag_ms=20_000), Trim(9, expire=True))
    table.world.run_for(21_000)
    table.ask(Tick())
    assert not table.is_overdue("d")
