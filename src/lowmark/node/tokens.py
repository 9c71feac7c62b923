"""The tokens of the cluster at one node: who may call, by what it has heard of the metastore.

The node follows the records (`lowmark.tokens`) as it follows all else, and keeps a table of them in
memory: a call is checked against that table, on the thread of the call, within microseconds. So a
revocation is in force at a node as soon as the node hears of it, which is at once.

A node that is cut off hears of nothing, and doesn't notice by itself. So a node that asks for
tokens asks the metastore every second whether it still knows everything: a linearizable read, for
which a majority is asked and nothing is written. What the last one of them showed counts for
`UNHEARD_MS` from when it was begun; then the node refuses (`TokensUnknown`), until one succeeds.
Its own clock measures only this time span, and which one does not matter: a process that was
stopped counts the time for which it was.

The time by which tokens expire is that of the last command that this node has applied, and what has
passed since then here. Each node's lease puts a time into the log every few seconds.

Calls between nodes show a secret of the node that asks. It is drawn when the node starts, is kept
in its memory, and its digest in the metastore: a node that was removed is let in no more, and the
directory of one lets in no one. A node writes its digest if it asks for tokens, or sees that
another one does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from lowmark.group import Future
from lowmark.metastore import Cluster, Compare, Event, Following, Put, Revision
from lowmark.metastore.nodes import node_key as member_key
from lowmark.metastore.watches import Entry
from lowmark.runtime import Loop, millis_of
from lowmark.tokens import (
    ACCESS_PREFIX,
    NODE_ROLE,
    Caller,
    PassEnded,
    Record,
    Secret,
    Table,
    Token,
    TokenMissing,
    TokensUnknown,
    TokenUnknown,
    drawn,
    node_key,
)

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000
"""So often a node that asks for tokens makes sure that it knows all of them."""
UNHEARD_MS: Final = 5_000
"""A node that has not heard the metastore for this long takes no tokens."""
_AGAIN_MS: Final = 300
_MOMENT_MS: Final = 5


def token_of(entry: Entry) -> Token | None:
    """A token from the metastore; None if a key has none that this release can read."""
    return Token.of(entry.key, entry.value, revision=entry.revision, time_ms=millis_of(entry.time))


class Tokens:
    """One node's. What is not marked otherwise is called on the loop."""

    def __init__(self, loop: Loop, cluster: Cluster, *, asked: bool) -> None:
        """`asked`: whether its callers must show one."""
        self.asked = asked
        self.own: Secret = drawn()
        """What this node shows to others."""
        self.table = Table()
        """As this node knows it. It is replaced, and never changes: any thread may look."""
        self._loop = loop
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._known: dict[bytes, Token] = {}
        self._time: tuple[int, int] = (0, 0)
        """The metastore's time, in milliseconds, and when this node saw it, by its own."""
        self._heard_us: int | None = None
        """When the last question was asked whose answer was that nothing is missing here."""
        self._on_changed: list[Callable[[], None]] = []
        self._following: Following | None = None
        self._writing = False
        self._warned = False
        self._closed = False

    def start(self) -> None:
        """Follow the metastore from now on, or as soon as there is a copy."""
        if self._metastore.has_copy:
            self._follow()
        else:
            self._cluster.ready.then(lambda _: self._follow())
        if self.asked:
            self._look()

    def ask(self) -> None:
        """Callers must show a token from now on: the database of this process is served."""
        if not self.asked:
            self.asked = True
            self._look()
            self._write_own()

    def close(self) -> None:
        """Follow it no more."""
        self._closed = True
        if self._following is not None:
            self._following.close()

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Have this called, on the loop, when a token is new, or not in force any more."""
        self._on_changed.append(callback)

    # -- who calls; on any thread -----------------------------------------------------------------

    def caller(self, bearer: str | None) -> Caller:
        """See `Callers`. By what this node last knew; if it can't know, it does not say that there
        is no such token.
        """
        if not bearer:
            raise TokenMissing
        try:
            return self.table.caller(bearer, self.now_ms())
        except (TokenUnknown, PassEnded) as refused:
            if isinstance(refused, TokenUnknown) or refused.unknown:
                self._check_heard()
            raise

    def check(self, caller: Caller, *, last_known: bool = False) -> None:
        """See `Callers`."""
        if not last_known:
            self._check_heard()
        self.table.caller_of(caller.digest, self.now_ms(), of_pass=caller.scope is not None)

    def _check_heard(self) -> None:
        """Raise if this node can't tell which tokens are in force."""
        heard_us = self._heard_us
        if heard_us is None:
            raise TokensUnknown(silent_s=None)
        silent_us = self._loop.elapsed_us() - heard_us
        if silent_us > UNHEARD_MS * 1_000:
            raise TokensUnknown(silent_s=silent_us / 1e6)

    def now_ms(self) -> int:
        """The metastore's time, as far as this node can tell."""
        time_ms, seen_us = self._time
        return time_ms + (self._loop.elapsed_us() - seen_us) // 1_000 if time_ms else 0

    # -- what the metastore says ------------------------------------------------------------------

    def _follow(self) -> None:
        if self._closed or not self._metastore.has_copy:
            return
        self._following = self._metastore.keep_watching(
            prefix=ACCESS_PREFIX,
            start=self._learn,
            on_event=self._changed,
            name="tokens",
        )

    def _learn(self) -> None:
        entries = self._metastore.range_local(ACCESS_PREFIX).entries
        self._known = {}
        for entry in entries:
            self._take(entry.key, entry)
        self._publish()

    def _changed(self, event: Event) -> None:
        for change in event.changes:
            self._take(change.key, change.entry)
        self._publish()

    def _take(self, key: bytes, entry: Entry | None) -> None:
        self._known.pop(key, None)
        token = None if entry is None else token_of(entry)
        if token is not None:
            self._known[key] = token

    def _publish(self) -> None:
        self.see_time()
        self.table = Table(self._known.values())
        for callback in self._on_changed:
            callback()
        self._write_own()

    def see_time(self) -> None:
        """Take note of the metastore's time, if it has gone on."""
        time_ms = millis_of(self._metastore.state.time)
        if time_ms != self._time[0]:
            self._time = time_ms, self._loop.elapsed_us()

    def _look(self) -> None:
        """Make sure that nothing is missing here: now, and again in a while."""
        if self._closed:
            return
        began_us = self._loop.elapsed_us()

        def answered(future: Future[int]) -> None:
            if future.error is None:
                self._confirm(future.result(), began_us)

        self._metastore.read(lambda state: state.latest).then(answered)
        # Whether it is answered or not: one that hangs says nothing about the next.
        self._loop.call_later(LOOK_MS, self._look)

    def when_known(self, revision: int) -> Future[bool]:
        """When the table here has what was written up to a revision, which was applied here; False
        if it does not come to that.
        """
        known, until_us = Future[bool](), self._loop.elapsed_us() + UNHEARD_MS * 1_000

        def look() -> None:
            watch = None if self._following is None else self._following.watch
            if watch is not None and watch.position > revision:
                known.resolve(True)
            elif self._closed or self._loop.elapsed_us() > until_us:
                known.resolve(False)
            else:
                self._loop.call_later(_MOMENT_MS, look)

        look()
        return known

    def _confirm(self, latest: int, began_us: int) -> None:
        """Everything up to a revision was applied here; wait until the table has it, too."""

        def known(future: Future[bool]) -> None:
            if future.result():
                self._has_heard(began_us)

        self.when_known(latest).then(known)

    def _has_heard(self, began_us: int) -> None:
        self.see_time()
        again = self._heard_us is not None and self._cluster.ready.done  # it was founded by now
        if again and not self._warned and self._cluster.node.endpoint:
            self._warned = True
            if all(one.of_node for one in self.table.tokens):
                logger.warning(
                    "this node asks for tokens, and the cluster has none: no client can call; stop"
                    " this node, and give `lowmark token reset --data DIR`"
                )
        self._heard_us = max(self._heard_us or 0, began_us)

    # -- what this node shows to others -----------------------------------------------------------

    def _write_own(self) -> None:
        """Have the metastore know what this node shows, if a node asks for tokens."""
        if self._cluster.node.endpoint == "" or self._writing or self._closed:
            return
        key, digest = node_key(self._cluster.node.number), self.own.digest()
        others = any(one.of_node for at, one in self._known.items() if at != key)
        mine = self._known.get(key)
        if not (self.asked or others) or (mine is not None and mine.record.digest == digest):
            return
        if not self._cluster.ready.done or self._cluster.ready.error is not None:
            self._later()
            return
        self._writing = True

        def written(future: Future[bool]) -> None:
            self._writing = False
            if future.error is not None:
                self._later()

        record = Record(digest=digest, role=NODE_ROLE)
        # One that was removed meanwhile stays out: its digest goes with what says that it belongs.
        member = Revision(member_key(self._cluster.node.number), Compare.GT, 0)
        self._metastore.invoke_if(member, [Put(key, record.encode())]).then(written)

    def _later(self) -> None:
        if not self._closed:
            self._loop.call_later(_AGAIN_MS, self._write_own)
