"""The port: everything that the API and compaction ask of a database.

Arguments and answers are data: frozen values, Arrow and bytes, iterators. No code crosses it, no
future, and nothing that belongs to a node. Whatever a partition must decide together with its state
goes as a command with a name (`propose`), or comes back as one value (`status`, `hold`).

Every call may come from any thread. It takes `timeout_s`, which is for the whole of it, however
many questions it asks; without one, it waits for as long as the database lets a request wait. What
happens to a call whose answer is lost is its retry class:

    safe        nothing changes, or a repeat changes nothing more: ask again
    numbered    the batches of an appender have numbers: a repeat is stored once
    unknown     it may have been done: look before you ask again (`OutcomeUnknown`)

`RETRY` says which call is which; `retry_of` does so of a call with what it is asked. A call or an
action that no list names is `unknown`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from lowmark.backend.values import (
    Answer,
    BatchRange,
    DatabaseInfo,
    Found,
    Held,
    Hold,
    Moment,
    PartitionStatus,
    ReadRange,
)
from lowmark.catalog import Catalog, Command, Executed, TableId
from lowmark.group import Lineages
from lowmark.ids import METASTORE, PARTITIONS, group_name
from lowmark.ledger import Tail
from lowmark.metastore import Condition, Entry, Operation
from lowmark.node.messages import only_looks
from lowmark.runtime import Buffer
from lowmark.runtime.store import Store
from lowmark.table import Advanced, Control, Outcome, Outgoing, View, WatermarkStanding

Retry: TypeAlias = Literal["safe", "numbered", "unknown"]


class Sent(Protocol):
    """Rows that were handed over, and whose answers may not all be there."""

    @property
    def bytes(self) -> int:
        """What they have in the log."""

    @property
    def done(self) -> bool:
        """Whether the answers are there."""

    def answers(self, timeout_s: float | None = None) -> list[Answer] | None:
        """One for each part, in order; None if they are not there in time."""


class Appender(Protocol):
    """One producer's way into one table: its batches are numbered, and stored once and in order."""

    def send(self, parts: Sequence[tuple[int, Outgoing]]) -> Sent:
        """Hand over batches for partitions; returns before they are stored."""


