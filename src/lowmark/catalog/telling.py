"""Tells listeners what became of the catalog: every entry of every version, in order.

A version is *ready* when all listeners have got it and are done. They get the next one only then,
so a slow listener delays readiness, and with it the callers that wait for it; versions can be read
as soon as they are known.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.entries import Entry
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.runtime import Loop

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """One entry of a version that was just made; without one, versions in between are unknown."""

    entry: Entry | None
    before: Catalog
    catalog: Catalog
    revision: int
    """Of the metastore: what caused it."""


Listener: TypeAlias = Callable[[CatalogEvent], Future[None] | None]


class Telling:
    """All listeners of a node's catalog, and how far they are."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._listeners: list[Listener] = []
        self._untold: deque[tuple[Catalog, list[CatalogEvent]]] = deque()
        self._under_way = False
        self._waiting: list[tuple[int, Future[Catalog]]] = []
        self._closed = False
        self.ready = 0
        """Up to this version, all listeners have got everything and are done."""

    def add(self, listener: Listener) -> None:
        """One more listener, for versions that come from now on."""
        self._listeners.append(listener)

    def start_at(self, version: int) -> None:
        """What is known by now is not told: it can be read."""
        self._untold.clear()
        self.ready = version

    def made(
        self, before: Catalog, catalog: Catalog, entries: tuple[Entry | None, ...], revision: int
    ) -> None:
        """A version is known."""
        events = [CatalogEvent(entry, before, catalog, revision) for entry in entries]
        self._untold.append((catalog, events))
        if not self._under_way:
            self._under_way = True
            self._loop.call_soon(self._next)

    def when_ready(self, version: int) -> Future[Catalog]:
        """When a version is ready; gives the one that made it so."""
        future: Future[Catalog] = Future()
        self._waiting.append((version, future))
        return future

    def give_up(self, future: Future[Catalog], error: LowmarkError) -> None:
        """One who waits has waited long enough."""
        self._waiting = [waits for waits in self._waiting if waits[1] is not future]
        future.reject(error)

    def reject(self, error: LowmarkError) -> None:
        """Give this error to all that wait for a version to be ready."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            future.reject(error.again())

    def close(self) -> None:
        """Tell nothing more."""
        self._closed = True

    def _next(self) -> None:
        if self._closed or not self._untold:
            self._under_way = False
            return
        catalog, events = self._untold.popleft()
        waits = [answer for event in events for answer in self._tell(event)]
        left = len(waits)

        def done(future: Future[None]) -> None:
            nonlocal left
            left -= 1
            if future.error is not None:
                _failed(catalog, future.error)
            if not left:
                self._told(catalog)

        if not waits:
            self._told(catalog)
        for one in waits:
            one.then(done)

    def _tell(self, event: CatalogEvent) -> list[Future[None]]:
        waits = []
        for listener in self._listeners:
            try:
                answer = listener(event)
            except LowmarkError as error:
                _failed(event.catalog, error)
            else:
                if answer is not None:
                    waits.append(answer)
        return waits

    def _told(self, catalog: Catalog) -> None:
        self.ready = catalog.version
        done = [future for version, future in self._waiting if version <= self.ready]
        self._waiting = [waits for waits in self._waiting if waits[0] > self.ready]
        for future in done:
            future.resolve(catalog)
        self._loop.call_soon(self._next)


def _failed(catalog: Catalog, error: LowmarkError) -> None:
    # The version is made, on every node: that a listener could not follow does not undo it.
    logger.error(
        "a listener failed",
        extra={"catalog_version": catalog.version, "reason": error.message},
    )
