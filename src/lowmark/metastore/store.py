"""The metastore at one node: asks and changes go through any node, watches are told locally."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.group import (
    ChangeFailed,
    Command,
    Future,
    Group,
    Groups,
    PeerListener,
)
from lowmark.metastore import commands
from lowmark.metastore.commands import (
    Branch,
    Compact,
    Condition,
    Do,
    Invoke,
    Operation,
    Put,
    Release,
    Remove,
    Renew,
    Statement,
    Take,
    Tick,
)
from lowmark.metastore.completeness import Completeness
from lowmark.metastore.errors import (
    InvokeRefused,
    LeaseOver,
    LeaseTaken,
    NotInCluster,
    RevisionCompacted,
)
from lowmark.metastore.following import Following
from lowmark.metastore.forwarding import Forwarding
from lowmark.metastore.identity import GROUP
from lowmark.metastore.machine import MetastoreMachine, Outcome
from lowmark.metastore.state import Answer, Cut, Found, Lease, LeaseAnswer, State, prefix_end
from lowmark.metastore.watches import Entry, OnEnd, OnEvent, Values, Watch, Watches
from lowmark.runtime import Buffer, Runtime

# How the metastore behaves at one node.


@dataclass(frozen=True, slots=True, kw_only=True)
class MetastoreConfig:
    """Settings of the metastore."""

    members: int = 3
    """This many nodes vote; all others follow as learners."""
    lease_ms: int = 10_000
    """A node that is not heard of for this long leaves the topology until it comes back."""
    watch_patience_ms: int = 60_000
    """A watcher that does not move for this long is no longer held for."""
    request_timeout_ms: int = 10_000
    snapshot_entries: int = 20_000
    """After this many entries of its log the metastore takes a snapshot."""
    renew_again_ms: int = 60_000
    """How long a copy that is damaged again waits; twice as long each time."""

    def __post_init__(self) -> None:
        if not 1 <= self.members <= 7 or self.members % 2 == 0:
            raise Rejected(
                f"metastore.members = {self.members} makes no sound majority",
                hint="Use 1, 3, 5 or 7: an even number survives no more losses than one less.",
            )
        names = "lease_ms watch_patience_ms request_timeout_ms snapshot_entries renew_again_ms"
        for name in names.split():
            if getattr(self, name) < 1:
                raise Rejected(f"metastore.{name} must be at least 1")


_COMPACTED_PER_STEP = 10_000
_SEGMENTS_MAX = 32
"""With this many segments of its log above the last snapshot, the metastore takes another one."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Keys in order, as they were at a revision."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads the metastore, as far as a node knows; node 0: none. It is the coordinator."""

    node: int
    term: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the metastore is, at this node."""

    latest: int
    compacted: int
    time: int
    """Everything up to this time is known here."""
    keys: int
    live_entries: int
    watches: int
    leases: tuple[Lease, ...]


class _Elected:
    """A callback that is called once a term."""

    __slots__ = ("_callback", "_term")

    def __init__(self, callback: Callable[[int], None]) -> None:
        self._callback = callback
        self._term = 0

    def tell(self, term: int) -> None:
        if term > self._term:
            self._term = term
            self._callback(term)


