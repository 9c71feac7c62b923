"""A process with clients of many kinds, each on a thread with a connection of its own.

    python -m torture.client SPEC

Each client does one thing after another, and writes down when it began, when it ended and what came
of it. Nothing is judged here. When the file `stop` is there, they come to an end: those that follow
when they have seen the last row of each partition.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

import lowmark
from lowmark.client import Database, Producer, Result, Table
from lowmark.errors import LowmarkError
from lowmark.group import OutcomeUnknown
from lowmark.metastore import Put, value_is
from lowmark.node import NodeClient, NodeUnreachable, WatchEvent
from torture.history import Recorder

T = TypeVar("T")

TABLE = "rows"
COLUMNS = {"id": "int64", "seq": "int64", "who": "string"}
PLACED = ["id", "seq", "_partition", "_offset", "_change"]
"""A read that asks for `_change` is given deletes, too."""
IDS = 1_000_000_000
"""So many rows a client may append: their ids are its number times this, and on."""
PROCESSES = 1_000
"""A client whose call has an unknown end goes on as another process: its number and this."""
META = "torture/"
META_KEYS = 3
META_END = "torture/end"
PAUSE_S = 0.05
FINISH_S = 90.0
KEEP = "keep"
"""A cursor that never moves: so all rows stay in the backlog, and compaction cuts none of it."""
META_WRITE_S = 8.0
"""A write that must not be made twice waits this long for a node that is suspended. A writer may
meet that node two times in a row, and is expected to go on all the same (`nemesis.PROGRESS_S`).
"""


class ClientSpec(msgspec.Struct):
    """One client."""

    number: int
    role: str
    at: int
    """The node that it connects to first."""


class Spec(msgspec.Struct):
    """What a process is told."""

    name: str
    folder: str
    addresses: list[str]
    partitions: int
    hot_keys: list[int]
    clients: list[ClientSpec]
    began_ns: int
    seed: int
    pace_s: float
    as_of_s: float
    """Times that are older are asked for no more: runs of compaction may have passed them."""


class Client:
    """One that does one thing after another."""

    def __init__(self, spec: Spec, me: ClientSpec, rows: Recorder, meta: Recorder) -> None:
        self.spec = spec
        self.me = me
        self.recorder = meta if me.role.startswith("meta") else rows
        self.random = Random(spec.seed * 1_000 + me.number)
        self.process = me.number
        self.stop = Path(spec.folder) / "stop"
        self.db: Database
        self.table: Table

    @property
    def going_on(self) -> bool:
        return not self.stop.exists()

    def connect(self, at: int) -> Database:
        return lowmark.connect(self.spec.addresses[at % len(self.spec.addresses)], timeout_s=60.0)

    def run(self) -> None:
        with self.connect(self.me.at) as self.db:
            self.table = self.db[TABLE]
            getattr(self, self.me.role.replace("-", "_"))()

    def do(
        self,
        f: str,
        asked: object,
        call: Callable[[], T],
        said: Callable[[T], object] | None = None,
        *,
        changes: bool = False,
        node: str = "",
        revision: Callable[[T], int] | None = None,
        parts: Callable[[T], list[list[int]]] | None = None,
    ) -> T | None:
        """Do something, and write down what came of it; None if it failed."""
        self.recorder.write(self.process, "invoke", f, asked, node=node)
        try:
            found = call()
        except Exception as error:
            unknown = isinstance(error, OutcomeUnknown)
            surely_not = not changes or (bool(node) and isinstance(error, NodeUnreachable))
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, LowmarkError) and error.detail:
                text += f" ({error.detail})"
            self.recorder.write(
                self.process,
                "fail" if surely_not else "info",
                f,
                asked,
                error=text,
                node=node,
                unknown=unknown,
            )
            if not surely_not:
                self.process += PROCESSES
            time.sleep(PAUSE_S)
            return None
        number = revision(found) if revision is not None else 0
        value = said(found) if said is not None else asked
        where = parts(found) if parts is not None else None
        self.recorder.write(self.process, "ok", f, value, node=node, revision=number, parts=where)
        return found

    def rest(self) -> None:
        time.sleep(self.spec.pace_s * 2 * self.random.random())

    # -- rows in ----------------------------------------------------------------------------------

    def append(self) -> None:
        """Rows with ids of their own, by the numbered producer that every open table has."""
        first = self.me.number * IDS
        while self.going_on:
            count = self.random.choice((1, 3, 20, 100))
            rows = self.rows(first, count)
            self.do(
                "append",
                {"first": first, "count": count},
                lambda rows=rows: self.table.append(rows),  # type: ignore[misc]
                lambda result, first=first, count=count: {  # type: ignore[misc]
                    "first": first,
                    "count": count,
                    "parts": parts_of(result),
                },
                changes=True,
            )
            first += count
            self.rest()

    def send(self) -> None:
        """Rows with ids of their own, by a producer with a name; a new one when it has failed."""
        first = self.me.number * IDS
        while self.going_on:
            try:
                producer = self.table.producer(name=f"producer-{self.me.number}", linger_ms=1)
            except LowmarkError:
                # It is not one of the calls that are judged: the next one is.
                time.sleep(PAUSE_S)
                continue
            failed = False
            while not failed and self.going_on:
                count = self.random.choice((1, 10, 50))
                rows = self.rows(first, count)

                def send(
                    rows: list[dict[str, object]] = rows, producer: Producer = producer
                ) -> bool:
                    producer.send_many(rows)
                    producer.flush()
                    return True

                asked = {"first": first, "count": count}
                failed = self.do("send", asked, send, changes=True) is None
                first += count
                self.rest()

    def rows(self, first: int, count: int) -> list[dict[str, object]]:
        who = f"c{self.me.number}"
        return [{"id": number, "seq": 0, "who": who} for number in range(first, first + count)]

    def write(self) -> None:
        """Keys that only this client changes, again and again; every tenth change deletes one."""
        mine = [key for key in self.spec.hot_keys if self.owner(key) == self.me.number]
        changes = dict.fromkeys(mine, 0)
        while self.going_on:
            key = self.random.choice(mine)
            changes[key] += 1
            seq: int | None = None if changes[key] % 10 == 0 else changes[key]

            def change(key: int = key, seq: int | None = seq) -> Result:
                if seq is None:
                    return self.table.delete([key])
                return self.table.upsert([{"id": key, "seq": seq, "who": f"c{self.me.number}"}])

            self.do("write", [key, seq], change, changes=True, parts=parts_of)
            self.rest()

    def owner(self, key: int) -> int:
        writers = self.spec.hot_keys
        return -key // 100 if writers else 0

    # -- rows out ---------------------------------------------------------------------------------

    def read(self) -> None:
        """The latest row of a key that is changed by others."""
        while self.going_on:
            key = self.random.choice(self.spec.hot_keys)
            self.do(
                "read",
                [key, None],
                lambda key=key: (self.table.get(key),),  # type: ignore[misc]
                lambda found, key=key: [key, None if found[0] is None else found[0]["seq"]],  # type: ignore[misc]
            )
            self.rest()

    def scan(self) -> None:
        """All rows that are there, from the last end on, or from an earlier place."""
        ends = dict.fromkeys(range(self.spec.partitions), 0)
        while self.going_on:
            back = self.random.choice((0, 0, 0, 200))
            start = {number: max(0, end - back) for number, end in ends.items()}

            def scan(start: dict[int, int] = start) -> tuple[list[object], dict[int, int]]:
                with self.table.read(columns=PLACED, start=start) as reader:
                    return placed(reader.to_arrow()), reader.position

            found = self.do(
                "scan",
                pairs(start),
                scan,
                lambda found, start=start: {  # type: ignore[misc]
                    "start": pairs(start),
                    "end": pairs(found[1]),
                    "rows": found[0],
                },
            )
            if found is not None:
                ends = found[1]
            self.rest()

    def as_of(self) -> None:
        """The table as it was at a time: again and again for the same times, at each node."""
        doors = [self.db, self.connect(self.me.at + 1), self.connect(self.me.at + 2)]
        tables = [door[TABLE] for door in doors]
        known: list[tuple[float, int]] = []
        while self.going_on:
            table = self.random.choice(tables)
            known = [one for one in known if time.monotonic() - one[0] < self.spec.as_of_s][-200:]
            if not known or self.random.random() < 0.25:
                snapshot = self.do(
                    "snapshot",
                    None,
                    table.snapshot,
                    lambda found: {"time": found.time, "ends": pairs(found.ends)},
                )
                if snapshot is None:
                    continue
                at = snapshot.time
                known.append((time.monotonic(), at))
            else:
                _, at = self.random.choice(known)
            number = self.random.randrange(self.spec.partitions)

            def look(table: Table = table, at: int = at, number: int = number) -> pa.Table:
                with table.read(as_of=at, partitions=[number], columns=["id", "seq"]) as reader:
                    return reader.to_arrow()

            self.do(
                "as-of",
                {"time": at, "partition": number},
                look,
                lambda found, at=at, number=number: {  # type: ignore[misc]
                    "time": at,
                    "partition": number,
                    "rows": found.num_rows,
                    "digest": digest_of(
                        zip(
                            found.column("id").to_pylist(),
                            found.column("seq").to_pylist(),
                            strict=True,
                        )
                    ),
                },
            )
            self.rest()
        for db in doors[1:]:
            db.close()

    def tail(self) -> None:
        """Every change, as it comes, until the last row of each partition."""
        start = dict.fromkeys(range(self.spec.partitions), 0)
        left = set(range(self.spec.partitions))
        columns = [*PLACED, "who"]
        reader: Any = None
        ends_at = None
        while left and (ends_at is None or time.monotonic() < ends_at):
            if not self.going_on and ends_at is None:
                ends_at = time.monotonic() + FINISH_S

            def follow() -> pa.RecordBatch:
                nonlocal reader
                if reader is None:
                    reader = self.table.read(columns=columns, start=start, follow=True)
                return next(reader)

            batch = self.do("tail", None, follow, placed)
            if batch is None:
                reader = None
                continue
            numbers, offsets = batch.column("_partition"), batch.column("_offset")
            for number, offset in zip(numbers.to_pylist(), offsets.to_pylist(), strict=True):
                start[number] = max(start[number], offset + 1)
            ended = pa.compute.equal(batch.column("who"), "end")
            left -= set(numbers.filter(ended).to_pylist())
        if reader is not None:
            reader.close()

    def poll(self) -> None:
        """Some rows from where a cursor stands, then a commit."""
        name = f"cursor-{self.me.number}"
        self.table.cursors.create(name, start="earliest")
        while self.going_on:

            def poll() -> tuple[dict[int, int], list[object], dict[int, int]]:
                stands = self.table.cursors.get(name).position
                with self.table.read(cursor=name, columns=PLACED, limit=300) as reader:
                    return stands, placed(reader.to_arrow()), reader.position

            found = self.do(
                "poll",
                None,
                poll,
                lambda found: {
                    "stands": pairs(found[0]),
                    "rows": found[1],
                    "end": pairs(found[2]),
                },
            )
            if found is None:
                continue
            to = found[2]
            self.do(
                "commit",
                pairs(to),
                lambda to=to: self.table.cursors.commit(name, to),  # type: ignore[misc]
                lambda cursor: pairs(cursor.position),
                changes=True,
            )
            self.rest()

    # -- the metastore ----------------------------------------------------------------------------

    def meta_key(self) -> bytes:
        return f"{META}{self.random.randrange(META_KEYS)}".encode()

    def meta_write(self) -> None:
        """Values that no other write has; some only if the one before is known."""
        count = 0
        nodes = [NodeClient(address, timeout_s=META_WRITE_S) for address in self.spec.addresses]
        while self.going_on:
            count += 1
            key, value = self.meta_key(), f"{self.me.number}-{count}"
            match self.random.randrange(3):
                case 0:
                    node = self.random.choice(nodes)
                    self.do(
                        "write",
                        [key.decode(), value],
                        lambda key=key, value=value, node=node: node.put(key, value.encode()),  # type: ignore[misc]
                        changes=True,
                        node=node.address,
                        revision=lambda reply: reply.revision,
                    )
                case 1:
                    puts = [Put(key, value.encode())]
                    self.do(
                        "write",
                        [key.decode(), value],
                        lambda puts=puts: self.db.backend.write(puts, timeout_s=META_WRITE_S),  # type: ignore[misc]
                        changes=True,
                    )
                case _:
                    self.meta_cas(key, value)
            self.rest()
        for one in nodes:
            one.close()

    def meta_cas(self, key: bytes, value: str) -> None:
        old = self.look(key)
        if old is None or old[0] is None:
            return
        before = old[0].value.decode()
        self.do(
            "cas",
            [key.decode(), [before, value]],
            lambda: (
                self.db.backend.write(
                    [Put(key, value.encode())],
                    condition=value_is(key, before.encode()),
                    timeout_s=META_WRITE_S,
                ),
            ),
            lambda found: {"key": key.decode(), "old": before, "new": value, "done": found[0]},
            changes=True,
        )

    def look(self, key: bytes) -> tuple[Any] | None:
        return self.do(
            "read",
            [key.decode(), None],
            lambda: (self.db.backend.get(key),),
            lambda found: [key.decode(), None if found[0] is None else found[0].value.decode()],
            revision=lambda found: 0 if found[0] is None else found[0].revision,
        )

    def meta_read(self) -> None:
        """The values of keys."""
        while self.going_on:
            self.look(self.meta_key())
            self.rest()

    def meta_watch(self) -> None:
        """Every revision, at one node after another: each once and in order."""
        since, at, over = 1, self.me.at, False
        ends_at = None
        while not over and (ends_at is None or time.monotonic() < ends_at):
            if not self.going_on and ends_at is None:
                ends_at = time.monotonic() + FINISH_S
            address = self.spec.addresses[at % len(self.spec.addresses)]
            at += 1
            with NodeClient(address) as node:
                told = node.watch(META.encode(), from_revision=since)

                def watch(told: Any = told, address: str = address) -> WatchEvent:
                    for one in told:
                        if isinstance(one, WatchEvent):
                            return one
                    raise NodeUnreachable(address, why="The watch has ended.")

                while not over:
                    event = self.do(
                        "watch",
                        {"from": since},
                        watch,
                        lambda event: {
                            "revision": event.revision,
                            "changes": [
                                [one.key.decode(), (one.value or b"").decode()]
                                for one in event.changes
                            ],
                        },
                        node=address,
                        revision=lambda event: event.revision,
                    )
                    if event is None:
                        break
                    since = event.revision + 1
                    over = any(one.key == META_END.encode() for one in event.changes)


def parts_of(result: Result) -> list[list[int]]:
    """Where rows went: partition, first offset, rows."""
    return [[part.partition, part.first, part.rows] for part in result.parts]


def pairs(offsets: Any) -> list[list[int]]:
    """Offsets by partition, as JSON has them."""
    return [[number, offset] for number, offset in sorted(offsets.items())]


def placed(rows: Any) -> list[object]:
    """Rows as [partition, first offset, ids, seqs], of each stretch without a hole."""
    found: list[Any] = []
    columns = [rows.column(name).to_pylist() for name in ("_partition", "_offset", "id", "seq")]
    for number, offset, key, seq in zip(*columns, strict=True):
        last = found[-1] if found else None
        if last is None or last[0] != number or last[1] + len(last[2]) != offset:
            last = [number, offset, [], []]
            found.append(last)
        last[2].append(key)
        last[3].append(seq)
    return found


def digest_of(rows: Any) -> str:
    """Of rows, whatever their order is: what is added and taken away can be added up."""
    return f"{sum(weight_of(*row) for row in rows) % (1 << 64):016x}"


def weight_of(key: int, seq: int) -> int:
    """What a row adds to a digest."""
    return int.from_bytes(hashlib.sha256(b"%d:%d" % (key, seq)).digest()[:8])


def main() -> None:
    """All clients of this process, until they have come to an end."""
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    folder = Path(spec.folder)
    rows = Recorder(folder / f"rows-{spec.name}.jsonl", spec.began_ns)
    meta = Recorder(folder / f"metastore-{spec.name}.jsonl", spec.began_ns, counted_as="meta-")
    broken: list[BaseException] = []

    def run(client: Client) -> None:
        try:
            client.run()
        except BaseException as error:
            broken.append(error)
            raise

    threads = [
        threading.Thread(
            target=run, args=(Client(spec, one, rows, meta),), name=f"{one.role}-{one.number}"
        )
        for one in spec.clients
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    following = ("tail", "meta-watch")
    for thread in sorted(threads, key=lambda one: one.name.startswith(following)):
        if thread.name.startswith(following):
            (folder / f"idle-{spec.name}").touch()
        while thread.is_alive():
            thread.join(1.0)
            stopped = folder / "stop"
            if stopped.exists() and time.time() - stopped.stat().st_mtime > FINISH_S:
                break
    late = [thread.name for thread in threads if thread.is_alive()]
    if late:
        sys.stderr.write(f"LATE {' '.join(late)}\n")
    sys.stderr.flush()
    os._exit(1 if late or broken else 0)


if __name__ == "__main__":
    main()
