"""What clients ask a node, and what it answers: the bodies of its actions, and of their results.

All are JSON; bytes (keys and values) are base64 in it. An action's name, what it takes, what it
gives; `*` marks a stream of several results:

    status                 Nothing         Status, merged of what all nodes say
    cluster.peer-address   Nothing         PeerAddress
    node.guard             Nothing         GuardReply
    meta.get               GetAsk          GetReply
    meta.range             RangeAsk        RangePage *
    meta.history           HistoryAsk      HistoryPage *
    meta.watch             WatchAsk        WatchStarted, then WatchEvent or WatchAlive *
    meta.put               PutAsk          WrittenReply
    meta.remove            RemoveAsk       WrittenReply
    catalog.execute        ExecuteAsk      ExecutedReply
    rebalance.status       Nothing         RebalanceReply
    rebalance.plan         PlanAsk         PlanReply
    rebalance.change       ChangeAsk       RebalanceSettings
    rebalance.cancel       CancelAsk       CancelledReply
    node.drain             DrainAsk        DrainReply
    node.remove            RemoveNodeAsk   NodeReply
    node.replacement       ReplaceAsk      ReplaceReply (`replacements`)
    zone.baseline          BaselineAsk     BaselineReply
    catalog.compact        CompactCatalogAsk Round
    catalog.rounds         Nothing         RoundsReply
    partition.list         PartitionsAsk   PartitionsReply
    partition.reset        ResetAsk        ResetReply
    partition.rebuild      RebuildAsk      RebuildRow, any number
    log.compact            CompactLogAsk   CompactedRow, any number
    log.rewrite            RewriteLogAsk   RewrittenRow, any number

Times are in milliseconds since 1970.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from lowmark.formatting import counted

HEADER: Final = "lowmark-errors"
WHOLE: Final = "json"
ASKS_FOR_WHOLE: Final = [(HEADER.encode(), WHOLE.encode())]
"""What our clients send with every call."""

BODY_BYTES_MAX = 16 << 20
"""More than the largest value, in base64, and its key."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client sends: a misspelt field is refused, never ignored."""


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a node sends: a newer one may say more."""


class Nothing(_Body, frozen=True):
    """Nothing to say."""


# -- the catalog --------------------------------------------------------------------------------


class ExecuteAsk(_Body, frozen=True):
    """Commands, all or none of which are carried out, as `catalog.commands` reads them."""

    commands: list[dict[str, object]]


class ExecutedReply(_Reply, frozen=True):
    """They are done, and in force on every node."""

    version: int
    active_from_ms: int
    applied: tuple[bool, ...]
    """Which of them changed something."""


# -- the metastore ------------------------------------------------------------------------------


class StoredEntry(_Reply, frozen=True):
    """A key as one revision left it."""

    key: bytes
    revision: int
    """The one that wrote it."""
    time_ms: int
    time: int
    """The same as a hybrid time: 48 bits of milliseconds, 16 of a counter."""
    removed: bool = False
    created: int = 0
    version: int = 0
    """How often it was written since it was created; 0 if it was removed."""
    size: int = 0
    value: bytes | None = None
    """None if it was removed, or not asked for."""


class GetAsk(_Body, frozen=True):
    """One key, now or as of a revision."""

    key: bytes
    at: int | None = None


class GetReply(_Reply, frozen=True):
    """The entry, if the key has a value."""

    revision: int
    entry: StoredEntry | None


class RangeAsk(_Body, frozen=True):
    """Keys that begin so, in order."""

    prefix: bytes = b""
    at: int | None = None
    limit: int | None = None
    keys_only: bool = False


class RangePage(_Reply, frozen=True):
    """Some of them; all pages of one answer are as of the same revision."""

    revision: int
    entries: tuple[StoredEntry, ...]


class HistoryAsk(_Body, frozen=True):
    """All that is known of one key."""

    key: bytes


class HistoryPage(_Reply, frozen=True):
    """Some of it, oldest first."""

    revision: int
    compacted: int
    entries: tuple[StoredEntry, ...]


class WatchAsk(_Body, frozen=True):
    """Changes of keys that begin so, from a revision on; without one, from now on."""

    prefix: bytes = b""
    from_revision: int | None = None


class WatchStarted(_Reply, frozen=True, tag="started"):
    """The watch stands: the first revision that it will look at."""

    from_revision: int


class WatchAlive(_Reply, frozen=True, tag="alive"):
    """Nothing has happened. It comes so often that both sides notice soon when the other is gone,
    and that a person can interrupt who waits.
    """


class WatchEvent(_Reply, frozen=True, tag="event"):
    """All that one revision changed, as far as it was asked for."""

    revision: int
    time_ms: int
    changes: tuple[StoredEntry, ...]


class PutAsk(_Body, frozen=True):
    """Give a key a value."""

    key: bytes
    value: bytes


class RemoveAsk(_Body, frozen=True):
    """Take a key's value away."""

    key: bytes


