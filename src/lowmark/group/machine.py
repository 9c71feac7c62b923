"""What a state machine must be able to do to live in a group.

`apply` is pure and deterministic: no clock, no chance, no float that could differ, no loop over an
unordered set. The leader stamps the time. An index once dead never lives again; `live_indexes` is
equal on all members at equal index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.runtime import Buffer


class Machine(Protocol):
    """A deterministic state machine.

    A machine begins empty, at version 1.
    """

    @property
    def newest_version(self) -> int:
        """The newest version that this code knows; it knows all older ones, too."""

    def apply(self, index: int, time: int, command: Buffer) -> object:
        """Carry a command out; give its result. What it refuses is a result, not an exception.

        The command's buffer may be part of a larger one: keep the index, or a copy, not a view.
        """

    def may_use_reserve(self, command: Buffer) -> bool:
        """Whether a command is taken though the disk is full: it frees space, or needs little.

        It is asked before the command is applied, perhaps, and must not depend on the state.
        """

    def moved(self, old: int, new: int) -> None:
        """The entry at `old` was copied to `new`: whoever is live at `old` is live at `new` now.

        It may have died meanwhile; then the copy is dead, too.
        """

    def upgrade(self, version: int) -> None:
        """Every member knows this version: behave like it from here on."""

    def live_indexes(self) -> BitMap64:
        """The indexes whose entries must stay readable, up to the last one applied."""

    def snapshot(self) -> Iterable[Buffer]:
        """The state as it is now, in chunks. They are taken later: it must not change meanwhile."""

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        """Become what a snapshot says, whatever was before."""

    def read(self, query: object) -> object:
        """Answer a question; changes nothing."""


class Observer(Protocol):
    """Hears what becomes of a copy, and decides nothing.

    Called on the loop, after the copy has changed; it may ask the copy anything.
    """

    def on_applied(self) -> None:
        """The machine has applied more commands."""

    def on_restored(self) -> None:
        """The machine was replaced by a snapshot: what was between was not applied one by one."""

    def on_leader_changed(self, leader: int, term: int) -> None:
        """Another node leads, or (0) nobody does, as far as this member knows; or in another term.

        Told whenever the two are not those that were told last.
        """

    def on_stopped(self, error: LowmarkError) -> None:
        """This copy goes no further."""


class SilentObserver:
    """For those who only ask."""

    def on_applied(self) -> None:
        """Nothing to do."""

    def on_restored(self) -> None:
        """Nothing to do."""

    def on_leader_changed(self, leader: int, term: int) -> None:
        """Nothing to do."""

    def on_stopped(self, error: LowmarkError) -> None:
        """Nothing to do."""
