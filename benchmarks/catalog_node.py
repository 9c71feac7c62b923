"""One node with a metastore and a catalog: a process of its own that does what its parent says.

What a start is: the log is opened, the groups, the metastore and, as soon as the cluster's settings
are known, the catalog. The node stands for election at once if it has a copy already, so that no
election timeout is part of it. It is up when the metastore answers a linearizable read and the
catalog has the version that this read says is the latest.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.catalog_workload import batches, history_of, updates
from benchmarks.etcd_wire import KEYS
from benchmarks.held_memory import anonymous_bytes, bytes_of
from clusters.closed_loop import ClosedLoop
from clusters.node import RETRY_MS, Node, run_node
from lowmark.catalog import UPDATE_PREFIX, VERSION_KEY, Catalogs, History, read_log, replay
from lowmark.catalog.errors import CutTooEarly
from lowmark.catalog.update_log import append, number_in
from lowmark.errors import invariant
from lowmark.group import Future, GroupConfig, Groups
from lowmark.log import Log, LogConfig
from lowmark.metastore import (
    Answer,
    Branch,
    Cluster,
    ClusterSettings,
    Compare,
    Do,
    Entry,
    Event,
    MetastoreConfig,
    NodeInfo,
    Put,
    Revision,
    identify,
)
from lowmark.metastore.state import Cut
from lowmark.placement import MetastoreMembers

PAYLOADS = 16
FILLING = 512
"""Updates in flight while a history is written."""


class _Node(Node):
    def __init__(self, number: int, folder: Path, settings: dict[str, Any]) -> None:
        super().__init__(folder)
        self._runs = 0
        self._histories: dict[int, History] = {}
        self._own_versions = 0
        self._catalogs: Catalogs | None = None
        name = f"n{number}"
        identify(self._runtime.disk, draw=lambda _: number - 1, name=name)

        self._began = time.perf_counter()
        self._log = Log.open(self._runtime, LogConfig(**settings["log"]))
        self._opened = time.perf_counter()
        config = GroupConfig(**settings["group"])
        self._groups = Groups(
            self._runtime, self._log, node=number, address="127.0.0.1:0", config=config
        )
        self._cluster = Cluster(
            self._runtime,
            self._log,
            self._groups,
            node=NodeInfo(number=number, name=name, address=self._groups.transport.address),
            config=MetastoreConfig(**settings["metastore"]),
        )
        MetastoreMembers(self._runtime, self._cluster)
        join = settings["join"]
        self._metastore = self._cluster.metastore
        self._cluster.start(join=join, settings=ClusterSettings(id="", members=settings["members"]))
        if not join:
            self._metastore.group.campaign()
        self._cluster.ready.then(lambda _: self._start_catalog())

    def close(self) -> None:
        if self._catalogs is not None:
            self._catalogs.close()
        self._cluster.close()
        self._groups.close()
        self._log.close()

    # -- starting -------------------------------------------------------------------------------

    def _start_catalog(self) -> None:
        settings = self._cluster.settings
        self._catalogs = Catalogs(
            self._runtime,
            self._metastore,
            delay_ms=settings.schema_sync_delay_ms,
            max_skew_ms=settings.clock_max_skew_ms,
        )
        self._catalogs.start()
        self._ask_latest()

    def _ask_latest(self) -> None:
        def answered(future: Future[Entry | None]) -> None:
            entry = None if future.error is not None else future.result()
            if entry is None:  # nobody leads yet, or the first version is not written yet
                self._loop.call_later(RETRY_MS, self._ask_latest)
            else:
                wanted = number_in(entry.value)
                self._when(lambda: self.catalogs.latest.version >= wanted, self._up)

        self._metastore.get(VERSION_KEY).then(answered)

    def _up(self) -> None:
        self.say(
            {
                "address": self._groups.transport.address,
                "version": self.catalogs.latest.version,
                "versions": len(self.catalogs.history),
                "tables": len(self.catalogs.latest.tables),
                "opened_s": self._opened - self._began,
                "up_s": time.perf_counter() - self._began,
            }
        )

    @property
    def catalogs(self) -> Catalogs:
        assert self._catalogs is not None
        return self._catalogs

    # -- orders ---------------------------------------------------------------------------------

    def _do_where(self) -> None:
        status = self._metastore.group.status()
        self.say({"leads": self._metastore.coordinates, "voters": status.voters})

    def _do_fill(self, versions: int, tables: int) -> None:
        """Write a history, as many updates at once as there is room for; each is conditional."""
        first = self.catalogs.latest
        invariant(first.version == 1, "a history is written into an empty catalog")
        todo = batches(versions=versions, tables=tables)
        made = updates(first, todo, author=self._metastore.node)

        def write(number: int) -> Future[Answer]:
            del number
            return self._metastore.invoke(append(next(made)))

        def heard(number: int, answer: Answer) -> None:
            invariant(answer.answer == 1, f"update {number} went in behind the one before it")

        def written(load: dict[str, Any]) -> None:
            self._when(
                lambda: self.catalogs.latest.version == versions,
                lambda: self.say({**load, "tables": len(self.catalogs.latest.tables)}),
            )

        ClosedLoop(write, in_flight=FILLING, count=len(todo), done=written, heard=heard).start()

    def _do_cut(self) -> None:
        """Cut the update log at its latest version, then do what upkeep does after that."""
        version = self.catalogs.latest.version

        def cut(future: Future[bool]) -> None:
            if isinstance(future.error, CutTooEarly):
                self._loop.call_later(future.error.wait_ms, self._do_cut)
                return
            invariant(future.result(), "the update log was not cut before")
            self._when(lambda: len(self.catalogs.history) == 1, self._compact)

        self.catalogs.compact(version).then(cut)

    def _compact(self) -> None:
        wanted = self._metastore.state.latest

        def done(future: Future[Cut]) -> None:
            if future.result().compacted < wanted:  # held by this node, which has moved on
                self._metastore.renew_holds().then(lambda _: self._compact())
            else:
                self._do_snapshot()

        self._metastore.compact(wanted).then(done)

    def _do_snapshot(self) -> None:
        """Take a snapshot of the metastore's group."""
        group = self._metastore.group
        group.snapshot()
        target = group.applied
        self._when(
            lambda: group.log.row.snapshot_index >= target and self._log.idle,
            lambda: self.say({"index": target}),
        )

    def _do_weigh(self) -> None:
        """What the catalog's history holds, once listeners let go of it, and the process in all."""
        catalogs = self.catalogs

        def told() -> None:
            history = bytes_of(catalogs.history)
            self.say(
                {
                    "history": history,
                    "process": anonymous_bytes(),
                    "versions": len(catalogs.history),
                    "tables": len(catalogs.latest.tables),
                }
            )

        self._when(lambda: catalogs.ready_version >= catalogs.latest.version, told)

    def _do_replay(self) -> None:
        """Only decode and apply what the update log has."""
        entries = self._metastore.range_local(UPDATE_PREFIX).entries
        history, began = History(), time.perf_counter()
        count = sum(1 for _ in replay(read_log(entries, parts=self._part), history))
        seconds = time.perf_counter() - began
        invariant(history.latest.version == self.catalogs.latest.version, "all of it was replayed")
        self.say({"count": count, "seconds": seconds})

    def _part(self, key: bytes) -> bytes | None:
        entry = self._metastore.get_local(key)
        return None if entry is None else entry.value

    def _do_look_up(self, count: int, versions: int, tables: int) -> None:
        """Look versions up by time, as a transaction does, in a history of another catalog.

        It has no fewer versions than our own, or look-ups would wait for one that it lacks.
        """
        catalogs, dice = self.catalogs, Random(count)
        if not self._histories:
            self._own_versions = catalogs.latest.version
        invariant(versions >= self._own_versions, "no version of our own is waited for")
        if versions not in self._histories:
            self._histories[versions] = history_of(versions=versions, tables=tables)
        catalogs.history = self._histories[versions]
        first, last = catalogs.history.version(1), catalogs.history.latest
        times = [dice.randint(first.activates_at, last.activates_at) for _ in range(count)]
        began = time.perf_counter()
        found = [catalogs.at(moment) for moment in times]
        seconds = time.perf_counter() - began
        invariant(all(one.done and one.error is None for one in found), "the past is known at once")
        self.say({"count": count, "seconds": seconds})

    def _do_transact(self, size: int, in_flight: int, count: int) -> None:
        """Write keys in turn, each on the condition that it is as it was left."""
        self._runs += 1
        node, payloads = self._metastore.node, _payloads(size)
        seen: dict[bytes, int] = {}

        def key_of(number: int) -> bytes:
            return b"bench/%d/%d/%08d" % (node, self._runs, number % KEYS)

        def submit(number: int) -> Future[Answer]:
            key = key_of(number)
            unchanged = Revision(key, Compare.EQ, seen.pop(key, 0))
            put = Put(key, payloads[number % PAYLOADS])
            return self._metastore.invoke(Branch(unchanged, Do((put,), answer=1), Do()))

        def heard(number: int, answer: Answer) -> None:
            invariant(answer.answer == 1 and answer.changed, f"condition {number} held")
            seen[key_of(number)] = answer.revision

        ClosedLoop(submit, in_flight=in_flight, count=count, done=self.say, heard=heard).start()

    def _do_put(self, size: int, in_flight: int, count: int, watchers: int) -> None:
        """Write; it ends when every watcher was told of everything."""
        self._runs += 1
        prefix, payloads = b"bench/%d/" % self._runs, _payloads(size)
        made: list[int] = []
        told = [_Told() for _ in range(watchers)]
        watches = [
            self._metastore.watch(prefix=prefix, on_event=one.on_event, on_end=_never)
            for one in told
        ]

        def submit(number: int) -> Future[Answer]:
            key = b"%b%08d" % (prefix, number % KEYS)
            return self._metastore.put(key, payloads[number % PAYLOADS])

        def heard(number: int, answer: Answer) -> None:
            del number
            made.append(answer.revision)

        def written(said: dict[str, Any]) -> None:
            self._when(lambda: all(len(one.revisions) == count for one in told), lambda: over(said))

        def over(said: dict[str, Any]) -> None:
            seconds = time.perf_counter() - load.began
            for watch in watches:
                watch.close()
            made.sort()
            for one in told:
                invariant(one.revisions == made, "a watcher is told every revision once, in order")
            self.say({**said, "seconds": seconds})

        load = ClosedLoop(submit, in_flight=in_flight, count=count, done=written, heard=heard)
        load.start()


class _Told:
    """A watcher that notes which revisions it was told."""

    __slots__ = ("revisions",)

    def __init__(self) -> None:
        self.revisions: list[int] = []

    def on_event(self, event: Event) -> None:
        (change,) = event.changes
        invariant(change.entry is not None, "an event has its value")
        self.revisions.append(event.revision)


def _never(error: Exception) -> None:
    raise error


def _payloads(size: int) -> list[bytes]:
    return [os.urandom(size) for _ in range(PAYLOADS)]


if __name__ == "__main__":
    run_node(_Node)