class WrittenReply(_Reply, frozen=True):
    """What became of it."""

    revision: int
    time_ms: int
    changed: bool


# -- moving partitions ----------------------------------------------------------------------------


class RebalanceSettings(_Reply, frozen=True):
    """How moves are made, until an operator says otherwise."""

    paused: bool
    bytes_per_s: int | None
    """What each node sends to copies that are behind, at most; 0: as fast as it goes; None: as its
    own settings say.
    """


class MoveRow(_Reply, frozen=True):
    """The move of one partition."""

    table: str
    partition: int
    stage: str
    """`waiting`, `copying`, `switching`, `failed`, `paused` or `no leader`."""
    stable: tuple[str, ...]
    """The nodes that it is on, by name."""
    pending: tuple[str, ...]
    planned: tuple[str, ...] = ()
    leader: str = ""
    bytes_done: int = 0
    bytes_left: int = 0
    bytes_per_s: float = 0.0
    seconds_left: float | None = None
    reason: str = ""
    """What keeps it from getting on, and which node, if anything does."""
    attempts: int = 0
    """How often it has failed in a row; 0: it has not, but may stand still."""
    failing_ms: int = 0
    """For how long it has not got on."""
    alarm: bool = False
    """Whether that has lasted for so long that a person should look."""


class StuckDrain(_Reply, frozen=True):
    """A zone whose partitions can't leave a node that is drained: there is no other node for it."""

    node: str
    zone: str
    partitions: int
    """This many of them are on the node."""
    reason: str
    hint: str

    @property
    def text(self) -> str:
        """All of it."""
        left = counted(self.partitions, "partition")
        return (
            f"{left} of zone {self.zone} can't leave node {self.node}: {self.reason}. {self.hint}"
        )


class RebalanceReply(_Reply, frozen=True):
    """What moves."""

    settings: RebalanceSettings
    draining: tuple[str, ...]
    """The nodes that are drained."""
    moves: tuple[MoveRow, ...]
    silent: tuple[str, ...] = ()
    """The nodes that are up and did not answer: what they lead is shown without figures."""
    stuck: tuple[StuckDrain, ...] = ()
    """What can't leave nodes that are drained."""


class NewNode(_Body, frozen=True):
    """A node that could join."""

    name: str
    rack: str = ""
    attributes: dict[str, str] = {}


class PlanAsk(_Body, frozen=True):
    """What would move if nodes came and went, or zones had other replicas?"""

    add: tuple[NewNode, ...] = ()
    remove: tuple[str, ...] = ()
    replicas: dict[str, int] = {}


class PlannedRow(_Reply, frozen=True):
    """What would become of one partition."""

    table: str
    partition: int
    now: tuple[str, ...]
    then: tuple[str, ...]
    bytes: int
    """Of its backlog, which each node that gets a copy is sent."""


class PlanReply(_Reply, frozen=True):
    """What would move."""

    moves: tuple[PlannedRow, ...]
    replicas: int
    """This many copies would be made."""
    bytes: int
    """This much would be sent."""
    warnings: tuple[str, ...]


class ChangeAsk(_Body, frozen=True):
    """Pause moves or have them go on; limit what each node sends. None leaves it as it is."""

    paused: bool | None = None
    bytes_per_s: int | None = None


class CancelAsk(_Body, frozen=True):
    """Have partitions stay where they are: one, those of a table, or all that move."""

    table: str | None = None
    partition: int | None = None


class PartitionName(_Reply, frozen=True):
    """A partition, for people."""

    table: str
    partition: int


class CancelledReply(_Reply, frozen=True):
    """What became of the moves."""

    cancelled: tuple[PartitionName, ...]
    too_late: tuple[PartitionName, ...]
    """They are being put in force, or are done."""


class DrainAsk(_Body, frozen=True):
    """Have all partitions leave a node, by name or number; or let it have some again."""

    node: str
    stop: bool = False
    look: bool = False
    """Only say how far it is."""


class DrainReply(_Reply, frozen=True):
    """What a node still has."""

    node: str
    draining: bool
    partitions: int
    """The partitions that it has, or is to have."""
    leads: int
    """Those of them that it leads, as far as it answered."""
    bytes_left: int
    """What the moves away from it have to send, as far as leaders answered."""
    stuck: tuple[StuckDrain, ...] = ()
    """What can't leave it."""


