"""The latest lineage of each group that was heard of, by a node or by a client.

A group that was reset by hand (`reset`) is another one to the members that it left behind. They
may be alive, and a majority: to a caller that has seen what the reset group has, they must not
answer any more. So callers remember the latest lineage that an answer told and say it with what
they ask next, and a copy of an earlier one refuses by name (`CopyOutdated`). Nodes that pass a
question on do the same. A caller that has seen no lineage can't tell, and is answered by the copy
that it reaches.

What a caller says binds its own calls alone: if nodes believed it for others, one client could have
a partition refuse all of them. Nodes believe their own copies, and other nodes.

A group that was never reset has lineage 0, and is not in here: mostly this is empty.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from lowmark.faces import deferred
from lowmark.group.errors import CopyOutdated

(LineageLeft,) = deferred("lowmark.raft.log_view", "LineageLeft")


class Lineages:
    """By the names of groups. May be used on any thread; what it knows never goes back."""

    __slots__ = ("_known", "_lock")

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self._known: Mapping[str, int] = dict(known or {})
        """Replaced, and never changed: it is looked at without the lock."""
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether any reset was heard of."""
        return bool(self._known)

    def of(self, group: str) -> int:
        """The latest of a group; 0: of no reset was heard."""
        return self._known.get(group, 0)

    def known(self, groups: Iterable[str] | None = None) -> dict[str, int]:
        """Of these groups, or of all, those that were reset."""
        known = self._known
        if not known:
            return {}
        return (
            dict(known) if groups is None else {one: known[one] for one in groups if one in known}
        )

    def beginning(self, prefix: str) -> dict[str, int]:
        """Of the groups whose names begin so."""
        return {one: at for one, at in self._known.items() if one.startswith(prefix)}

    def learn(self, said: Mapping[str, int]) -> bool:
        """Take note of what was told; whether anything of it was new."""
        if not any(at > self.of(one) for one, at in said.items()):
            return False
        with self._lock:
            newer = {one: at for one, at in said.items() if at > self.of(one)}
            self._known = {**self._known, **newer}
            return bool(newer)

    def serves(self, group: str, lineage: int, at_least: int = 0) -> bool:
        """Whether a copy of that lineage may answer, to a caller that has seen `at_least`. It is
        noted: whoever is answered has seen it.
        """
        if lineage > self.of(group):
            self.learn({group: lineage})
        return lineage >= max(self.of(group), at_least)

    def check(self, group: str, lineage: int, at_least: int = 0) -> None:
        """Refuse what a copy of that lineage may not answer."""
        if not self.serves(group, lineage, at_least):
            raise outdated(group, lineage, max(self.of(group), at_least))


def outdated(group: str, own: int, theirs: int) -> CopyOutdated:
    """Why a copy of an earlier lineage answers nothing."""
    return CopyOutdated(group, why=LineageLeft(own=own, theirs=theirs))
