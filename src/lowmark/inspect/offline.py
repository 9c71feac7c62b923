"""The metastore in a data directory that no process has open, as its node knew it; read only.

The machine begins with the newest sound snapshot, and goes on with the entries after it that are
known to be committed: up to the commit index that the node had written down, and while the group
has this node as its only voter, all that is durable. A node that is stopped writes everything down;
one that was killed may have known more than its directory can tell (`unknown_entries` says how much
there is besides). Nothing is shown that was not so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lowmark.catalog import (
    SNAPSHOT_KEY,
    UPDATE_PREFIX,
    VERSION_KEY,
    Catalog,
    History,
    TableId,
    number_in,
    read_log,
    replay,
)
from lowmark.errors import Corrupt, LowmarkError, Rejected, Unavailable, invariant
from lowmark.formatting import counted, verb
from lowmark.group import Command, EntryTooNew, MachineTooOld, envelope
from lowmark.group.storage import GroupMeta, SnapshotMembers, raft_entry
from lowmark.log import GroupLog, Log, LogConfig
from lowmark.log.errors import NewerFormat
from lowmark.metastore import (
    GROUP,
    ClusterSettings,
    Entry,
    Identity,
    MetastoreDamaged,
    MetastoreMachine,
    MetastoreUnreadable,
    NodeInfo,
    RevisionCompacted,
    Topology,
    check_metastore,
    find_identity,
)
from lowmark.metastore.nodes import (
    CLUSTER_KEY,
    NODE_PREFIX,
    TOPOLOGY_KEY,
    decode_cluster,
    decode_node,
    decode_topology,
)
from lowmark.metastore.state import Found, State, prefix_end
from lowmark.metastore.watches import Interest, Values
from lowmark.node.actions import bare, history_entries, page_of, stored, watch_event
from lowmark.node.directory import log_disk
from lowmark.node.homes import Home, homes_of
from lowmark.node.messages import (
    CatalogStatus,
    GetReply,
    HistoryPage,
    MetastoreStatus,
    RangeAsk,
    RangePage,
    Status,
    WatchEvent,
    WatchStarted,
    WatermarkStatus,
)
from lowmark.node.status import Copy, Known, TablePart, Trying, lease_row, merged, parts_of
from lowmark.placement.zones import draining_in
from lowmark.raft import Entry as RaftEntry
from lowmark.raft import EntryKind, MembershipRefused, membership
from lowmark.runtime import DiskFailed, Locked, RealDisk, millis_of, real_runtime
from lowmark.table import PartitionMachine, parse_group_name
from lowmark.table import State as PartitionState
from lowmark.table.watermark import HISTORY_KEY, WATERMARK_KEY, read_history, read_watermark

_READ_BYTES = 4 << 20
_REVISIONS_AT_ONCE = 1_024


class DataInUse(Unavailable):
    """A data directory that a node, or a program with an embedded one, has open."""

    def __init__(self, path: str, locked: Locked) -> None:
        # The lock tells which process has it, not whether that process can be asked.
        super().__init__(
            locked.message,
            detail=locked.detail,
            hint="If that is `lowmark serve`, ask it: give its address by --node instead of --data."
            " If it is a program that opened the database, close the database there first.",
        )
        self.path = path


@contextlib.contextmanager
def open_offline(path: str, config: LogConfig | None = None) -> Iterator[OfflineStore]:
    """Read a data directory; it stays locked meanwhile, and as it is."""
    disk = log_disk(path)
    with contextlib.ExitStack() as opened:
        runtime = real_runtime(path)
        opened.callback(runtime.loop.close)
        try:
            log = Log.open(runtime, config or LogConfig(), read_only=True)
        except Locked as locked:
            raise DataInUse(path, locked) from locked
        opened.callback(log.close)
        identity = find_identity(disk)
        copy = next((each for each in log.groups() if each.name == GROUP), None)
        if identity is not None and (copy is None or not copy.meta):
            check_metastore(disk, log, identity)
        if identity is None or copy is None or not copy.meta:
            raise Rejected(
                f"{path} has no metastore",
                detail="Its node never was in a cluster, or was not let in yet.",
            )
        yield OfflineStore(path, identity, log)


class OfflineStore:
    """What one node knew. Made by `open_offline`."""

    def __init__(self, path: str, identity: Identity, log: Log) -> None:
        self._path = path
        self._identity = identity
        self._whole_log = log
        self._log = log.group(GROUP)
        self._machine = MetastoreMachine()
        self._replay = _Replay(identity.number, self._log, self._machine)
        self._replay.run()
        self._values = Values(self)
        self.problem = self._replay.problem or self._log.quarantined or ""
        """Why the machine did not come as far as it should, if so."""
        self.unknown_entries = self._log.last_index - self._replay.applied
        """Entries that are there, but may not be committed: only a running node can tell."""

    @property
    def node(self) -> str:
        """The name of the node."""
        return self._identity.name

    @property
    def doubt(self) -> str:
        """What is unknown here, in words; empty if there is nothing."""
        if not self.unknown_entries:
            return ""
        more = self.unknown_entries
        return (
            f"{counted(more, 'more entry', 'more entries')} {verb(more, 'are')} not known to be"
            " committed"
        )

    def damage(self, error: LowmarkError | None = None) -> LowmarkError:
        """`problem`, or what came of reading a value, as an error with advice that works: a node
        that is alone has no others to ask.
        """
        disk = RealDisk(self._path, create=False)
        error = error or self._replay.error
        if self._log.quarantined is not None and not self._identity.peers:
            try:
                check_metastore(disk, self._whole_log, self._identity)
            except LowmarkError as told:
                return told
        if isinstance(error, DiskFailed):
            return MetastoreUnreadable(disk, error.message)
        if isinstance(error, NewerFormat) or not isinstance(error, Corrupt | None):
            return error  # nothing is wrong with the files: the error says which release reads them
        cause = error.message if error is not None else self.problem
        if not self._identity.peers:
            return MetastoreDamaged(disk, cause, alone=True)
        return Corrupt(
            f"{self._path} can't be read: {cause}",
            hint=f"See `lowmark log verify {self._path}`; ask another node meanwhile, by --node.",
        )

    # -- for values -----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What this node knew."""
        return self._machine.state

    def read_commands(self, indexes: list[int]) -> list[Command]:
        """Entries of the log."""
        return [envelope.open_command(entry.data) for entry in self._log.read(indexes)]

    def soon(self, callback: object) -> None:
        """There are no watches here."""

    def now_ms(self) -> int:
        """There is no clock: nothing waits here."""
        return 0

    # -- reading --------------------------------------------------------------------------------

    def get(self, key: bytes, *, at: int | None = None) -> GetReply:
        """A key's value, at the end or as of a revision."""
        revision = self._revision(at)
        entry = self._read(key, revision)
        return GetReply(revision=revision, entry=stored(entry) if entry is not None else None)

    def range(
        self,
        prefix: bytes = b"",
        *,
        at: int | None = None,
        limit: int | None = None,
        keys_only: bool = False,
    ) -> Iterator[RangePage]:
        """Keys that begin so, page by page."""
        revision = self._revision(at)
        asked = RangeAsk(prefix=prefix, keys_only=keys_only)
        start, left = prefix, limit if limit is not None else 1 << 62
        while left:
            found = page_of(self.state, asked, start=start, at=revision, left=left)
            if keys_only:
                entries = tuple(map(bare, found))
            else:
                entries = tuple(map(stored, self._values.entries(found)))
            yield RangePage(revision=revision, entries=entries)
            if not found:
                return
            left -= len(found)
            start = found[-1].key + b"\0"

    def history(self, key: bytes) -> Iterator[HistoryPage]:
        """All that is known of a key, oldest first."""
        state, after = self.state, 0
        while entries := history_entries(state, key, self._values.entries, after=after):
            yield HistoryPage(
                revision=state.latest, compacted=state.compacted, entries=tuple(entries)
            )
            after = entries[-1].revision

    def watch(
        self, prefix: bytes = b"", *, from_revision: int | None = None
    ) -> Iterator[WatchStarted | WatchEvent]:
        """Every revision from one on, up to the last one that this node knew."""
        state = self.state
        first = state.latest + 1 if from_revision is None else from_revision
        if first <= state.compacted:
            raise RevisionCompacted(wanted=f"revision {first}", first_left=state.compacted + 1)
        yield WatchStarted(from_revision=first)
        interest = Interest(self, self._values, prefix, frozenset())
        for revision in range(first, state.latest + 1):
            event = interest.event(revision)
            if event is not None:
                yield watch_event(event)
            if revision % _REVISIONS_AT_ONCE == 0:
                interest.forget()

    def entries(self, prefix: bytes, *, at: int | None = None) -> list[Entry]:
        """Keys that begin so, with their values, all at once."""
        found = self.state.find_range(prefix, prefix_end(prefix), at=self._revision(at))
        return self._values.entries(found)

    def _revision(self, at: int | None) -> int:
        if at is not None:
            self.state.check_readable(at)
        return self.state.latest if at is None else at

    def _read(self, key: bytes, at: int) -> Entry | None:
        found: Found | None = self.state.find(key, at)
        return None if found is None else self._values.entries([found])[0]

    # -- status ---------------------------------------------------------------------------------

    def _catalog(self) -> CatalogStatus | None:
        version, snapshot = (
            self._read(key, self.state.latest) for key in (VERSION_KEY, SNAPSHOT_KEY)
        )
        if version is None:
            return None
        earliest = number_in(snapshot.value if snapshot is not None else None)
        return CatalogStatus(version=number_in(version.value), earliest=earliest)

    def _settings(self) -> ClusterSettings | None:
        cluster = self._read(CLUSTER_KEY, self.state.latest)
        return decode_cluster(cluster.value) if cluster is not None else None

    def _nodes(self) -> list[NodeInfo]:
        nodes = sorted(self.entries(NODE_PREFIX), key=lambda one: (one.created, one.key))
        return [decode_node(entry.value) for entry in nodes]

    def _topology(self) -> Topology:
        topology = self._read(TOPOLOGY_KEY, self.state.latest)
        return decode_topology(topology.value) if topology is not None else Topology()

    def _latest_catalog(self) -> Catalog:
        history = History()

        def part(key: bytes) -> bytes | None:
            entry = self._read(key, self.state.latest)
            return None if entry is None else entry.value

        for _ in replay(read_log(self.entries(UPDATE_PREFIX), parts=part), history):
            pass
        return history.latest

    def _watermark(self) -> WatermarkStatus | None:
        """Where it stood, and where it would have been by the metastore's time; no holders."""
        settings, found = self._settings(), self._read(WATERMARK_KEY, self.state.latest)
        if settings is None:
            return None
        time_ms = 0 if found is None else millis_of(read_watermark(found.value))
        known_ms = millis_of(self.state.time)
        altered = self._read(HISTORY_KEY, self.state.latest)
        founded_ms = settings.watermark_availability_ms
        behind_ms = founded_ms if altered is None else read_history(altered.value)
        goal_ms = max(known_ms - behind_ms, time_ms)
        return WatermarkStatus(time_ms=time_ms, goal_ms=goal_ms, holders=())

    def _tables(self, trying: Trying) -> list[TablePart]:
        """What its copies of partitions hold; those that can't be read are a problem."""
        states: list[tuple[TableId, PartitionState]] = []
        for log in self._whole_log.groups():
            place = parse_group_name(log.name)
            if place is not None and log.meta:
                state = trying.get(f"group {log.name}", lambda log=log: self._partition(log), None)  # type: ignore[misc]
                if state is not None:
                    states.append((place[0], state))
        if not states:
            return []
        now_ms = millis_of(self.state.time)
        return parts_of(self._latest_catalog(), states, now_ms=now_ms)

    def _homes(self) -> list[Home]:
        """Of all tables, without nodes: how partitions are there, a directory can't tell."""
        if self._catalog() is None:
            return []
        return homes_of(self._latest_catalog(), lambda table, number: ())

    def _partition(self, log: GroupLog) -> PartitionState:
        machine = PartitionMachine()
        replay = _Replay(self._identity.number, log, machine)
        replay.run()
        if replay.problem:
            raise Unavailable(replay.problem)
        return machine.state

    def status(self) -> Status:
        """As this node knew it; who is up, a directory can't tell."""
        state, replay = self.state, self._replay
        trying = Trying()
        nothing: list[TablePart] = []
        nowhere: list[Home] = []
        known = Known(
            source=f"directory {self._path}",
            settings=trying.get("the cluster's settings", self._settings, None),
            nodes=trying.get("the nodes", self._nodes, []),
            topology=trying.get("the topology", self._topology, Topology()),
            topology_is_current=False,
            metastore=MetastoreStatus(
                revision=state.latest,
                compacted=state.compacted,
                time_ms=millis_of(state.time),
                keys=len(state.keys),
                live_entries=len(state.live),
                watches=0,
                leases=tuple(
                    lease_row(state.leases[name], now=state.time) for name in sorted(state.leases)
                ),
            ),
            catalog=trying.get("the catalog", self._catalog, None),
            tables=trying.get("the tables", lambda: self._tables(trying), nothing),
            homes=trying.get("the tables", self._homes, nowhere),
            watermark=trying.get("the low watermark", self._watermark, None),
            draining=draining_in(state),
        )
        copy = Copy(
            GROUP,
            self._identity.number,
            "stopped",
            replay.hard_term,
            0,
            tuple(sorted(replay.members.voters)),
            tuple(sorted(replay.members.learners)),
            replay.committed,
            replay.applied,
            "stopped",
            self.problem or trying.problem or self.doubt,
            (),
        )
        others = {node.number for node in known.nodes} - {self._identity.number}
        known = replace(known, problems=dict.fromkeys(others, "it was not asked"))
        return merged(known, [copy])


