"""What clients ask a node, and what it answers: the bodies of its actions, and of their results.

All are JSON; bytes (keys and values) are base64 in it. An action's name, what it takes, what it
gives; `*` marks a stream of several results:

    status                 Nothing         Status, merged of what all nodes say
    cluster.peer-address   Nothing         PeerAddress
    meta.get               GetAsk          GetReply
    meta.range             RangeAsk        RangePage *
    meta.history           HistoryAsk      HistoryPage *
    meta.watch             WatchAsk        WatchStarted, then WatchEvent or WatchAlive *
    meta.put               PutAsk          WrittenReply
    meta.remove            RemoveAsk       WrittenReply
    catalog.execute        ExecuteAsk      ExecutedReply

Times are in milliseconds since 1970.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from ipaddress import ip_address

import msgspec

from lowmark.errors import Rejected
from lowmark.runtime import AddressInUse, AddressUnusable, host_and_port

# Where a node listens: an endpoint for clients, and a port for other nodes.
#
# One address is enough for a person to remember: the endpoint. Other nodes use the next port,
# unless told otherwise, and a node that joins asks the endpoint where that is.

DEFAULT_ENDPOINT = "127.0.0.1:6570"


class NotLoopback(Rejected):
    """An address that other machines can reach."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the address {address} is not a loopback address",
            detail="It has no TLS and asks for no token yet: only this machine may reach it.",
            hint="Use 127.0.0.1 or [::1].",
        )


def check_loopback(address: str) -> str:
    """The address, with `localhost` as a number; refused if another machine could reach it."""
    host, port = host_and_port(address)
    if host == "localhost":
        return joined("127.0.0.1", port)
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise NotLoopback(address)
    return joined(host, port)


def peers_beside(endpoint: str) -> str:
    """Where other nodes reach a node by default: the port after the endpoint's."""
    host, port = host_and_port(endpoint)
    if port == 65_535:
        raise AddressUnusable(endpoint, reason="there is no next port for other nodes")
    return joined(host, port + 1 if port else 0)


def joined(host: str, port: int) -> str:
    """Host and port as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_free(address: str) -> None:
    """Say by name that a process listens there already: the server itself can't tell."""
    host, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(address) from error
            raise AddressUnusable(address, reason=error.strerror or str(error)) from error


BODY_BYTES_MAX = 10 << 20
"""The largest value, in base64, and its key."""


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


# -- the cluster --------------------------------------------------------------------------------


class PeerAddress(_Reply, frozen=True):
    """Where other nodes reach a node."""

    address: str
    cluster: str = ""
    """The id of its cluster; empty until it belongs to one."""
    ledgers: str | None = None
    """Where the cluster has its ledgers: a node that joins must see that place. Empty, as long as
    this node has not found out; None, if it does not say."""


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
    """None: unknown, from a data directory or at a node that can't read its copy."""
    role: str
    """In the metastore: `coordinator`, `voter`, `learner`, or nothing yet."""
    endpoint: str = msgspec.field(name="door")
    address: str
    rack: str = ""
    attributes: dict[str, str] = {}
    problem: str = ""
    """Why it did not answer, if it is up and did not; else what it says is wrong with it."""


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
    """`cursor-pins`, `cursor-waits`, `cursor-overdue`, `watermark-held` or `replicas-missing`."""
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
