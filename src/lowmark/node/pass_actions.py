"""Make, renew and end passes: what drivers of Spark ask of a node for their tasks.

A pass is a record (docs/design/0051): to renew it, the record is written again, so what tasks have
been given stays good. The digest is the driver's, so all of it may be asked again after a lost
answer, at any node. Records whose time is over, or whose token has ended, are removed by the node
that coordinates, and by any node at which one is to be made when there are too many of them.

    make     writes the record, whether there is one or not: a driver may make the same pass again
             for new work, also after it has ended it
    renew    writes the record only over one that is there. So a renewal that is late, or asked
             again, brings back no pass that was ended meanwhile
    end      removes the record

Each is answered when it is so for callers of the node that answers; the other nodes hear of it at
about the same time.
"""

from __future__ import annotations

import logging
from typing import Final

from lowmark.errors import Rejected, Unavailable
from lowmark.group import Future
from lowmark.metastore import (
    Compare,
    Condition,
    Metastore,
    Put,
    Remove,
    Revision,
    all_of,
)
from lowmark.metastore.watches import Entry
from lowmark.node.callers import current_caller
from lowmark.node.operating import Answers
from lowmark.node.token_messages import EndPassAsk, MakePassAsk, PassReply
from lowmark.node.tokens import Tokens, token_of
from lowmark.runtime import Loop
from lowmark.tokens import (
    ADMIN_ROLE,
    PASS_ROLE,
    BeyondPass,
    Caller,
    PassesFull,
    Record,
    Right,
    Token,
    pass_key,
)
from lowmark.tokens.records import check_digest, check_pass_ttl

logger = logging.getLogger(__name__)

PASSES_MAX: Final = 1_000
"""A node looks through all of them whenever one of them, or a token, changes."""
SWEEP_MS: Final = 30_000
"""How often the node that coordinates removes what is left of passes that have ended."""
KEPT_MS: Final = 60_000
"""How long a task that comes late is told that its pass was not renewed."""
_SWEPT_MAX: Final = 64
_FRESH: Final = 5
"""A pass that has lost less than a fifth of its time is not written again."""
_ATTEMPTS: Final = 5