class Backend(Protocol):
    """A database, wherever it is."""

    # -- the database itself --------------------------------------------------------------------

    @property
    def info(self) -> DatabaseInfo:
        """What is settled of it."""

    @property
    def lineages(self) -> Lineages:
        """The latest resets of groups that were heard of, in any answer: what is older is not
        given. A caller that has heard of others says so here (`learn`).
        """

    @property
    def open_at(self) -> tuple[str, ...]:
        """The addresses at which strangers can come in, at the process that answers."""

    @property
    def caller(self) -> str:
        """The name of the token that lets this client in; empty: none is asked for."""

    @property
    def closed(self) -> bool:
        """Whether it was closed here, or belongs to another process."""

    def check(self) -> None:
        """Raise if it can't be asked any more: it was closed, has failed, or the process forked."""

    def close(self) -> None:
        """End it; whatever is under way ends with a named error. Closing twice is fine."""

    def now(
        self, table: TableId | None = None, *, known: int = 0, timeout_s: float | None = None
    ) -> Moment:
        """A time above every one that this caller was given; with a table, above all of its rows.

        `known`: a time that another caller was given, at another node perhaps. It is followed as
        far as clocks may differ; one that is later than that is yet to come.
        """

    # -- the catalog ----------------------------------------------------------------------------

    def catalog(self, *, fresh: bool = False) -> Catalog:
        """The newest version that is in force here; the same object until there is a newer one.

        A database at a distance may be a moment behind, unless it is to be `fresh`. Of one that
        was closed, the last one.
        """

    def catalog_at(self, time: int, *, timeout_s: float | None = None) -> Catalog:
        """The version that was in force at a time."""

    def execute(self, commands: Sequence[Command], *, timeout_s: float | None = None) -> Executed:
        """Change the catalog: all commands or none; it is in force here when this returns."""

    def dropped_at(self, table: TableId) -> int | None:
        """Since when a table is no more; None: it is there, or was never heard of."""

    # -- the low watermark ----------------------------------------------------------------------

    def watermark(
        self, *, latest: bool = False, timeout_s: float | None = None
    ) -> WatermarkStanding:
        """Where it is as far as this node knows; `latest`, as the metastore knows."""

    def advance_watermark(
        self, to: int | None = None, *, timeout_s: float | None = None
    ) -> Advanced:
        """Move it to where it should be by now, or to a time, as far as its holders allow."""

    def hold_history(
        self,
        time: int,
        why: str,
        *,
        hold: Hold | None = None,
        timeout_s: float | None = None,
    ) -> Hold:
        """Keep answers as of a time exact until the hold is released.

        A caller that may have to ask again draws the `hold` itself (`Hold.drawn`): if it is there
        already, a repeat gives the same one.
        """

    def history_lost(self, hold: Hold, *, timeout_s: float | None = None) -> int | None:
        """Where the watermark is, if it has passed the time of that hold; else None.

        Raises `HoldUnknown`, if there is no such hold any more: then history may be lost, too.
        """

    # -- rows in --------------------------------------------------------------------------------

    def appender(self, table: TableId, *, producer: bytes, epoch: int = 0) -> Appender:
        """A producer's way in. A higher epoch of the same producer fences off lower ones."""

    def epoch_of(
        self,
        table: TableId,
        producer: bytes,
        *,
        partitions: Collection[int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """The newest epoch that is known of a producer, in all partitions or in these; 0: it is not
        known. One above it is begun by `Fence`: its caller has chosen it, so that a call that comes
        late, or twice, begins no newer one.
        """

    # -- rows out -------------------------------------------------------------------------------

    def view(
        self,
        table: TableId,
        partition: int,
        *,
        latest: bool = False,
        timeout_s: float | None = None,
    ) -> View:
        """The backlog as it is known here now: cheap, and perhaps behind; `latest`, with all that
        was acknowledged before.
        """

    def views(
        self,
        table: TableId,
        partitions: Collection[int],
        *,
        closed_at: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, View]:
        """Backlogs with all that was acknowledged before; with a time, once no row at or below it
        can come any more.
        """

    def status(
        self,
        table: TableId,
        partitions: Collection[int] | None = None,
        *,
        latest: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, PartitionStatus]:
        """Where partitions stand, with all that was acknowledged before; not `latest`, as it is
        known here now. Without numbers: of every partition that is here, whatever its table is.
        """

    def hold(
        self,
        table: TableId,
        ranges: Mapping[int, ReadRange],
        *,
        kind: Literal["reader", "run"] = "reader",
        holder: str,
        why: str,
        hold: Hold | None = None,
        timeout_s: float | None = None,
    ) -> Held:
        """A view of partitions, with all that was acknowledged before, and a hold on it, in one
        moment.

        The batches of bounded ranges stay in the log, and so do the files of ledgers, where a
        range says so; these have holds of their own (`Held.files`). With a `hold` that was drawn
        by the caller, a repeat gives what the first call gave.
        """

    def wait(self, hold: Hold, timeout_s: float, *, seen: int = 0) -> int:
        """Return when something has changed in the partitions of a hold since a call that gave
        `seen`, or the time is over. Gives what is seen now: any number of callers may wait, and an
        answer that was lost can be asked for again. Raises why, if nothing will change in one of
        them any more. Only partitions that are followed count (`ReadRange.end`). Raises
        `HoldUnknown`, if there is no such hold any more.
        """

    def batches(
        self,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float | None = None,
    ) -> Iterator[list[Buffer]]:
        """The commands of batches, range by range, every checksum checked.

        `held` says that a hold keeps them. Raises `BatchesMoved` if they were cut meanwhile.
        `timeout_s` is for each range: its caller may take long between them.
        """

    def release(self, hold: Hold) -> None:
        """Keep nothing any more for that hold. It does not wait, and never raises; twice is
        harmless, and so is a hold that is not known.

        What was taken by `hold_files` has ended when this returns; what a view came with
        (`Held.files`) has ended when this client next asks for `files_in_use`.
        """

    # -- partitions -----------------------------------------------------------------------------

    def propose(
        self,
        table: TableId,
        commands: Mapping[int, Control],
        *,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, Outcome]:
        """Have commands carried out, one in each partition; raises the first refusal. If some could
        not be asked, and others have done it, that is `PartlyMade`, an `OutcomeUnknown`.

        A cut that freed something is followed by a snapshot, so that the log can go, too. Without
        `wait` it returns at once, with nothing, and never raises: what becomes of them is not told.
        """

    # -- ledgers and runs -----------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The files of ledgers, as they can be read from here."""

    def hold_files(self, manifests: Collection[str], *, hold: Hold | None = None) -> Hold:
        """Have no sweep remove what these manifests name, until the hold is released. (A run holds
        the name of its folder, too: so other processes know that it goes on.) With a
        `hold` that was drawn by the caller, a repeat gives the same one.
        """

    def files_in_use(self) -> frozenset[str]:
        """The manifests that holds keep; with `ALL_FILES` among them, any may be."""

    def tail(
        self,
        table: TableId,
        partition: int,
        *,
        low: int,
        high: int,
        timeout_s: float | None = None,
    ) -> Tail:
        """The batches from offset `low` to before `high` as other processes can read them: what is
        still in memory is written into segments first. A hold must keep them; raises
        `BatchesMoved` if some were cut all the same.
        """

    # -- the metastore --------------------------------------------------------------------------

    def get(self, key: bytes, *, timeout_s: float | None = None) -> Entry | None:
        """The value of a key."""

    def range(self, prefix: bytes, *, timeout_s: float | None = None) -> tuple[Entry, ...]:
        """All keys that begin with a prefix, in order."""

    def write(
        self,
        operations: Sequence[Operation],
        *,
        condition: Condition | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """Write all of it in one revision, if the condition holds; says whether it did."""

    # -- the cluster ----------------------------------------------------------------------------

    def operate(self, action: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        """Have a node carry out an action for an operator: see `operating`."""


@runtime_checkable
class LooksUp(Protocol):
    """A database at a distance finds keys where the rows are: its client has no index of them."""

    def look_up(
        self, table: TableId, keys: Sequence[int | bytes], *, timeout_s: float | None = None
    ) -> Sequence[Found | None]:
        """The last change of each key, with all that was acknowledged before; keys are given in
        their form (`KeyForm.one`). None: there is no change of it.
        """


class HasBackend(Protocol):
    """Has the backend of now: it may be replaced by another one of the same database."""

    @property
    def backend(self) -> Backend:
        """Ask for it each time."""


RETRY: Final[Mapping[str, Retry]] = {
    "now": "safe",
    "catalog": "safe",
    "catalog_at": "safe",
    "execute": "unknown",
    "dropped_at": "safe",
    "watermark": "safe",
    "advance_watermark": "safe",
    "hold_history": "safe",
    "history_lost": "safe",
    "appender": "numbered",
    "epoch_of": "safe",
    "view": "safe",
    "views": "safe",
    "status": "safe",
    "hold": "safe",
    "wait": "safe",
    "batches": "safe",
    "release": "safe",
    "propose": "unknown",
    "hold_files": "safe",
    "files_in_use": "safe",
    "tail": "safe",
    "get": "safe",
    "range": "safe",
    "write": "unknown",
    "operate": "unknown",
}
"""Of `operate`, the actions that only look are safe (`only_looks`)."""
BESIDE: Final[Mapping[str, Retry]] = {
    "endpoint_here": "safe",
    "files_here": "safe",
    "leave": "safe",
    "look_up": "safe",
    "now_here": "safe",
    "renew": "safe",
    "view_since": "safe",
}
"""What clients and nodes ask a server besides the port."""


def retry_of(name: str, arguments: Sequence[Any]) -> Retry:
    """The retry class of a call as it is asked here."""
    if name == "operate" and len(arguments) == 2 and only_looks(*arguments):
        return "safe"
    return RETRY.get(name) or BESIDE.get(name, "unknown")


# -- what is said of resets -----------------------------------------------------------------------
#
# A client says with a call which resets it has seen: of the partitions that the call is about, and
# of the metastore. The node that answers says in the same way what it has (`group.lineages`). So a
# call costs one number a partition, and mostly none, for most groups were never reset.

OF_PARTITIONS: Final = frozenset(
    {"batches", "endpoint_here", "hold", "propose", "status", "tail", "view", "view_since", "views"}
)
"""Calls with a table, and with one partition, several, or None for all."""
OF_TABLE: Final = frozenset({"appender", "dropped_at", "epoch_of", "look_up", "now", "now_here"})
"""Calls with a table; which partitions they are about, its rows say."""
OF_NONE: Final = frozenset(
    {
        "advance_watermark",
        "catalog",
        "catalog_at",
        "execute",
        "files_here",
        "files_in_use",
        "get",
        "history_lost",
        "hold_files",
        "hold_history",
        "leave",
        "operate",
        "range",
        "release",
        "renew",
        "wait",
        "watermark",
        "write",
    }
)
"""Calls of the metastore alone; and of holds: what has changed is not said, only that it has."""


def said_of(lineages: Lineages, call: str, arguments: Sequence[Any]) -> dict[str, int]:
    """What is said of resets with a call, or with its answer."""
    if not lineages:
        return {}
    table = arguments[0] if arguments else None
    if type(table) is not int or call not in OF_PARTITIONS | OF_TABLE:
        return lineages.known((METASTORE,))
    some = arguments[1] if call in OF_PARTITIONS and len(arguments) > 1 else None
    if some is None:
        return lineages.beginning(f"{PARTITIONS}{table}.") | lineages.known((METASTORE,))
    numbers: Iterable[Any] = some if isinstance(some, Collection) else (some,)
    return lineages.known([METASTORE, *(group_name(table, number) for number in numbers)])


def passed(said: Mapping[str, int], by: Mapping[str, int]) -> bool:
    """Whether more is known by now than was said."""
    return any(at > said.get(one, 0) for one, at in by.items())
