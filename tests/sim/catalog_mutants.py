"""The catalog with one thing wrong, on purpose: what its lives must be able to find.

Each mutant is a context manager; within it, every world that is made has the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lowmark.catalog import Catalog, Catalogs, Snapshot, catalogs, cutting
from lowmark.catalog.catalogs import _Request
from lowmark.catalog.history import Update
from lowmark.catalog.update_log import Parts, append, read_log, save_snapshot
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.metastore import Branch, Statement
from lowmark.metastore import Entry as StoredEntry
from sim.mutants import replaced

__all__ = ["CATALOG_MUTANTS"]


def _unconditional(write: Callable[..., Statement]) -> Callable[..., Statement]:
    def written(*parts: Any, **more: Any) -> Statement:
        statement = write(*parts, **more)
        assert isinstance(statement, Branch)
        return statement.then

    return written


def appends_unconditionally() -> AbstractContextManager[None]:
    return replaced(catalogs, "append", _unconditional(append))


def cuts_unconditionally() -> AbstractContextManager[None]:
    return replaced(cutting, "save_snapshot", _unconditional(save_snapshot))


def reads_parts_as_they_are_now() -> AbstractContextManager[None]:
    original = Catalogs._parts_at

    def parts_at(self: Catalogs, revision: int) -> Parts:
        del revision
        return original(self, self._metastore.state.latest)

    return replaced(Catalogs, "_parts_at", parts_at)


def ignores_its_token() -> AbstractContextManager[None]:
    original = Catalogs._made

    def made(self: Catalogs, value: Any, *more: Any) -> None:
        original(self, value, *more)
        if isinstance(value, Update) and value.token in self._tokens:
            self._tokens[value.token] = 0

    return replaced(Catalogs, "_made", made)


def looks_without_waiting() -> AbstractContextManager[None]:
    def at(self: Catalogs, time: int, *, timeout_ms: int | None = None) -> Future[Catalog]:
        del timeout_ms
        future: Future[Catalog] = Future()
        try:
            future.resolve(self.history.at(time))
        except LowmarkError as error:
            future.reject(error)
        return future

    return replaced(Catalogs, "at", at)


def takes_times_from_its_own_clock() -> AbstractContextManager[None]:
    original = Catalogs._take_all

    def take_all(self: Catalogs) -> None:
        def read(
            entries: Iterable[StoredEntry], **more: Any
        ) -> Iterator[tuple[Update | Snapshot, int]]:
            return ((value, self._clock.now()) for value, _ in read_log(entries, **more))

        with replaced(catalogs, "read_log", read):
            original(self)

    return replaced(Catalogs, "_take_all", take_all)


def answers_without_the_skew() -> AbstractContextManager[None]:
    original = Catalogs._when_in_force

    def when_in_force(self: Catalogs, catalog: Catalog) -> Future[None]:
        skew_ms, self._max_skew_ms = self._max_skew_ms, 0
        try:
            return original(self, catalog)
        finally:
            self._max_skew_ms = skew_ms

    return replaced(Catalogs, "_when_in_force", when_in_force)


def refuses_at_once() -> AbstractContextManager[None]:
    def finish_refused(
        self: Catalogs, request: _Request, catalog: Catalog, error: LowmarkError
    ) -> None:
        del self, catalog
        request.future.reject(error)

    return replaced(Catalogs, "_finish_refused", finish_refused)


def says_that_nothing_was_written() -> AbstractContextManager[None]:
    original = Catalogs._refuse

    def refuse(self: Catalogs, request: _Request, error: LowmarkError) -> None:
        request.unknown = False
        original(self, request, error)

    return replaced(Catalogs, "_refuse", refuse)


@contextmanager
def tells_a_jump_to_nobody() -> Iterator[None]:
    original = Catalogs._made

    def made(self: Catalogs, value: Any, before: Catalog, catalog: Catalog, revision: int) -> None:
        if not isinstance(value, Snapshot):
            original(self, value, before, catalog, revision)

    with replaced(Catalogs, "_made", made):
        yield


CATALOG_MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "appends unconditionally": appends_unconditionally,
    "cuts unconditionally": cuts_unconditionally,
    "reads parts as they are now": reads_parts_as_they_are_now,
    "ignores its token": ignores_its_token,
    "looks without waiting": looks_without_waiting,
    "takes times from its own clock": takes_times_from_its_own_clock,
    "answers without the skew": answers_without_the_skew,
    "refuses at once": refuses_at_once,
    "says that nothing was written": says_that_nothing_was_written,
    "tells a jump to nobody": tells_a_jump_to_nobody,
}
