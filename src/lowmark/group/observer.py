"""Who hears what becomes of a copy, and decides nothing."""

from __future__ import annotations

from typing import Protocol

from lowmark.errors import LowmarkError


class Observer(Protocol):
    """Called on the loop, after the copy has changed; it may ask the copy anything."""

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