class RemoveNodeAsk(_Body, frozen=True):
    """Take a node out of the cluster, for good, by name or number."""

    node: str


class ReplaceAsk(_Body, frozen=True):
    """What does a node leave behind, by name or number? Nothing is changed."""

    node: str
    tries: bool = True
    """Whether nodes that are up also try to reach it."""


class NodeReply(_Reply, frozen=True):
    """The node."""

    node: str
    number: int
    keep: str = ""
    """Where the cluster's ledgers are, if that is in this node's directory: keep it."""


class BaselineAsk(_Body, frozen=True):
    """Name the nodes of a zone; or let them come and go by themselves (`auto`); or look."""

    zone: str
    nodes: tuple[str, ...] = ()
    auto: bool = False


class BaselineReply(_Reply, frozen=True):
    """The nodes of a zone."""

    zone: str
    nodes: tuple[str, ...]
    replicas: int
    chosen: bool
    """Whether an operator has named them."""


# -- the cluster --------------------------------------------------------------------------------


class PeerAddress(_Reply, frozen=True):
    """Where other nodes reach a node."""

    address: str
    cluster: str = ""
    """The id of its cluster; empty until it belongs to one."""
    ledgers: str | None = None
    """Where the cluster has its ledgers: a node that joins must see that place. Empty, as long as
    this node has not found out; None, if it does not say."""
    tls: str = ""
    """Whether it speaks TLS with other nodes: `require`, with those alone that do; `allow`, with
    others, too; empty, not at all.
    """


class GuardReply(_Reply, frozen=True):
    """What keeps strangers out of the node that answers."""

    open_at: tuple[str, ...] = ()
    """The addresses at which nothing does (`--insecure`)."""


class ClusterStatus(_Reply, frozen=True):
    """What was settled when the cluster was founded."""

    id: str
    members: int
    schema_sync_delay_ms: int
    clock_max_skew_ms: int
    topology_version: int


class NodeRow(_Reply, frozen=True):
    """A node that belongs to the cluster."""

    number: int
    name: str
    up: bool | None
    """Whether its lease is in force, which outlives a node that was killed for a while. None:
    unknown, from a data directory or at a node that can't read its copy."""
    role: str
    """In the metastore: `coordinator`, `voter`, `learner`, or nothing yet."""
    endpoint: str = msgspec.field(name="door")
    address: str
    rack: str = ""
    attributes: dict[str, str] = {}
    draining: bool = False
    """Whether its partitions are to leave it."""
    problem: str = ""
    """Why it did not answer, if it is up and did not; else what it says is wrong with it."""
    silent_ms: int | None = None
    """For how long the node that was asked has heard nothing of it, if it did not answer; 0: it
    did, or is the one that was asked. None: nothing is known."""


class MemberRow(_Reply, frozen=True):
    """One copy of a group; what no node could say is None."""

    node: int
    name: str
    role: str
    """`leader`, `voter` or `learner`."""
    applied: int | None = None
    committed: int | None = None
    entries_behind: int | None = None
    """What the leader has and this one has not acknowledged."""
    bytes_behind: int | None = None
    seconds_left: float | None = None
    problem: str = ""


STATES = ("available", "degraded", "read-only", "unavailable")
"""Of a group, from the best to the worst; see `GroupRow.state`."""


class GroupRow(_Reply, frozen=True):
    """A group, as its leader sees it; without one, as those members see it that answered; and if
    none did, with the members that it is assigned to.
    """

    group: str
    leader: int
    leader_name: str
    term: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    stage: str
    members: tuple[MemberRow, ...]
    state: str = ""
    """available: all voters are sound; degraded: some are not, a majority is; read-only: without a
    majority that is sound nothing can be changed; unavailable: no copy is sound.
    """


class LeaseRow(_Reply, frozen=True):
    """The lease of a node that is up, and may hold revisions."""

    name: str
    hold: int
    """The first revision whose changes it needs; 0 for none."""
    why: str
    expires_at_ms: int
    expired: bool


class MetastoreStatus(_Reply, frozen=True):
    """Where the metastore is, at the node that answered."""

    revision: int
    compacted: int
    time_ms: int
    keys: int
    live_entries: int
    watches: int
    leases: tuple[LeaseRow, ...]


class CatalogStatus(_Reply, frozen=True):
    """Which versions of the catalog there are, at the node that answered."""

    version: int
    earliest: int
    problem: str = ""
    """Why it goes no further, if it does not."""


