"""Remembers, over any crash, that this node gave up a copy of a group.

A copy that acknowledged and voted, and then is thrown away, must not come back as if nothing had
been: it would vote again without what it had acknowledged. So before its files go, a note says
which incarnation is lost; whoever makes a copy of that group here later, for whatever reason, finds
it, and that copy is silent until its node was added to the group again.

    1. `rejoin/<group>` is written and synced   the copy is still there; nothing has changed
    2. the copy is deleted                      a crash before it is gone leaves it as it was
    3. a new copy is made, with a record that   a crash before the record is durable leaves a copy
       has the lost incarnation                 without one, which is never opened, only made anew
    4. the note goes                            the record says the same
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lowmark.group.storage import GroupMeta
from lowmark.group.wire import Rejoin
from lowmark.log import files
from lowmark.log.files import Note, read_note, write_note
from lowmark.runtime import Disk

if TYPE_CHECKING:
    from lowmark.group.group import Group


FOLDER = files.REJOIN


class Lost(Note, frozen=True, kw_only=True):
    """Which copy was thrown away."""

    incarnation: int
    ask: tuple[int, ...]
    """The nodes that a new copy asks to be added again."""
    lineage: int = 0
    in_doubt: bool = False
    """Whether it may have had another incarnation, or lineage: see `doubts`."""


def note_lost(
    disk: Disk,
    group: str,
    *,
    incarnation: int,
    ask: tuple[int, ...],
    lineage: int = 0,
    in_doubt: bool = False,
) -> None:
    """The copy of a group that has this incarnation, in this lineage, will be thrown away."""
    if disk.stat(FOLDER) is None:
        disk.make_dir(FOLDER)
        disk.sync_dir("")
    known = lost_copy(disk, group)
    if known is not None and known.lineage >= lineage:
        # In an earlier lineage a new copy is not heard any more, whatever was promised there.
        most = max(incarnation, known.incarnation)
        incarnation = most if known.lineage == lineage else known.incarnation
        lineage = known.lineage
    if known is not None:
        in_doubt = in_doubt or known.in_doubt  # of which lineage it was is in doubt as well
    path = f"{FOLDER}/{group}"
    aside = f"{FOLDER}/~{group}"  # no group has such a name
    if disk.stat(aside) is not None:
        disk.unlink(aside)
    note = Lost(incarnation=incarnation, ask=ask, lineage=lineage, in_doubt=in_doubt)
    write_note(disk, aside, note)
    disk.rename(aside, path)
    disk.sync_dir(FOLDER)


def lost_copy(disk: Disk, group: str) -> Lost | None:
    """Which copy of a group is lost here, if one is."""
    path = f"{FOLDER}/{group}"
    return None if disk.stat(path) is None else read_note(disk, path, Lost)


def forget_lost(disk: Disk, group: str) -> None:
    """Something else remembers it now."""
    path = f"{FOLDER}/{group}"
    if disk.stat(path) is not None:
        disk.unlink(path)
        disk.sync_dir(FOLDER)


class Rejoining:
    """A copy in place of a lost one asks to be added again; the leader that hears it does so."""

    def __init__(self, host: Group, meta: GroupMeta, *, replace: Callable[[int], bool]) -> None:
        self._host = host
        self._replace = replace
        self.renew(meta)

    def renew(self, meta: GroupMeta) -> None:
        """The record says something else."""
        self._ask = () if meta.in_doubt else meta.ask  # it does not know yet what to ask for
        self.above = meta.rejoin_above
        """The incarnation that was lost here, if any."""
        self._lineage = meta.rejoin_lineage

    @property
    def waits(self) -> bool:
        """Whether this copy has not been added again yet."""
        return self._host.raft.core.mute

    @property
    def asks(self) -> bool:
        """Whether it asks to be, and says nothing else."""
        return bool(self._ask) and self.waits

    def is_lost(self, incarnation: int) -> bool:
        """Whether what is for this incarnation of the node is for the copy that was lost."""
        return self._host.raft.core.lineage <= self._lineage and incarnation <= self.above

    def ask(self) -> None:
        """Ask all that may be members, as long as it has to be."""
        if not self.waits:
            return
        for node in self._ask:
            if node != self._host.node:
                self._host.send(Rejoin(node, self._host.node, self.above))

    def asked(self, sender: int, item: Rejoin) -> None:
        """Another node has lost its copy."""
        core = self._host.raft.core
        if not self._host.ready or sender not in core.progress:
            return
        if core.members.incarnation(sender) <= item.incarnation:
            self._replace(sender)
