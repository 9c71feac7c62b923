"""Cuts the catalog's history as far as nothing in the cluster needs it: rounds of the coordinator.

The coordinator is the metastore's leader. A round begins when the low watermark has moved, when
another node has become the coordinator, or when an operator asks. One round at a time; what would
begin one meanwhile begins another after it.

Steps of a round, and what is true after each

    1. every node of the topology, as it is now, was asked what it needs; nothing has changed
    2. *replicas update*: the global begin minimum is on its way to all nodes. Copies note it, and
       publish it when their snapshots cover it. A round that ends here has changed no answer
    3. *compaction*, beside 2 and by what earlier rounds have published: the decision is made
       (`catalog_decision`), from answers of this round and what the metastore says here
    4. the update log is cut, in one write (`catalog.cutting`). A crash before it leaves parts of a
       snapshot that no node reads
    5. the round is written down, if it cut something, or if other holders than before kept it from
       that. A crash before it loses the note, nothing else

What holds
    1. What was needed when a node answered, and is needed still, is not cut: what nodes need only
       rises. A coordinator that was replaced meanwhile, and cuts late, cuts nothing that its
       successor would not.
    2. A cut never depends on another one: when the last holder of a version is gone, the next
       round cuts it. The low watermark moves by itself, so there always is a next round.
    3. Where there is nothing to cut, whatever nodes would answer, no node is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from lowmark.catalog import Catalogs
from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.fault import decode_fault, encode_fault
from lowmark.formatting import times_text
from lowmark.group import CallLost, Future, Groups, Reply, together
from lowmark.metastore import Cluster, Metastore, Put, Remove, missing
from lowmark.metastore.state import prefix_end
from lowmark.placement import PartitionId, Placement
from lowmark.runtime import Buffer, HybridTime, Runtime, millis_of
from lowmark.table import LowWatermark, Tables
from lowmark.upkeep.catalog_decision import (
    SHOWN_MAX,
    Decision,
    Holder,
    Minimums,
    Seen,
    decide,
)
from lowmark.upkeep.catalog_minimums import (
    BEGIN_SERVICE,
    MINIMUMS_SERVICE,
    Active,
    Carry,
    CatalogMinimums,
    read_minimums,
)
from lowmark.upkeep.run_holders import RunHolders

logger = logging.getLogger(__name__)

COMPACT_SERVICE: Final = "catalog.compact"
ROUND_PREFIX: Final = b"catalog.round."
ROUNDS_KEPT: Final = 100
ANSWER_MS: Final = 5_000
"""How long a node is waited for."""
PATIENCE_MS: Final = 6_000
"""How long a round that an operator asked for goes on while copies are about to publish. With the
time for a node that does not answer, it is less than clients wait for an action."""
_AGAIN_MS = 250
_SOON_MS = 1_500
_AGAIN_MAX = 3
"""How often a round that waits for copies is made again without another reason."""
OLD_HOLDER_MS: Final = 3_600_000

Trigger = Literal["low watermark", "coordinator", "by hand"]


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one round came to."""

    number: int = 0
    """Of those that were written down; 0: it was not."""
    trigger: str
    """A `Trigger`; of a later release, perhaps another one."""
    node: int
    """The coordinator."""
    began_ms: int
    took_us: int = 0
    nodes: int = 0
    """This many answered."""
    groups: int = 0
    """Copies of partitions that they spoke for."""
    earliest: int
    """The earliest version before the round."""
    version: int
    """And after it; of a dry run, what it would be."""
    present: int = 0
    """The version that is in force now."""
    latest: int
    dry_run: bool = False
    holders: tuple[Holder, ...] = ()
    """What needs versions before the present one, the lowest first; some, if there are many."""
    held: int = 0
    """How many there are in all."""
    error: str = ""
    """Why it did not come to an end."""

    @property
    def cut(self) -> int:
        """This many versions went; of a dry run, would go."""
        return self.version - self.earliest

    @property
    def waits_for_copies(self) -> bool:
        """Whether nothing but copies that are about to publish keeps it from cutting more, and
        nodes that are about to hear of the low watermark.
        """
        lowest = [one for one in self.holders if one.version == self.version]
        return bool(lowest) and all(one.kind in {"log replay", "node behind"} for one in lowest)


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    """A node passes on what an operator asked of it."""

    dry_run: bool


