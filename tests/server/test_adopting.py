"""What a run has published and not adopted is adopted by the node that leads the partition.

`test_several_nodes` has the same with nodes that are processes, and are killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import lowmark
from compaction.world import Stopped, stop_before
from eventually import eventually
from lowmark.client import Database, Table
from lowmark.node import Settings
from lowmark.node.settings import LedgerSettings, SchemaSync, WatermarkSettings
from lowmark.server import adopting, on_node
from lowmark.server.adopting import Adopter
from lowmark.table import Adopted, View
from server.test_on_node import Node1

pytestmark = pytest.mark.slow

EXACT = Settings(
    watermark=WatermarkSettings(availability_ms=0, interval_ms=600_000),
    ledger=LedgerSettings(grace_ms=0),
    schema_sync=SchemaSync(delay_ms=1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adopting") / "n1"


@pytest.fixture(scope="module")
def db(folder: Path) -> Iterator[Database]:
    """At a node that waits a tenth of a second for a run to have its ledger adopted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_node, "Adopter", partial(Adopter, patience_s=0.1))
        patch.setattr(adopting, "_AGAIN_S", 0.1)
        served = Node1(folder, settings=EXACT)
        with served, lowmark.connect(served.address, timeout_s=30) as client:
            yield client


@pytest.fixture
def table(db: Database, request: pytest.FixtureRequest) -> Table:
    name = request.node.name.removeprefix("test_")[:40]
    made = db.create_table(name, {"id": "int64", "v": "string"}, key="id", partitions=2)
    for value in ("old", "new"):
        made.append([{"id": number, "v": value} for number in range(100)])
    return made


def view(table: Table, number: int) -> View:
    return table._backend.view(table.descriptor.id, number, latest=True)


def adopted(table: Table, number: int) -> Adopted | None:
    return view(table, number).ledger


def dies_before(db: Database, table: Table, step: str) -> None:
    """A run that ends before a step, with its process."""
    time = table._backend.now(table.descriptor.id).time
    eventually(lambda: db.advance_watermark(time).after >= time)
    with pytest.raises(Stopped):
        table.compact(engine="local", step=stop_before(step))


def values(table: Table) -> list[tuple[int, str]]:
    return sorted((row["id"], row["v"]) for row in table.read(as_of="now").to_pylist())


NEW = [(number, "new") for number in range(100)]


def test_what_was_published_is_adopted_and_cut_by_the_node_alone(
    db: Database, table: Table
) -> None:
    # when a run dies after it has published the first of two partitions
    dies_before(db, table, "adopt partition 0")
    # then the node has that one adopted, and cuts its backlog, as the run would have done
    eventually(lambda: view(table, 0).start > 0)
    ledger = adopted(table, 0)
    assert ledger is not None
    assert view(table, 0).start == ledger.horizon == view(table, 0).end
    assert values(table) == NEW
    # and it does nothing that was not published: the run waits to be resumed
    assert adopted(table, 1) is None
    [run] = table.runs()
    assert run.state == "interrupted"
    done = table.compact(engine="local", resume=run.run)
    assert [one.state for one in done.partitions] == ["adopted", "adopted"]
    assert values(table) == NEW


def test_a_ledger_whose_file_is_missing_is_adopted_only_when_it_is_back(
    db: Database, table: Table, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hidden: list[tuple[Path, bytes]] = []
    stop = stop_before("adopt partition 0")

    # given a file that is gone when the ledger was published, as when a store is away
    def step(name: str) -> None:
        if name == "adopt partition 0":
            number = table.descriptor.id
            [path] = (folder / "ledgers").glob(f"table-{number}/0/*.parquet")
            hidden.append((path, path.read_bytes()))
            path.unlink()
        stop(name)

    time = table._backend.now(table.descriptor.id).time
    eventually(lambda: db.advance_watermark(time).after >= time)
    with pytest.raises(Stopped):
        table.compact(engine="local", step=step)
    # when the node has tried, then nothing is adopted and nothing is cut, and the log says why
    eventually(lambda: "can't be adopted" in caplog.text)
    assert adopted(table, 0) is None
    assert view(table, 0).start == 0
    assert values(table) == NEW
    # and when the file is back, then it is adopted
    [(path, data)] = hidden
    path.write_bytes(data)
    eventually(lambda: adopted(table, 0) is not None)
    assert values(table) == NEW


@pytest.mark.release  # that it is refused and tried again is in the test before this one
def test_a_ledger_that_lacks_deletes_of_a_reader_is_adopted_when_the_reader_goes(
    db: Database, table: Table
) -> None:
    # given a reader that came after the work, and needs a delete that the ledger lacks
    table.delete([number for number in range(100) if number % 2])
    table.append([{"id": number, "v": "new"} for number in range(100, 140)])
    stop = stop_before("adopt partition 0")

    def step(name: str) -> None:
        if name == "publish partition 0":
            start = {0: 50, 1: view(table, 1).end}
            table.cursors.create("c", kind="compacted", start=start)
        stop(name)

    time = table._backend.now(table.descriptor.id).time
    eventually(lambda: db.advance_watermark(time).after >= time)
    with pytest.raises(Stopped):
        table.compact(engine="local", step=step)
    pointer = table._compactor.records.pointer(table.descriptor.id, 0).pointer
    assert pointer is not None
    assert pointer.deletes_below > 50
    assert adopted(table, 0) is None
    # when it goes, then the ledger is adopted, without any run
    table.cursors.delete("c")
    eventually(lambda: adopted(table, 0) is not None)
    rows = [(number, "new") for number in range(0, 100, 2)]
    assert values(table) == [*rows, *((number, "new") for number in range(100, 140))]


@pytest.mark.release  # the first one has all of it but the look at the start
def test_what_was_published_before_the_node_started_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a ledger that was published while no node was up to adopt it
    made: Callable[[], Node1] = partial(Node1, tmp_path / "n1", settings=EXACT)
    with made() as served, lowmark.connect(served.address, timeout_s=30) as db:
        table = db.create_table("t", {"id": "int64", "v": "string"}, key="id", partitions=1)
        for value in ("old", "new"):
            table.append([{"id": number, "v": value} for number in range(100)])
        dies_before(db, table, "adopt partition 0")
        assert adopted(table, 0) is None
    # when it is started, then it is adopted, from what stands in its metastore
    monkeypatch.setattr(on_node, "Adopter", partial(Adopter, patience_s=0.1))
    with made() as served, lowmark.connect(served.address, timeout_s=30) as db:
        table = db["t"]
        eventually(lambda: adopted(table, 0) is not None)
        assert values(table) == NEW
