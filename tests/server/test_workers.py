"""Workers of a cluster: processes that compact, at different nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from clusters.places import places
from eventually import eventually
from lowmark.client import Table
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("workers")]


def compactable(table: Table) -> None:
    """Wait until the low watermark has passed all rows that are there."""
    backend = table._backend
    time = backend.now(table.descriptor.id).time
    eventually(lambda: backend.advance_watermark(time).after >= time)


class Worker:
    """`lowmark worker` in a process of its own, and what it says. Between hosts it has one of its
    own, too: it sees no node's segments.
    """

    def __init__(self, nodes: Nodes, number: int, *more: str) -> None:
        words = ["worker", "--node", nodes.address(number), "--engine", "local", "--json"]
        self._ends = ExitStack()
        (place,) = self._ends.enter_context(places([nodes._path / f"worker-{number}"]))
        self.process = subprocess.Popen(
            place.command([sys.executable, "-m", "lowmark", *words, "--lease", "1", *more]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.next() == {"event": "ready", "at": nodes.address(number)}

    def next(self) -> dict[str, object]:
        """What it says next."""
        assert self.process.stdout is not None
        said: dict[str, object] = json.loads(self.process.stdout.readline())
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._ends.close()


@pytest.mark.hosts
def test_the_run_of_a_worker_that_is_killed_is_made_by_another_one(tmp_path: Path) -> None:
    # Nodes of its own: where one was killed, the low watermark waits for the readers that it had.
    with Nodes(tmp_path, 3) as nodes, nodes.connect(0) as db:
        # given a table that is compacted by itself, and a worker that takes long
        table = table_of(db, "worked", replicas=3, partitions=2)
        for status in ("new", "paid"):
            table.append([{"id": number, "status": status} for number in range(500)])
        compactable(table)
        table.alter(options={"compaction": "auto", "dirty_bytes": 1, "dirty_percent": 1})
        with Worker(nodes, 1, "--read-rate", "1KiB") as first:
            began = first.next()
            assert (began["event"], began["table"]) == ("began", "worked")
            # and another one, at another node
            with Worker(nodes, 2, "--read-rate", "0") as second:
                # when the first one is killed, then the other one goes on with its run
                first.process.kill()
                resumed, done = second.next(), second.next()
                assert (resumed["event"], resumed["run"]) == ("resumed", began["run"])
                assert (done["event"], done["run"], done["resumed"]) == ("done", began["run"], 1)
                # and a run that a person leaves to workers is made, too
                table.append([{"id": 7, "status": "back"}])
                table.alter(options={"compaction": "manual"})
                compactable(table)
                left = table.compact(detach=True)
                assert left.state == "planned"
                assert [second.next()["run"] for _ in range(2)] == [left.run] * 2
                # and it ends in good order when it is told to
                second.process.terminate()
                assert second.process.wait(60) == 0
        found = sorted(table.read(as_of="now").to_pylist(), key=lambda row: row["id"])
        assert found == [
            {"id": number, "status": "back" if number == 7 else "paid"} for number in range(500)
        ]
        assert [one.state for one in table.runs()] == ["done", "done"]