class CatalogCompaction:
    """One node's part: all of it at the coordinator. All calls are made on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        groups: Groups,
        cluster: Cluster,
        catalogs: Catalogs,
        tables: Tables,
        placement: Placement,
        watermark: LowWatermark,
    ) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._groups = groups
        self._cluster = cluster
        self._metastore: Metastore = cluster.metastore
        self._catalogs = catalogs
        self._placement = placement
        self._watermark = watermark
        self._node = cluster.node.number
        self._minimums = CatalogMinimums(runtime, groups, tables, watermark)
        self._runs = RunHolders(cluster.metastore)
        self._running = False
        self._waiting: list[tuple[Trigger, bool, Future[Round]]] = []
        self._again = 0
        """This many looks in a row were only for copies that are about to publish."""
        self._looks_again = False
        self._closed = False
        self.last: Round | None = None
        """The last round that this node made."""
        self._noted: Round | None = None
        """The last one that was written down here."""
        self._first_seen: dict[tuple[str, str], int] = {}
        self.old_holder_ms = OLD_HOLDER_MS
        """`status` warns of what holds the catalog for longer than this."""
        groups.calls.serve(COMPACT_SERVICE, self._asked)

    def start(self) -> None:
        """Begin a round whenever there is a reason to."""
        self._watermark.on_moved(self._moved)
        self._metastore.on_elected(lambda _: self._trigger("coordinator"))

    def close(self) -> None:
        """Begin no more rounds."""
        self._closed = True
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            future.reject(_closing())

    def set_active(self, active: Callable[[], Active | None]) -> None:
        """Ask this for the oldest read-write transaction that is active here."""
        self._minimums.active = active

    # -- asking for a round -----------------------------------------------------------------------

    def compact(self, *, dry_run: bool = False) -> Future[Round]:
        """Have a round made now, by the coordinator, wherever it is; what it came to.

        While copies are about to publish, it goes on for a while. A dry run changes nothing.
        """
        if self._metastore.coordinates:
            return self._by_hand(dry_run)
        leader = self._metastore.group.leader
        if not leader or leader == self._node:
            return Future.failed(_no_coordinator())
        asked = self._groups.calls.ask(
            leader,
            COMPACT_SERVICE,
            msgspec.msgpack.encode(_Ask(dry_run)),
            timeout_ms=PATIENCE_MS + 2 * ANSWER_MS,
        )
        return asked.map(_read_round)

    def _asked(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        del address, sender

        def done(future: Future[Round]) -> None:
            if future.error is not None:
                reply(b"\0" + encode_fault(future.error))
            else:
                reply(b"\1" + msgspec.msgpack.encode(future.result()))

        try:
            ask = msgspec.msgpack.decode(question, type=_Ask)
        except msgspec.MsgspecError as error:
            done(Future.failed(Unavailable(f"a question can't be read: {error}")))
            return
        if not self._metastore.coordinates:
            done(Future.failed(_no_coordinator()))
        else:
            self._by_hand(ask.dry_run).then(done)

    def _by_hand(self, dry_run: bool) -> Future[Round]:
        whole: Future[Round] = Future()
        until_us = self._loop.elapsed_us() + PATIENCE_MS * 1_000
        first: list[Round] = []

        def done(future: Future[Round]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            made = future.result()
            first.append(made)
            patient = self._loop.elapsed_us() < until_us and not self._closed
            if dry_run or made.error or not made.waits_for_copies or not patient:
                whole.resolve(msgspec.structs.replace(made, earliest=first[0].earliest))
            else:
                self._loop.call_later(_AGAIN_MS, again)

        def again() -> None:
            if self._metastore.coordinates and not self._closed:
                self._request("by hand", dry_run).then(done)
            else:
                whole.resolve(first[-1])

        self._request("by hand", dry_run).then(done)
        return whole

    def _moved(self) -> None:
        self._again = 0
        self._trigger("low watermark")

    def _trigger(self, trigger: Trigger) -> None:
        if self._closed or not self._metastore.coordinates:
            return
        if any(waits[0] == trigger for waits in self._waiting):
            return  # one more, after the one that runs, sees all there is to see
        try:
            if self._has_something_to_cut():
                self._request(trigger, dry_run=False).then(lambda done: self._soon(trigger, done))
        except LowmarkError as error:  # the watermark can't be read here
            logger.warning("the catalog is not compacted", extra={"reason": error.message})

    def _soon(self, trigger: Trigger, done: Future[Round]) -> None:
        """Copies are about to publish: look again before the watermark moves, a few times."""

        def look() -> None:
            self._looks_again = False
            self._trigger(trigger)

        if done.error is not None or not done.result().waits_for_copies:
            self._again = 0
        elif self._again < _AGAIN_MAX and not self._looks_again:
            self._again, self._looks_again = self._again + 1, True
            self._loop.call_later(_SOON_MS, look)

    def _has_something_to_cut(self) -> bool:
        history, watermark = self._catalogs.history, self._watermark.current
        if watermark < history.earliest.activates_at:
            return False
        return history.at(watermark).version > max(history.earliest.version, 1)

    def _request(self, trigger: Trigger, dry_run: bool) -> Future[Round]:
        future: Future[Round] = Future()
        if self._closed:
            future.reject(_closing())
            return future
        self._waiting.append((trigger, dry_run, future))
        if not self._running:
            self._next()
        return future

    def _next(self) -> None:
        if not self._waiting or self._closed:
            return
        self._running = True
        trigger, dry_run, future = self._waiting.pop(0)

        def done(made: Round) -> None:
            self._running = False
            future.resolve(made)
            self._next()

        try:
            self._round(trigger, dry_run, done)
        except LowmarkError as error:  # the watermark can't be read here
            self._running = False
            future.reject(error)
            self._next()

    # -- one round --------------------------------------------------------------------------------

    def _round(self, trigger: Trigger, dry_run: bool, done: Callable[[Round], None]) -> None:
        history, began_us = self._catalogs.history, self._loop.elapsed_us()
        begun = Round(
            trigger=trigger,
            node=self._node,
            began_ms=millis_of(self._clock.now()),
            earliest=max(history.earliest.version, 1),
            version=max(history.earliest.version, 1),
            latest=history.latest.version,
            dry_run=dry_run,
        )
        names = {one.number: one.name for one in self._cluster.topology.nodes}
        names.setdefault(self._node, self._cluster.node.name)
        down = {one.number: one.name for one in self._cluster.nodes() if one.number not in names}
        watermark = self._watermark.current

        def end(made: Round) -> None:
            made = msgspec.structs.replace(made, took_us=self._loop.elapsed_us() - began_us)
            if dry_run:
                done(made)
                return
            self.last = made
            self._note(made).then(lambda noted: done(noted.result()))

        def answered(answers: Future[list[Future[Minimums]]]) -> None:
            try:
                decision, made = decided(answers)
            except LowmarkError as error:  # what the metastore says here can't be read
                logger.warning("the catalog is not compacted", extra={"reason": error.message})
                end(msgspec.structs.replace(begun, error=error.message))
                return
            if dry_run:
                end(made)
                return
            self._update_replicas(decision, names, now=trigger == "by hand")
            self._cut(made, end)

        def decided(answers: Future[list[Future[Minimums]]]) -> tuple[Decision, Round]:
            given = dict(zip(sorted(names), answers.result(), strict=True))
            good = {node: one.result() for node, one in given.items() if one.error is None}
            seen = Seen(
                history=history,
                now=self._clock.now(),
                watermark=watermark,
                nodes=names,
                down=down,
                answers=good,
                silent={
                    node: one.error.message for node, one in given.items() if one.error is not None
                },
                assignments=dict(self._placement.all_keys()),
                moved_at=self._moved_at,
                runs=self._runs.holders(history.earliest.version),
            )
            decision = decide(seen)
            made = msgspec.structs.replace(
                begun,
                nodes=len(good),
                groups=sum(len(some) for one in good.values() for some in one.groups.values()),
                version=decision.version,
                present=decision.present,
                holders=self._with_ages(decision.holders)[:SHOWN_MAX],
                held=len(decision.holders),
            )
            return decision, made

        together([self._ask(node) for node in sorted(names)]).then(answered)

    def _with_ages(self, holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
        """Those that can't say since when they hold do so since this node saw them first."""
        now_ms = millis_of(self._clock.now())
        before, self._first_seen = self._first_seen, {}
        found = []
        for one in holders:
            if not one.since_ms:
                key = (one.kind, one.holder)
                self._first_seen[key] = before.get(key, now_ms)
                one = msgspec.structs.replace(one, since_ms=self._first_seen[key])
            found.append(one)
        return tuple(found)

    def _ask(self, node: int) -> Future[Minimums]:
        if node == self._node:
            return Future.of(self._minimums.minimums())
        return self._groups.calls.ask(node, MINIMUMS_SERVICE, b"", timeout_ms=ANSWER_MS).map(
            read_minimums
        )

    def _update_replicas(self, decision: Decision, nodes: dict[int, str], *, now: bool) -> None:
        """Have the begin minimum noted everywhere; a node that misses it gets the next one."""
        if not decision.begin:
            return  # a node did not say what it needs: it may have the oldest transaction
        carry = Carry(decision.begin, decision.goal, now)
        question = msgspec.msgpack.encode(carry)
        for node in sorted(nodes):
            if node == self._node:
                self._minimums.carry(carry)
            else:
                self._groups.calls.ask(node, BEGIN_SERVICE, question, timeout_ms=ANSWER_MS)

    def _cut(self, made: Round, end: Callable[[Round], None]) -> None:
        if made.version <= made.earliest:
            end(made)
            return

        def cut(future: Future[bool]) -> None:
            if future.error is not None:
                logger.info("the catalog was not cut", extra={"reason": future.error.message})
                failed = msgspec.structs.replace(
                    made, version=made.earliest, error=future.error.message
                )
                end(failed)
                return
            if not future.result():  # another coordinator has cut there, or further on
                end(msgspec.structs.replace(made, earliest=made.version))
                return
            logger.info(
                "the catalog was cut", extra={"version": made.version, "before": made.earliest}
            )
            end(made)

        self._catalogs.compact(made.version).then(cut)

    def _moved_at(self, partition: PartitionId) -> int:
        """When a partition's move was decided on; 0: before the metastore's history begins."""
        revision = max(self._placement.keys(partition).revisions[1:3])
        try:
            return millis_of(HybridTime(self._metastore.state.time_of(revision)))
        except LowmarkError:
            return 0

    # -- what came of it --------------------------------------------------------------------------

    def _note(self, made: Round) -> Future[Round]:
        """Write a round down, if it is news."""
        noted: Future[Round] = Future()
        if not made.cut and self._is_old(made):
            noted.resolve(made)
            return noted
        state = self._metastore.state
        there = state.find_range(ROUND_PREFIX, prefix_end(ROUND_PREFIX))
        number = 1 + (int(there[-1].key.removeprefix(ROUND_PREFIX)) if there else 0)
        numbered = msgspec.structs.replace(made, number=number)
        key = round_key(number)
        old = [Remove(one.key) for one in there[: max(0, len(there) + 1 - ROUNDS_KEPT)]]

        def written(future: Future[bool]) -> None:
            if future.error is None and future.result():
                self._noted = made
                noted.resolve(numbered)
            else:  # another coordinator has written one: this note is not worth another try
                noted.resolve(made)

        self._metastore.invoke_if(
            missing(key), [Put(key, msgspec.json.encode(numbered)), *old]
        ).then(written)
        return noted

    def _is_old(self, made: Round) -> bool:
        """Whether the last note says the same: nothing was cut, for the same reasons."""
        if made.trigger != "by hand" and not made.held and not made.error:
            return True
        before = self._noted
        if before is None:
            return False
        return (before.error, _reasons(before)) == (made.error, _reasons(made))

    def rounds(self) -> list[Round]:
        """The rounds that were written down, as this node knows them, oldest first."""
        entries = self._metastore.range_local(ROUND_PREFIX).entries
        return [read_round(entry.value) for entry in entries]

    @property
    def problem(self) -> str:
        """What has held the catalog for too long, in words; empty: nothing."""
        made = self.last
        if made is None or not self._metastore.coordinates:
            return ""
        now_ms = millis_of(self._clock.now())
        old = [
            one
            for one in made.holders
            if one.version == made.version
            and one.kind not in {"history", "table history"}
            and one.since_ms
            and now_ms - one.since_ms > self.old_holder_ms
        ]
        return "; ".join(
            f"{one.holder} holds the catalog at version {one.version} for"
            f" {times_text(now_ms - one.since_ms)}: {one.why}. {one.hint}"
            for one in old[:3]
        )


def round_key(number: int) -> bytes:
    """Where a round is noted; the order of keys is the order of rounds."""
    return b"%s%020d" % (ROUND_PREFIX, number)


def read_round(value: bytes) -> Round:
    """A round as it was noted."""
    try:
        return msgspec.json.decode(value, type=Round)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a round in the metastore can't be read: {error}") from error


def _read_round(answer: bytes) -> Round:
    error = decode_fault(answer[1:]) if answer[:1] == b"\0" else None
    if error is not None:
        raise error
    try:
        return msgspec.msgpack.decode(answer[1:], type=Round)
    except msgspec.MsgspecError as error:
        raise CallLost("the coordinator", why=f"its answer can't be read: {error}") from error


def _reasons(made: Round) -> list[tuple[str, str, int]]:
    return [(one.kind, one.holder, one.version) for one in made.holders]


def _closing() -> Unavailable:
    return Unavailable("this node is closing", hint="Ask another node.")


def _no_coordinator() -> Unavailable:
    return Unavailable(
        "no node coordinates the cluster at the moment", hint="Retry after a short while."
    )
