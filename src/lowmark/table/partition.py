"""One copy of a partition: its group, its machine, and those who follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar, cast

import msgspec

from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.group import CopyOutdated, Future, Group, Lineages
from lowmark.holds import Hold, SafePoint, safe_point
from lowmark.ids import PARTITIONS, group_name
from lowmark.log import ReadPlan
from lowmark.runtime import Buffer
from lowmark.table.backlog import View
from lowmark.table.commands import Control, Tick, Trim, encode_control
from lowmark.table.errors import PartitionNotHere, TimeInFuture
from lowmark.table.machine import PartitionMachine
from lowmark.table.producers import Appended
from lowmark.table.publication import Publication
from lowmark.table.state import Outcome, State, Trimmed

T = TypeVar("T")

SNAPSHOT_BYTES = 64 << 20
"""A start reads the rows again that came after the last snapshot, though it needs their headers
only. A snapshot has no rows, so it costs little to take one often.
"""


def parse_group_name(name: str) -> tuple[TableId, int] | None:
    """Which partition a group is of; None: of none."""
    table, _, number = name.removeprefix(PARTITIONS).partition(".")
    if not name.startswith(PARTITIONS) or not (table.isdigit() and number.isdigit()):
        return None
    return TableId(int(table)), int(number)


class Forwards(Protocol):
    """Takes what is proposed to a partition that another node leads (see `forwarding`)."""

    def propose(self, table: int, number: int, command: Buffer, in_place: bool) -> Future[object]:
        """Have it applied there."""

    def leader_changed(self, table: int, number: int, leader: int) -> None:
        """Another node leads."""


class Partition:
    """All calls are made on the loop, but `view`, which any thread may ask."""

    def __init__(
        self,
        table: TableId,
        number: int,
        *,
        cut_holds: Callable[[Partition], Iterable[Hold]] = lambda _: (),
        lineages: Lineages | None = None,
    ) -> None:
        self._cut_holds = cut_holds
        self._lineages = Lineages() if lineages is None else lineages
        """What this node has heard of resets."""
        self.name = group_name(table, number)
        self.table = table
        self.number = number
        self.machine = PartitionMachine()
        self._group: Group | None = None
        self.forwards: Forwards | None = None
        """The way to the node that leads it, if that is another one."""
        self.serves = True
        """Whether rows are read here: not by a copy that is being filled, or is about to go."""
        self.when_stopped: Callable[[LowmarkError], None] = lambda _: None
        """Told why this copy goes no further."""
        self.publication = Publication()
        self._followers: list[Callable[[], None]] = []
        self._snapshot_bytes = SNAPSHOT_BYTES
        """When so much was applied, another snapshot is due."""

    def opened(self, group: Group) -> None:
        """Its group is there."""
        self._group = group
        if self.forwards is not None:
            group.elsewhere = partial(self.forwards.propose, self.table, self.number)
        self.propose = group.propose  # type: ignore[method-assign]  # no call in between

    @property
    def group(self) -> Group:
        """The copy of its group at this node."""
        if self._group is None:
            raise PartitionNotHere(self.table, self.number)
        return self._group

    @property
    def state(self) -> State:
        """What this copy knows."""
        return self.machine.state

    @property
    def view(self) -> View:
        """The backlog as this copy knows it now; may be asked on any thread."""
        return self.machine.state.backlog.view

    @property
    def alone(self) -> bool:
        """Whether this copy is the only one and leads: then what it knows is what there is."""
        group = self._group
        return group is not None and group.ready and group.raft.core.singleton

    @property
    def lineage(self) -> int:
        """Which reset of the partition this copy is of; may be asked on any thread."""
        return self.group.lineage

    def serves_caller(self, at_least: int) -> bool:
        """Whether this copy may answer a caller that has seen that lineage (`group.lineages`)."""
        return self._lineages.serves(self.name, self.lineage, at_least)

    def check_caller(self, at_least: int) -> None:
        """Refuse a caller that has seen a later lineage, as far as it or this node knows."""
        self._lineages.check(self.name, self.lineage, at_least)

    @property
    def replicated(self) -> bool:
        """Whether another node may lead it."""
        return self._group is not None and not self._group.alone

    # -- changing -------------------------------------------------------------------------------

    def propose(self, command: Buffer, *, in_place: bool = False) -> Future[object]:
        """Have a command applied (see `Group.propose`); what the machine refuses is its answer."""
        return self.group.propose(command, in_place=in_place)

    def append(self, command: Buffer, *, in_place: bool = False) -> Future[Appended]:
        """Have a batch stored (see `commands.encode_batch`); where it went, or why it did not.

        A producer's batches are numbered and go by `Producing`.
        """
        proposed = self.propose(command, in_place=in_place)
        return cast("Future[Appended]", proposed.map(accepted))

    def ask(self, command: Control) -> Future[Outcome]:
        """Have anything else done; gives the outcome, or fails with what was refused."""
        if isinstance(command, Trim):
            return self._cut(command)
        return self.propose(encode_control(command)).map(accepted)

    def _cut(self, trim: Trim) -> Future[Outcome]:
        """Cut as far as readers allow that this node knows of, and then those of the state."""
        safe = safe_point(trim.offset, self._cut_holds(self))
        if safe.position >= trim.offset:
            return self.propose(encode_control(trim)).map(accepted)

        def held(outcome: object) -> Outcome:
            done = accepted(outcome)
            if not isinstance(done, Trimmed):
                return done
            by = (*safe.held_by, *done.safe.held_by)
            return done._replace(safe=SafePoint(done.safe.position, trim.offset, by))

        less = msgspec.structs.replace(trim, offset=safe.position)
        return self.propose(encode_control(less)).map(held)

    # -- reading --------------------------------------------------------------------------------

    def read(self, query: Callable[[State], T]) -> Future[T]:
        """Ask the state, linearizably."""
        return cast("Future[T]", self.group.read(query))

    def latest(self) -> Future[View]:
        """The backlog with all that was acknowledged before."""
        if self.alone:
            return Future.of(self.view)
        return self.read(lambda state: state.backlog.view)

    def closed(self, time: int) -> Future[View]:
        """The backlog, when no row at or below a time can come any more.

        A copy that knows so needs no other for it. Else only the leader can see to it, if the time
        has come by its clock; and this copy has to hear of it.
        """
        if self.view.closed >= time:
            return Future.of(self.view)

        def checked(view: View) -> View:
            if view.closed < time:
                raise TimeInFuture(time=time, now=view.closed)
            return view

        def ticked(done: Future[Outcome]) -> None:
            if done.error is not None:
                answer.reject(done.error)
            elif self.view.closed >= time:
                answer.resolve(self.view)
            else:
                self.latest().map(checked).then(answer.follow)

        answer: Future[View] = Future()
        self.ask(Tick()).then(ticked)
        return answer

    @property
    def published(self) -> int:
        """From which time on this copy may need the catalog (`publication`); 0: from any."""
        return self.publication.published(self.state, self.group.log.row.snapshot_index)

    def plan(self, indexes: Iterable[int], *, held: bool = False) -> ReadPlan:
        """How to read batches that stand at these places in the log; carry it out on any thread."""
        return self.group.log.plan_read(indexes, held=held)

    # -- following ------------------------------------------------------------------------------

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have this called, on the loop, whenever something was applied; gives what ends that."""
        self._followers.append(callback)

        def end() -> None:
            if callback in self._followers:
                self._followers.remove(callback)

        return end

    def serve(self, serves: bool) -> None:
        """Rows are read here from now on, or are not any more; followers find out by asking."""
        if serves != self.serves:
            self.serves = serves
            self._tell()

    def _tell(self) -> None:
        for follower in list(self._followers):
            follower()

    # -- told by the group ----------------------------------------------------------------------

    def on_applied(self) -> None:
        """More was applied."""
        if self.machine.applied_bytes >= self._snapshot_bytes and self._group is not None:
            self._snapshot_bytes = self.machine.applied_bytes + SNAPSHOT_BYTES
            self._group.snapshot()
        if self._followers:
            self._tell()

    def on_restored(self) -> None:
        """The state was replaced."""
        self._tell()

    def on_leader_changed(self, leader: int, term: int) -> None:
        """What was asked of the one before is not waited for."""
        del term
        if self.forwards is not None:
            self.forwards.leader_changed(self.table, self.number, leader)

    def on_stopped(self, error: LowmarkError) -> None:
        """Wake the followers: they find out by asking."""
        if isinstance(error, CopyOutdated):
            self._lineages.learn({self.name: error.lineage})
        self._tell()
        self.when_stopped(error)


def accepted(outcome: object) -> Outcome:
    """An outcome; what the machine refuses is raised."""
    if isinstance(outcome, LowmarkError):
        raise outcome.again()
    return cast("Outcome", outcome)