class _Replay:
    """Brings a machine as far as entries are known to be committed."""

    def __init__(
        self, node: int, log: GroupLog, machine: MetastoreMachine | PartitionMachine
    ) -> None:
        meta = GroupMeta.decode(log.meta)
        self._node = node
        self._log = log
        self._machine = machine
        self.members = membership.restore(meta.founders)
        self.hard_term = meta.hard.term
        self.committed = meta.hard.commit
        self.applied = 0
        self.error: LowmarkError | None = None
        self._founded = False

    def run(self) -> None:
        """As far as it goes."""
        snapshot = self._log.snapshot
        if snapshot is not None:
            needed, have = snapshot.meta.machine_version, self._machine.newest_version
            if needed > have:
                raise MachineTooOld(self._log.name, needed=needed, have=have)
            self._machine.restore(self._log.read_snapshot(), needed)
            self.members = membership.restore(SnapshotMembers.decode(snapshot.meta.members).members)
            self.applied, self._founded = snapshot.meta.index, True
        last = self._log.last_index
        self.committed = max(min(self.committed, last), self.applied)
        try:
            while self.applied < last:
                for entry in self._page(last):
                    if entry.index > self.committed and not self._alone:
                        return
                    self._apply(entry)
        except LowmarkError as error:
            self.error = error  # what is behind a damaged entry can't be known

    @property
    def problem(self) -> str:
        """Why it did not come further, if so."""
        return self.error.message if self.error is not None else ""

    @property
    def _alone(self) -> bool:
        """Whether no other member need agree."""
        return self.members.voters == {self._node}

    def _page(self, last: int) -> Sequence[RaftEntry]:
        found = self._log.read_range(self.applied + 1, last, bytes_max=_READ_BYTES)
        invariant(found, "there are entries up to the last one")
        return [raft_entry(entry) for entry in found]

    def _apply(self, entry: RaftEntry) -> None:
        data = entry.data
        if entry.kind is not EntryKind.NORMAL:
            self._change(entry)
        elif data:
            match data[0]:
                case envelope.COMMAND:
                    command = envelope.open_command(data)
                    self._machine.apply(entry.index, command.time, command.data)
                case envelope.COPY:
                    self._machine.moved(envelope.old_index_of(data), entry.index)
                case envelope.VERSION:
                    self._upgrade(envelope.version_of(data))
                case envelope.FOUNDING:
                    if not self._founded:
                        self._founded = True
                        self.members = membership.restore(envelope.founders_of(data))
                case envelope.RESET:
                    self._founded = True
                    self.members = membership.restore(envelope.reset_of(data))
                case kind:
                    raise EntryTooNew(self._log.name, index=entry.index, kind=kind)
        self.applied = entry.index
        self.committed = max(self.committed, entry.index)

    def _change(self, entry: RaftEntry) -> None:
        with contextlib.suppress(MembershipRefused):  # as all members did
            change = membership.ConfChange.decode(entry.data)
            self.members, _ = membership.members_after(self.members, change, index=entry.index)

    def _upgrade(self, version: int) -> None:
        if version > self._machine.newest_version:
            have = self._machine.newest_version
            raise MachineTooOld(self._log.name, needed=version, have=have)
        self._machine.upgrade(version)
