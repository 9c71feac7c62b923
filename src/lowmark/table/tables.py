"""The partitions that this node holds copies of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import chain

from lowmark.catalog import TableId
from lowmark.group import Future, Group, Groups, Lineages, PeerListener, Reset
from lowmark.holds import Hold
from lowmark.ids import group_name
from lowmark.log import GroupUnknown, Log
from lowmark.runtime import Buffer
from lowmark.table.commands import Control, encode_control
from lowmark.table.errors import PartitionNotHere
from lowmark.table.forwarding import Forwarding
from lowmark.table.partition import Partition, accepted, parse_group_name
from lowmark.table.state import Outcome

logger = logging.getLogger(__name__)


class Distant:
    """The way to a partition that has no copy here."""

    def __init__(
        self, forwarding: Forwarding, table: TableId, number: int, *, at_least: int = 0
    ) -> None:
        """`at_least`: the lineage that its caller has seen."""
        self._forwarding = forwarding
        self._at_least = at_least
        self.table = table
        self.number = number
        self.name = group_name(table, number)

    @property
    def group(self) -> Distant:
        """Itself: errors name it."""
        return self

    @property
    def replicated(self) -> bool:
        """See `Partition`."""
        return self._forwarding.copies(self.table, self.number) > 1

    def propose(self, command: Buffer, *, in_place: bool = False) -> Future[object]:
        """See `Partition`."""
        return self._forwarding.propose(self.table, self.number, command, in_place, self._at_least)

    def ask(self, command: Control) -> Future[Outcome]:
        """See `Partition`."""
        return self.propose(encode_control(command)).map(accepted)


class Tables:
    """Opens, makes and destroys copies. All calls are made on the loop."""

    def __init__(
        self,
        groups: Groups,
        log: Log,
        *,
        routes: Callable[[int, int], tuple[int, ...]] | None = None,
    ) -> None:
        """`routes` gives the nodes that a partition is on; without it, there is only this node."""
        self._groups = groups
        self._log = log
        self._partitions: dict[tuple[TableId, int], Partition] = {}
        self._distant: dict[tuple[TableId, int], Distant] = {}
        self.lineages = Lineages()
        """What this node has heard of resets: of its own copies, and in answers of other nodes."""
        self._forwarding: Forwarding | None = None
        if routes is not None:
            self._forwarding = Forwarding(
                groups, copy=self.here, routes=routes, lineages=self.lineages
            )
        self.holding_cuts: list[Callable[[Partition], Iterable[Hold]]] = []
        """What no cut that is asked for at this node may pass, beside what a partition knows: holds
        whose positions are offsets."""

    def start(
        self,
        table: TableId,
        number: int,
        *,
        members: Iterable[int],
        listener: PeerListener | None = None,
    ) -> Partition:
        """Have a copy of a partition at this node: the one that is here, or a new one.

        `members` found the group, the same on each; they say nothing to a copy that is here.
        """
        there = self._partitions.get((table, number))
        if there is not None:
            return there
        partition = self._new(table, number)
        name = group_name(table, number)
        if self._has(name):
            group = self._groups.open(
                name, partition.machine, listener=listener, observer=partition
            )
        else:
            group = self._groups.create(
                name, partition.machine, members=members, listener=listener, observer=partition
            )
        return self._opened(partition, group)

    def _new(self, table: TableId, number: int) -> Partition:
        partition = Partition(table, number, cut_holds=self._cut_holds, lineages=self.lineages)
        partition.forwards = self._forwarding
        return partition

    def _cut_holds(self, partition: Partition) -> Iterable[Hold]:
        return chain.from_iterable(holding(partition) for holding in self.holding_cuts)

    def get(self, table: TableId, number: int) -> Partition:
        """A copy that is here; if a file of it can't be read just now, the error says which."""
        partition = self._partitions.get((table, number))
        if partition is None:
            unreadable = self._log.unreadable.get(group_name(table, number))
            raise PartitionNotHere(table, number) if unreadable is None else unreadable.again()
        return partition

    def answering(self, table: TableId, number: int, at_least: int) -> Partition:
        """A copy that is here, and may answer a caller that has seen that lineage."""
        partition = self.get(table, number)
        partition.check_caller(at_least)
        return partition

    def way(self, table: TableId, number: int, *, at_least: int = 0) -> Partition | Distant:
        """Where a command for a partition goes: to the copy here, or to one at another node.
        `at_least`: the lineage that its caller has seen.
        """
        partition = self._partitions.get((table, number))
        if partition is None and self._forwarding is not None:
            if at_least:
                return Distant(self._forwarding, table, number, at_least=at_least)
            distant = self._distant.get((table, number))
            if distant is None:  # the same one each time: producers number batches by their way
                distant = Distant(self._forwarding, table, number)
                self._distant[table, number] = distant
            return distant
        return self.answering(table, number, at_least)

    def distant(self) -> set[TableId]:
        """The tables of which a way to a partition without a copy here is remembered."""
        asked = set() if self._forwarding is None else self._forwarding.remembered()
        return {TableId(table) for table, _ in asked | set(self._distant)}

    def forget_ways(self, table: TableId) -> None:
        """Remember no way to partitions of a table that no node has any more."""
        for key in [key for key in self._distant if key[0] == table]:
            del self._distant[key]
        if self._forwarding is not None:
            self._forwarding.forget(table)

    def here(self, table: int, number: int) -> Partition | None:
        """The copy that is here, if there is one."""
        return self._partitions.get((TableId(table), number))

    def of(self, table: TableId) -> list[Partition]:
        """The copies of a table's partitions that are here, by number."""
        return [one for (owner, _), one in sorted(self._partitions.items()) if owner == table]

    def all(self) -> list[Partition]:
        """All copies that are here."""
        return [one for _, one in sorted(self._partitions.items())]

    def damage(self, table: TableId, number: int) -> str:
        """Why the copy that this node has serves nothing, and never will: it is damaged. Else
        empty.
        """
        partition = self._partitions.get((table, number))
        if partition is not None and partition.group.stopped is None:
            return ""
        return self._log.damage(group_name(table, number))

    def on_disk(self) -> list[tuple[TableId, int]]:
        """Which partitions this node has anything of, started or not, damaged or unfinished."""
        found = map(parse_group_name, self._names())
        return sorted(one for one in found if one is not None)

    def is_made(self, table: TableId, number: int) -> bool:
        """Whether a copy is here that is opened, not made; one that can't be read now is one."""
        name = group_name(table, number)
        return name in self._log.unreadable or self._has(name)

    def has_copy(self, table: TableId, number: int) -> bool:
        """Whether this node has anything of a partition."""
        name = group_name(table, number)
        if (table, number) in self._partitions or name in self._log.unreadable:
            return True
        try:
            self._log.group(name)
        except GroupUnknown:
            return False
        return True

    def destroy(self, table: TableId, number: int) -> None:
        """Remove all that is here of a partition that no node needs any more."""
        self._partitions.pop((table, number), None)
        self._distant.pop((table, number), None)
        name = group_name(table, number)
        if name in self._names():
            self._groups.delete(name)

    def reset(
        self, table: TableId, number: int, *, listener: PeerListener
    ) -> tuple[Partition, Reset]:
        """Have this node's copy go on as the only one: all others are lost (`Groups.reset`)."""
        name = group_name(table, number)
        if not self._has(name):
            raise PartitionNotHere(table, number)
        partition = self._new(table, number)
        self._partitions.pop((table, number), None)
        group, done = self._groups.reset(
            name, partition.machine, listener=listener, observer=partition
        )
        return self._opened(partition, group), done

    def rebuild(
        self, table: TableId, number: int, *, ask: Iterable[int], listener: PeerListener
    ) -> Future[Partition]:
        """Throw this node's copy away, and get another one from these nodes."""
        partition = self._new(table, number)
        made = self._groups.rebuild(
            group_name(table, number),
            partition.machine,
            ask=ask,
            listener=listener,
            observer=partition,
        )
        self._partitions.pop((table, number), None)
        return made.map(lambda group: self._opened(partition, group))

    def _opened(self, partition: Partition, group: Group) -> Partition:
        partition.opened(group)
        self._partitions[partition.table, partition.number] = partition
        self._distant.pop((partition.table, partition.number), None)
        return partition

    def leave(self, table: TableId, number: int) -> None:
        """Remove this node's copy of a partition that is on other nodes now.

        The node remembers that it had one: a copy that it is given later is another incarnation.
        """
        name = group_name(table, number)
        if name in self._names():
            self._groups.leave(name)
        self._partitions.pop((table, number), None)

    def _has(self, name: str) -> bool:
        """Whether the log has a copy that was finished; raises if that is unknown."""
        try:
            return bool(self._log.group(name).meta)
        except GroupUnknown:
            return False

    def _names(self) -> set[str]:
        # What could not be deleted the last time counts as unreadable, and can be deleted again.
        return {*(log.name for log in self._log.groups()), *self._log.unreadable}
