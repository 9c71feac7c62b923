"""Where a cluster has its ledgers: every node and every run must see that place and no other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from ledger.remote import remote_store
from lowmark.errors import LedgerLost, LedgersUnseen, OtherLedgers, Rejected
from lowmark.ledger.claim import claim, prove
from lowmark.node import NodeClient, Settings
from lowmark.node.settings import ClockLimits, LedgerSettings, WatermarkSettings
from lowmark.runtime.store import Store
from node.running import QUICK
from server.test_on_node import Node1

COLUMNS = {"id": "int64", "status": "string"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(shared: Path) -> Settings:
    return replace(
        QUICK,
        ledger=LedgerSettings(location=str(shared)),
        clock=ClockLimits(max_skew_ms=0),
        watermark=WatermarkSettings(availability_ms=0),
    )


@pytest.fixture
def first(tmp_path: Path, settings: Settings) -> Iterator[Node1]:
    with Node1(tmp_path / "n1", settings=settings) as node:
        yield node


class Elsewhere:
    """Meanwhile the path leads to another folder, as on a machine that has not mounted it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._aside = folder, folder.with_name("aside")

    def __enter__(self) -> None:
        self._folder.rename(self._aside)
        self._folder.mkdir()

    def __exit__(self, *_: object) -> None:
        assert list(self._folder.iterdir()) == []  # nothing was written where it does not belong
        self.back()

    def back(self) -> None:
        shutil.rmtree(self._folder)
        self._aside.rename(self._folder)


@pytest.mark.slow
def test_a_node_that_sees_another_place_for_ledgers_is_not_let_in(
    tmp_path: Path, first: Node1, shared: Path
) -> None:
    # given a cluster with a place for its ledgers
    with lowmark.connect(first.address) as db:
        cluster = db.backend.info.cluster
    assert (shared / "database").read_text() == f"{cluster}\n"
    # when a node joins for which that path leads somewhere else, then it is refused, and hears why
    with Elsewhere(shared), pytest.raises(LedgersUnseen, match=str(shared)) as refused:
        Node1(tmp_path / "n2", join=first.address)
    assert "leads to another place" in refused.value.detail
    assert "shared file system" in refused.value.hint
    # and so is one that was told another place than the cluster's
    other = replace(QUICK, ledger=LedgerSettings(location=str(tmp_path / "other")))
    with pytest.raises(Rejected, match=f"are at {shared}, not at"):
        Node1(tmp_path / "n2", join=first.address, settings=other)
    with NodeClient(first.address) as client:
        assert len(client.status().nodes) == 1
    # and one that sees it is let in, and leaves no probe behind
    with Node1(tmp_path / "n2", join=first.address) as second:
        with lowmark.connect(second.address) as db:
            assert db.backend.info.ledger_location == str(shared)
            assert db.tables() == []
        assert [path.name for path in shared.iterdir()] == ["database"]


@pytest.mark.slow
def test_a_run_that_sees_another_place_for_ledgers_writes_nothing_there(
    first: Node1, shared: Path
) -> None:
    with lowmark.connect(first.address) as db:
        table = db.create_table("orders", COLUMNS, key="id", partitions=1)
        table.append([{"id": 1, "status": "new"}])
        passed = db.backend.now(table.descriptor.id).time
        eventually(lambda: db.backend.advance_watermark(passed).after >= passed)
        # when a client makes a run whose path to the ledgers leads somewhere else
        with Elsewhere(shared), pytest.raises(LedgersUnseen, match=str(shared)):
            table.compact(engine="local")
        # then nothing was published that no node could read
        assert table.runs() == []
        assert db.backend.view(table.descriptor.id, 0).ledger is None
        # and if only its tasks see another place, they say so before they write
        away = Elsewhere(shared)

        def step(name: str) -> None:
            if name == "carry out the work":
                away.__enter__()

        with pytest.raises(LedgersUnseen, match=str(shared)):
            table.compact(engine="local", step=step)
        assert not [path for path in shared.rglob("*") if path.suffix in {".parquet", ".json"}]
        away.back()
        # and where it sees them, it goes on
        assert table.compact(engine="local").state == "done"
        assert table.get(1) == {"id": 1, "status": "new"}


@pytest.mark.slow
def test_a_node_that_does_not_see_the_ledgers_when_it_starts_says_so_until_it_does(
    tmp_path: Path, first: Node1, shared: Path
) -> None:
    with Node1(tmp_path / "n2", join=first.address) as node, lowmark.connect(node.address) as db:
        db.create_table("orders", COLUMNS, key="id", partitions=1)
    # given a path that leads somewhere else, on a machine that has not mounted it
    away = Elsewhere(shared)
    away.__enter__()
    with Node1(tmp_path / "n2") as node, NodeClient(node.address) as client:

        def problem() -> str:
            return "; ".join(one.problem for one in client.status().nodes)

        # then the node is up, and its status has the reason
        eventually(lambda: "gives no rows to clients" in problem())
        assert str(shared) in problem()
        # and when it is mounted, it gives rows, without a restart
        away.back()
        eventually(lambda: "gives no rows" not in problem())
        with lowmark.connect(node.address, timeout_s=30.0) as db:
            assert db.tables() == ["orders"]


