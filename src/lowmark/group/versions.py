"""Versions of the machine: members tell the leader what they know; what all know comes into use.

An entry of the leader's says from where on a version is in use; so every copy changes at the same
index, and none is asked for what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lowmark.group import envelope
from lowmark.group.applier import Applier
from lowmark.group.wire import Knows
from lowmark.raft import NOBODY, ProposalDropped

if TYPE_CHECKING:
    from lowmark.group.group import Group


class Versions:
    """What this member has told of its own, and what others have told it."""

    def __init__(self, host: Group, applier: Applier) -> None:
        self._host = host
        self._applier = applier
        self._told_leader = (0, 0)
        self._told_at_ms = 0
        self._proposed = 0
        self.known: dict[int, int] = {}
        """The newest version that each member knows. Of use to a leader only."""

    # -- telling --------------------------------------------------------------------------------

    @property
    def told(self) -> bool:
        """Whether the leader of this term was told."""
        core = self._host.raft.core
        return self._told_leader == (core.leader, core.term)

    def tell(self) -> None:
        """Tell a leader what this member knows, and again now and then: a message may be lost."""
        core, now = self._host.raft.core, self._host.now_ms()
        if core.leader in {NOBODY, self._host.node}:
            return
        if self.told and now - self._told_at_ms < self._host.config.election_ms:
            return
        self._told_leader, self._told_at_ms = (core.leader, core.term), now
        self._send()

    def tell_now(self) -> None:
        """Tell it, whenever it was told before."""
        self._told_leader = (0, 0)
        self.tell()

    def _send(self) -> None:
        core, newest = self._host.raft.core, self._applier.machine.newest_version
        self._host.send(Knows(core.leader, self._host.node, core.term, newest))

    def ask_whether_it_lives(self) -> None:
        """The leader's node lives; does its copy? If not, the answer is `NotHere`."""
        self._send()

    # -- being told -----------------------------------------------------------------------------

    def elected(self) -> None:
        """This member leads from now on: it is told anew."""
        self.known = {self._host.node: self._applier.machine.newest_version}
        self._proposed = 0

    def heard(self, sender: int, item: Knows) -> None:
        """A member has told what it knows."""
        if not self._host.leads or item.term != self._host.raft.core.term:
            return
        self.known[sender] = item.version
        self.raise_if_all_know()

    def lost(self, node: int) -> None:
        """A node may come back as another release."""
        self.known.pop(node, None)

    def keep_only(self, members: Mapping[int, object]) -> None:
        """Others are no members any more."""
        for node in [node for node in self.known if node not in members]:
            del self.known[node]

    def raise_if_all_know(self) -> None:
        """Bring the newest version that all members know into use."""
        host = self._host
        if not host.ready:
            return
        common = min(self.known.get(node, 0) for node in [*host.raft.core.progress, host.node])
        if common > max(self._applier.version, self._proposed):
            try:
                host.raft.propose([envelope.seal_version(common)])
            except ProposalDropped:
                return  # members tell again
            self._proposed = common
            host.wake()
