"""From which time on a copy of a partition may need the catalog again: what it has *published*.

A copy that starts anew replays its log from its snapshot. What it replays may belong to
transactions that began long ago, and each of those has the catalog of its beginning. So a copy
publishes a begin minimum t, which says: whatever this copy will ever replay or apply from now on
belongs to transactions that began at t or later.

What holds
    1. A begin minimum is *noted* together with an index: no entry behind that index belongs to a
       transaction that began earlier. It is *published* when the copy's snapshot covers that index.
       A log has one snapshot once the next one counts, so there is no older one that recovery could
       fall back to. Nothing is published that a crash could take back.
    2. It is noted in one of three ways:
       - by an entry (`Begin`), which the leader proposes. Every copy notes it when it is applied.
         Snapshots have the last ones, so a copy that starts anew knows them again.
       - without an entry, by the only voter of a partition: all that there is stands in its log.
       - without an entry, by the leader of a group that rests. All that is committed stands in its
         log, and no more than that; but it may have been replaced, and not know yet. So it notes
         what it heard an election timeout before, if it still rests at the same index in the same
         term: then no other leader had been elected when it heard it. The timeout is counted in
         ticks of its node, as the silence of other nodes is: a clock may be faster than those.
       What a leader has noted without an entry holds for the log, so for every copy: it gives its
       word to the other members, and they note it, too. A member that rests can't know it by
       itself. Its leader may have handed over to a member that can't reach it, and it rests on.
    3. What is published never falls in one life of a copy. After a start it may be what the
       snapshot says, which is earlier, until the next round.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.group import Group
from lowmark.table.state import Begun, State

_NOTHING = Begun(0, 0)


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a leader heard while its group rested."""

    term: int
    begun: Begun
    tick: int


class Publication:
    """What one copy has noted and published. All calls are made on the loop."""

    def __init__(self) -> None:
        self._covered = _NOTHING
        """The last one that a snapshot covered."""
        self._noted = _NOTHING
        """The last one that was noted without an entry."""
        self._heard: _Heard | None = None

    def noted(self, state: State) -> Begun:
        """The latest that was noted, in either way."""
        last = state.begins[-1] if state.begins else _NOTHING
        return max(last, self._noted, key=lambda begun: begun.time)

    def published(self, state: State, snapshot_index: int) -> int:
        """The begin minimum that is published; 0: none yet."""
        for one in (*state.begins, self._noted):
            if one.place <= snapshot_index and one.time > self._covered.time:
                self._covered = one
        return self._covered.time

    def heard(self, begin: int, group: Group) -> bool:
        """A begin minimum came by; True if it needs no entry to be noted, now or in a while."""
        last = group.last_index()
        even = group.stopped is None and group.applied == last
        if even and group.alone and group.ready:
            self.told(Begun(last, begin))
            return True
        rests = even and group.resting.resting
        if not rests or not group.ready:
            self._heard = None
            return rests
        before = self._heard
        if before is None or (before.term, before.begun.place) != (group.term, last):
            self._heard = _Heard(group.term, Begun(last, begin), group.ticks)
        elif group.ticks - before.tick > group.config.election_ticks:
            self.told(before.begun)
            self._heard = _Heard(group.term, Begun(last, begin), group.ticks)
        return True

    @property
    def word(self) -> Begun:
        """What was noted last without an entry; a leader gives its word for it."""
        return self._noted

    def told(self, begun: Begun) -> None:
        """Note what holds for the log, by the word of its leader."""
        if begun.time > self._noted.time:
            self._noted = begun
