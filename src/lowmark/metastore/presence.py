"""A node's own lease: it says that the node is up, and which revisions somebody here still needs.

It is renewed three times before it would run out. One that has run out can't be renewed: the node
takes a new one, and whatever it held meanwhile may be gone (watches are told so by themselves).
"""

from __future__ import annotations

from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.metastore.errors import LeaseOver, RevisionCompacted
from lowmark.metastore.nodes import lease_of
from lowmark.metastore.state import LeaseAnswer
from lowmark.metastore.store import Metastore
from lowmark.runtime import Runtime


class Presence:
    """Keeps this node's lease."""

    def __init__(self, runtime: Runtime, metastore: Metastore) -> None:
        self._loop = runtime.loop
        self._metastore = metastore
        self._name = lease_of(metastore.node)
        self._holder = 0
        self._ttl_ms = metastore.config.lease_ms
        self._asking = False
        self._waiting: list[Future[LeaseAnswer]] = []
        self._first_left = 0
        """Revisions before this one are gone, whoever at this node still waits for them."""
        self._closed = True
        self.expires_at = 0
        """Until when this node may count on its lease."""
        self.error: LowmarkError | None = None
        """Why it could not be taken or renewed the last time."""

    def start(self) -> None:
        """Be there from now on."""
        self._closed = False
        self._metastore.renew_holds = self.renew
        self._every()

    def stop(self, *, release: bool) -> Future[None]:
        """Renew it no more; give it back, if there is time for that."""
        self._closed = True
        done: Future[None] = Future()
        if not release or not self._holder:
            done.resolve(None)
            return done
        released = self._metastore.release_lease(self._name, holder=self._holder)
        released.then(lambda _: done.resolve(None))
        return done

    def renew(self) -> Future[LeaseAnswer]:
        """Renew it now, with what is needed now."""
        future: Future[LeaseAnswer] = Future()
        self._waiting.append(future)
        if not self._asking:
            self._ask()
        return future

    def _every(self) -> None:
        if self._closed:
            return
        self._loop.call_later(self._ttl_ms / 3, self._every)
        if not self._asking:
            self._ask()

    def _ask(self) -> None:
        if self._closed:
            self._answer(LeaseOver(self._name))
            return
        self._asking = True
        waiting, self._waiting = self._waiting, []
        hold = max(self._metastore.needed_from(), self._first_left)
        if self._holder:
            asked = self._metastore.renew_lease(self._name, holder=self._holder, hold=hold)
        else:
            # The same for every process of this node: there is never more than one, and what the
            # one before it held is not needed any more.
            self._holder = self._metastore.node
            asked = self._metastore.take_lease(
                self._name,
                holder=self._holder,
                ttl_ms=self._ttl_ms,
                hold=hold,
                why="this node is up, and some of its watchers and readers are there",
            )
        asked.then(lambda future: self._asked(waiting, future))

    def _asked(self, waiting: list[Future[LeaseAnswer]], future: Future[LeaseAnswer]) -> None:
        self._asking = False
        self.error = error = future.error
        if isinstance(error, LeaseOver):
            self._holder = 0
        if isinstance(error, RevisionCompacted):
            # This node was away, or is behind. It is up all the same; who waits here for what is
            # gone is told by itself.
            self._first_left = error.first_left
        if isinstance(error, LeaseOver | RevisionCompacted):
            self._waiting = waiting + self._waiting
            self._ask()
            return
        if error is None:
            self.expires_at = future.result().expires_at
        for one in waiting:
            if error is None:
                one.resolve(future.result())
            else:
                one.reject(error.again())
        if self._waiting and not self._asking:
            self._ask()

    def _answer(self, error: LowmarkError) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.reject(error.again())
