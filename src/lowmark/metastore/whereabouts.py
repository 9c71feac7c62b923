"""Where members of the cluster say that they are, until the metastore says so.

A node that comes back at another address tells the leader, who writes it down, and all others learn
it from there. If so many have moved at once that there is no leader, the metastore can't be
written: then members take each other's word for it, elect a leader by that, and each has its own
address written down.

    no leader is known    a node goes by the word of a member
    a leader is known     it takes no new word to go by; what it has counts for `keep_ms` after it
                          was said last, time enough for the leader to write it
    the metastore says    another address of that member than when the word was given: the word goes

A node that is not where the metastore has it repeats its word all the time, so none is missed.
What the leader hears it does not go by; but it shows that the address in the metastore is free for
another node: two nodes may have changed places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lowmark.metastore.nodes import NodeInfo


@dataclass(frozen=True, slots=True)
class _Word:
    address: str
    instead_of: str
    """What the metastore said then."""
    at_ms: int
    counts: bool
    """Whether this node goes by it."""


class Whereabouts:
    """The last word of each member, as far as it still counts."""

    def __init__(self, *, now_ms: Callable[[], int], keep_ms: int) -> None:
        self._now_ms = now_ms
        self._keep_ms = keep_ms
        self._words: dict[int, _Word] = {}

    def said(self, member: NodeInfo, address: str, *, led: bool) -> bool:
        """A member says that it is there; whether that is news to go by."""
        before = self._words.get(member.number)
        counts = not led or (before is not None and before.counts and before.address == address)
        word = _Word(address, member.address, self._now_ms(), counts)
        self._words[member.number] = word
        return counts and (before is None or replace(before, at_ms=word.at_ms) != word)

    def settle(self, members: Mapping[int, NodeInfo], *, led: bool) -> None:
        """Forget what the metastore knows better, or what was said long ago."""
        since_ms = self._now_ms() - self._keep_ms
        self._words = {
            number: word
            for number, word in self._words.items()
            if number in members
            and members[number].address == word.instead_of
            and not (led and word.at_ms < since_ms)
        }

    def to_go_by(self) -> dict[int, str]:
        """Where members are that this node takes at their word."""
        return {number: word.address for number, word in self._words.items() if word.counts}

    def is_elsewhere(self, member: NodeInfo) -> bool:
        """Whether a member says that it is not where the metastore has it."""
        word = self._words.get(member.number)
        return word is not None and word.address != member.address