@pytest.mark.slow
@pytest.mark.parametrize("theirs", [False, True], ids=["empty", "another's"])
def test_a_founder_that_starts_takes_no_other_place_for_its_own(
    tmp_path: Path, settings: Settings, shared: Path, theirs: bool
) -> None:
    # given a cluster with a table and a ledger
    with (
        Node1(tmp_path / "n1", settings=settings) as first,
        lowmark.connect(first.address) as db,
    ):
        table = db.create_table("orders", COLUMNS, key="id", partitions=1)
        table.append([{"id": 1, "status": "new"}])
        passed = db.backend.now(table.descriptor.id).time
        eventually(lambda: db.backend.advance_watermark(passed).after >= passed)
        assert table.compact(engine="local").state == "done"
    # when its founder starts again, and the path leads to an empty place, or to another's
    away = Elsewhere(shared)
    away.__enter__()
    if theirs:
        claim(Store(str(shared)), "theirs")
    with Node1(tmp_path / "n1") as node, NodeClient(node.address) as client:

        def problem() -> str:
            return "; ".join(one.problem for one in client.status().nodes)

        # then it says so, and leaves that place as it is
        eventually(lambda: "gives no rows to clients" in problem())
        assert ("another database, theirs" if theirs else "can't be used from here") in problem()
        assert [one.name for one in shared.iterdir()] == (["database"] if theirs else [])
        # and when the place is back, it gives all rows, without a restart
        away.back()
        eventually(lambda: "gives no rows" not in problem())
        with lowmark.connect(node.address, timeout_s=30.0) as db:
            assert db["orders"].read(compacted=True).to_arrow().num_rows == 1


@pytest.mark.slow
def test_nodes_that_start_without_a_place_that_is_lost_for_good_take_it_by_its_file(
    tmp_path: Path, settings: Settings, shared: Path
) -> None:
    # given a cluster whose nodes have all started again behind the loss of its place
    with (
        Node1(tmp_path / "n1", settings=settings) as first,
        lowmark.connect(first.address) as db,
    ):
        db.create_table("orders", COLUMNS, key="id", partitions=1)
    shutil.rmtree(shared)
    shared.mkdir()
    with Node1(tmp_path / "n1") as node, NodeClient(node.address) as client:
        # then no node takes `lowmark ledger location --claim`
        with pytest.raises(LedgersUnseen):
            lowmark.connect(node.address, timeout_s=2.0)
        # when the file is written by hand, as the guide has it
        known = client.status().cluster
        assert known is not None
        (shared / "database").write_text(f"{known.id}\n")
        # then the node gives rows, without a restart
        eventually(lambda: not any("gives no rows" in one.problem for one in client.status().nodes))
        with lowmark.connect(node.address, timeout_s=30.0) as db:
            db["orders"].append([{"id": 1, "status": "new"}])
            assert db["orders"].get(1) is not None


def test_a_place_that_can_t_be_written_to_or_is_another_s_is_no_place(tmp_path: Path) -> None:
    store, system = remote_store(str(tmp_path))
    claim(store, "ours")
    prove(store, "ours", token="1")
    # when nothing can be written there
    system.broken = "open_output_stream"
    with pytest.raises(LedgersUnseen, match="can't be used from here") as refused:
        prove(store, "ours", token="1")
    assert "the line is dead" in refused.value.detail
    # or what was written can't be removed
    system.broken = "delete_file"
    with pytest.raises(LedgersUnseen):
        prove(store, "ours", token="1")
    system.broken = ""
    # or another database has it
    with pytest.raises(OtherLedgers, match="ledgers of another database, ours"):
        prove(store, "theirs", token="1")
    with pytest.raises(Rejected, match="ledgers of another database, ours"):
        claim(store, "theirs")
    prove(store, "ours", token="1")
    assert [one.path for one in store.files("")] == ["database"]


def test_ledgers_whose_place_is_away_are_not_taken_for_lost(
    tmp_path: Path, shared: Path, settings: Settings
) -> None:
    # given a table with a ledger, at a place that may be away
    with lowmark.open(tmp_path / "data", settings=settings) as db:
        table = db.create_table("orders", COLUMNS, key="id", partitions=1)
        table.append([{"id": 1, "status": "new"}])
        db.advance_watermark("now")
        table.compact(engine="local")
        # when it is not mounted, then a reader that opens a file hears of that, and of no loss
        away = shared.rename(tmp_path / "away")
        shared.mkdir()
        for read in (table.count, lambda: table.read(compacted=True).to_arrow()):
            with pytest.raises(LedgersUnseen) as told:
                read()
            assert "rebuild" not in told.value.hint
        # and reads on when it is back
        shared.rmdir()
        away.rename(shared)
        assert table.count() == 1
        # but one file that is gone is lost
        (shared / table.ledgers()[0].files[0]).unlink()
        with pytest.raises(LedgerLost):
            table.read(compacted=True).to_arrow()
