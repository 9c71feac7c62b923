"""For how long nodes are up or down, counted on by one coordinator where the one before was.

    zone.waiting    {"nodes":{"4":{"up":false,"revision":57,"ms":35000}}}

Zones wait for nodes that come and go (`baseline`). The coordinator counts by its own time, which
only grows, and while a zone waits it notes every few seconds how far it is. The next coordinator
goes on from the note, so a change of coordinator costs a few seconds of the wait and not all of it.

Only time that a coordinator has counted is in the note: neither a clock that jumps nor an hour in
which the whole cluster was off counts. A node's entry names the revision of `node.<number>`, which
is written whenever the node comes: a note of what was before that is of no use, and is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import msgspec

from lowmark.errors import Corrupt
from lowmark.metastore import Metastore
from lowmark.metastore.nodes import node_key
from lowmark.runtime import Buffer, Loop

WAITING_KEY: Final = b"zone.waiting"
NOTE_MS: Final = 5_000
"""A zone that waits is noted this often."""


class WaitedFor(msgspec.Struct, frozen=True):
    """For how long a node is up or down."""

    up: bool
    revision: int
    """Of what the metastore says of the node: written when it comes."""
    ms: int


class WaitingValue(msgspec.Struct, frozen=True):
    """What coordinators have counted."""

    nodes: dict[int, WaitedFor]
    """By number."""

    def encode(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self)


def decode_waiting(value: Buffer) -> WaitingValue:
    """As it stands in the metastore."""
    try:
        return msgspec.json.decode(value, type=WaitingValue)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"how long zones have waited can't be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Since:
    up: bool
    revision: int
    ms: int
    """By this loop's time."""


class Waiting:
    """One node's part. All calls are made on the loop."""

    def __init__(self, loop: Loop, metastore: Metastore) -> None:
        self._loop = loop
        self._metastore = metastore
        self._since: dict[int, _Since] = {}
        self._noted: Mapping[int, WaitedFor] = {}
        """What the coordinator before has counted."""
        self._noted_at_ms: int | None = None

    def elected(self) -> None:
        """Go on from where the coordinator before was."""
        entry = self._metastore.get_local(WAITING_KEY)
        self._since = {}
        self._noted = {} if entry is None else decode_waiting(entry.value).nodes
        self._noted_at_ms = None

    def ages(self, nodes: Iterable[int], up: AbstractSet[int]) -> dict[int, int]:
        """For how long each of these nodes is up or down, in milliseconds."""
        now_ms = self._now_ms()
        self._since = {node: self._since_when(node, node in up) for node in nodes}
        return {node: now_ms - since.ms for node, since in self._since.items()}

    def _since_when(self, node: int, up: bool) -> _Since:
        found = self._metastore.state.find(node_key(node))
        what = up, 0 if found is None else found.record.revision
        before, noted = self._since.get(node), self._noted.get(node)
        if before is not None:
            if (before.up, before.revision) == what:
                return before
            noted = None  # it has come or gone since this node was elected
        counted_ms = noted.ms if noted is not None and (noted.up, noted.revision) == what else 0
        return _Since(*what, self._now_ms() - counted_ms)

    def note(self, *, waits: bool, settled: AbstractSet[int]) -> None:
        """Note how far this node, the coordinator, has counted, if a zone waits; but for nodes that
        no zone waits for.
        """
        now_ms = self._now_ms()
        if not waits:
            if self._metastore.get_local(WAITING_KEY) is not None:
                self._metastore.remove(WAITING_KEY)
        elif self._noted_at_ms is None or now_ms - self._noted_at_ms >= NOTE_MS:
            self._noted_at_ms = now_ms
            nodes = {
                node: WaitedFor(since.up, since.revision, now_ms - since.ms)
                for node, since in self._since.items()
                if not (since.up and node in settled)
            }
            self._metastore.put(WAITING_KEY, WaitingValue(nodes).encode())

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000