class Metastore:
    """See the package's docstring. All calls are made on the loop."""

    def __init__(self, runtime: Runtime, groups: Groups, *, config: MetastoreConfig) -> None:
        self.node = groups.node
        self.config = config
        self.clock = runtime.clock
        self._loop = runtime.loop
        self._groups = groups
        self._machine = MetastoreMachine()
        self._group: Group | None = None
        groups.unthrottled.add(GROUP)  # moves wait; what says that they may go on does not
        self._closed = False
        self._forwarding = Forwarding(runtime.loop, groups.calls, group=lambda: self._group)
        self._values = Values(self)
        self._watches = Watches(self, self._values)
        self._followings: list[Following] = []
        self._readers: dict[int, int] = {}
        self._reader_numbers = 0
        self._on_leader: list[Callable[[Leadership], None]] = []
        self._on_elected: list[_Elected] = []
        self._completeness = Completeness(
            runtime.loop,
            runtime.clock,
            known=lambda: self.state.time,
            tick=self._tick,
            trouble=lambda: self._group.trouble if self._group is not None else None,
        )
        self.members: PeerListener | None = None
        """Changes its members; without it, they stay as they are (see `lowmark.placement`)."""
        self.when_stopped: Callable[[LowmarkError], None] = lambda _: None
        """Told when the copy goes no further."""
        self.renew_holds: Callable[[], Future[LeaseAnswer]] = lambda: Future.failed(NotInCluster())
        """Has this node's lease renewed now; set by `Presence`, which keeps that lease."""

    # -- the copy -------------------------------------------------------------------------------

    def found(self) -> None:
        """Be the first member."""
        self._group = self._groups.create(
            GROUP, self._machine, members=[self.node], listener=self, observer=self
        )

    def follow(self) -> None:
        """Make a copy that waits until the leader speaks to it."""
        self._group = self._groups.create(GROUP, self._machine, listener=self, observer=self)

    def open(self) -> None:
        """Go on with the copy that this node has."""
        self._group = self._groups.open(GROUP, self._machine, listener=self, observer=self)

    def rebuild(self, *, ask: Iterable[int]) -> Future[None]:
        """Throw away the copy that this node has, and make one that waits for the leader."""

        def made(group: Group) -> None:
            self._group = group

        return self._groups.rebuild(
            GROUP, self._machine, ask=ask, listener=self, observer=self
        ).map(made)

    def close(self) -> None:
        """Watch nothing, wait for nothing."""
        if self._closed:
            return
        self._closed = True
        self._forwarding.close()
        for following in [*self._followings]:
            following.close()
        error = Unavailable("this node is closing", hint="Ask another node.")
        self._watches.end_all(error)
        self._completeness.close(error)

    @property
    def group(self) -> Group:
        """The copy; raises if there is none yet."""
        if self._group is None:
            raise NotInCluster
        return self._group

    @property
    def has_copy(self) -> bool:
        """Whether this node has a copy yet."""
        return self._group is not None

    @property
    def state(self) -> State:
        """What this node knows now."""
        return self._machine.state

    @property
    def leadership(self) -> Leadership:
        """Who leads, as far as this node knows."""
        if self._group is None:
            return Leadership(0, 0)
        return Leadership(self._group.leader, self._group.term)

    @property
    def lineage(self) -> int:
        """Which reset this copy's group goes back to; 0: it was never reset (`group.reset`)."""
        return 0 if self._group is None else self._group.lineage

    @property
    def coordinates(self) -> bool:
        """Whether this node leads and has applied what led to that."""
        return self._group is not None and self._group.ready

    def standing(self) -> Standing:
        """Where the metastore is, at this node."""
        state = self.state
        return Standing(
            state.latest,
            state.compacted,
            state.time,
            len(state.keys),
            len(state.live),
            len(self._watches.all()),
            tuple(state.leases[name] for name in sorted(state.leases)),
        )

    # -- reading --------------------------------------------------------------------------------

    def read(self, query: Callable[[State], T]) -> Future[T]:
        """Ask the state, linearizably."""
        if self._group is None:
            return Future.failed(NotInCluster())
        future = self._group.read(query, timeout_ms=self.config.request_timeout_ms)
        return future.map(lambda value: cast("T", value))

    def get(self, key: bytes, *, at: int | None = None) -> Future[Entry | None]:
        """A key's value: the latest one, or the one as of a revision."""
        return self.get_all([key], at=at).map(lambda page: next(iter(page.entries), None))

    def get_all(self, keys: Iterable[bytes], *, at: int | None = None) -> Future[Page]:
        """The values of those of these keys that have one, all as of one revision."""
        wanted = sorted(set(keys))

        def query(state: State) -> tuple[int, list[Found]]:
            _check_revision(state, at)
            found = [state.find(key, at) for key in wanted]
            return _as_of(state, at), [one for one in found if one is not None]

        return self._paged(query)

    def range(
        self,
        prefix: bytes = b"",
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        at: int | None = None,
        limit: int | None = None,
    ) -> Future[Page]:
        """The values of keys that begin with `prefix`, from `start` up to `end`, in order."""
        first = prefix if start is None else max(prefix, start)
        ends = [one for one in (prefix_end(prefix), end) if one is not None]
        last = min(ends, default=None)

        def query(state: State) -> tuple[int, list[Found]]:
            _check_revision(state, at)
            return _as_of(state, at), state.find_range(first, last, at=at, limit=limit)

        return self._paged(query)

    def _paged(self, query: Callable[[State], tuple[int, list[Found]]]) -> Future[Page]:
        def page(answer: tuple[int, list[Found]]) -> Page:
            # Still in the turn in which the state was asked: no entry has gone or moved since.
            return Page(answer[0], tuple(self._values.entries(answer[1])))

        return self.read(query).map(page)

    def range_local(self, prefix: bytes, *, at: int | None = None) -> Page:
        """As this node knows it; it may be old."""
        state = self.state
        _check_revision(state, at)
        found = state.find_range(prefix, prefix_end(prefix), at=at)
        return Page(_as_of(state, at), tuple(self._values.entries(found)))

    def get_local(self, key: bytes, *, at: int | None = None) -> Entry | None:
        """As this node knows it; it may be old."""
        _check_revision(self.state, at)
        found = self.state.find(key, at)
        return None if found is None else self._values.entries([found])[0]

    def entries(self, found: Iterable[Found]) -> list[Entry]:
        """The values of what was found in the state, in its order; ask in the same turn."""
        return self._values.entries(found)

    def history(self, key: bytes) -> Future[tuple[Entry | None, ...]]:
        """What a key was at each revision that changed it, oldest first; None: it was removed."""

        def query(state: State) -> list[Found | None]:
            return [
                None if record.removed else state.find(key, record.revision)
                for record in state.history(key)
            ]

        def entries(found: list[Found | None]) -> tuple[Entry | None, ...]:
            known = iter(self._values.entries(one for one in found if one is not None))
            return tuple(None if one is None else next(known) for one in found)

        return self.read(query).map(entries)

    def time_of(self, revision: int) -> Future[int]:
        """When a revision was made."""
        return self.read(lambda state: state.time_of(revision))

    def revision_at(self, time: int) -> Future[int]:
        """The last revision made at a time or before; waits until that is certain."""
        whole: Future[int] = Future()

        def complete(known: Future[None]) -> None:
            try:
                known.result()
                whole.resolve(self.state.revision_at(time))
            except LowmarkError as error:
                whole.reject(error)

        self.when_complete(time).then(complete)
        return whole

    # -- changing -------------------------------------------------------------------------------

    def put(self, key: bytes, value: Buffer) -> Future[Answer]:
        """Give a key a value."""
        return self.invoke(Do((Put(key, value),)))

    def remove(self, key: bytes) -> Future[Answer]:
        """Take a key's value away."""
        return self.invoke(Do((Remove(key),)))

    def invoke(self, statement: Statement) -> Future[Answer]:
        """Carry a statement out, whole, in one revision."""
        return self._submit(Invoke(statement)).map(_an_answer)

    def invoke_if(
        self,
        condition: Condition,
        then: Iterable[Operation],
        otherwise: Iterable[Operation] = (),
    ) -> Future[bool]:
        """The short form: whether the condition held."""
        statement = Branch(condition, Do(tuple(then), answer=1), Do(tuple(otherwise)))
        return self.invoke(statement).map(lambda answer: answer.answer == 1)

    def compact(self, revision: int) -> Future[Cut]:
        """Forget what was superseded at a revision or before, as far as leases allow.

        The way there is made in steps, so that no other command waits long for one of them.
        """
        whole: Future[Cut] = Future()

        def step(goal: int) -> None:
            self._submit(Compact(goal)).map(_a_cut).then(lambda future: done(goal, future))

        def done(goal: int, future: Future[Cut]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            cut = future.result()
            if cut.held_by or goal >= revision or cut.compacted < goal:
                whole.resolve(Cut(revision, cut.compacted, cut.held_by))
            else:
                step(min(revision, goal + _COMPACTED_PER_STEP))

        step(min(revision, self.state.compacted + _COMPACTED_PER_STEP))
        return whole

    def _tick(self, timeout_ms: int) -> Future[object]:
        return self._forwarding.submit(Tick(), timeout_ms=timeout_ms).map(lambda outcome: outcome)

    def _submit(self, command: commands.Command) -> Future[Outcome]:
        return self._forwarding.submit(command, timeout_ms=self.config.request_timeout_ms)

    # -- leases ---------------------------------------------------------------------------------

    def take_lease(
        self, name: str, *, holder: int, ttl_ms: int, hold: int = 0, why: str = ""
    ) -> Future[LeaseAnswer]:
        """Take a lease; `hold` is the first revision whose changes must stay."""
        submitted = self._submit(Take(name, holder, ttl_ms, hold, why))
        return submitted.map(lambda outcome: _a_lease(name, hold, outcome))

    def renew_lease(self, name: str, *, holder: int, hold: int = 0) -> Future[LeaseAnswer]:
        """Keep it for as long again; one that is over can't be renewed."""
        submitted = self._submit(Renew(name, holder, hold))
        return submitted.map(lambda outcome: _a_lease(name, hold, outcome))

    def release_lease(self, name: str, *, holder: int) -> Future[LeaseAnswer]:
        """Give it back."""
        submitted = self._submit(Release(name, holder))
        return submitted.map(lambda outcome: _a_lease(name, 0, outcome))

    def hold(self, revision: int) -> Future[Callable[[], None]]:
        """Keep a revision readable for a reader at this node; call what comes back to let go.

        It is held when the future resolves, and as long as this node keeps its lease.
        """
        whole: Future[Callable[[], None]] = Future()

        def readable(future: Future[None]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            else:
                self._hold(revision).then(whole.follow)

        # This node may not have heard yet of a revision that a client here has seen.
        self.read(lambda state: state.check_readable(revision)).then(readable)
        return whole

    def _hold(self, revision: int) -> Future[Callable[[], None]]:
        self._reader_numbers += 1
        number = self._reader_numbers
        self._readers[number] = revision + 1

        def let_go() -> None:
            self._readers.pop(number, None)

        def held(answer: LeaseAnswer) -> Callable[[], None]:
            if answer.compacted > revision:  # this node was behind
                wanted = f"revision {revision}"
                raise RevisionCompacted(wanted=wanted, first_left=answer.compacted)
            return let_go

        renewed = self.renew_holds().map(held)
        renewed.then(lambda future: let_go() if future.error is not None else None)
        return renewed

    def needed_from(self) -> int:
        """The first revision whose changes are needed at this node; never 0."""
        patience = self.now_ms() - self.config.watch_patience_ms
        positions = [watch.position for watch in self._watches.all() if watch.moves(patience)]
        return min([self.state.latest + 1, *positions, *self._readers.values()])

    # -- following ------------------------------------------------------------------------------

    def watch(
        self,
        *,
        prefix: bytes | None = None,
        keys: Iterable[bytes] = (),
        from_revision: int | None = None,
        on_event: OnEvent,
        on_end: OnEnd,
        name: str = "",
    ) -> Watch:
        """Be told every revision from one on, once, in order, whole; see `watches`.

        Without `from_revision`, those after the last one that this node knows.
        """
        wanted = tuple(keys)
        if prefix is None and not wanted:
            raise InvokeRefused("a watch is for a prefix, for keys, or both")
        state = self.state
        first = state.latest + 1 if from_revision is None else from_revision
        if first <= state.compacted:
            raise RevisionCompacted(wanted=f"revision {first}", first_left=state.compacted + 1)
        watch = self._watches.add(
            prefix=prefix,
            keys=wanted,
            from_revision=first,
            name=name,
            on_event=on_event,
            on_end=on_end,
        )
        if first <= state.latest:
            self.renew_holds()  # it has something to catch up with; only now it is asked what
        return watch

    def keep_watching(
        self,
        *,
        prefix: bytes | None = None,
        keys: Iterable[bytes] = (),
        start: Callable[[], None],
        on_event: OnEvent,
        on_stopped: Callable[[LowmarkError], None] = lambda _: None,
        name: str,
    ) -> Following:
        """Have `start` take what is there now, then be told what comes, for as long as this node
        runs. After an error `start` is called again; see `following`. `on_stopped` is told when
        this node's copy goes no further.
        """
        following = Following(
            self._loop,
            self,
            name=name,
            prefix=prefix,
            keys=tuple(keys),
            start=start,
            on_event=on_event,
            on_stopped=on_stopped,
        )
        self._followings.append(following)
        following.begin()
        return following

    def forget(self, following: Following) -> None:
        """It was closed."""
        if following in self._followings:
            self._followings.remove(following)

    @property
    def problems(self) -> list[str]:
        """What this node can't follow, for longer than a moment, in words."""
        return [one.problem for one in self._followings if one.problem]

    def watches(self) -> list[Watch]:
        """All that are open at this node."""
        return self._watches.all()

    @property
    def complete_to(self) -> int:
        """Every revision up to this time was applied here."""
        return self.state.time

    def when_complete(self, time: int, *, timeout_ms: int | None = None) -> Future[None]:
        """When every revision up to a time was applied here."""
        wait = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        return self._completeness.when(time, timeout_ms=wait)

    # -- who leads ------------------------------------------------------------------------------

    def on_leader(self, callback: Callable[[Leadership], None]) -> None:
        """Be told who leads, on every node; now, and whenever that changes."""
        self._on_leader.append(callback)
        callback(self.leadership)

    def on_elected(self, callback: Callable[[int], None]) -> None:
        """Be told when this node leads, with its term; once a term, when it knows all there is."""
        told = _Elected(callback)
        self._on_elected.append(told)
        if self.coordinates:
            told.tell(self.group.term)

    # -- told by the group ----------------------------------------------------------------------

    def on_applied(self) -> None:
        """More commands were applied."""
        self._moved_on()
        group = self._group
        if group is None:
            return  # a copy that is damaged: it is still being opened
        if group.applied - group.log.row.snapshot_index >= self.config.snapshot_entries:
            group.snapshot()
        # Each WAL file that is closed leaves a segment here, however little is in it. Only below a
        # snapshot are they put together (phase 3 of the log).
        segments = group.log.state.segments
        if len(segments) >= _SEGMENTS_MAX:
            if segments[-_SEGMENTS_MAX].last > group.log.row.snapshot_index:
                group.snapshot()

    def on_restored(self) -> None:
        """The state was replaced."""
        self._moved_on()

    def _moved_on(self) -> None:
        self._watches.moved_on()
        self._completeness.moved_on()

    def on_leader_changed(self, leader: int, term: int) -> None:
        """Another node leads."""
        self._forwarding.leader_changed(leader)
        for callback in list(self._on_leader):
            callback(Leadership(leader, term))

    def on_stopped(self, error: LowmarkError) -> None:
        """The copy goes no further: no watch would get anything any more."""
        self._watches.end_all(error)
        self.when_stopped(error)

    def on_leader_elected(self, term: int) -> None:
        """This node leads."""
        for told in list(self._on_elected):
            told.tell(term)
        if self.members is not None:
            self.members.on_leader_elected(term)

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        """Other members are in force."""
        if self.members is not None:
            self.members.on_change_peers_committed(peers)

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        """A change of members failed."""
        if self.members is not None:
            self.members.on_change_peers_error(context)

    def try_catch_up_finish(self, peers: tuple[int, ...], answer: Callable[[bool], None]) -> None:
        """Members that are near may vote, if that is still what is wanted."""
        if self.members is not None:
            self.members.try_catch_up_finish(peers, answer)

    # -- for watches ----------------------------------------------------------------------------

    def read_commands(self, indexes: list[int]) -> list[Command]:
        """Entries of the log."""
        return self.group.read_commands(indexes)

    def soon(self, callback: Callable[[], None]) -> None:
        """In the next turn, unless this node is closing."""
        self._loop.call_soon(lambda: None if self._closed else callback())

    def now_ms(self) -> int:
        """Time that only grows."""
        return self._loop.elapsed_us() // 1_000


def _check_revision(state: State, at: int | None) -> None:
    if at is not None:
        state.check_readable(at)


def _as_of(state: State, at: int | None) -> int:
    return state.latest if at is None else at


def _an_answer(outcome: Outcome) -> Answer:
    assert isinstance(outcome, Answer)
    return outcome


def _a_cut(outcome: Outcome) -> Cut:
    assert isinstance(outcome, Cut)
    return outcome


def _a_lease(name: str, hold: int, outcome: Outcome) -> LeaseAnswer:
    assert isinstance(outcome, LeaseAnswer)
    if outcome.outcome == "taken":
        raise LeaseTaken(name)
    if outcome.outcome == "over":
        raise LeaseOver(name)
    if outcome.outcome == "compacted":
        raise RevisionCompacted(wanted=f"revision {hold}", first_left=outcome.compacted + 1)
    return outcome