class PassActions:
    """One node's. All calls on the loop."""

    def __init__(self, loop: Loop, metastore: Metastore, tokens: Tokens) -> None:
        self._loop = loop
        self._metastore = metastore
        self._tokens = tokens
        self._closed = False
        self._loop.call_later(SWEEP_MS, self._sweep_again)

    @property
    def answers(self) -> Answers:
        """By name."""
        return {
            "pass.make": (MakePassAsk, self.make),
            "pass.renew": (MakePassAsk, self.renew),
            "pass.end": (EndPassAsk, self.end),
        }

    def close(self) -> None:
        """Sweep no more."""
        self._closed = True

    def _now_ms(self) -> int:
        self._tokens.see_time()
        return self._tokens.now_ms()

    # -- making and renewing ----------------------------------------------------------------------

    def make(self, asked: MakePassAsk) -> Future[PassReply]:
        """Accept the pass of a digest, from now on for its time."""
        return self._accept(asked, renews=False)

    def renew(self, asked: MakePassAsk) -> Future[PassReply]:
        """Accept the pass of a digest for its time from now on, if its record is still there."""
        return self._accept(asked, renews=True)

    def _accept(self, asked: MakePassAsk, *, renews: bool) -> Future[PassReply]:
        caller = current_caller()
        check_digest(asked.digest)
        check_pass_ttl(asked.ttl_ms)
        if asked.table < 1 or asked.right not in set(Right):
            raise Rejected(
                f"a pass can't be to {asked.right[:20]!r} table {asked.table}",
                hint=f"Give the id of a table, and one of: {', '.join(Right)}.",
            )
        if not caller.digest:
            return Future.of(PassReply(there=False))  # no token is asked for, so no pass is
        _check_maker(caller)
        record = Record(
            digest=asked.digest,
            role=PASS_ROLE,
            ttl_ms=asked.ttl_ms,
            by=caller.name,
            table=asked.table,
            right=asked.right,
            of=caller.digest,
        )
        whole: Future[PassReply] = Future()
        self._write(record, whole, renews=renews, attempts=_ATTEMPTS)
        return whole

    def _write(
        self, record: Record, whole: Future[PassReply], *, renews: bool, attempts: int
    ) -> None:
        key = pass_key(record.digest)
        wrote = attempts < _ATTEMPTS

        def found(future: Future[Entry | None]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            entry = future.result()
            token = None if entry is None else token_of(entry)
            if token is not None and not _same(token.record, record):
                whole.reject(
                    Rejected(
                        "there is another pass of this digest",
                        detail="Another token has made it, or it is for another table or right.",
                        hint="Draw another pass.",
                    )
                )
            elif token is not None and (wrote or self._fresh(token)):
                self._tell(whole, token)
            elif renews and entry is None:
                whole.resolve(PassReply(there=False))
            elif not attempts:
                whole.reject(Unavailable("the pass was changed again and again", hint="Retry."))
            else:
                write(0 if entry is None else entry.revision)

        def write(revision: int) -> None:
            now_ms = self._now_ms()
            in_force = [
                one
                for one in self._tokens.table.passes
                if self._tokens.table.pass_in_force(one, now_ms)
            ]
            if not revision and len(in_force) >= PASSES_MAX:
                whole.reject(PassesFull(PASSES_MAX))
                return
            if not revision and len(self._tokens.table.passes) >= 2 * PASSES_MAX:
                self._sweep()
            unchanged: Condition = Revision(key, Compare.EQ, revision)
            self._metastore.invoke_if(unchanged, [Put(key, record.encode())]).then(written)

        def written(future: Future[bool]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            else:  # read it, or what was faster
                self._write(record, whole, renews=renews, attempts=attempts - 1)

        self._metastore.get(key).then(found)

    def _fresh(self, token: Token) -> bool:
        ttl_ms = token.record.ttl_ms
        return self._now_ms() - token.written_ms < ttl_ms // _FRESH

    def _tell(self, whole: Future[PassReply], token: Token) -> None:
        """Answer when this node lets callers in by it."""
        reply = PassReply(there=True, expires_ms=token.expires_ms or 0)
        self._tokens.when_known(token.revision).then(lambda _: whole.resolve(reply))

    # -- ending -----------------------------------------------------------------------------------

    def end(self, asked: EndPassAsk) -> Future[PassReply]:
        """Refuse the pass from now on."""
        caller = current_caller()
        check_digest(asked.digest)
        if not caller.digest:
            return Future.of(PassReply(there=False))
        _check_maker(caller)
        key, whole = pass_key(asked.digest), Future[PassReply]()

        def found(future: Future[Entry | None]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            entry = future.result()
            token = None if entry is None else token_of(entry)
            if token is None or token.record.of != caller.digest:
                self._tell_gone(whole)  # it has ended, or is not its caller's
            else:
                gone = all_of(Revision(key, Compare.EQ, token.revision))
                self._metastore.invoke_if(gone, [Remove(key)]).then(removed)

        def removed(future: Future[bool]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            elif future.result():
                self._tell_gone(whole)
            else:  # it was renewed just now
                self._metastore.get(key).then(found)

        self._metastore.get(key).then(found)
        return whole

    def _tell_gone(self, whole: Future[PassReply]) -> None:
        """Answer when this node lets no caller in by it. One that does not hear of it in time
        (`UNHEARD_MS`) refuses all callers by then.
        """

        def read(future: Future[int]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            else:
                known = self._tokens.when_known(future.result())
                known.then(lambda _: whole.resolve(PassReply(there=False)))

        self._metastore.read(lambda state: state.latest).then(read)

    # -- what is left of them ---------------------------------------------------------------------

    def _sweep_again(self) -> None:
        if self._closed:
            return
        if self._tokens.asked and self._metastore.coordinates:
            self._sweep()
        self._loop.call_later(SWEEP_MS, self._sweep_again)

    def _sweep(self) -> None:
        """Remove records of passes that have ended; what was renewed meanwhile stays."""
        now_ms, table = self._now_ms(), self._tokens.table
        over = [one for one in table.passes if self._is_over(one, now_ms)]
        for one in over[:_SWEPT_MAX]:
            key = pass_key(one.record.digest)
            gone = Revision(key, Compare.EQ, one.revision)
            self._metastore.invoke_if(gone, [Remove(key)])

    def _is_over(self, one: Token, now_ms: int) -> bool:
        ended_ms = one.ended_ms(now_ms)
        if ended_ms is not None:
            return now_ms - ended_ms > KEPT_MS
        return not self._tokens.table.pass_in_force(one, now_ms)  # its token has ended


def _same(one: Record, other: Record) -> bool:
    """Whether two records are of one pass."""
    mine = one.digest, one.of, one.table, one.right
    return mine == (other.digest, other.of, other.table, other.right)


def _check_maker(caller: Caller) -> None:
    """A caller makes passes by the token of a client: not by a pass, and not as a node."""
    if caller.scope is not None:
        what = "other passes"
        raise BeyondPass(what, table=caller.scope.table, right=caller.scope.right)
    if caller.role != ADMIN_ROLE:
        raise Rejected(
            "only the token of a client makes passes",
            hint="Show a token that `lowmark token create` has made.",
        )
