"""Has a damaged copy of the metastore made anew, where the others are sound without it.

A node whose copy fails a checksum serves nothing, and its vote is missing. Nothing in it is lost to
the cluster as long as another member leads with a majority, for the copy is in no majority:

    1. the nodes that this one knows are asked who leads; the one that does reads the members from
       a state that a majority has confirmed, and this node is one of them
    2. that the copy is to be thrown away is written and synced, and the process ends: all that is
       built on the metastore begins anew with the next one (`cluster`, renew)

Without such a leader the copy stays as it is, and the nodes are asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group import Future, Groups, Reply
from lowmark.metastore.store import Metastore
from lowmark.runtime import Buffer, Loop

logger = logging.getLogger(__name__)

ASK_MS: Final = 3_000
RETRY_MS: Final = 2_000
SAY_EVERY: Final = 30
"""So many rounds of asking in vain pass between two words of it in the log."""


class _Members(msgspec.Struct, frozen=True, array_like=True):
    """Whom the leader knows as members; without a word of a majority, no one."""

    nodes: tuple[int, ...] = ()
    lineage: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Members).decode


class Reseeding:
    """One node's part: asks for itself, and answers if it leads. All calls on the loop."""

    def __init__(
        self,
        loop: Loop,
        groups: Groups,
        metastore: Metastore,
        *,
        nodes: Callable[[], Iterable[int]],
        can_go: Callable[[], None],
        service: str,
    ) -> None:
        self._loop = loop
        self._calls = groups.calls
        self._node = groups.node
        self._metastore = metastore
        self._nodes = nodes
        self._can_go = can_go
        self.asking = False
        """Whether the copy here is damaged, and no leader has said yet that it can go."""
        self._rounds = 0
        self._closed = False
        self._service = service

    def close(self) -> None:
        """Ask no more."""
        self._closed = True

    # -- the node of the copy ---------------------------------------------------------------------

    def begin(self) -> None:
        """The copy here is damaged: ask until it can go."""
        if not self.asking:
            self.asking = True
            self._loop.call_soon(self._ask_all)

    def ask_again(self) -> None:
        """It could go, but not yet."""
        if not self._closed:
            self._ask_all()

    def _ask_all(self) -> None:
        left = sorted({*self._nodes()} - {self._node})
        if self._rounds % SAY_EVERY == 0:
            logger.warning("the copy of the metastore is damaged: the others are asked for another")
        self._rounds += 1

        def ask() -> None:
            if self._closed:
                return
            if not left:
                self._loop.call_later(RETRY_MS, self._ask_all)
                return
            asked = self._calls.ask(left.pop(0), self._service, b"", timeout_ms=ASK_MS)
            asked.then(answered)

        def answered(future: Future[bytes]) -> None:
            try:
                said = _decode(future.result())
            except (LowmarkError, msgspec.MsgspecError):
                said = _Members()
            # An earlier lineage is another group, which a reset has left behind: it has not all
            # that this one acknowledged.
            if self._node in said.nodes and said.lineage >= self._lineage() and not self._closed:
                self._can_go()
            else:
                ask()

        ask()

    def _lineage(self) -> int:
        return self._metastore.group.status().lineage if self._metastore.has_copy else 0

    # -- a node that may lead ---------------------------------------------------------------------

    def asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        """Who belongs to the metastore's group?"""
        del address, sender, question
        group = self._metastore.group if self._metastore.has_copy else None
        if group is None or group.stopped is not None or not group.ready:
            answer(_encode(_Members()))
            return

        def confirmed(future: Future[object]) -> None:
            members = group.members()
            certain = future.error is None and group.ready and not members.joint
            nodes = tuple(sorted(members.everybody)) if certain else ()
            answer(_encode(_Members(nodes, group.status().lineage)))

        group.read(lambda _: None).then(confirmed)