class TableRow(_Reply, frozen=True):
    """A table of the catalog; figures as far as the nodes that lead its partitions answered."""

    name: str
    partitions: int
    """Of the whole table; 0 if it was dropped, and is kept for reads as of earlier times."""
    here: int
    """The partitions that are counted in what follows."""
    rows: int
    """Of the backlog: what a ledger has besides is not counted."""
    bytes: int
    """Of the same rows."""
    cursors: int
    id: int = 0
    state: str = ""
    """The worst that a partition is in (`GroupRow.state`); empty if none is known."""


class HolderRow(_Reply, frozen=True):
    """A holder that keeps history exact from a time on."""

    holder: str
    time_ms: int
    since_ms: int
    why: str


class WatermarkStatus(_Reply, frozen=True):
    """Where the low watermark is, at the node that answered."""

    time_ms: int
    """0: it was never moved."""
    goal_ms: int
    """Where it would be without holders."""
    holders: tuple[HolderRow, ...]
    """The earliest first."""


class WarningRow(_Reply, frozen=True):
    """Something that a person should look at."""

    kind: str
    """`cursor-pins`, `cursor-waits`, `cursor-overdue`, `watermark-held`, `replicas-missing`,
    `move-failing`, `clock`, `times-ahead`, `insecure`, `no-tokens` or `certificate`.
    """
    text: str
    table: str = ""
    holder: str = ""


class Status(_Reply, frozen=True):
    """All that `lowmark status` shows."""

    source: str
    """Who says so: a node by name, or a data directory."""
    cluster: ClusterStatus | None
    nodes: tuple[NodeRow, ...]
    groups: tuple[GroupRow, ...]
    metastore: MetastoreStatus | None
    catalog: CatalogStatus | None = None
    tables: tuple[TableRow, ...] = ()
    watermark: WatermarkStatus | None = None
    warnings: tuple[WarningRow, ...] = ()
    insecure: tuple[str, ...] = ()
    """The nodes, by name, at which strangers can come in (`--insecure`), as far as they answered;
    empty also if the one that was asked is of an earlier release."""


# -- compaction of the catalog --------------------------------------------------------------------


class CompactCatalogAsk(_Body, frozen=True):
    """Cut the catalog's history as far as nothing needs it."""

    dry_run: bool = False
    """Only say how far that would be, and what holds the rest."""


# -- partitions, and those whose majority is lost -----------------------------------------------


class PartitionsAsk(_Body, frozen=True):
    """The partitions of a table, or of all tables."""

    table: str | None = None


class PartitionRow(_Reply, frozen=True):
    """Where one partition is; nodes are given by name."""

    table: str
    partition: int
    leader: str
    """Empty if no node leads it, or none that answered knows."""
    stable: tuple[str, ...]
    """The nodes that hold it."""
    pending: tuple[str, ...] = ()
    """The nodes that it is moving to, if it moves."""
    planned: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    """Those of stable and pending that are down."""
    state: str = ""
    """See `GroupRow.state`."""


class PartitionsReply(_Reply, frozen=True):
    """Partitions, by table and number."""

    partitions: tuple[PartitionRow, ...]


class ResetAsk(_Body, frozen=True):
    """Have one copy of a partition go on alone; its other nodes are lost for good."""

    table: str
    partition: int
    node: str
    """The node that has the copy, by name or number."""
    lost: tuple[str, ...]
    """All other nodes of the partition, by name or number."""
    dry_run: bool = False
    """Only say how things are, and whether it would be refused."""


class ReplicaRow(_Reply, frozen=True):
    """One node that should hold a partition, and how far its copy is."""

    node: str
    up: bool
    lease: bool
    """Whether its lease is not over yet: it may still be running."""
    rows: int | None = None
    """Its copy has applied the rows below this offset; None if the node did not answer, or has no
    copy."""
    more_rows: int | None = None
    """At most this many more rows are in entries that the copy has and did not apply, because it
    does not know that they are committed; None if there are too many to count."""
    last_term: int | None = None
    """The term of the last entry of its copy: the copy with the highest has the newest entries."""
    last_index: int | None = None
    """The last entry of its copy; of several with the same term, the highest has the most."""
    committed: int | None = None
    """Up to here the copy knows that entries are committed."""
    problem: str = ""


class ResetReply(_Reply, frozen=True):
    """What became of a reset, or of the question whether it could be made."""

    table: str
    partition: int
    node: str
    replicas: tuple[ReplicaRow, ...]
    """As they were before."""
    done: bool
    refused: str = ""
    """Why it would be refused; only in a dry run."""
    hint: str = ""
    rows: int = 0
    """Rows below this offset were kept."""
    kept: int = 0
    """The last entry of the copy; all up to it are kept."""
    committed: int = 0
    """Up to here the copy knew that entries were committed."""
    lost: tuple[str, ...] = ()
    """The nodes that are members no more."""
    drained: tuple[str, ...] = ()
    """The nodes that get no partitions any more, until they are filled again or removed."""


