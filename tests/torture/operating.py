"""What an operator does to a cluster while clients work: tables change, history is cut, tables are
compacted, partitions move, and one node goes on alone after the two others were lost.

Each is done to its end, so the next trouble finds the cluster as it was before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import lowmark
from lowmark.client import Database
from lowmark.errors import LowmarkError
from lowmark.group import OutcomeUnknown
from lowmark.node import NodeClient
from lowmark.node.messages import PartitionsAsk, PartitionsReply, ResetAsk, ResetReply
from torture.client import IDS, PROCESSES, TABLE, parts_of
from torture.cluster import Cluster
from torture.history import Recorder

OPERATOR = 900
"""The process of its calls, and where the ids of its rows begin."""
SETTLED_S = 120.0
"""How long a move may take, and a reset."""
WATERMARK_S = 15.0
"""How long a run waits for the low watermark, which a node that was killed holds for a while."""
_AGAIN_S = 0.1


class Operator:
    """Does what a person would do, and has it written down."""

    def __init__(self, cluster: Cluster, recorder: Recorder, partitions: int) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._partitions = partitions
        self._process = OPERATOR
        self._next_id = OPERATOR * IDS
        self._columns = 0
        self._times: list[tuple[float, int]] = []
        self._last = ""
        self.problems: list[str] = []

    @property
    def _address(self) -> str:
        """Of a node that is up."""
        cluster = self._cluster
        return cluster.addresses[next(one for one in cluster.numbers if cluster.good(one))]

    def connect(self) -> Database:
        """To the nodes that are up."""
        return lowmark.connect(self._address, timeout_s=60.0)

    # -- the catalog ------------------------------------------------------------------------------

    def alter(self) -> None:
        """Add a column, rename it, and drop one that was added before."""
        with self.connect() as db:
            self._columns += 1
            name = f"more_{self._columns}"
            db[TABLE].alter(add={name: "int32"})
            db[TABLE].alter(rename={name: f"{name}_x"}, widen={name: "int64"})
            version = db[TABLE].alter(drop=[f"{name}_x"]).catalog.version
        self._cluster.did("alter", {"version": version})

    def cut_catalog(self, at_least_s: float) -> None:
        """Move the low watermark to a time that clients ask for no more, and cut the catalog."""
        with self.connect() as db:
            reached = self._advance(db, at_least_s)
            made = db.catalog.compact()
        self._cluster.did("cut-catalog", {"watermark": reached, "earliest": made.earliest})

    # -- compaction -------------------------------------------------------------------------------

    def remember(self) -> None:
        """A time of now, for cuts that come later."""
        with self.connect() as db:
            self._times.append((time.monotonic(), db[TABLE].snapshot().time))

    def compact(self, at_least_s: float) -> None:
        """Put all rows up to a time that clients ask for no more into ledgers. Where a node is lost
        meanwhile, the run may fail by name: the next one goes on.
        """
        with self.connect() as db:
            reached = self._advance(db, at_least_s)
            try:
                state: str = db[TABLE].compact(engine="local", verify=True).state
            except LowmarkError as error:
                state = f"{type(error).__name__}: {error}"
        self._cluster.did("compact", {"watermark": reached, "state": state})

    def old_times(self, at_least_s: float) -> list[int]:
        """Those that clients ask for no more: up to there history may be cut."""
        return [at for then, at in self._times if time.monotonic() - then > at_least_s]

    def _advance(self, db: Database, at_least_s: float) -> int:
        old = self.old_times(at_least_s)
        if not old:
            return 0
        ends_at = time.monotonic() + WATERMARK_S
        while True:
            moved = db.advance_watermark(old[-1])
            if not moved.held_by or time.monotonic() > ends_at:
                break
            time.sleep(_AGAIN_S)
        held = [f"{one}" for one in moved.held_by]
        self._cluster.did("watermark", {"wanted": moved.wanted, "at": moved.after, "held_by": held})
        return moved.after

    # -- moves ------------------------------------------------------------------------------------

    def replicas(self, count: int) -> None:
        """Have each partition on this many nodes, and wait until it is."""

        def alter() -> None:
            with self.connect() as db:
                db.alter_zone("default", replicas=count)

        # Where the answer does not come it is asked for again: twice is as good as once.
        self._eventually(lambda: self._tried(alter), f"the zone has {count} replicas")
        self._cluster.did("replicas", {"count": count})
        self._settled(count)

    def _settled(self, count: int) -> None:
        def is_settled() -> bool:
            try:
                with NodeClient(self._address, timeout_s=5.0) as node:
                    asked = PartitionsAsk(table=TABLE)
                    found = node.ask("partition.list", asked, PartitionsReply)
            except LowmarkError:
                return False
            return len(found.partitions) == self._partitions and all(
                len(one.stable) == count and not one.pending and one.state == "available"
                for one in found.partitions
            )

        self._eventually(is_settled, f"each partition is on {count} nodes")

    # -- a reset ----------------------------------------------------------------------------------

    def touch(self) -> None:
        """Store a row in each partition: what is committed now, a majority of those that are up
        has.
        """
        with self.connect() as db:
            self.append(db, "touch")

    def append(self, db: Database, who: str, *, first: int | None = None) -> None:
        """Store rows until each partition has one, as calls of a client."""
        left = set(range(self._partitions))
        while left:
            count = 4 * self._partitions
            start = self._next_id if first is None else first
            asked = {"first": start, "count": count}
            rows = [{"id": start + n, "seq": 0, "who": who} for n in range(count)]
            self._recorder.write(self._process, "invoke", "append", asked)
            try:
                parts = parts_of(db[TABLE].append(rows))
            except LowmarkError as error:
                unknown = isinstance(error, OutcomeUnknown)
                said = f"{type(error).__name__}: {error}"
                self._recorder.write(
                    self._process, "info", "append", asked, error=said, unknown=unknown
                )
                self._process += PROCESSES
            else:
                self._recorder.write(self._process, "ok", "append", {**asked, "parts": parts})
                left -= {number for number, _, _ in parts}
            if first is None:
                self._next_id += count
            else:
                first += count

    def reset(self, survivor: int) -> None:
        """The two other nodes are gone, one after the other; one copy of each group goes on.

        1. The first is killed, and each partition commits a row without it: so all that was ever
           acknowledged is in the copies of both that are left.
        2. The second is killed, then the survivor: what was acknowledged is on its disk.
        3. The metastore goes on from the survivor's copy, then each partition.
        4. The lost nodes come back one after the other, and get new copies: an old majority is
           never alive beside the new group.
        """
        cluster = self._cluster
        first, second = (number for number in cluster.numbers if number != survivor)
        with NodeClient(cluster.addresses[survivor], timeout_s=20.0) as node:
            names = {row.endpoint: row.name for row in node.status().nodes}
        lost = [names[cluster.addresses[number]] for number in (first, second)]
        cluster.unsettled = True
        cluster.kill(first)
        self._eventually(lambda: self._tried(self.touch), "two nodes go on without the third")
        self._eventually(lambda: self._tried(self.alter), "the metastore goes on, too")
        cluster.kill(second)
        cluster.kill(survivor)
        words = [sys.executable, "-c", "from lowmark.cli import main; main()"]
        words += ["meta", "reset", "--yes", "--json"]
        words += ["--data", str(cluster.data(survivor))]
        words += [word for name in lost for word in ("--lost", name)]
        done = subprocess.run(
            cluster.command(survivor, words),
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if done.returncode:
            self.problems.append(f"the metastore was not reset: {done.stderr.decode()}")
            return
        cluster.did("meta-reset", {"node": survivor, **json.loads(done.stdout)})
        cluster.start(survivor)
        cluster.wait_ready(survivor)
        for number in range(self._partitions):
            asked = ResetAsk(
                table=TABLE,
                partition=number,
                node=names[cluster.addresses[survivor]],
                lost=tuple(lost),
            )

            def ask(asked: ResetAsk = asked) -> None:
                with NodeClient(cluster.addresses[survivor], timeout_s=60.0) as node:
                    node.ask("partition.reset", asked, ResetReply)

            self._eventually(lambda ask=ask: self._tried(ask), f"partition {number} is reset")  # type: ignore[misc]
            cluster.did("reset", {"node": survivor, "partition": number})
        for number, name in zip((first, second), lost, strict=True):
            cluster.start(number)
            cluster.wait_ready(number)

            def take(name: str = name) -> None:
                with self.connect() as db:
                    db.cluster.drain(name, stop=True)

            self._eventually(lambda take=take: self._tried(take), f"{name} gets partitions again")  # type: ignore[misc]
        self._settled(len(cluster.numbers))
        cluster.unsettled = False
        cluster.did("settled", None)

    def _tried(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except LowmarkError as error:
            self._last = f"{type(error).__name__}: {error}"
            return False
        return True

    def _eventually(self, condition: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + SETTLED_S
        self._last = ""
        while not condition():
            if time.monotonic() > ends_at:
                self.problems.append(f"not within {SETTLED_S:g} s: {what}; {self._last}")
                return
            time.sleep(_AGAIN_S)