# -- logs of groups -----------------------------------------------------------------------------


class CompactLogAsk(_Body, frozen=True):
    """Run phases 1 and 3 of groups of the node that is asked, now; of all of them by default."""

    table: str | None = None
    partition: int | None = None
    meta: bool = False
    """Of the metastore only."""
    snapshot: bool = False
    """Take a snapshot first: only what it covers can be freed."""
    dry_run: bool = False


class KeptRow(_Reply, frozen=True):
    """Segments that stay for one reason; a segment may have several."""

    reason: str
    segments: int
    bytes: int


class CompactedRow(_Reply, frozen=True):
    """What became of one group; several come of each, the last one is `done`."""

    group: str
    done: bool
    """False: this is how far it is."""
    result: str
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_freed: int
    merges: int
    bytes_copied: int
    wal_bytes: int
    """Not in segments yet: nothing of it is freed."""
    table: str = ""
    partition: int | None = None
    kept: tuple[KeptRow, ...] = ()


class RewriteLogAsk(_Body, frozen=True):
    """Have the leaders of a table's partitions rewrite scattered live entries."""

    table: str
    partition: int | None = None
    bytes_per_s: int | None = None
    """None: as the leader's settings say (`group.rewrite_bytes_per_s`); 0: no limit."""
    dry_run: bool = False


class RewrittenRow(_Reply, frozen=True):
    """What became of one partition; several come of each, the last one is `done`."""

    table: str
    partition: int
    node: str
    """The node that leads it."""
    done: bool
    stage: str
    """`rewriting`, `snapshot`, `compacting`; then `done`, `failed`, or `planned` by a dry run."""
    planned: int
    """Scattered entries that were found."""
    rewritten: int
    bytes_rewritten: int
    bytes_before: int
    bytes_freed: int
    """Of segments that were there at the beginning, on the leader's disk."""
    problem: str = ""
    hint: str = ""


class RebuildAsk(_Body, frozen=True):
    """Have a damaged copy of a partition thrown away, and made anew from the others."""

    table: str
    partition: int
    node: str | None = None
    """The node whose copy it is, by name or number; None: the node that is asked."""
    dry_run: bool = False


class RebuildRow(_Reply, frozen=True):
    """How far a copy is that is made anew; the last one is `done`."""

    table: str
    partition: int
    node: str
    done: bool
    stage: str
    """`planned` by a dry run; `asking` to be added again, `learner`, `voter`; or `failed`."""
    cause: str
    """Why the copy was in quarantine."""
    incarnation: int
    """Of the copy; the new one has a higher one as soon as it was added."""
    applied: int
    rows: int
    """Rows below this offset are there."""
    leader: str = ""
    others: tuple[str, ...] = ()
    """The nodes that it is made from."""
    problem: str = ""
    """Why it does not get on, if it does not."""


# -- what an action does --------------------------------------------------------------------------

LOOKS: Final = frozenset(
    {
        "status",
        "cluster.peer-address",
        "node.guard",
        "meta.get",
        "meta.range",
        "meta.history",
        "meta.watch",
        "node.replacement",
        "rebalance.status",
        "rebalance.plan",
        "catalog.rounds",
        "partition.list",
        "token.list",
    }
)
"""Actions that change nothing: they may be asked again."""
CHANGES: Final = frozenset(
    {
        "meta.put",
        "meta.remove",
        "catalog.execute",
        "catalog.compact",
        "rebalance.change",
        "rebalance.cancel",
        "node.drain",
        "node.remove",
        "zone.baseline",
        "partition.reset",
        "partition.rebuild",
        "log.compact",
        "log.rewrite",
        "token.create",
        "token.revoke",
        "pass.make",
        "pass.renew",
        "pass.end",
    }
)
"""Actions that must not be repeated without a look, unless they are asked to look only."""


def only_looks(action: str, body: bytes) -> bool:
    """Whether an action changes nothing as it is asked here. One that is in neither list, or whose
    body can't be read, may change something.
    """
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        if action == "catalog.compact":
            return msgspec.json.decode(body, type=CompactCatalogAsk).dry_run
        if action == "node.drain":
            return msgspec.json.decode(body, type=DrainAsk).look
        if action == "zone.baseline":
            asked = msgspec.json.decode(body, type=BaselineAsk)
            return not asked.auto and not asked.nodes
    return action in LOOKS
